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
    nudge="rule_checks.check('fading') says what is wrong, or a sublayer writes another share",
)
def _depth(answer: type[Rule], fresh: Callable[[str], Model]) -> bool:
    if not _registered(answer, "fading") or any(rule_checks.check("fading").values()):
        return False
    h, u = torch.randn(2, 2, 5, 64, generator=torch.Generator().manual_seed(0)).unbind()
    rules = fresh("fading").rules
    return all(
        torch.allclose(rule.write(h, u), h + u / number**0.5, atol=1e-5)
        for number, rule in enumerate(rules, start=1)
    )


@exercise(
    "ex-15-values",
    ask="register a value rule as `fading` and set `answer` to it",
    nudge="block n, from the second on, mixes 1/n and 1 − 1/n, and two graphs are enough",
)
def _values(answer: type) -> bool:
    if not _registered(answer, "fading", "values"):
        return False
    rules = [layer.attn.rule for layer in rule_checks.model_of("standard", "fading").layers]
    first, own = torch.randn(2, 2, 3, 4, generator=torch.Generator().manual_seed(0)).unbind()
    for n, rule in enumerate(rules[1:], start=2):
        mixed = first / n + own * (1 - 1 / n)
        if not torch.allclose(rule.values(own, first)[0], mixed, atol=1e-5):
            return False
    graphs, same = rule_checks.graphs("standard", "fading")  # block 1 carries nothing: two graphs
    return same and graphs == 2


@exercise(
    "ex-15-second",
    ask="register `late-limiter` and set `answer` to the number of seeds",
    nudge="are both writes of block 1 free, and all later ones limited? stats.seeds_needed counts",
)
def _second(answer: int, fresh: Callable[[str], Model], pair: float) -> bool:
    if "late-limiter" not in residual.RULES:
        return False
    h, u = torch.randn(2, 2, 5, 64, generator=torch.Generator().manual_seed(0)).unbind()
    writes = [rule.write(h, 9 * u) - h for rule in fresh("late-limiter").rules]
    free = all(torch.allclose(write, 9 * u, atol=1e-5) for write in writes[:2])
    limited = all((write.norm(dim=-1) <= (9 * u).norm(dim=-1) / 2).all() for write in writes[2:])
    return free and limited and answer == stats.seeds_needed(0.05, pair)
