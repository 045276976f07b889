"""A gap as a function of model size and training length, from a folder of records.

Along the published ladder tokens per parameter fall as size rises, so that a gap that depends on
either seems to depend on both. Here size N (parameters) and tokens D are two axes,

    gap = a + b_N·log10 N + b_D·log10 D,

and the effect of size at a fixed number of tokens per parameter is b_N + b_D.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rr.errors import RRError
from rr.options import parse_spec
from rrstudy.stats.inference import Interval, differences, interval, numbers
from rrstudy.stats.records import TABLES, read_records
from rrstudy.stats.results import rows_of

TUNING = 100  # seeds from here on chose learning rates and are no results
NEEDED = ("constant", "review")
ARMS = ("standard", *NEEDED)
PAIRS = (("review", "standard"), ("review", "constant"), ("constant", "standard"))
# Runs are comparable where these agree; each arm may have its own learning rate.
SAME = ("rung", "protocol", "tokenizer", "loops", "batch", "steps", "flavour", "precision",
        "values", "eval_shortened")  # fmt: skip


def at_fixed_ratio(
    size: Iterable[float], tokens: Iterable[float], gap: Iterable[float]
) -> tuple[float, float]:
    """(b_N + b_D, f): nats per tenfold size at fixed tokens per parameter, by least squares.

    One gap (nats) per cell; the slope's error is f·sd where every gap has the error sd and cells
    are independent: f² = c'(X'X)⁻¹c, X = [1, log10 N, log10 D], c = (0, 1, 1). Raises RRError for
    fewer than three cells, unequal lengths, sizes or tokens that are not positive, or cells on one
    line of the plane, where the two slopes are not identifiable.
    """
    n, d, y = (numbers(x, what) for x, what in ((size, "size"), (tokens, "tokens"), (gap, "gap")))
    if not len(n) == len(d) == len(y):
        raise RRError(
            f"size, tokens and gap must be of equal length, got {len(n)}, {len(d)} and {len(y)}"
        )
    if min(n.min(initial=1), d.min(initial=1)) <= 0:
        raise RRError("sizes and numbers of tokens must be > 0, got one that is not")
    x = np.stack([np.ones(len(n)), np.log10(n), np.log10(d)], axis=1)
    x[:, 1:] -= x[:, 1:].mean(0)
    if len(n) < 3 or np.linalg.matrix_rank(x, tol=1e-6) < 3:
        raise RRError(
            f"{len(n)} cells cannot separate size from tokens: give three or more that vary both"
        )
    inverse, c = np.linalg.inv(x.T @ x), np.array([0.0, 1.0, 1.0])
    return float(c @ inverse @ x.T @ y), float(np.sqrt(c @ inverse @ c))


# ---- From records ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """A size and budget at which constant ½ and review were trained at equal seeds."""

    rung: str
    corpus: str
    tokenizer: str
    steps: int
    size: int  # parameters of the review arm
    tokens: int  # trained on
    # (arm, baseline) -> loss of arm − baseline, nats; none with standard where it lacks a seed
    gaps: dict[tuple[str, str], Interval]
    campaign: str = ""  # the folder of its records, below the one that was read
    rates: dict[str, float] = field(default_factory=dict)  # arm -> learning rate
    runs: frozenset[str] = frozenset()  # their ids

    @property
    def ratio(self) -> float:
        """Tokens per parameter."""
        return self.tokens / self.size


def measured(root: str | Path, tuning: int = TUNING) -> tuple[list[Cell], list[str]]:
    """Every cell below `root`, by size and tokens, and what was left out.

    Each folder of runs is a campaign, and arms are compared within one: campaigns choose
    learning rates in different ways. Beside the runs of its own rung, a review run is compared
    with those of rungs that differ in d_ff alone and whose number of parameters differs by less
    than 1 %. The standard arm is compared where it has the seeds of the other two. A cell whose
    runs all stand in another counts once. Seeds from `tuning` on chose learning rates and count
    nowhere. An arm counts at the one learning rate at which it has most seeds. Left out, a line
    each with its reason: cells of review runs without two seeds that a constant ½ of their size
    shares, runs that diverged, corrupt files. RRError where there is no such folder.
    """
    groups, left = defaultdict(lambda: defaultdict(dict)), []
    for record in read_records(root):
        if "result.json" not in record:
            continue
        try:
            rows = rows_of(record)
        except ValueError as error:
            left.append(f"{record.place.name}: {error}")
            continue
        place = record.place.parent
        place = place.parent if place.name in TABLES else place
        campaign = place.relative_to(root).as_posix()
        for row in rows:
            if row["seed"] >= tuning or row["rule"] not in ARMS:
                continue
            if row["status"] != "finished":
                left.append(f"{row['id']}: {row['status']}")
                continue
            spec = record.object("run.json")["run"]
            key = (*(row[name] for name in SAME), row["corpus"], spec["corpus"], campaign)
            row = {**row, "window": spec["model"]["seq_len"]}
            groups[key][row["rule"], row["lr"]][row["seed"]] = row
    cells = []
    for key in groups:
        names = dict(zip(SAME, key, strict=False))
        cell = _cell(names, key[-3], key[-1], _with_matched(groups, key))
        if isinstance(cell, Cell):
            cells.append(cell)
        elif cell:
            left.append(cell)
    cells.sort(key=lambda c: (c.size, c.tokens, -len(c.runs), c.campaign))
    own = [c for i, c in enumerate(cells) if not any(c.runs <= other.runs for other in cells[:i])]
    return own, left


def _with_matched(groups: dict, key: tuple) -> dict:
    """The arms of a group, and those of equal size whose rung differs in d_ff alone."""
    arms = dict(groups[key])
    size = next((row["params"] for arm, rows in arms.items() if arm[0] == "review"
                 for row in rows.values()), None)  # fmt: skip
    if size is None:
        return arms
    for other, theirs in groups.items():
        if other != key and other[1:] == key[1:] and _body(other[0]) == _body(key[0]):
            for arm, rows in theirs.items():
                if all(_matched(row["params"], size) for row in rows.values()):
                    arms.setdefault(arm, rows)
    return arms


def _matched(params: int, size: int) -> bool:
    return abs(params / size - 1) < 0.01


def _body(rung: str) -> tuple[str, dict[str, str]]:
    """The rung without the width of its MLP."""
    name, options = parse_spec(rung)
    return name, {key: value for key, value in options.items() if key != "d_ff"}


def _cell(names: dict, corpus: str, campaign: str, arms: dict) -> Cell | str:
    """The cell, or why there is none; "" where review is not among its runs."""
    chosen = {}
    for arm in ARMS:
        rates = sorted((rows for (rule, _), rows in arms.items() if rule == arm), key=len)
        if rates and (len(rates) == 1 or len(rates[-1]) > len(rates[-2])):
            chosen[arm] = rates[-1]
    setting = f"{names['rung']}, {corpus}, {names['steps']} steps"
    if not any(rule == "review" for rule, _ in arms):
        return ""
    if missing := [arm for arm in NEEDED if arm not in chosen]:
        return f"{setting}: no {', '.join(missing)} at one learning rate"
    seeds = sorted(set.intersection(*(set(chosen[arm]) for arm in NEEDED)))
    if len(seeds) < 2:
        return f"{setting}: {len(seeds)} seeds in both constant and review"
    present = [arm for arm in ARMS if set(seeds) <= set(chosen.get(arm, ()))]
    sizes = {arm: chosen[arm][seeds[0]]["params"] for arm in present}
    present = [arm for arm in present if _matched(sizes[arm], sizes["review"])]
    if "constant" not in present:
        return (
            f"{setting}: constant has {sizes['constant']:,} parameters, review {sizes['review']:,}"
        )
    loss = {arm: [chosen[arm][s]["val_loss"] for s in seeds] for arm in present}
    row = chosen["review"][seeds[0]]
    return Cell(
        names["rung"],
        corpus,
        names["tokenizer"],
        names["steps"],
        row["params"],
        names["steps"] * names["batch"] * row["window"],
        {
            (a, b): interval(differences(loss[a], loss[b]))
            for a, b in PAIRS
            if {a, b} <= set(present)
        },
        campaign,
        {arm: chosen[arm][seeds[0]]["lr"] for arm in present},
        frozenset(chosen[arm][s]["id"] for arm in present for s in seeds),
    )
