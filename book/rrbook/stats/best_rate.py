"""The best learning rate, how sure it is and how far it moves: resampled seeds."""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import scipy.stats as st

from rr.errors import RRError
from rrstudy.stats.inference import numbers

from .rates import basin

DRAWS = 10_000  # resamples of more seeds
EXACT = 6  # up to so many seeds every resample is counted: 6⁶ = 46,656


def best_rate_shares(records: Iterable[Mapping]) -> dict[float, float]:
    """Share of bootstrap resamples of the seeds in which each rate has the lowest mean loss.

    records: rows with `lr`, `seed` and `val_loss` (nats per token), one per rate and seed; a seed
    takes part where it has every rate. With up to six seeds all n^n resamples are counted and the
    shares are exact; with more, 10,000 are drawn from random seed 0.

    Returns {rate: share}, rates ascending. Raises RRError for a rate and seed run twice, fewer than
    two whole seeds, or a loss that is not finite.

    Example:
        >>> from rrbook.stats import best_rate_shares
        >>> losses = {1e-3: [4.0, 4.2], 2e-3: [4.1, 4.1]}
        >>> rows = [
        ...     {"lr": lr, "seed": seed, "val_loss": loss}
        ...     for lr in losses
        ...     for seed, loss in enumerate(losses[lr])
        ... ]
        >>> best_rate_shares(rows)
        {0.001: 0.75, 0.002: 0.25}
    """
    rates, means = _resampled_means(records)
    chosen = means.argmin(axis=1)
    return {rate: float((chosen == i).mean()) for i, rate in enumerate(rates)}


def resampled_rates(records: Iterable[Mapping]) -> np.ndarray:
    """The best rate of each bootstrap resample of the seeds: the vertex that `basin()` finds.

    Parameters and errors as in `best_rate_shares()`; raises RRError, too, for fewer than three
    rates.

    Returns one rate per resample. Resamples of equally many seeds come in one order, so arms with
    the same seeds are paired: element i of each is drawn from the same seeds. With six seeds or
    fewer, percentiles of it are a lower bound on the uncertainty.

    Example:
        >>> from rrbook.stats import resampled_rates
        >>> losses = {1e-3: [4.1, 4.2], 2e-3: [4.0, 4.1], 4e-3: [4.1, 4.2]}
        >>> rows = [
        ...     {"lr": lr, "seed": seed, "val_loss": loss}
        ...     for lr in losses
        ...     for seed, loss in enumerate(losses[lr])
        ... ]
        >>> resampled_rates(rows).round(6).tolist()
        [0.002, 0.002, 0.002, 0.002]
    """
    rates, means = _resampled_means(records)
    return np.array([basin(dict(zip(rates, row, strict=True))).lr for row in means])


@dataclass(frozen=True)
class Spreads:
    """How far the best rate moves in two arms, in doublings, and how sure the difference is.

    From `rate_spreads()`.

    Example:
        >>> from rrbook.stats import Spreads
        >>> spreads = Spreads(one=0.3, other=0.9, difference=-0.6, lo=-1.5, hi=-0.1, p=0.5)
        >>> spreads.hi < 0, spreads.p < 0.05
        (True, False)
    """

    one: float
    other: float
    difference: float  # one − other
    lo: float  # between lo and hi lie 95 % of the resamples of the seeds
    hi: float
    p: float  # share of the exchanges of the arms, seed by seed, with a difference as large


def rate_spreads(one: Iterable[Mapping], other: Iterable[Mapping], over: str = "loops") -> Spreads:
    """Whether the best rate moves as far in one arm as in another while a setting is varied.

    The spread of an arm is log2(largest / smallest best rate) over the values of `over`. A best
    rate is what `basin()` finds in the means over the seeds: held within the rates tried, and the
    rate with the lowest mean where the parabola is concave. Spreads of noisy minima are above zero
    where no rate moves, and larger in an arm that is flatter or noisier.

    one, other: rows with `lr`, `seed`, `val_loss` (nats per token) and `over`; both with the same
    values of `over`, rates and seeds, every combination run once. Returns both spreads, their
    difference and, with up to six seeds too narrow, its interval. p counts the exchanges of the two
    arms, seed by seed, with a difference as large in either direction, the given one included; all
    2^n of them up to 10,000, else so many drawn. n seeds give no p below 2^(1 - n). Raises RRError
    for a key or a run that is missing, a loss that is not finite, or a setting that does not vary.

    Example:
        >>> from rrbook.stats import rate_spreads
        >>> def rows(shift):
        ...     return [
        ...         {"loops": N, "lr": 2.0**k, "seed": s, "val_loss": (k - shift * N) ** 2 + s}
        ...         for N in (1, 2)
        ...         for k in range(5)
        ...         for s in range(3)
        ...     ]
        >>> spreads = rate_spreads(rows(0.5), rows(1.0))
        >>> round(spreads.one, 3), round(spreads.other, 3), spreads.p
        (0.5, 1.0, 0.25)
    """
    rates, losses = _whole_table([list(one), list(other)], over)
    n = losses.shape[1]

    def spread(tables):  # mean over seeds of (seed, value of `over`, rate)
        best = [basin(dict(zip(rates, row, strict=True))).lr for row in tables.mean(axis=0)]
        return float(np.ptp(np.log2(best)))

    drawn = _draws(n)
    resampled = [spread(losses[0, draw]) - spread(losses[1, draw]) for draw in drawn]
    both = losses.reshape(2 * n, *losses.shape[2:])
    spreads = st.permutation_test(
        (np.arange(n), np.arange(n, 2 * n)),
        lambda these, those: spread(both[these]) - spread(both[those]),
        permutation_type="samples",
        vectorized=False,
        n_resamples=DRAWS,
        rng=np.random.default_rng(0),
    )
    lo, hi = np.percentile(resampled, (2.5, 97.5))
    first, second = spread(losses[0]), spread(losses[1])
    return Spreads(first, second, first - second, float(lo), float(hi), float(spreads.pvalue))


def _whole_table(arms: list[list[Mapping]], over: str) -> tuple[list[float], np.ndarray]:
    """Rates, ascending, and losses (arm, seed, value of `over`, rate), complete."""
    lacking = {
        name
        for arm in arms
        for row in arm
        for name in ("seed", over, "lr", "val_loss")
        if name not in row
    }
    if lacking:
        raise RRError(
            f"a row without {sorted(lacking)[0]!r}: seed, {over}, lr and val_loss are needed"
        )
    keys = [sorted({row[name] for arm in arms for row in arm}) for name in ("seed", over, "lr")]
    if len(keys[1]) < 2:
        raise RRError(f"{over} must have two values or more, got {keys[1]}")
    table = np.empty((len(arms), *map(len, keys)))
    for i, arm in enumerate(arms):
        runs = {(row["seed"], row[over], row["lr"]): row["val_loss"] for row in arm}
        if len(runs) < len(arm):
            raise RRError(f"a seed was run twice at one lr and {over}: give one run")
        missing = sorted(set(itertools.product(*keys)) - set(runs))
        if missing:
            seed, value, lr = missing[0]
            raise RRError(f"no run of seed {seed} with {over} {value} at lr {lr:g}: give every one")
        for place in np.ndindex(table.shape[1:]):
            run = tuple(key[k] for key, k in zip(keys, place, strict=True))
            (table[i, *place],) = numbers([runs[run]], "val_loss")
    if len(keys[0]) < 2:
        raise RRError(f"at least two seeds are needed, got {len(keys[0])}")
    return keys[2], table


def _draws(n: int) -> np.ndarray:
    """Resamples of n seeds (rows): every one up to EXACT seeds, else so many drawn."""
    if n <= EXACT:
        return np.array(list(itertools.product(range(n), repeat=n)))
    return np.random.default_rng(0).integers(0, n, (DRAWS, n))


def _resampled_means(records: Iterable[Mapping]) -> tuple[list[float], np.ndarray]:
    """Rates, ascending, and the mean loss of each (column) in each resample (row)."""
    losses: dict[int, dict[float, float]] = {}
    for row in records:
        of_seed = losses.setdefault(row["seed"], {})
        if row["lr"] in of_seed:
            raise RRError(f"seed {row['seed']} was run twice at lr {row['lr']:g}: give one run")
        of_seed[row["lr"]] = row["val_loss"]
    rates = sorted({rate for of_seed in losses.values() for rate in of_seed})
    whole = [of_seed for _, of_seed in sorted(losses.items()) if len(of_seed) == len(rates)]
    if len(whole) < 2:
        raise RRError(f"at least two seeds must have all {len(rates)} rates, got {len(whole)}")
    table = np.stack([numbers([row[rate] for rate in rates], "val_loss") for row in whole])
    return rates, table[_draws(len(table))].mean(axis=1)
