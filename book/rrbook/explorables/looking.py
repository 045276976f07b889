"""Chapter 07's explorable: which earlier writes does a sublayer read, and in what proportion?"""

from . import kit


def depth_attention() -> kit.Explorable:
    """Explorable: what each sublayer reads of all earlier writes under depth attention."""
    return kit.explorable(
        "depth-attention",
        script="looking.js",
        title="Who reads what?",
        lead="Each row is a reader, each column an earlier write; the stronger its colour, "
        "the larger the write’s share of what is read.",
        controls=[
            kit.slider("tilt", "tilt: − embedding, + recent", -6, 6, 0.5, 0),
            kit.slider("sublayers", "sublayers", 4, 24, 4, 8),
            kit.choice(
                "size",
                "sublayers per block",
                {
                    "1": "1 (full)",
                    "2": "2",
                    "4": "4",
                    "all": "all (one block)",
                },
                "2",
            ),
            kit.checks("", {"seeded": "the bug: each block’s sum begins with the embedding"}, ()),
        ],
        picture="A triangle of cells: rows are readers, columns the writes that they read",
        note="Toy: embedding and updates are independent with variance 1 in every channel. Source "
        "i of k (from 0) has the logit tilt·i/(k − 1); a block’s writes are one source, so that "
        "one weight holds for them all. Dashed lines: where a block begins.",
    )
