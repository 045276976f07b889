"""Checks of chapter 15, a rule of your own."""

from collections.abc import Callable

import torch

from rr import Model, Rule, residual
from rr.analysis import rule_checks
from rrstudy import stats

from . import check, exercise


@exercise(
    "ex-15-bound",
    ask="set `answer` to a function of k and S",
    nudge="how much longer can one write make the stream, at most?",
)
def _bound(answer: Callable[[float, int], float]) -> bool:
    return all(abs(answer(k, n) / (1 + k) ** n - 1) < 1e-3 for k, n in ((0.5, 6), (1, 16)))


def _registered(rule: type, name: str, kind: str = "residual") -> bool:
    return residual.REGISTRY[kind].get(name) is rule


@exercise(
    "ex-15-depth",
    ask="register a class as `fading` and set `answer` to it",
    nudge="rule_checks.check('fading') says what is wrong, or the fourth sublayer writes no half",
)
def _depth(answer: type[Rule], fresh: Callable[[str], Model]) -> bool:
    if not _registered(answer, "fading") or any(rule_checks.check("fading").values()):
        return False
    h, u = torch.randn(2, 2, 5, 64, generator=torch.Generator().manual_seed(0)).unbind()
    return torch.allclose(fresh("fading").rules[3].write(h, u), h + u / 2)


@exercise(
    "ex-15-values",
    ask="register a value rule as `fading` and set `answer` to it",
    nudge="the third block mixes one third and two thirds, and two graphs are enough",
)
def _values(answer: type) -> bool:
    if not _registered(answer, "fading", "values"):
        return False
    rules = [layer.attn.rule for layer in rule_checks.model_of("standard", "fading").layers]
    first, own = torch.randn(2, 2, 3, 4, generator=torch.Generator().manual_seed(0)).unbind()
    if not torch.allclose(rules[2].values(own, first)[0], first / 3 + own * 2 / 3):
        return False
    graphs, same = rule_checks.graphs("standard", "fading")  # block 1 carries nothing: two graphs
    return same and graphs == 2


@exercise(
    "ex-15-second",
    ask="register `late-limiter` and set `answer` to the number of seeds",
    nudge="is the first block free and the last one limited? stats.seeds_needed has the number",
)
def _second(answer: int, fresh: Callable[[str], Model], pair: float) -> bool:
    if "late-limiter" not in residual.RULES:
        return False
    h, u = torch.randn(2, 2, 5, 64, generator=torch.Generator().manual_seed(0)).unbind()
    first, *_, last = fresh("late-limiter").rules
    free = torch.allclose(first.write(h, 9 * u), h + 9 * u)
    return bool(
        free and (last.gate(h, 9 * u) <= 0.5).all() and answer == stats.seeds_needed(0.05, pair)
    )
