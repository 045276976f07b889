"""Chapter 07's explorable: which earlier writes does a sublayer read, and in what proportion?"""

from . import kit


def depth_attention(sublayers: int = 8, size: str = "2", tilt: float = 0.0) -> kit.Explorable:
    """Explorable: what each sublayer reads of all earlier writes under depth attention.

    `sublayers` (4 to 24, in fours), `size` ("1", "2", "4" or "all") and `tilt` (−6 to 6) are where
    it starts.
    """
    return kit.explorable(
        "depth-attention",
        script="looking.js",
        title="Who reads what?",
        lead="Each row is a reader, each column an earlier write; the stronger its colour, "
        "the larger the write’s share of what is read.",
        controls=[
            kit.slider("tilt", "tilt: − embedding, + recent", -6, 6, 0.5, tilt),
            kit.slider("sublayers", "sublayers", 4, 24, 4, sublayers),
            kit.choice(
                "size",
                "sublayers per block",
                {
                    "1": "1 (full)",
                    "2": "2",
                    "4": "4",
                    "all": "all (one block)",
                },
                size,
            ),
            kit.checks("", {"seeded": "the bug: each block’s sum begins with the embedding"}, ()),
        ],
        picture="A triangle of cells: rows are readers, columns the writes that they read",
        note="Toy: embedding and updates are independent with variance 1 in every channel. Source "
        "i of k (from 0) has the logit tilt·i/(k − 1); a block’s writes are one source, so that "
        "one weight holds for them all. Dashed lines: where a block begins.",
    )
