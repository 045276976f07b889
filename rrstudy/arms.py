"""The arm of a caller's words; apart from `rrstudy.stats`, which does without torch."""

from rr.config import RRError
from rr.residual import canonical

from .stats.results import short_name


def arm_named(spec: str) -> str:
    """The arm of `rr`'s runs with the rules `spec`, whose options are as a run takes them.

    Runs name their rules canonically: `constant:c=0.5` is the arm `constant`. A rule that `rr`
    lacks, or that is in a file, stays as it is named: nothing is imported here.
    """
    rule, plus, values = spec.partition(" + ")
    try:
        name = short_name(canonical(rule))
        return f"{name} + {short_name(canonical(values, 'values'))}" if plus else name
    except RRError:
        return short_name(spec)
