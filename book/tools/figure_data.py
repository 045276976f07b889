"""The data of a figure, as its SVG holds it (rrbook.figures.data), as tables below the figure."""

import csv
import html
import io
import json
import re
from urllib.parse import quote

from rrbook.figures.svg import layouts, prefixed
from rrbook.markdown import typeset

HELD = re.compile(r"<metadata>(.*?)</metadata>", re.DOTALL)
ROWS = 60  # that a page shows; the whole of a longer table is a file to download


def taken(svg: str) -> tuple[str, list[dict]]:
    """The SVG without its data, and the data: tables with title, head, rows and number of rows."""
    held = HELD.search(svg)
    if held is None:
        return svg, []
    return HELD.sub("", svg), json.loads(html.unescape(held[1]))


def boxed(svg: str, prefix: str, alt: str) -> str:
    """HTML of a figure, which custom.css shows on a phone in its narrow form.

    Names inside it get the prefix in front, so that they are unique on the page.
    """
    label = html.escape(alt)
    looks = ("rr-figure", "rr-figure rr-phone")
    drawn = "".join(
        one.replace("<svg ", f'<svg class="{look}" role="img" aria-label="{label}" ', 1)
        for one, look in zip(layouts(prefixed(svg, prefix)), looks, strict=False)
    )
    return f'<div class="rr-figure-box">{drawn}</div>'


def _row(cells: list[str], head: bool = False) -> str:
    place, *values = (html.escape(typeset(cell)) for cell in cells)
    begin, end = ('<th scope="col">', "</th>") if head else ("<td>", "</td>")
    scope = "col" if head else "row"
    others = "".join(f"{begin}{value}{end}" for value in values)
    return f'<tr><th scope="{scope}">{place}</th>{others}</tr>'


def _download(table: dict, name: str) -> str:
    """A link to the whole table; the address is the file, so that it needs no network."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([table["head"], *table["rows"]])
    address = f"data:text/csv;charset=utf-8,{quote(file.getvalue())}"
    return (
        f'<a download="{html.escape(name)}.csv" href="{address}">all {len(table["rows"])} (CSV)</a>'
    )


def shown(tables: list[dict], name: str) -> str:
    """HTML of the tables below the figure of that name; nothing where there are none."""
    parts = []
    for place, table in enumerate(tables):
        every = -(-len(table["rows"]) // ROWS)
        body = "".join(_row(row) for row in table["rows"][::every])
        title = html.escape(table["title"])
        if every > 1:
            link = _download(table, f"{name}-{place + 1}" if len(tables) > 1 else name)
            title += f"{'. ' if title else ''}One row in {every} of {link}"
        caption = f"<caption>{title}</caption>" if title else ""
        parts.append(
            f'<div class="pst-scrollable-table-container"><table class="table">{caption}'
            f"<thead>{_row(table['head'], head=True)}</thead><tbody>{body}</tbody></table></div>"
        )
    return f'<div class="rr-data">{"".join(parts)}</div>' if parts else ""
