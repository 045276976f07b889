"""Chapter 01's explorable: who is left in the stream after l sublayers?"""

import math

from . import kit

# what a write rule keeps of the state and lets in of the update: h ← carry·h + write·u
RULES = {
    "sum": (1.0, 1.0, "h + u"),
    "half": (1.0, 0.5, "h + u/2"),
    "convex": (0.5, 0.5, "(h + u)/2"),
}


def stream_numbers(sublayers: int, rule: str) -> dict[str, list[float]]:
    """Shares of the last state's variance, and the stream's rms, under the toy assumption.

    Embedding and updates are independent, with mean 0 and variance 1 in each channel (a pre-norm
    sublayer's update does not depend on the size of the stream). With h_l = c·h_{l−1} + w·u_l,
    write k holds w²c^{2(S−k)} of Var h_S = c^{2S} + w² Σ_{k<S} c^{2k}. Returns `shares` (the
    embedding's, then each write's: S + 1 numbers that sum to 1) and `rms` after 0 … S sublayers.
    """
    carry, write, _ = RULES[rule]
    rms, variance = [1.0], 1.0
    for _ in range(sublayers):
        variance = carry**2 * variance + write**2
        rms.append(math.sqrt(variance))
    parts = [carry ** (2 * sublayers)]
    parts += [write**2 * carry ** (2 * (sublayers - k)) for k in range(1, sublayers + 1)]
    return {"rms": rms, "shares": [part / variance for part in parts]}


def stream_sentence(sublayers: int, rule: str) -> str:
    """The result in words."""
    found = stream_numbers(sublayers, rule)
    first, last = found["shares"][0], found["shares"][-1]
    held = f"{kit.share(first)} of the variance"
    if rule == "sum":
        held = f"1/{sublayers + 1} of the variance ({kit.share(first)})"
    size = kit.number(found["rms"][-1])
    grown = f". The stream has grown to {size} times the embedding’s rms."
    rest = {
        "sum": f", exactly as much as every write{grown}",
        "half": f", four times as much as any single write{grown}",
        "convex": f"; the last write alone holds {kit.share(last)}. "
        f"The stream has settled at {size} times the embedding’s rms.",
    }[rule]
    return f"After {sublayers} sublayers under {RULES[rule][2]} the embedding holds {held}{rest}"


def stream_share(sublayers: int = 16, rule: str = "sum") -> kit.Explorable:
    """Explorable: each write's share of the stream's variance, by depth and write rule.

    `sublayers` (2 to 64) and `rule` ("sum", "half", "convex") are where it starts.
    """
    said = stream_sentence(sublayers, rule)
    return kit.explorable(
        "stream-share",
        script="stream.js",
        title="Who is left in the stream?",
        lead="Each column is the state after one more sublayer, split into what put it there.",
        controls=[
            kit.slider("sublayers", "sublayers", 2, 64, 1, sublayers),
            kit.choice(
                "rule",
                "how an update u is written",
                {
                    "sum": "h + u",
                    "half": "h + u/2 (constant ½)",
                    "convex": "(h + u)/2 (convex)",
                },
                rule,
            ),
        ],
        picture="Stacked columns: share of the variance by sublayer; below, the rms of the stream",
        said=said,
        note="Toy: embedding and updates are independent with variance 1 in every channel. "
        "With h<sub>l</sub> = c·h<sub>l−1</sub> + w·u<sub>l</sub>, "
        "write k holds w²c<sup>2(S−k)</sup> of the variance "
        "c<sup>2S</sup> + w²(1 + c² + … + c<sup>2(S−1)</sup>) after S sublayers. The older a "
        "write, the stronger its colour.",
    )
