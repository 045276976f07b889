"""The best learning rate, and how sure it is: bootstrap over seeds."""

import itertools
from collections.abc import Iterable, Mapping

import numpy as np

from ..config import RRError
from .compare import numbers
from .rates import basin

EXACT = 6  # up to so many seeds every resample is counted: 6⁶ = 46,656


def best_rate_shares(
    records: Iterable[Mapping], resamples: int = 10_000, seed: int = 0
) -> dict[float, float]:
    """Share of bootstrap resamples of the seeds in which each rate has the lowest mean loss.

    records: rows with `lr`, `seed` and `val_loss` (nats per token), one per rate and seed; a seed
    takes part where it has every rate. resamples, seed: with up to six seeds all n^n resamples are
    counted and the shares are exact; with more, so many are drawn from this random seed.

    Returns {rate: share}, rates ascending. Raises RRError for a rate and seed run twice, fewer than
    two whole seeds, or a loss that is not finite.

    Example:
        >>> from rr.stats import best_rate_shares
        >>> losses = {1e-3: [4.0, 4.2], 2e-3: [4.1, 4.1]}
        >>> rows = [
        ...     {"lr": lr, "seed": seed, "val_loss": loss}
        ...     for lr in losses
        ...     for seed, loss in enumerate(losses[lr])
        ... ]
        >>> best_rate_shares(rows)
        {0.001: 0.75, 0.002: 0.25}
    """
    rates, means = _resampled_means(records, resamples, seed)
    chosen = means.argmin(axis=1)
    return {rate: float((chosen == i).mean()) for i, rate in enumerate(rates)}


def resampled_rates(
    records: Iterable[Mapping], resamples: int = 10_000, seed: int = 0
) -> np.ndarray:
    """The best rate of each bootstrap resample of the seeds: the vertex that `basin()` finds.

    Parameters and errors as in `best_rate_shares()`; raises RRError, too, for fewer than three
    rates.

    Returns one rate per resample. Resamples of equally many seeds come in one order, so arms with
    the same seeds are paired: element i of each is drawn from the same seeds. With six seeds or
    fewer, percentiles of it are a lower bound on the uncertainty.

    Example:
        >>> from rr.stats import resampled_rates
        >>> losses = {1e-3: [4.1, 4.2], 2e-3: [4.0, 4.1], 4e-3: [4.1, 4.2]}
        >>> rows = [
        ...     {"lr": lr, "seed": seed, "val_loss": loss}
        ...     for lr in losses
        ...     for seed, loss in enumerate(losses[lr])
        ... ]
        >>> resampled_rates(rows).round(6).tolist()
        [0.002, 0.002, 0.002, 0.002]
    """
    rates, means = _resampled_means(records, resamples, seed)
    return np.array([basin(dict(zip(rates, row, strict=True))).lr for row in means])


def _resampled_means(
    records: Iterable[Mapping], resamples: int, seed: int
) -> tuple[list[float], np.ndarray]:
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
    n = len(table)
    if n <= EXACT:
        draws = np.array(list(itertools.product(range(n), repeat=n)))
    else:
        draws = np.random.default_rng(seed).integers(0, n, (resamples, n))
    return rates, table[draws].mean(axis=1)
