"""Chapter 02's explorable: the gate by hand, in two channels, so that vectors are arrows."""

import math
from typing import Any

from . import kit

STATE = (1.2, 0.9)  # length 1.5
START = {"angle": 110, "size": 1.2, "rule": "review", "state": 0.0, "update": 2.0, "bias": 0.0}


def _rms_normed(v: tuple[float, float]) -> tuple[float, float]:
    rms = math.sqrt((v[0] ** 2 + v[1] ** 2) / 2 + 1e-5)
    return v[0] / rms, v[1] / rms


def gate_numbers(
    angle: float, size: float, rule: str, state: float, update: float, bias: float
) -> dict[str, tuple[float, float]]:
    """One gated write in two channels, for h = (1.2, 0.9).

    u has length `size` and stands `angle` degrees to the left of h. The gate's matrix is diagonal
    and equal in both channels: r_i = σ(state·rms(h)_i + update·rms(u)_i + bias), where
    rms(x) = x/√(mean(x²) + 1e-5). rule: "standard" (r = 1), "constant" (W = 0, b = 0: r = ½),
    "state" (does not see u) or "review". Returns `u`, `r`, `step` (r ⊙ u), `next` (h + r ⊙ u) and
    `convex` ((1 − r) ⊙ h + r ⊙ u).
    """
    turn = math.atan2(STATE[1], STATE[0]) + angle * math.pi / 180
    u = size * math.cos(turn), size * math.sin(turn)
    seen = zip(_rms_normed(STATE), _rms_normed(u), strict=True)
    if rule in ("standard", "constant"):
        r = (1.0, 1.0) if rule == "standard" else (0.5, 0.5)
    else:
        weight = update if rule == "review" else 0.0
        first, second = (1 / (1 + math.exp(-(state * h + weight * v + bias))) for h, v in seen)
        r = first, second
    step = r[0] * u[0], r[1] * u[1]
    following = STATE[0] + step[0], STATE[1] + step[1]
    convex = (1 - r[0]) * STATE[0] + step[0], (1 - r[1]) * STATE[1] + step[1]
    return {"u": u, "r": r, "step": step, "next": following, "convex": convex}


def gate_sentence(**values: Any) -> str:
    """The result in words; takes the arguments of `gate_numbers`."""
    found = gate_numbers(**values)
    why = {
        "standard": "The standard rule has no gate: r = 1 in both channels.",
        "constant": "With W = 0 and b = 0 the gate lets half of everything in: "
        "r = 0.5 in both channels.",
        "state": "The gate reads only the state, so turning u leaves it alone: r = ",
        "review": "The gate reads state and update, each rms-normalised: r = ",
    }[values["rule"]]
    if values["rule"] in ("state", "review"):
        first, second = map(kit.number, found["r"])
        why += f"{first} in channel 1 and {second} in channel 2."
    following, convex = (kit.number(math.hypot(*found[k])) for k in ("next", "convex"))
    return (
        f"{why} The state has length 1.5, the new one {following}; "
        f"the convex form would give {convex}."
    )


def gate_playground() -> kit.Explorable:
    """Explorable: one gated write as arrows, against the same gate in convex form."""
    said = gate_sentence(**START)
    return kit.explorable(
        "gate-playground",
        script="gate.js",
        shared=["arrows.js"],
        title="One gated write, in two channels",
        lead="The gate r scales the proposed update u channel by channel before it is added to h.",
        controls=[
            kit.slider("angle", "angle of u against h", -180, 180, 5, START["angle"], "°"),
            kit.slider("size", "size of u", 0, 1.5, 0.1, START["size"]),
            kit.radios(
                "rule",
                "gate",
                {
                    "standard": "none, r = 1",
                    "constant": "constant, r = ½",
                    "state": "reads the state",
                    "review": "reads state and update (review)",
                },
                START["rule"],
            ),
            kit.slider("state", "state weight", -4, 4, 0.5, START["state"]),
            kit.slider("update", "update weight", -4, 4, 0.5, START["update"]),
            kit.slider("bias", "bias", -4, 4, 0.5, START["bias"]),
        ],
        picture="Arrows from the origin: h, the gated result h + r⊙u, and the convex form; "
        "from the tip of h: u and r⊙u. Two meters show r in each channel",
        said=said,
        note="r<sub>i</sub> = σ(w<sub>h</sub>·rms(h)<sub>i</sub> + w<sub>u</sub>·rms(u)<sub>i"
        "</sub> + b). In this toy the gate’s matrix is diagonal with the same weights in both "
        "channels; the real one, d × 2d, lets every channel listen to every other. Dashed: u "
        "before the gate, and (1 − r)⊙h + r⊙u.",
    )
