"""Chapter 02's explorable: the gate by hand, in two channels, so that vectors are arrows."""

from . import kit


def gate_playground() -> kit.Explorable:
    """Explorable: one gated write as arrows, against the same gate in convex form."""
    return kit.explorable(
        "gate-playground",
        script="gate.js",
        shared=["arrows.js"],
        title="One gated write, in two channels",
        lead="The gate r scales the update u channel by channel before it is added to h.",
        controls=[
            kit.slider("angle", "angle of u against h", -180, 180, 5, 110, "°"),
            kit.slider("size", "size of u", 0, 1.5, 0.1, 1.2),
            kit.radios(
                "rule",
                "gate",
                {
                    "standard": "none, r = 1",
                    "constant": "constant, r = ½",
                    "state": "reads the state",
                    "review": "reads state and update (review)",
                },
                "review",
            ),
            kit.slider("state", "state weight", -4, 4, 0.5, 0),
            kit.slider("update", "update weight", -4, 4, 0.5, 2),
            kit.slider("bias", "bias", -4, 4, 0.5, 0),
        ],
        picture="Arrows from the origin: h, the gated result h + r⊙u, and the convex form; "
        "from the tip of h: u and r⊙u. Two meters show r in each channel",
        note="r<sub>i</sub> = σ(w<sub>h</sub>·rms(h)<sub>i</sub> + w<sub>u</sub>·rms(u)<sub>i"
        "</sub> + b). In this toy the gate’s matrix is diagonal with the same weights in both "
        "channels; the real one, d × 2d, lets every channel listen to every other. Dashed amber: u "
        "before the gate. Dashed red, for contrast: a convex gate, (1 − r)⊙h + r⊙u, which gives up "
        "as much of h as it lets in of u (chapter 3).",
    )
