"""Chapter 03's explorable: how much of the embedding is left, by formula, beside recorded runs."""

import math
from collections.abc import Sequence

from rr.errors import RRError

from . import kit

FIELDS = ("rule", "sublayers", "bias", "seed", "held_out", "steps", "loss")


def _checked(data: Sequence[dict]) -> list[dict]:
    """Recorded runs with only the fields that are drawn, losses to a thousandth of a nat."""
    rows = []
    for number, row in enumerate(data):
        missing = [name for name in FIELDS if name not in row]
        if missing:
            raise RRError(f"recorded run {number} has no {', '.join(missing)}")
        steps, loss = list(row["steps"]), [round(float(value), 3) for value in row["loss"]]
        if len(steps) != len(loss) or not loss:
            raise RRError(f"recorded run {number} has {len(steps)} steps and {len(loss)} losses")
        if not all(map(math.isfinite, loss)):
            raise RRError(f"recorded run {number} has losses that are not finite: cut it there")
        rows.append({name: row[name] for name in FIELDS[:5]} | {"steps": steps, "loss": loss})
    return rows


def depth_cliff(data: Sequence[dict], sublayers: int = 32) -> kit.Explorable:
    """Explorable: the embedding's part of the last state by depth and gate bias.

    `data` are recorded runs: dicts with `rule` (a name), `sublayers`, `bias` (the gate's, at the
    start), `seed`, `held_out` (loss at the end), `steps` (list, counted from 0) and `loss` (list,
    of training, nats per token); the curves nearest to the chosen depth and bias are drawn beside
    the formula.
    `sublayers` (4 to 64) is where it starts. Raises RRError where a recorded run is not whole.
    """
    return kit.explorable(
        "depth-cliff",
        script="cliff.js",
        title="What is left of the embedding?",
        lead="The same gate, written two ways, as the network grows deeper. Beside it, the "
        "recorded training runs nearest to that depth.",
        controls=[
            kit.slider("sublayers", "sublayers", 4, 64, 2, sublayers),
            kit.slider("bias", "gate bias b, with r = σ(b)", -4, 0, 0.25, 0),
        ],
        picture="Logarithmic curves over depth: the embedding’s part of the last state, convex "
        "and additive; beside them, recorded loss curves",
        note="Formula: independent embedding and updates with variance 1 in every channel. Solid: "
        "length of what is left of h₀ over the length of h<sub>l</sub>; dashed: the direct path, "
        "(1 − r)<sup>l</sup> convex and 1 additive. Neither is the gradient: that also flows "
        "through the updates. Recorded: losses of real training runs, not the formula.",
        data=_checked(data),
    )
