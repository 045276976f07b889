"""The differences of many arms from one baseline as an SVG text."""

from html import escape

import pandas as pd

from ..config import RRError
from .frames import as_rows

LINE, LEFT, WIDE, RIGHT = 26, 190, 420, 110  # heights and widths in pixels
STYLE = (
    "text{font:13px sans-serif;fill:#222}.soft{fill:#666}.zero,.tick{stroke:#999}"
    ".span{stroke:#0072b2;stroke-width:2}.mark{stroke:#0072b2;stroke-width:2;fill:#fff}"
    ".sure{fill:#0072b2}.seed{fill:#0072b2;fill-opacity:.35}.back{fill:#fff}"
    "@media(prefers-color-scheme:dark){text{fill:#eee}.soft{fill:#aaa}.back{fill:#1b1b1b}"
    ".span,.mark{stroke:#56b4e9}.mark{fill:#1b1b1b}.sure,.seed{fill:#56b4e9}}"
)


def forest(table: pd.DataFrame, unit: str = "loss") -> str:
    """An SVG: a line per arm of `compare()`, its difference from the baseline with the interval.

    A filled mark has a p below 0.05 after Holm's correction; a small dot is one pair. Arms that
    could not be compared say so in words. table: of `compare()` with a baseline. unit: what is
    compared, for the labels. Raises RRError where there is no comparison.

    Example:
        >>> from rr.stats import compare, forest
        >>> losses = {"a": [3.1, 3.2, 3.3], "b": [2.9, 3.1, 3.0]}
        >>> rows = [
        ...     {"arm": arm, "seed": seed, "val_loss": loss}
        ...     for arm in losses
        ...     for seed, loss in enumerate(losses[arm])
        ... ]
        >>> forest(compare(rows, baseline="a"))[:4]
        '<svg'
    """
    shown = [row for row in as_rows(table) if row["baseline"]]
    ends = [
        x
        for row in shown
        for x in (row["difference"], row["lo"], row["hi"], *row["differences"])
        if x is not None
    ]
    if not ends:
        raise RRError("no arm has a difference: two finished seeds per arm are needed for a figure")
    low, high = min(0.0, *ends), max(0.0, *ends)
    room = 0.05 * (high - low) or 1.0
    low, high = low - room, high + room

    def x(value: float) -> float:
        return round(LEFT + WIDE * (value - low) / (high - low), 1)

    bottom = 30 + LINE * len(shown)
    base = escape(str(shown[0]["baseline"]))
    level = f"{100 * shown[0]['level']:g} %"
    words = f"{unit} minus that of {shown[0]['baseline']}, with {level} intervals: " + "; ".join(
        f"{row['arm']} " + ("no test" if row["difference"] is None else _signed(row["difference"]))
        for row in shown
    )
    out = [f'<line class="zero" x1="{x(0)}" x2="{x(0)}" y1="18" y2="{bottom}"/>']
    for place, row in enumerate(shown):
        y = 30 + LINE * place + LINE / 2
        out.append(f'<text x="8" y="{y + 4}">{escape(row["arm"])}</text>')
        if row["lo"] is None:
            reason = escape("; ".join(row["notes"]))
            out.append(f'<text class="soft" x="{LEFT}" y="{y + 4}">{reason}</text>')
            continue
        out += [f'<circle class="seed" cx="{x(d)}" cy="{y}" r="3"/>' for d in row["differences"]]
        out.append(
            f'<line class="span" x1="{x(row["lo"])}" x2="{x(row["hi"])}" y1="{y}" y2="{y}"/>'
        )
        significant = row["holm"] is not None and row["holm"] < 0.05
        mark = "mark sure" if significant else "mark"
        out.append(f'<circle class="{mark}" cx="{x(row["difference"])}" cy="{y}" r="5"/>')
        out.append(f'<text x="{LEFT + WIDE + 12}" y="{y + 4}">{_signed(row["difference"])}</text>')
    for value in (low + room, 0.0, high - room):
        out.append(
            f'<text class="soft" x="{x(value)}" y="{bottom + 16}" text-anchor="middle">'
            f"{_signed(value) if value else '0'}</text>"
        )
    title = f"{escape(unit)} − {base}"
    out.append(
        f'<text class="soft" x="{LEFT + WIDE / 2}" y="{bottom + 36}" text-anchor="middle">'
        f"{title}</text>"
    )
    width, height = LEFT + WIDE + RIGHT, bottom + 46
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img"><title>{escape(words)}</title><style>{STYLE}</style>'
        f'<rect class="back" width="{width}" height="{height}"/>{"".join(out)}</svg>\n'
    )


def _signed(value: float) -> str:
    return f"{value:+.4f}".replace("-", "−")
