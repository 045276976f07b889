"""Checks of chapter 13, inside the gate."""

from collections.abc import Callable, Mapping, Sequence

import pandas as pd
import torch

import rr

from . import check, exercise


@exercise(
    "ex-13-nearest",
    ask="set `answer` to a sublayer, counted from 1",
    nudge="another sublayer has a larger share between channels",
)
def _nearest(answer: int, shares: Sequence[Mapping[str, float]]) -> bool:
    return answer == 1 + max(range(len(shares)), key=lambda i: shares[i]["channel"])


@exercise(
    "ex-13-decides",
    ask="write the function `Decide`",
    nudge="1 where the trained gate is above one half, 0 elsewhere",
)
def _decides(answer: Callable, model: rr.Model) -> bool:
    h, u = torch.randn(2, 2, 5, model.config.d_model)
    with torch.no_grad():
        r, own = answer(model.rules[1], h, u), model.rules[1].gate(h, u)
    return bool((r == (own > 0.5)).all())


@exercise(
    "ex-13-mechanical",
    ask="set `answer` to a pair of correlations",
    nudge="is r uniform, is w = 1 + 0.5 · normal, and do the signs fit?",
)
def _mechanical(answer: tuple[float, float]) -> bool:
    source = torch.Generator().manual_seed(1)
    r = torch.rand(100_000, generator=source)
    w = 1 + torch.randn(len(r), generator=source) / 2
    drawn = pd.DataFrame({"held": 1 - r, "saved": r * w, "w": w}, dtype=float)
    _, saved, worth = drawn.corr("spearman").to_numpy()[0].tolist()  # with held itself: 1
    near = 0.08  # above three standard errors of 2,000 draws
    return abs(answer[0] - saved) < near and abs(answer[1] - worth) < near


@exercise(
    "ex-13-chooses",
    ask="set `answer` to a sublayer, counted from 1",
    nudge="another sublayer's choosing is worth more",
)
def _chooses(answer: int, records: Sequence[Mapping]) -> bool:
    worth = [
        sum(sublayer["choice"][0] for sublayer in same)
        for same in zip(*(run["sublayers"] for run in records), strict=True)
    ]
    return answer == 1 + max(range(len(worth)), key=worth.__getitem__)
