"""The table of `compare()` as text: columns for people, printed by pandas."""

import itertools
from collections.abc import Callable, Iterator, Sequence

import pandas as pd

from rr.options import written

from .frames import as_rows
from .results import GROUP, TOLD, group_key

FOOT = "val_loss: nats per token, mean over seeds. A negative difference: the arm is better."
FOOT_RUNS = (
    "p: paired t test; Welch: unpaired t test; both assume normal losses. Holm: corrected for this "
    "table's {}. Bootstrap: percentile interval; with n pairs its coverage is at most 1 − 2^(1−n)."
)
FOOT_TABLE = """\
loss: mean over finished seeds. arm − base: {base}negative where the arm's loss is lower.
{test} Holm: corrected over {tests}.
found by {power} %: the smallest true difference that so many seeds find with \
{power} % power at p < {alpha}.
seeds needed: per arm, to find a true difference as large as this one with that power; in
parentheses the range that the uncertainty of the spread leaves."""
TESTS = {
    "paired": "p: paired t over the seeds that both finished.",
    "independent": "p: Welch's unpaired t over all finished seeds.",
}


def _signed(x: float | None) -> str:
    return "" if x is None else f"{x:+.4f}".replace("-", "−")


def _span(lo: float | None, hi: float | None) -> str:
    return "" if lo is None or hi is None else f"[{_signed(lo)}, {_signed(hi)}]"


def _chance(p: float | None, compared: object) -> str:
    if compared is None:
        return ""
    if p is None:
        return "–"
    return f"{p:.4f}" if p >= 1e-4 else "<1e-4"


def written_arm(arm: str) -> str:
    """An arm as `arm_of` names it, its value rule under the name that is written."""
    rule, plus, values = arm.partition(" + ")
    return f"{rule}{plus}{written(values)}"


def _seeds(row: dict) -> str:
    diverged = len(row["diverged"])
    return f"{row['n']} ✗{diverged}" if diverged else str(row["n"])


def _mean(row: dict) -> str:
    return "–" if row["mean"] is None else f"{row['mean']:.4f}"


def _mean_span(row: dict) -> str:
    if row["mean_lo"] is None:
        return ""
    return f"[{row['mean_lo']:.4f}, {row['mean_hi']:.4f}]"


def _needed(row: dict) -> str:
    if row["needed"] is None:
        return ""
    return f"{row['needed']} ({row['needed_lo'] or '…'}–{row['needed_hi'] or '…'})"


def _notes(row: dict) -> str:
    """What a reader must know of a row: diverged and missing seeds, and its notes."""
    notes = []
    for what in ("diverged", "unfinished", "missing"):
        if row[what]:
            notes.append(f"{what}: seed {', '.join(map(str, row[what]))}")
    if row["design"] == "paired" and row["difference"] is not None and len(row["pairs"]) < row["n"]:
        notes.append(f"{len(row['pairs'])} pairs")
    return "; ".join(notes + row["notes"])


# heading -> text of a row: of runs of `rr`, and of a tidy table
RUNS: dict[str, Callable[[dict], str]] = {
    "arm": lambda row: written_arm(row["arm"]),
    "seeds": _seeds,
    "val_loss": _mean,
    "arm − base": lambda row: _signed(row["difference"]),
    "{level} % interval": lambda row: _span(row["lo"], row["hi"]),
    "bootstrap": lambda row: _span(row["bootstrap_lo"], row["bootstrap_hi"]),
    "p": lambda row: _chance(row["p"], row["difference"]),
    "p, Holm": lambda row: _chance(row["holm"], row["difference"]),
    "Welch p": lambda row: _chance(row["welch_p"], row["welch_p"]),
    "Welch, Holm": lambda row: _chance(row["welch_holm"], row["welch_p"]),
    "notes": _notes,
}
TABLE: dict[str, Callable[[dict], str]] = {
    "arm": lambda row: row["arm"],
    "seeds": _seeds,
    "loss": _mean,
    "its {level} % interval": _mean_span,
    "arm − base": RUNS["arm − base"],
    "{level} % interval": RUNS["{level} % interval"],
    "p": RUNS["p"],
    "p, Holm": RUNS["p, Holm"],
    "found by {power} %": lambda row: (
        "" if row["detectable"] is None else f"{row['detectable']:.4f}"
    ),
    "seeds needed": _needed,
    "notes": _notes,
}


def columns(row: dict, of: dict[str, Callable[[dict], str]] = RUNS) -> dict[str, str]:
    """A row as text, by the heading of its column."""
    percent = {name: f"{100 * row[name]:g}" for name in ("level", "power")}
    return {heading.format(**percent): text(row) for heading, text in of.items()}


def grouped(rows: Sequence[dict]) -> Iterator[tuple[str, list[dict]]]:
    """Title and rows of each group; a title names everything that distinguishes its group."""
    groups: dict[tuple, list[dict]] = {}
    for row in rows:
        groups.setdefault(group_key(row), []).append(row)
    firsts = [group[0] for group in groups.values()]
    titles = [_title(named, rows) for named in firsts]
    for group, named, title in zip(groups.values(), firsts, titles, strict=True):
        alike = [f for f, t in zip(firsts, titles, strict=True) if t == title]
        for name in GROUP + TOLD:  # in which groups of one title differ
            if len({repr(f.get(name)) for f in alike}) > 1:
                title += f" · {name.replace('_', ' ')} {named.get(name)}"
        yield title, group


def _title(named: dict, rows: Sequence[dict]) -> str:
    title = f"{named['rung']} · {named['protocol']} · {named['corpus']} · {named['tokenizer']}"
    title += f" · {named['steps']} steps of {named['batch']} · {named['precision']}"
    if named["loops"] != 1:
        title += f" · {named['loops']} loops"
    if named["eval_shortened"]:
        title += " · shortened evaluation"
    same = [row for row in rows if row["corpus"] == named["corpus"] and row.get("corpus_id")]
    if len({row["corpus_id"] for row in same}) > 1:
        title += f" · {(named.get('corpus_id') or 'unknown')[-12:]}"
    return title


def _printed(rows: Sequence[dict], of: dict, pipes: bool) -> str:
    """Rows as pandas prints them: the first and the last column to the left, others right."""
    frame = pd.DataFrame([columns(row, of) for row in rows])
    if pipes:
        frame = frame.map(lambda cell: cell.replace("|", r"\|"))
    elif not any(frame["notes"]):
        frame = frame.drop(columns="notes")
    else:
        frame = frame.rename(columns={"notes": ""})
    ends = (0, len(of) - 1)
    align = ["left" if place in ends else "right" for place in range(frame.shape[1])]
    text = frame.to_markdown(
        index=False,
        tablefmt="pipe" if pipes else "plain",
        colalign=align,
        disable_numparse=True,
    )
    return "\n".join(line.rstrip() for line in text.splitlines())


def render(table: pd.DataFrame, form: str = "text") -> str:
    """The table of `compare()`, for people or as a file.

    form: "text", "markdown" or "csv" (all columns with all digits; seeds separated by spaces, notes
    by semicolons). Runs of `rr` are a block per group of comparable runs. ✗ counts diverged runs.

    Example:
        >>> import rr
        >>> from rrstudy.stats import compare, read_results, render
        >>> runs = read_results(rr.DATA / "measured" / "mini_arms")
        >>> "| review " in render(compare(runs, "standard"), "markdown")
        True
    """
    rows = as_rows(table)
    if form == "csv":
        return _csv(rows)
    pipes = form == "markdown"
    if not rows[0].keys() >= set(GROUP):
        return _of_table(rows, pipes)
    title = "### {}\n\n" if pipes else "{}\n"
    blocks = [title.format(name) + _printed(group, RUNS, pipes) for name, group in grouped(rows)]
    between = "\n\n" if pipes else "\n"
    return "\n\n".join(blocks) + f"\n\n{between.join(foot(rows))}"


def foot(rows: Sequence[dict]) -> tuple[str, str]:
    """What stands below the table of runs: its unit, and what its columns assume."""
    tests = max((row["comparisons"] or 0 for row in rows), default=0)
    return FOOT, FOOT_RUNS.format(
        "one comparison" if tests == 1 else f"{tests or 'no'} comparisons"
    )


def _of_table(rows: Sequence[dict], pipes: bool) -> str:
    """Rows that are not grouped as runs of `rr`: a column for each name of `by`, if any."""
    bases = {row["baseline"] for row in rows} - {None}
    if len(bases) > 1:  # of pairs: an arm by itself does not name its comparison
        rows = [row | {"arm": f"{row['arm']} − {row['baseline']}"} for row in rows]
    within = itertools.takewhile(lambda name: name != "arm", rows[0])
    by = {name: (lambda row, name=name: str(row[name])) for name in within}
    from_ = f"from {bases.pop()}; " if len(bases) == 1 else ""
    return f"{_printed(rows, by | TABLE, pipes)}\n\n{_foot_of_table(rows, from_)}"


def _foot_of_table(rows: Sequence[dict], base: str) -> str:
    tests = max((row["comparisons"] or 0 for row in rows), default=0)
    return FOOT_TABLE.format(
        alpha=f"{1 - rows[0]['level']:g}",
        power=f"{100 * rows[0]['power']:g}",
        base=base,
        test=TESTS[rows[0]["design"]],
        tests="one comparison" if tests == 1 else f"{tests or 'no'} comparisons",
    )


def _csv(rows: Sequence[dict]) -> str:
    frame = pd.DataFrame(
        {
            name: [_cell(row[name], "; " if name == "notes" else " ") for row in rows]
            for name in rows[0]
        },
        dtype=object,
    )
    return frame.to_csv(index=False, lineterminator="\n").rstrip("\n")


def _cell(value: object, between: str) -> object:
    return between.join(map(str, value)) if isinstance(value, list) else value
