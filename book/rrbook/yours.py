"""*Your run*: the numbers of the book's run, and those of this execution beside them.

A chapter's text, questions and captions speak of the book's run: its default parameters, executed
when the book was built. `book/tools/store.py` writes what it glued to `book/values/NN_slug.json`;
every copy of the chapter takes the numbers of its text from there. `your_run` is the one place
where an execution speaks of itself.
"""

import ast
import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import IPython.display
from IPython import get_ipython

from rr.errors import RRError
from rrstudy import stats

from .glue import EDITION, glue
from .labels import ROOT

FOLDER = ROOT / "book" / "values"
NEAR = 0.05  # relative: what another CPU's rounding may move
Row = str | int | float | list[float] | None


@dataclass(frozen=True)
class Book:
    """The book's run of one chapter."""

    parameters: Mapping[str, Any]
    values: Mapping[str, str]  # name -> text/plain of each glued value

    def differing(self, others: Mapping[str, Any]) -> dict[str, Any]:
        """Those of the other parameters that are not the book's."""
        return {n: v for n, v in others.items() if n in self.parameters and v != self.parameters[n]}


def of_chapter(start: str) -> Book | None:
    """The book's run of the chapter whose name begins so; None where a chapter has none.

    Chapters 9 and 10 report a run, and have none. RRError where the file is corrupt.
    """
    found = sorted(FOLDER.glob(f"{start}*.json"))
    return read(found[0]) if found else None


def read(path: Path) -> Book:
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        return Book(dict(held["parameters"]), dict(held["values"]))
    except (OSError, ValueError, KeyError, TypeError):
        raise RRError(
            f"{path} is corrupt: restore it, or run book/tools/store.py {path.stem[:2]}"
        ) from None


def your_run(
    label: str, quantities: Mapping[str, Any], differences: Mapping[str, Iterable] | None = None
) -> None:
    """Show *Your run* below an experiment: quantity, the book's, yours.

    label: the chapter's number and the experiment's name, `05-train`. quantities: a number, a text,
    or a number for each seed, whose mean is shown. differences: of paired arms, one number for each
    seed; their 95 % t interval says below or above zero, or that the two are not told apart.
    Where all parameters are the book's and the numbers agree, that is one line. Where the book is
    built nothing is shown, and the numbers are stored.
    """
    rows = {name: (_plain(value), False) for name, value in quantities.items()}
    rows |= {name: (_plain(list(value)), True) for name, value in (differences or {}).items()}
    for name, (value, _) in rows.items():
        glue(f"{label}: {name}", json.dumps(value, ensure_ascii=False), display=False)
    if os.environ.get(EDITION) != "1":
        book = of_chapter(label[:2]) or Book({}, {})
        text = block(label, rows, book, getattr(get_ipython(), "user_ns", {}))
        IPython.display.display(IPython.display.Markdown(text))


def block(
    label: str, rows: Mapping[str, tuple[Row, bool]], book: Book, parameters: Mapping[str, Any]
) -> str:
    """The Markdown of one block. rows: of each quantity its value, and whether it is judged."""
    changed, lines, apart = book.differing(parameters), [], 0
    for name, (value, judged) in rows.items():
        text = book.values.get(f"{label}: {name}")
        before = json.loads(ast.literal_eval(text)) if text else None
        apart += not agree(before, value)
        of_book = written(before, judged) if text else "not recorded"
        lines.append(f"| {name} | {of_book} | {written(value, judged)} |")
    if not changed and not apart:
        return "**Your run.** With the book's parameters, this machine's numbers agree."
    head = ", ".join(
        f"`{n} = {v!r}` (the book: `{book.parameters[n]!r}`)" for n, v in changed.items()
    )
    head = head or f"The book's parameters; {apart} of {len(lines)} numbers differ on this machine."
    table = ["| quantity | the book | yours |", "|---|---|---|", *lines]
    if any(isinstance(value, list) for value, _ in rows.values()):
        words = "In brackets: 95 % t intervals over the seeds; *below* and *above*: zero."
        table += ["", words]
    return "\n".join([f"**Your run.** {head}", "", *table])


def _plain(value: Any) -> Row:
    """A value as JSON holds it: a NumPy or a PyTorch number becomes a plain one."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    return value.item() if getattr(value, "ndim", 1) == 0 else [float(each) for each in value]


def agree(before: Row, now: Row) -> bool:
    """Whether two values are the same but for what another machine's rounding moves."""
    if isinstance(before, list) and isinstance(now, list):
        return len(before) == len(now) and all(map(agree, before, now))
    if isinstance(before, int | float) and isinstance(now, int | float):
        both = math.isnan(before) and math.isnan(now)
        return both or math.isclose(before, now, rel_tol=NEAR, abs_tol=1e-6)
    return before == now


def written(value: Row, judged: bool = False) -> str:
    """A value as the table shows it; a difference (`judged`) with what its interval says."""
    if isinstance(value, str):
        return value.replace("|", "\\|")
    sign = "+" if judged else ""
    if not isinstance(value, list):
        return _number(math.nan if value is None else value, sign)
    lost = sum(not math.isfinite(each) for each in value)
    if lost or not value:
        return f"not finite in {lost} of {len(value)} seeds" if value else "no seeds"
    if len(value) == 1:
        return f"{_number(value[0], sign)} (one seed: no interval)"
    mean = stats.interval(value)
    if math.isnan(mean.lo):
        return f"{_number(mean.mean, sign)} in each of {mean.n} seeds"
    shown = f"{_number(mean.mean, sign)} ({_number(mean.lo, sign)} to {_number(mean.hi, sign)})"
    word = "below" if mean.hi < 0 else "above" if mean.lo > 0 else "not told apart"
    return f"{shown}: {word}" if judged else shown


def _number(value: float, sign: str) -> str:
    if not math.isfinite(value):
        return "undefined" if math.isnan(value) else "−∞" if value < 0 else "∞"
    return format(value, ",d" if isinstance(value, int) else f"{sign}.4g").replace("-", "−")
