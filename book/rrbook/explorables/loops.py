"""Chapter 06's explorable: how far a stream grows when the same blocks write to it again."""

from . import kit

# ε of L blocks passed N times, by the scale's name
SCALES = {"one": "1", "root": "1/√(NL)", "passes": "1/N", "both": "1/(N√L)"}


def loop_growth(scale: str = "passes") -> kit.Explorable:
    """Explorable: the stream's rms along an unrolled, looped network under four scales.

    `scale` ("one", "root", "passes" or "both") is where it starts.
    """
    return kit.explorable(
        "loop-growth",
        script="loops.js",
        title="How far does a looped stream grow?",
        lead="The same blocks write again and again. How much they agree with themselves decides.",
        controls=[
            kit.slider("passes", "passes N", 1, 64, 1, 16),
            kit.slider("blocks", "unique blocks L", 1, 16, 1, 4),
            kit.slider("cosine", "cosine of a block’s updates in two passes", 0, 1, 0.05, 0.8),
            kit.choice(
                "scale",
                "scale ε on every update",
                {name: f"ε = {words}" for name, words in SCALES.items()},
                scale,
            ),
        ],
        picture="Logarithmic curves: the rms of the stream after each block, under four scales, "
        "the chosen one thick",
        note="Toy: embedding and updates have variance 1 in every channel; a block’s updates in "
        "two passes have the cosine c, all others are independent. After N passes "
        "rms² = 1 + ε²·L·(N + N(N − 1)c). Cosine 0 is an untied network of L·N blocks. Thin: the "
        "three other scales.",
    )
