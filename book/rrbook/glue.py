"""Numbers and sentences that a cell computes for the text: outputs in the form that MyST-NB reads.

A chapter's text is about the book's run; `assert_recorded` holds it to that run's numbers. Chapters
9 and 10 report a run of the reader's, and `verdict` chooses their sentences.
"""

import ast
import os
import re
from collections.abc import Iterable, Mapping

import IPython.display
import numpy as np
from IPython.core.formatters import format_display_data

PREFIX = "application/papermill.record/"
TEXT = f"{PREFIX}text/plain"
EDITION = "RR_EDITION"  # 1 where the book is built and its stored outputs compared


def glue(name: str, value: object, display: bool = True) -> None:
    """Store `value` under `name`, for the text to quote; `display` shows it below the cell too."""
    if isinstance(value, np.generic):
        value = value.item()
    data, metadata = format_display_data(value)
    prefix = "" if display else PREFIX
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


def verdict(name: str, holds: object, yes: str, no: str) -> None:
    """Glue the sentence that this execution's numbers allow: `yes` where `holds`, else `no`.

    In the recorded execution it is `yes`, and that is asserted.
    """
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
