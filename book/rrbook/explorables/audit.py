"""Chapter 12's table of claims, its verdicts, and the explorable that filters it."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from rr.errors import RRError, nearest

from . import kit

VERDICTS = ("holds", "holds in part", "contradicted", "cannot be told")
MARKS = {True: ("✓", "yes"), False: ("✗", "no"), None: ("?", "cannot be told")}
PAPERS = {
    "2606.31859": "Review Residuals",
    "2606.18524": "Looped scaling",
    "2410.17897": "ResFormer",
    "2603.15031": "Attention Residuals",
}
LOOK = dict(zip(VERDICTS, ("green", "blue", "red", "amber"), strict=True))
FIELDS = ("id", "paper", "where", "claim", "words", "read", "short", "section", "parts", "main",
          "needs", "changes")  # fmt: skip


def verdict(parts: Sequence[bool | None]) -> str:
    """The verdict on a claim from its parts: True, False, or None where nothing in hand can tell.

    All true: "holds". None true, some false: "contradicted". None true or false: "cannot be told".
    Any other mixture: "holds in part". Raises RRError for no part, or for anything but these three.
    """
    if not parts or any(part is not None and type(part) is not bool for part in parts):
        raise RRError(f"parts must be one or more of True, False and None, got {list(parts)}")
    if all(parts):
        return "holds"
    if any(parts):
        return "holds in part"
    return "contradicted" if False in parts else "cannot be told"


def audit_rows(
    claims: Sequence[Mapping[str, str]], published: Mapping[str, tuple[str, Sequence[bool | None]]]
) -> list[dict[str, Any]]:
    """The claims with their verdicts: each dict of `claims` and `shows`, `held`, `verdict`.

    claims: dicts with FIELDS, all text; `parts` are separated by " | ", `main` holds the numbers,
    from 1, of those that the sentence itself asserts; the others say what it takes to rely on it.
    found: id of a claim -> (what the data show, one of True, False, None for each part).
    `main_verdict` is the verdict on the main parts alone. Raises RRError where a field is missing,
    an id or a paper is not known, a claim is not judged, or the parts do not agree.
    """
    ids = [claim.get("id", "?") for claim in claims]
    if twice := sorted({name for name in ids if ids.count(name) > 1}):
        raise RRError(f"claim {twice[0]!r} is given twice: give one row per claim")
    for name in published:
        if name not in ids:
            raise RRError(f"no claim {name!r} is listed: {nearest(name, ids)}")
    rows = []
    for claim in claims:
        if missing := [field for field in FIELDS if not claim.get(field)]:
            raise RRError(f"claim {claim.get('id', '?')!r} has no {', '.join(missing)}")
        name, parts = claim["id"], claim["parts"].split(" | ")
        if claim["paper"] not in PAPERS:
            raise RRError(f"claim {name!r} is of paper {claim['paper']!r}, not of {list(PAPERS)}")
        if name not in published:
            raise RRError(f"claim {name!r} is not judged: each needs what is shown, and its parts")
        shows, held = published[name]
        if len(held) != len(parts):
            raise RRError(f"claim {name!r} has {len(parts)} parts, and {len(held)} are judged")
        main = _main(name, claim["main"], len(parts))
        row = dict(claim) | {"parts": parts, "main": main, "shows": shows, "held": list(held)}
        on_main = verdict([held[number - 1] for number in main])
        rows.append(row | {"verdict": verdict(held), "main_verdict": on_main})
    return rows


def _main(name: str, text: str, parts: int) -> list[int]:
    numbers = [int(word) if word.isdecimal() else 0 for word in text.split()]
    if not all(1 <= number <= parts for number in numbers):
        raise RRError(f"claim {name!r}: main parts must be numbers from 1 to {parts}, got {text!r}")
    return numbers


def _row(row: Mapping[str, Any]) -> str:
    words = escape(row["claim"])
    quotation = f"“{words}”" if row["words"] == "quoted" else f"In our words: {words}."
    marks = "".join(
        f'<li><b aria-label="{MARKS[held][1]}:">{MARKS[held][0]}</b>'
        f"{'<em>main:</em> ' if number in row['main'] else ''}{escape(part)}</li>"
        for number, (part, held) in enumerate(zip(row["parts"], row["held"], strict=True), 1)
    )
    paper = f'<a href="https://arxiv.org/abs/{row["paper"]}">{PAPERS[row["paper"]]}</a>'
    return (
        f'<tr role="row" id="claim-{row["id"]}" data-claim="{row["id"]}">'
        f'<th role="rowheader" scope="row"><span>{escape(row["short"])} '
        f'<a href="#claim-{row["id"]}" aria-label="link to this claim">#</a></span>'
        f'<span>main part: <span class="is-{LOOK[row["main_verdict"]]}">{row["main_verdict"]}'
        f'</span>; all parts: <span class="is-{LOOK[row["verdict"]]}">{row["verdict"]}</span>'
        "</span></th>"
        f'<td role="cell"><p>{quotation}</p>'
        f'<p class="rr-soft">{paper}, {escape(row["where"])}; read: {escape(row["read"])}.</p>'
        f'<p class="rr-soft">To support it: {escape(row["needs"])}</p></td>'
        f'<td role="cell"><ul>{marks}</ul><p>{escape(row["shows"])} '
        f'<a href="#{row["section"]}">Where it is shown</a></p>'
        f'<p class="rr-soft">Would change this: {escape(row["changes"])}</p></td></tr>'
    )


def audit_table(rows: Sequence[Mapping[str, Any]]) -> kit.Explorable:
    """The whole table, from `audit_rows`: plain HTML, an anchor `claim-<id>` at each row."""
    style = f"{kit.style()} {kit.style('audit.css')}"
    body = "\n".join(_row(row) for row in rows)
    return kit.Explorable(
        "audit-table",
        f'<div class="rr-explorable rr-audit"><style>{style}</style><table role="table">'
        '<thead role="rowgroup"><tr role="row"><th role="columnheader">Claim and verdict</th>'
        '<th role="columnheader">Where, and what it needs</th>'
        '<th role="columnheader">What the data show</th></tr></thead>'
        f'<tbody role="rowgroup">\n{body}\n</tbody></table></div>',
    )


# ---- the explorable ----------------------------------------------------------------------------


def claim_map(rows: Sequence[Mapping[str, Any]]) -> kit.Explorable:
    """Explorable: the claims by paper and main verdict; on a page it filters the table, too.

    rows: from `audit_rows`. Raises RRError without a row.
    """
    if not rows:
        raise RRError("no claim to show: give rows from audit_rows")
    data = [{key: row[key] for key in ("id", "paper", "short", "main_verdict")} for row in rows]
    return kit.explorable(
        "claim-map",
        script="audit.js",
        title="Every claim, and the verdict on what it asserts",
        lead="Choose a paper or a verdict. On the page of the book, your choice also filters the "
        "table below.",
        controls=[
            kit.choice("paper", "paper", {"all": "all four"} | PAPERS, "all"),
            kit.choice(
                "verdict", "verdict", {"all": "every verdict"} | {v: v for v in VERDICTS}, "all"
            ),
            kit.choice("order", "order", {"paper": "by paper", "verdict": "by verdict"}, "paper"),
        ],
        picture="A row for each claim with its verdict; the table below holds the same in full",
        note="A verdict follows from the main parts of a claim: all hold, some do, none does, or "
        "none can be told. The table has the verdict on all parts as well.",
        data=data,
    )
