"""Checks of chapter 16, numerics."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import torch

import rr
from rrbook.numerics import Change

from . import check, exercise


@exercise(
    "ex-16-steps",
    ask="set `answer` to one number, in nats per token",
    nudge="neighbours are 2^(e − p) apart: which e has a number between 1 and 2?",
)
def _steps(answer: float) -> bool:
    here = torch.tensor(1.5).bfloat16()
    above = (here.view(torch.int16) + 1).view(torch.bfloat16)
    return answer == (above - here).item()


@exercise(
    "ex-16-sum",
    ask="write `total`",
    nudge="the result must be a np.float32 with at most a tenth of the loop's error",
)
def _sum(answer: Callable[[np.ndarray], np.float32]) -> bool:
    parts = np.random.default_rng(0).random(2**16).astype(np.float32)
    total = answer(parts)
    exact = parts.astype(np.float64).sum()
    loop, mine = abs(np.cumsum(parts)[-1] - exact), abs(float(total) - exact)
    return total.dtype == np.float32 and mine <= loop / 10


@exercise(
    "ex-16-pairs",
    ask="set `answer` to a factor",
    nudge="it is a ratio of two variances",
)
def _pairs(answer: float, seeds: pd.DataFrame) -> bool:
    unpaired = seeds.review.var() + seeds.standard.var()
    return abs(answer / (unpaired / (seeds.review - seeds.standard).var()) - 1) < 0.01


@exercise(
    "ex-16-same",
    ask="set `answer` to a Change",
    nudge="either it is in the table, or the bits are others",
)
def _same(answer: Change, bits: Callable[[Change], str], plain: str) -> bool:
    known = [Change(), Change(threads=2), Change("eager:precision=tf32"), Change(attention="flash")]
    return answer not in known and bits(answer) == plain


@exercise(
    "ex-16-keys",
    ask="set `answer` to a parameter's name and a slice of it",
    nudge="in float64 this gradient is not a millionth of what it is in fp32",
)
def _keys(answer: tuple[str, slice], rung: str, stream: np.ndarray) -> bool:
    sizes, ids = [], torch.from_numpy(stream[: 8 * 32 + 1].astype(np.int64) % 1024)
    for dtype in (torch.float32, torch.float64):
        model = rr.model.initialise(rr.Model(rr.plan(rung).model), 0).to(dtype)
        model(ids[:-1].view(8, 32), ids[1:].view(8, 32)).backward()
        slope = model.get_parameter(answer[0]).grad
        assert slope is not None
        sizes.append(slope[answer[1]].norm().item())
    return sizes[1] < 1e-6 * sizes[0]
