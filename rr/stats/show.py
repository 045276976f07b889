"""Tables as text, Markdown or CSV."""

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
    for (group, named), title in zip(zip(groups.values(), firsts, strict=True), titles,
                                     strict=True):  # fmt: skip
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


def render(rows: Sequence[dict], more: bool = False) -> str:
    """The table of `table()` as text, one block per group; ✗ counts diverged runs.

    more: bootstrap intervals, Welch's test and Holm's correction beside the paired test.
    """
    blocks, head = [], MORE if more else HEAD
    for title, group in grouped(rows):
        lines = [list(head), *(columns(row, more) for row in group)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
        ends = (0, len(head) - 1)
        text = [
            "  ".join(c.ljust(w) if i in ends else c.rjust(w) for i, (c, w) in cells).rstrip()
            for cells in (list(enumerate(zip(line, widths, strict=True))) for line in lines)
        ]
        blocks.append("\n".join([title, *text]))
    if more:
        return "\n\n".join([*blocks, f"{FOOT}\n{_foot(rows)}"])
    return "\n\n".join(blocks) + f"\n\n{FOOT} p: paired t test, assumes normal differences."


def markdown(rows: Sequence[dict]) -> str:
    """The table of `table()`, in full, as Markdown: a heading and a table per group."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"

    blocks = []
    head = [*MORE[:-1], "notes"]
    rule = ["---", *["---:"] * (len(head) - 2), "---"]
    for title, group in grouped(rows):
        lines = [line(head), line(rule), *(line(columns(row)) for row in group)]
        blocks += [f"### {title}", "\n".join(lines)]
    return "\n\n".join([*blocks, FOOT, _foot(rows)])


def csv_text(rows: Sequence[dict]) -> str:
    """The table of `table()` as CSV, all digits: seeds separated by spaces, notes by semicolons."""
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
