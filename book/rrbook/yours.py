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
from collections.abc import Iterable, Mapping, Sequence
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
Row = str | int | float | Sequence[float] | None


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
    label: str, quantities: Mapping[str, object], differences: Mapping[str, Iterable] | None = None
) -> None:
    """Show *Your run* below an experiment: quantity, the book's, yours.

    label: the chapter's number and the experiment's name, `05-train`. quantities: a number, a text,
    or a number for each seed, whose mean is shown. differences: of paired arms, one number for each
    seed; their 95 % t interval says below or above zero, or that the two are not told apart.
    Where all parameters are the book's and the numbers agree, that is one line. Where the book is
    built nothing is shown, and the numbers are stored.
    """
    rows = {name: _row(value) for name, value in quantities.items()}
    judged = {name: _row(list(value)) for name, value in (differences or {}).items()}
    for name, value in {**rows, **judged}.items():
        glue(f"{label}: {name}", json.dumps(value), display=False)
    if os.environ.get(EDITION) != "1":
        book = of_chapter(label[:2]) or Book({}, {})
        shell = get_ipython()
        text = block(label, rows, judged, book, shell.user_ns if shell else {})
        IPython.display.display(IPython.display.Markdown(text))


def block(
    label: str,
    rows: Mapping[str, Row],
    judged: Mapping[str, Row],
    book: Book,
    parameters: Mapping[str, Any],
) -> str:
    """The Markdown of one block."""
    changed, lines, apart = book.differing(parameters), [], 0
    for name, value in {**rows, **judged}.items():
        text = book.values.get(f"{label}: {name}")
        before = json.loads(ast.literal_eval(text)) if text else None
        apart += not agree(before, value)
        of_book, of_yours = (written(each, name in judged) for each in (before, value))
        lines.append(f"| {name} | {of_book if text else 'not recorded'} | {of_yours} |")
    if changed:
        head = ", ".join(f"`{n} = {v!r}` (the book: `{book.parameters[n]!r}`)"
                         for n, v in changed.items())  # fmt: skip
    elif not apart:
        return "**Your run.** With the book's parameters, this machine's numbers agree."
    else:
        head = f"The book's parameters; {apart} of {len(lines)} numbers differ on this machine."
    table = ["| quantity | the book | yours |", "|---|---|---|", *lines]
    return "\n".join([f"**Your run.** {head}", "", *table])


def _row(value: Any) -> Row:
    """A value as JSON holds it: a NumPy or a PyTorch number becomes a plain one."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        return value.item()
    return [float(each) for each in value]


def agree(before: Row, now: Row) -> bool:
    """Whether two values are the same but for what another machine's rounding moves."""
    if isinstance(before, str) or isinstance(now, str) or before is None or now is None:
        return before == now
    if isinstance(before, Sequence) and isinstance(now, Sequence):
        return len(before) == len(now) and all(map(agree, before, now))
    if isinstance(before, Sequence) or isinstance(now, Sequence):
        return False
    same = math.isclose(before, now, rel_tol=NEAR, abs_tol=1e-6)
    return same or math.isnan(before) and math.isnan(now)


def written(value: Row, judged: bool = False) -> str:
    """A value as the table shows it; a difference (`judged`) with what its interval says."""
    if value is None:
        return "undefined"
    if isinstance(value, str):
        return value.replace("|", "\\|")
    if not isinstance(value, Sequence):
        return _number(value)
    sign = "+" if judged else ""
    if not all(map(math.isfinite, value)):
        lost = sum(not math.isfinite(each) for each in value)
        return f"undefined in {lost} of {len(value)} seeds"
    if len(value) < 2:
        return f"{_number(value[0], sign)} (one seed: no interval)" if value else "no seeds"
    mean = stats.interval(value)
    shown = _number(mean.mean, sign)
    if math.isnan(mean.lo):
        return f"{shown} in each of {mean.n} seeds"
    shown += f" ({_number(mean.lo, sign)} to {_number(mean.hi, sign)})"
    if not judged:
        return shown
    word = "below" if mean.hi < 0 else "above" if mean.lo > 0 else "not told apart"
    return f"{shown}: {word}"


def _number(value: float, sign: str = "") -> str:
    if math.isnan(value):
        return "undefined"
    if math.isinf(value):
        return "−∞" if value < 0 else "∞"
    spec = f"{sign},d" if isinstance(value, int) and not sign else f"{sign}.4g"
    return format(value, spec).replace("-", "−")
