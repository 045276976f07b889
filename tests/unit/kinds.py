"""Which rules stand for the others in `make test`; `make faults` takes all of them."""

from collections.abc import Collection, Iterable

import pytest

from rr.residual import resolve


def one_of_a_kind(arms: Iterable[tuple[str, str]], always: Collection[str] = ()) -> list:
    """Arms (rule, value rule): quick are the first of each kind of what flows between layers.

    A tensor, streams, a list, or values; of the rest those of a rule in `always`. Others are slow.
    """
    seen, params = set(), []
    for rule, values in arms:
        kind = resolve(rule, "residual")[0].state if values == "own" else "values"
        quick = kind not in seen or rule in always
        seen.add(kind)
        params.append(pytest.param(rule, values, marks=[] if quick else pytest.mark.slow))
    return params
