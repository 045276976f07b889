"""How a computed difference is written on a page."""


def signed(difference: float, digits: int = 3) -> str:
    """A difference, with a true minus sign."""
    return f"{difference:+.{digits}f}".replace("-", "−")


def spread(mean: float, lo: float, hi: float, digits: int = 3) -> str:
    """A difference and its interval."""
    ends = (signed(end, digits) for end in (lo, hi))
    return f"{signed(mean, digits)} ({' to '.join(ends)})"
