"""Chapter 01's explorable: who is left in the stream after l sublayers?"""

from . import kit


def stream_share(sublayers: int = 16, rule: str = "sum") -> kit.Explorable:
    """Explorable: each write's share of the stream's variance, by depth and write rule.

    `sublayers` (2 to 64) and `rule` ("sum", "half", "convex") are where it starts.
    """
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
        picture="Stacked columns: how much of the vector each write holds, by sublayer; below, "
        "its size",
        note="Toy: embedding and updates are independent and equally large, and how much of the "
        "vector a write holds is its part of the squared length. "
        "With h<sub>l</sub> = c·h<sub>l−1</sub> + w·u<sub>l</sub>, "
        "write k holds w²c<sup>2(S−k)</sup> of "
        "c<sup>2S</sup> + w²(1 + c² + … + c<sup>2(S−1)</sup>) after S sublayers. The older a "
        "write, the stronger its colour.",
    )
