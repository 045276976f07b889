"""What others measured at larger sizes: a table of data/published/at_scale.csv, beside our rows."""

import csv
import re
from html import escape

from matplotlib.figure import Figure

import rr
from rrbook.figures.field import gains_by_size
from rrbook.figures.style import canvas

from .which import SCROLLING, styled

FILE = rr.DATA / "published" / "at_scale.csv"
HEADS = ("measured by", "rule", "size: difference of losses", "tokens", "learning rates", "speed",
         "read")  # fmt: skip
GITHUB = "https://github.com/"
LINKS = {
    "hyper-connection-factory": f"{GITHUB}wdlctc/hyper-connection-factory",
    **{f"marin #{n}": f"{GITHUB}marin-community/marin/issues/{n}" for n in (7409, 9290, 9295)},
    "zhihu, Feb 2026": "https://www.tylerromero.com/translations/zhihu/"
    "your-deepseek-mhc-might-not-need-the-m",
}
READ = {"primary": "in the source", "secondary": "second-hand"}
FACTORY = "hyper-connection-factory"  # the source with most rules and sizes
DRAWN = {  # its rules with three sizes and more, and the rule of the book with the same colour
    "MUDD with norms around it": ("MUDD", "denseformer"),
    "mHC, four streams": ("mHC", "hyper-connections"),
    "hyper-connections, dynamic": ("hyper-connections", "hyper-connections:dynamic=1"),
    "AttnRes, full": ("depth attention", "attnres"),
}


def rows() -> list[dict[str, str]]:
    """The comparisons: one rule at one size each, all text; see data/published/README.md."""
    with FILE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def rows_of(rule: str, source: str = FACTORY) -> list[dict[str, str]]:
    """What one source measured of a rule, size by size."""
    return [row for row in rows() if (row["source"], row["rule"]) == (source, rule)]


def parameters(row: dict[str, str]) -> float:
    """The size of a row as a number: "303.6M" is 303.6 million."""
    return float(row["size"][:-1]) * {"M": 1e6, "B": 1e9}[row["size"][-1]]


def times(of_rule: list[dict[str, str]]) -> str:
    """The time of a step over the baseline's, from the least to the most of rows with a speed."""
    ratios = [1 / float(row["speed"]) for row in of_rule if row["speed"]]
    ends = dict.fromkeys(f"×\u00a0{end(ratios):.1f}" for end in (min, max))
    return " to ".join(ends)


def drawing() -> Figure:
    """The gain of four rules at each size of the largest comparison, and what a step takes."""
    lines = []
    for rule, (words, look) in DRAWN.items():
        of_rule = rows_of(rule)
        points = [(parameters(row), float(row["difference"])) for row in of_rule]
        lines.append((f"{words}: time {times(of_rule)}", look, points))
    figure, ax = canvas()
    gains_by_size(ax, lines)
    return figure


def table() -> str:
    """HTML: a row for each rule of each source, with its sizes side by side."""
    groups: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in rows():
        groups.setdefault((row["source"], row["rule"]), []).append(row)
    head = "".join(f"<th scope='col'>{words}</th>" for words in HEADS)
    body = "".join(_row(source, rule, group) for (source, rule), group in groups.items())
    return (
        f"<div class='rr-poster rr-which'>{styled()}{SCROLLING}<table class='table rr-scale'>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></div>"
    )


def _row(source: str, rule: str, group: list[dict[str, str]]) -> str:
    first = group[0]
    link = LINKS.get(source) or f"https://arxiv.org/abs/{source}"
    who = "<br>the rule's authors" if first["who"] == "authors" else ""
    ours = f"<br><code>{escape(first['rr'])}</code>" if first["rr"] else ""
    notes = "; ".join(dict.fromkeys(row["note"] for row in group if row["note"]))
    seeds = _span([row["seeds"] for row in group])
    cells = (
        f'<a href="{escape(link)}">{escape(source)}</a>{who}',
        f"{escape(rule)}{ours}",
        "<br>".join(map(_difference, group))
        + (f"<br><small>{escape(notes)}</small>" if notes else ""),
        _span([row["tokens"] for row in group]) or "not said",
        f"{escape(first['rates'])}<br><small>seeds: {seeds}</small>",
        _span([f"×\u00a0{row['speed']}" for row in group if row["speed"]]) or "–",
        READ[first["evidence"]],
    )
    inside = "".join(
        f'<td data-column="{head}">{cell}</td>' for head, cell in zip(HEADS, cells, strict=True)
    )
    return f'<tr class="rr-rule">{inside}</tr>'


def _difference(row: dict[str, str]) -> str:
    value = row["difference"]
    if not value:
        return escape(row["size"])
    shown = f"{float(value):+.3f}".replace("-", "−")
    return f"{escape(row['size'])}: {shown}".replace(" ", "\u00a0")


def _span(words: list[str]) -> str:
    """The least and the most of cells that are numbers with a unit; a word that they share."""
    different = sorted(dict.fromkeys(filter(None, words)), key=_number)
    shown = different if len(different) < 2 else [different[0], different[-1]]
    return " to ".join(escape(word) for word in shown)


def _number(word: str) -> float:
    match = re.search(r"\d+(\.\d+)?", word)
    return float(match[0]) if match else 0.0
