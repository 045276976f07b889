"""Numbers and sentences that a cell computes for the text: outputs in the form that MyST-NB reads.

A sentence about an execution is chosen by `verdict`, so that it holds for any parameters. In the
plain edition (`rrbook.plain`) a cell that glued something ends with a table of it, the recorded
value beside this run's.
"""

import ast
import html
import os
import re
from collections.abc import Iterable, Mapping

import IPython.display
import numpy as np
from IPython import get_ipython
from IPython.core.formatters import format_display_data

PREFIX = "application/papermill.record/"
TEXT = f"{PREFIX}text/plain"
EDITION = "RR_EDITION"  # 1 where the book is built and its stored outputs compared

_recorded: dict[str, list[str]] = {}  # name -> value as text, format of the sentence
_glued: dict[str, str] = {}  # by the cell that is running: name -> value as text


def glue(name: str, value: object, display: bool = True) -> None:
    """Store `value` under `name`, for the text to quote; `display` shows it below the cell too."""
    if isinstance(value, np.generic):
        value = value.item()
    data, metadata = format_display_data(value)
    prefix = "" if display else PREFIX
    _glued[name] = data["text/plain"]
    metadata["scrapbook"] = {"name": name, "mime_prefix": prefix}
    data = {prefix + kind: content for kind, content in data.items()}
    IPython.display.display(data, raw=True, metadata=metadata)


def glued(outputs: Iterable[Mapping]) -> dict[str, str]:
    """name -> text of each value that a cell's outputs hold for the prose."""
    return {
        output["metadata"]["scrapbook"]["name"]: output["data"][TEXT]
        for output in outputs
        if TEXT in output.get("data", {})
    }


def assert_recorded(holds: object, note: str = "") -> None:
    """An assert of what the book says of its recorded execution; never raised to a reader.

    It guards the edition: only the book's own tools, which execute at the default parameters, set
    RR_EDITION to 1. An assert that checks code is written as one, for everybody.
    """
    if os.environ.get(EDITION) == "1":
        assert holds, f"not as in the recorded execution: {note}"


def verdict(name: str, holds: object, yes: str, no: str, varies: bool = False) -> None:
    """Glue the sentence that this execution's numbers allow: `yes` where `holds`, else `no`.

    In the recorded execution it is `yes`, and that is asserted, unless it `varies`: a few seeds
    that were trained briefly end in another order on a CPU that rounds differently.
    """
    if not varies:
        assert_recorded(holds, f"{name}: {no}")
    sentence = yes if holds else no
    glue(name, re.sub(r"(?<![\w.])-(?=\d)", "−", sentence), display=False)


def formatted(value: str, spec: str = "") -> str:
    """A stored value in a format specification, as MyST-NB writes it. ValueError: it has another.

    `value` is text/plain as stored: the text of a number, or a quoted string.
    """
    try:
        parsed = ast.literal_eval(value)
    except (SyntaxError, ValueError):
        parsed = value
    if spec[-1:] and spec[-1] in "bcdoxX":
        parsed = int(parsed)
    elif spec[-1:] and spec[-1] in "eEfFgGn%":
        parsed = float(parsed)
    else:
        parsed = str(parsed)
    return format(parsed, spec)


def recorded(values: Mapping[str, list[str]]) -> None:
    """Take the book's values, name -> [text, format]; from here on cells end with their table."""
    if not _recorded and (shell := get_ipython()) is not None:
        shell.events.register("pre_run_cell", lambda *_: _glued.clear())
        shell.events.register("post_run_cell", lambda *_: _show())
    _recorded.update(values)


def _show() -> None:
    if _glued:
        IPython.display.display(IPython.display.HTML(table(_glued, _recorded)))


def table(now: Mapping[str, str], before: Mapping[str, list[str]]) -> str:
    """HTML of glued values beside the recorded; open where one differs as the text writes it."""
    rows, moved = [], 0
    for name, value in now.items():
        text, spec = before.get(name, (None, ".6g"))
        new = _as_written(value, spec)
        old = "" if text is None else _as_written(text, spec)
        differs = bool(old) and old != new
        moved += differs
        cells = [f"<code>{html.escape(name)}</code>", html.escape(old), html.escape(new)]
        if differs:
            cells[2] = f"<b>{cells[2]}</b>"
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    count = f"{len(rows)} number" + "s" * (len(rows) != 1)
    note = f"{moved} of {count} moved" if moved else f"{count} for the text"
    head = "<tr><th>name</th><th>recorded</th><th>this run</th></tr>"
    opened = " open" if moved else ""
    return (
        f"<details{opened}><summary>{note}: recorded, and this run</summary>"
        f"<table>{head}{''.join(rows)}</table></details>"
    )


def _as_written(value: str, spec: str) -> str:
    try:
        return formatted(value, spec)
    except (TypeError, ValueError):  # another kind of value than the text expects
        return formatted(value)
