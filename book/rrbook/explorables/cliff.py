"""Chapter 03's explorable: how much of the embedding is left, by formula, beside recorded runs."""

import math
from collections.abc import Sequence

from rr.config import RRError

from . import kit

FIELDS = ("rule", "sublayers", "bias", "seed", "steps", "loss")


def cliff_numbers(sublayers: int, bias: float) -> dict:
    """What is left of the embedding after `sublayers` writes with a gate r = σ(bias).

    Toy: embedding and updates are independent, with variance 1 in every channel. The *direct* path
    (skipping every sublayer) keeps ∏(1 − r) = (1 − r)^l of h₀ in the convex form and all of it in
    the additive one. The embedding's share is that part's length over the whole state's,
    ‖direct·h₀‖/‖h_l‖:
      convex (1 − r)^l / √((1 − r)^{2l} + r² Σ_{k<l} (1 − r)^{2k}),  additive 1/√(1 + r²l).
    Neither is the total Jacobian, which also runs through the updates. Returns `r`, and for each
    of `convex` and `additive` a dict of `direct` and `share`.
    """
    r = 1 / (1 + math.exp(-bias))
    direct = (1 - r) ** sublayers
    written = sum((1 - r) ** (2 * k) for k in range(sublayers))
    return {
        "r": r,
        "convex": {"direct": direct, "share": direct / math.sqrt(direct**2 + r * r * written)},
        "additive": {"direct": 1.0, "share": 1 / math.sqrt(1 + r * r * sublayers)},
    }


def _nearest(values: Sequence[float], wanted: float) -> float:
    return min(values, key=lambda value: abs(value - wanted))


def recorded_near(data: Sequence[dict], sublayers: int, bias: float) -> dict:
    """The recorded runs nearest to a depth and, for each rule, to a bias.

    Ties go to the smaller depth and to the bias nearer 0. Returns `depth` and `arms`, a list of
    `rule, bias, runs, steps` (the last recorded step) and `loss` (nats, the seeds' mean there).
    """
    depth = _nearest(sorted({row["sublayers"] for row in data}), sublayers)
    here = [row for row in data if row["sublayers"] == depth]
    arms = []
    for rule in dict.fromkeys(row["rule"] for row in here):
        mine = [row for row in here if row["rule"] == rule]
        at = _nearest(sorted({row["bias"] for row in mine}, reverse=True), bias)
        runs = [row for row in mine if row["bias"] == at]
        loss = sum(row["loss"][-1] for row in runs) / len(runs)
        steps = max(row["steps"][-1] for row in runs)
        arms.append({"rule": rule, "bias": at, "runs": runs, "steps": steps, "loss": loss})
    return {"depth": depth, "arms": arms}


def cliff_sentence(sublayers: int, bias: float, data: Sequence[dict] | None = None) -> str:
    """The result in words."""
    found = cliff_numbers(sublayers, bias)
    text = (
        f"By formula, with r = {kit.number(found['r'])} and {sublayers} sublayers: the convex "
        f"form’s direct path keeps {kit.number(found['convex']['direct'])} of the embedding, "
        f"which is {kit.number(found['convex']['share'])} of the last state’s length; the "
        f"additive form keeps all of it, {kit.number(found['additive']['share'])} of the length."
    )
    if not data:
        return text
    near = recorded_near(data, sublayers, bias)
    arms = []
    for arm in near["arms"]:
        biased = f" (b = {kit.number(arm['bias'])})" if arm["bias"] else ""
        arms.append(f"{arm['rule']}{biased} {kit.number(arm['loss'])}")
    steps = _range([arm["steps"] for arm in near["arms"]])
    seeds = _range([len(arm["runs"]) for arm in near["arms"]])
    return (
        f"{text}\nRecorded at {near['depth']} sublayers: {', '.join(arms)} nats per token after "
        f"{steps} steps, mean of {seeds} {'seed' if seeds == '1' else 'seeds'}."
    )


def _range(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"


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
        rows.append({name: row[name] for name in FIELDS[:4]} | {"steps": steps, "loss": loss})
    return rows


def depth_cliff(
    data: Sequence[dict] | None = None, sublayers: int = 32, bias: float = 0.0
) -> kit.Explorable:
    """Explorable: the embedding's part of the last state by depth and gate bias.

    `data`, if given, are recorded runs: dicts with `rule` (a name), `sublayers`, `bias` (the
    gate's, at the start), `seed`, `steps` (list) and `loss` (list, nats per token); the curves
    nearest to the chosen depth and bias are drawn beside the formula. `sublayers` (4 to 64) and
    `bias` (−4 to 0) are where it starts. Raises RRError where a recorded run is not whole.
    """
    rows = _checked(data) if data else None
    said = cliff_sentence(sublayers, bias, rows)
    recorded = " Beside it, the recorded training runs nearest to that depth." if rows else ""
    return kit.explorable(
        "depth-cliff",
        script="cliff.js",
        title="What is left of the embedding?",
        lead=f"The same gate, written two ways, as the network grows deeper.{recorded}",
        controls=[
            kit.slider("sublayers", "sublayers", 4, 64, 2, sublayers),
            kit.slider("bias", "gate bias b, with r = σ(b)", -4, 0, 0.25, bias),
        ],
        picture="Logarithmic curves over depth: the embedding’s part of the last state, convex "
        "and additive" + ("; beside them, recorded loss curves" if rows else ""),
        said=said,
        note="Formula: independent embedding and updates with variance 1 in every channel. Solid: "
        "length of what is left of h₀ over the length of h<sub>l</sub>; dashed: the direct path, "
        "(1 − r)<sup>l</sup> convex and 1 additive. Neither is the gradient: that also flows "
        "through the updates."
        + (" Recorded: losses of real training runs, not the formula." if rows else ""),
        data=rows,
    )
