"""The tables of `tables.table` and `against.against` as text, Markdown or CSV."""

import csv
import io
from collections.abc import Iterator, Sequence

from .results import GROUP, TOLD
from .tables import group_key

HEAD = ("arm", "seeds", "val_loss", "arm − base", "95 % interval", "p", "")
# what `rr table` adds to the short form
MORE = ("arm", "seeds", "val_loss", "arm − base", "95 % interval", "bootstrap", "p",
        "p, Holm", "Welch p", "Welch, Holm", "")  # fmt: skip
FOOT = "val_loss: nats per token, mean over seeds. A negative difference: the arm is better."
FOOT_MORE = (
    "p: paired t test; Welch: unpaired t test; both assume normal losses. Holm: corrected for this "
    "table's {}. Bootstrap: percentile interval; with n pairs its coverage is at most 1 − 2^(1−n)."
)


# the table of anybody's runs
AGAINST = ("arm", "seeds", "loss", "95 % interval", "arm − base", "95 % interval", "p", "p, Holm",
           "found by 80 %", "seeds needed", "")  # fmt: skip
FOOT_AGAINST = """\
loss: mean over finished seeds. arm − base: from {base}; negative where the arm's loss is lower.
{test} Holm: corrected over {tests}.
found by 80 %: the smallest true difference that so many seeds find with 80 % power at p < {alpha}.
seeds needed: per arm, to find a true difference as large as this one with that power; in
parentheses the range that the uncertainty of the spread leaves."""
TESTS = {
    "paired": "p: paired t over the seeds that both finished.",
    "independent": "p: Welch's unpaired t over all finished seeds.",
}


def _signed(x: float) -> str:
    return f"{x:+.4f}".replace("-", "−")


def _span(lo: float | None, hi: float | None) -> str:
    return "" if lo is None or hi is None else f"[{_signed(lo)}, {_signed(hi)}]"


def _chance(p: float | None) -> str:
    return "–" if p is None else f"{p:.4f}" if p >= 1e-4 else "<1e-4"


def _remarks(row: dict) -> str:
    """What a reader must know of a row: diverged and missing seeds, and its notes."""
    notes = []
    for what in ("diverged", "missing"):
        if row[what]:
            notes.append(f"{what}: seed {', '.join(map(str, row[what]))}")
    if row["difference"] is not None and len(row["pairs"]) < row["n"]:
        notes.append(f"{len(row['pairs'])} pairs")
    return "; ".join(notes + row["notes"])


def columns(row: dict, more: bool = True) -> list[str]:
    """A row's columns as text, those of MORE or of HEAD."""
    seeds = f"{row['n']}"
    if row["diverged"]:
        seeds += f" ✗{len(row['diverged'])}"
    cells = [row["arm"], seeds, "–" if row["mean"] is None else f"{row['mean']:.4f}"]
    there = row["difference"] is not None
    cells += [_signed(row["difference"]) if there else "", _span(row["lo"], row["hi"])]
    if more:
        cells.append(_span(row["bootstrap_lo"], row["bootstrap_hi"]))
    cells.append(_chance(row["p"]) if there else "")
    if more:
        unpaired = row["welch_p"] is not None
        cells.append(_chance(row["holm"]) if there else "")
        cells += [_chance(row[name]) if unpaired else "" for name in ("welch_p", "welch_holm")]
    return [*cells, _remarks(row)]


def grouped(rows: Sequence[dict]) -> Iterator[tuple[str, list[dict]]]:
    """Title and rows of each group; a title names everything that distinguishes its group."""
    groups: dict[tuple, list[dict]] = {}
    for row in rows:
        groups.setdefault(group_key(row), []).append(row)
    firsts = [group[0] for group in groups.values()]
    titles = [_title(named, rows) for named in firsts]
    for (group, named), title in zip(
        zip(groups.values(), firsts, strict=True), titles, strict=True
    ):
        alike = [f for f, t in zip(firsts, titles, strict=True) if t == title]
        for name in GROUP + TOLD:  # in which groups of one title differ
            if len({repr(f[name]) for f in alike}) > 1:
                title += f" · {name.replace('_', ' ')} {named[name]}"
        yield title, group


def _title(named: dict, rows: Sequence[dict]) -> str:
    title = f"{named['rung']} · {named['protocol']} · {named['corpus']} · {named['tokenizer']}"
    title += f" · {named['steps']} steps of {named['batch']} · {named['precision']}"
    if named["loops"] != 1:
        title += f" · {named['loops']} loops"
    if named["eval_shortened"]:
        title += " · shortened evaluation"
    same = [row for row in rows if row["corpus"] == named["corpus"] and row["corpus_id"]]
    if len({row["corpus_id"] for row in same}) > 1:
        title += f" · {(named['corpus_id'] or 'unknown')[-12:]}"
    return title


def _foot(rows: Sequence[dict]) -> str:
    m = max((row["comparisons"] or 0 for row in rows), default=0)
    return FOOT_MORE.format("one comparison" if m == 1 else f"{m or 'no'} comparisons")


def _aligned(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Rows as columns of text: the first and the last to the left, the others to the right."""
    lines = [head, *lines]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    ends = (0, len(head) - 1)
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i in ends else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _piped(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Rows as a table of GitHub's Markdown; the last column holds notes."""
    rule = ["---", *["---:"] * (len(head) - 2), "---"]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |"
        for line in ([*head[:-1], "notes"], rule, *lines)
    )


def render(rows: Sequence[dict], more: bool = False) -> str:
    """The rows of `table()` as text, one block per group; ✗ counts diverged runs.

    more: bootstrap intervals, Welch's test and Holm's correction beside the paired test.

    Example:
        >>> import rr
        >>> from rr.stats import read_results, render, table
        >>> rows = read_results(rr.DATA / "measured" / "mini_arms")
        >>> "review" in render(table(rows))
        True
    """
    head = MORE if more else HEAD
    blocks = [
        f"{title}\n{_aligned(head, [columns(row, more) for row in group])}"
        for title, group in grouped(rows)
    ]
    if more:
        return "\n\n".join([*blocks, f"{FOOT}\n{_foot(rows)}"])
    return "\n\n".join(blocks) + f"\n\n{FOOT} p: paired t test, assumes normal differences."


def markdown(rows: Sequence[dict]) -> str:
    """The rows of `table()`, in full, as Markdown: a heading and a table per group.

    Example:
        >>> import rr
        >>> from rr.stats import markdown, read_results, table
        >>> rows = read_results(rr.DATA / "measured" / "mini_arms")
        >>> "| review " in markdown(table(rows))
        True
    """
    blocks = []
    for title, group in grouped(rows):
        blocks += [f"### {title}", _piped(MORE, [columns(row) for row in group])]
    return "\n\n".join([*blocks, FOOT, _foot(rows)])


def render_against(rows: Sequence[dict], pipes: bool = False) -> str:
    """The rows of `against()` as text. Diverged runs are marked with ✗.

    pipes: Markdown instead.

    Example:
        >>> from rr.stats import against, render_against
        >>> losses = {"a": [3.1, 3.2, 3.3], "b": [2.9, 3.1, 3.0]}
        >>> rows = [
        ...     {"arm": arm, "seed": seed, "val_loss": loss,
        ...      "status": "finished", "step": None}
        ...     for arm in losses
        ...     for seed, loss in enumerate(losses[arm])
        ... ]
        >>> "−0.2" in render_against(against(rows, baseline="a", design="paired"))
        True
    """
    lines = [_against(row) for row in rows]
    tests = sum(row["baseline"] is not None for row in rows)
    level = rows[0]["level"]
    head = [name.replace("95", f"{100 * level:g}") for name in AGAINST]
    foot = FOOT_AGAINST.format(
        alpha=f"{1 - level:g}",
        base=rows[0]["arm"],
        test=TESTS[rows[0]["design"]],
        tests="one comparison" if tests == 1 else f"{tests} comparisons",
    )
    return f"{(_piped if pipes else _aligned)(head, lines)}\n\n{foot}"


def _against(row: dict) -> list[str]:
    seen = f"{row['n']}" + f" ✗{len(row['diverged'])}" * bool(row["diverged"])
    cells = [row["arm"], seen, "–" if row["mean"] is None else f"{row['mean']:.4f}"]
    cells.append("" if row["mean_lo"] is None else f"[{row['mean_lo']:.4f}, {row['mean_hi']:.4f}]")
    notes = [
        f"{what}: seed {', '.join(map(str, row[what]))}"
        for what in ("diverged", "unfinished")
        if row[what]
    ]
    if row["difference"] is None:
        return [*cells, *[""] * 6, "; ".join(notes + row["notes"])]
    cells += [_signed(row["difference"]), _span(row["lo"], row["hi"])]
    cells += [_chance(row["p"]), _chance(row["holm"])]
    detectable = "" if row["detectable"] is None else f"{row['detectable']:.4f}"
    ends = "–".join(str(row[end] or "…") for end in ("needed_lo", "needed_hi"))
    needed = "" if row["needed"] is None else f"{row['needed']} ({ends})"
    return [*cells, detectable, needed, "; ".join(notes + row["notes"])]


def csv_text(rows: Sequence[dict]) -> str:
    """The rows of `table()` as CSV, all digits: seeds separated by spaces, notes by semicolons.

    Example:
        >>> import rr
        >>> from rr.stats import csv_text, read_results, table
        >>> rows = read_results(rr.DATA / "measured" / "mini_arms")
        >>> csv_text(table(rows)).split(",")[:3]
        ['rung', 'protocol', 'corpus']
    """
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        lists = {
            name: ("; " if name == "notes" else " ").join(map(str, value))
            for name, value in row.items()
            if isinstance(value, list)
        }
        writer.writerow(row | lists)
    return out.getvalue().rstrip("\n")
