"""The front page's explorable: one gated write beside h + u and h + ½u, with vectors to drag."""

from . import kit

START = {"u1": 1.8, "u2": 1.1, "r1": 0.9, "r2": 0.25}


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
        note="The box holds everything that a gate between 0 and 1 can write; a constant stays on "
        "the dashed arrow. Real states have hundreds of channels.",
    )
