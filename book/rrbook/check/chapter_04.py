"""Checks of chapter 4, the field guide."""

from collections.abc import Callable

import torch

import rr
from rrbook.anatomy import anatomy

from . import check, exercise


@exercise(
    "ex-04-third",
    ask="set `answer` to the bias",
    nudge="a network with this bias starts with another coefficient",
)
def _third(answer: float) -> bool:
    return abs(anatomy(f"review:bias={float(answer)}")["coefficient"] - 1 / 3) < 1e-3


@exercise(
    "ex-04-name",
    ask='set `answer` to a text, "review:…"',
    nudge="look at what the gate reads, how many numbers it gives, and where it starts",
)
def _name(answer: str) -> bool:
    facts = anatomy(answer)
    reads = facts["gate"] == {"update": "normalised"} and facts["channels"] == "one"
    return reads and 0.11 < (facts["coefficient"] or 0) < 0.13


@exercise(
    "ex-04-learns",
    ask="write the class",
    nudge="it must hold one number beside the norm's gain, which starts at 1/2 and multiplies u",
)
def _learns(answer: type[rr.Rule]) -> bool:
    model = rr.Model(rr.plan("nano:d_model=32,n_layer=2,n_head=2", "standard").model)
    mine = answer(model.rules[0].site, model.config)
    mine.reset(lambda tensor, std: None)
    h, u = torch.randn(2, 1, 3, 32)
    own = [p for name, p in mine.named_parameters() if name != "gain"]  # the norm's gain aside
    if sum(p.numel() for p in own) != 1 or not torch.allclose(mine.write(h, u), h + u / 2):
        return False
    own[0].data.fill_(1 / 4)  # as if learned
    return torch.allclose(mine.write(h, u), h + u / 4)


@exercise(
    "ex-04-loud",
    ask="set `factor` to a number",
    nudge="the two starts still differ by more than a hundredth",
)
def _loud(answer: float, fresh: Callable[[str], rr.Model], ids: torch.Tensor) -> bool:
    outputs = {}
    for rule in ("standard", "attnres"):
        model = fresh(rule).requires_grad_(False)
        model.token.weight.mul_(answer)
        model.position.weight.mul_(answer)
        outputs[rule] = model(ids)
    gap = (outputs["attnres"] - outputs["standard"]).pow(2).mean().sqrt() / outputs[
        "standard"
    ].std()
    return gap.item() < 0.01
