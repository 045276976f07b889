"""Chapter 07's explorable: which earlier writes does a sublayer read, and in what proportion?"""

import math

from . import kit


def sources(sublayers: int, size: int, seeded: bool) -> list[list[int]]:
    """How often each source at the head holds write 0 (the embedding), 1, …: one row per source.

    Blocks of `size` sublayers; seeded is the bug: each block's sum begins with the embedding.
    """
    held = [[1] + [0] * sublayers]
    for write in range(1, sublayers + 1):
        if (write - 1) % size == 0:
            held.append([int(seeded)] + [0] * sublayers)
        held[-1][write] += 1
    return held


def looking_numbers(sublayers: int, size: str, tilt: float, seeded: bool) -> dict[str, list]:
    """What each sublayer reads under depth attention, and last the head, in a toy.

    Embedding and updates are independent with variance 1 in each channel. Source i of k has the
    logit tilt·i/(k − 1): 0 is the start of training, above 0 looks at recent writes, below at the
    embedding. size: sublayers per block, or "all". Returns for every read the weights `alpha` of
    the sources, the `shares` of the variance that each write so far holds, and `cosine`, that of
    what is read with the plain sum of all writes, which the standard residual would read.
    """
    step = sublayers if size == "all" else int(size)
    found: dict[str, list] = {"alpha": [], "shares": [], "cosine": []}
    for before in range(sublayers + 1):
        held = sources(before, step, seeded)
        last = max(1, len(held) - 1)
        parts = [math.exp(tilt * i / last) for i in range(len(held))]
        alpha = [part / sum(parts) for part in parts]
        mixed = [
            sum(a * row[j] for a, row in zip(alpha, held, strict=True)) for j in range(before + 1)
        ]
        power = sum(c * c for c in mixed)
        found["alpha"].append(alpha)
        found["shares"].append([c * c / power for c in mixed])
        found["cosine"].append(sum(mixed) / math.sqrt(power * (before + 1)))
    return found


def looking_sentence(sublayers: int, size: str, tilt: float, seeded: bool) -> str:
    """The result in words; takes the arguments of `looking_numbers`."""
    found = looking_numbers(sublayers, size, tilt, seeded)
    kept, shares, cosine = (found[key][-1] for key in ("alpha", "shares", "cosine"))
    count = f"After {sublayers} sublayers {len(kept)} vectors per token are kept (standard: 1). "
    if cosine > 1 - 1e-9:
        return (
            f"{count}The head reads every write in the same share, 1/{sublayers + 1} of the "
            "variance: the standard stream, up to its length."
        )
    even = kit.share(1 / (sublayers + 1))
    return (
        f"{count}Of what the head reads, the embedding holds {kit.share(shares[0])} of the "
        f"variance and the last write {kit.share(shares[-1])} (standard: {even} each). "
        f"Its cosine with the standard stream is {kit.number(cosine)}."
    )


def depth_attention(sublayers: int = 8, size: str = "2", tilt: float = 0.0) -> kit.Explorable:
    """Explorable: what each sublayer reads of all earlier writes under depth attention.

    `sublayers` (4 to 24, in fours), `size` ("1", "2", "4" or "all") and `tilt` (−6 to 6) are where
    it starts.
    """
    values = (sublayers, size, tilt, False)
    said = looking_sentence(*values)
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
        said=said,
        note="Toy: embedding and updates are independent with variance 1 in every channel. Source "
        "i of k (from 0) has the logit tilt·i/(k − 1); a block’s writes are one source, so that "
        "one weight holds for them all. Dashed lines: where a block begins.",
    )
