"""The front page's explorable: one gated write beside h + u and h + ½u, with vectors to drag."""

import math

from . import kit

STATE = (2.2, 0.6)
START = {"u1": 1.8, "u2": 1.1, "r1": 0.9, "r2": 0.25}


def write_numbers(u1: float, u2: float, r1: float, r2: float) -> dict:
    """The write r ⊙ u for h = (2.2, 0.6).

    Returns `next` (h + r ⊙ u), `turn` (the angle between u and r ⊙ u, degrees) and `kept`
    (‖r ⊙ u‖/‖u‖; 0 where u is 0).
    """
    step, size = (r1 * u1, r2 * u2), math.hypot(u1, u2)
    cross, dot = u1 * step[1] - u2 * step[0], u1 * step[0] + u2 * step[1]
    return {
        "next": (STATE[0] + step[0], STATE[1] + step[1]),
        "turn": math.degrees(abs(math.atan2(cross, dot))),
        "kept": math.hypot(*step) / size if size else 0.0,
    }


def write_sentence(u1: float, u2: float, r1: float, r2: float) -> str:
    """The result in words."""
    found = write_numbers(u1, u2, r1, r2)
    if not (u1 or u2):
        return "The sublayer proposes nothing, so every rule leaves h as it is."
    if not found["kept"]:
        return "The gate is closed where the update has anything: h stays as it is."
    if r1 == r2:
        return (
            "One r for both channels keeps the update’s direction and writes "
            f"{kit.share(found['kept'])} of its length. h + u is r = 1, h + ½u is r = ½."
        )
    return (
        f"r is {kit.number(r1)} in channel 1 and {kit.number(r2)} in channel 2: the update is "
        f"written at {kit.share(found['kept'])} of its length and turned by "
        f"{kit.number(found['turn'])}°. A constant never turns it."
    )


def gated_write() -> kit.Explorable:
    """Explorable: an update and a gate to drag, h + r⊙u beside h + ½u and h + u."""
    return kit.explorable(
        "gated-write",
        script="write.js",
        shared=["arrows.js"],
        title="What may an update change?",
        lead="Drag a ring, or move a slider. The gate r decides, channel by channel, how much of "
        "the update u is added to the state h.",
        controls=[
            kit.slider("r1", "gate r in channel 1", 0, 1, 0.05, START["r1"]),
            kit.slider("r2", "gate r in channel 2", 0, 1, 0.05, START["r2"]),
            kit.slider("u1", "update u in channel 1", -2, 2, 0.1, START["u1"]),
            kit.slider("u2", "update u in channel 2", -1.2, 1.2, 0.1, START["u2"]),
        ],
        picture="Arrows from the origin: h and the gated result h + r⊙u; from the tip of h: u, "
        "with h + ½u and h + u on it, and r⊙u. A box shows all that a gate can write",
        said=write_sentence(**START),
        note="The box holds everything that a gate between 0 and 1 can write; a constant stays on "
        "the dashed arrow. Real states have hundreds of channels.",
    )
