"""The first block's values, added to those of later blocks (arXiv 2410.17897): needs torch alone.

before the blocks:  first = None
in each attention:  q, k, v = …, then v, first = with_first(v, first), before any cache
A block takes `first` as one more argument and returns it beside h.
"""


def with_first(v, first=None, lam=2.0):
    """λV₁ + V_n, and V₁, for the next block: block 1, which gets None, keeps its own values.

    It has no parameter. V₁ is not detached: block 1 gets gradients from all blocks.
    """
    return (v, v) if first is None else (lam * first + v, first)
