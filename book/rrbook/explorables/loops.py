"""Chapter 06's explorable: how far a stream grows when the same blocks write to it again."""

import math

from . import kit

# ε of L blocks passed N times, by the scale's name
SCALES = {"one": "1", "root": "1/√(NL)", "passes": "1/N", "both": "1/(N√L)"}


def loop_numbers(blocks: int, passes: int, cosine: float, scale: str) -> dict:
    """rms of the stream after each block of the unrolled network, under the toy assumption.

    Embedding and updates have variance 1 in every channel. Updates of one block in two passes have
    the cosine c, all others are independent. After m passes the writes of one block have a squared
    length of q(m) = m + m(m − 1)c per channel, so that after p whole passes and b blocks more
      rms² = 1 + ε²·(b·q(p + 1) + (L − b)·q(p)),
    and after N passes rms² = 1 + ε²·L·(N + N(N − 1)c). Returns `epsilon`, `rms` (L·N + 1 numbers)
    and `last`, the last rms under each scale.
    """
    epsilons = {
        "one": 1.0,
        "root": 1 / math.sqrt(passes * blocks),
        "passes": 1 / passes,
        "both": 1 / (passes * math.sqrt(blocks)),
    }

    def rms(after: int, name: str) -> float:
        whole, more = divmod(after, blocks)
        full, next_ = (m + m * (m - 1) * cosine for m in (whole, whole + 1))
        return math.sqrt(1 + epsilons[name] ** 2 * (more * next_ + (blocks - more) * full))

    depth = blocks * passes
    return {
        "epsilon": epsilons[scale],
        "rms": [rms(after, scale) for after in range(depth + 1)],
        "last": {name: rms(depth, name) for name in SCALES},
    }


def loop_sentence(blocks: int, passes: int, cosine: float, scale: str) -> str:
    """The result in words."""
    found = loop_numbers(blocks, passes, cosine, scale)
    what = f"{passes} {'pass' if passes == 1 else 'passes'}"
    what += f" of {blocks} {'block' if blocks == 1 else 'blocks'}"
    rest = [
        f"{kit.number(found['last'][name])} with {words}"
        for name, words in SCALES.items()
        if name != scale
    ]
    value = "" if scale == "one" else f" = {kit.number(found['epsilon'])}"
    return (
        f"{what}, updates of a block in two passes at cosine {kit.number(cosine)}, ε = "
        f"{SCALES[scale]}{value}: the stream ends at "
        f"{kit.number(found['last'][scale])} times the embedding’s rms. It would end at "
        f"{', '.join(rest)}."
    )


def loop_growth(
    blocks: int = 4, passes: int = 16, cosine: float = 0.8, scale: str = "passes"
) -> kit.Explorable:
    """Explorable: the stream's rms along an unrolled, looped network under four scales.

    `blocks` (1 to 16), `passes` (1 to 64), `cosine` (0 to 1) and `scale` ("one", "root", "passes",
    "both") are where it starts.
    """
    said = loop_sentence(blocks, passes, cosine, scale)
    return kit.explorable(
        "loop-growth",
        script="loops.js",
        title="How far does a looped stream grow?",
        lead="The same blocks write again and again. How much they agree with themselves decides.",
        controls=[
            kit.slider("passes", "passes N", 1, 64, 1, passes),
            kit.slider("blocks", "unique blocks L", 1, 16, 1, blocks),
            kit.slider("cosine", "cosine of a block’s updates in two passes", 0, 1, 0.05, cosine),
            kit.choice(
                "scale",
                "scale ε on every update",
                {name: f"ε = {words}" for name, words in SCALES.items()},
                scale,
            ),
        ],
        picture="Logarithmic curves: the rms of the stream after each block, under four scales, "
        "the chosen one thick",
        said=said,
        note="Toy: embedding and updates have variance 1 in every channel; a block’s updates in "
        "two passes have the cosine c, all others are independent. After N passes "
        "rms² = 1 + ε²·L·(N + N(N − 1)c). Cosine 0 is an untied network of L·N blocks. Thin: the "
        "three other scales.",
    )
