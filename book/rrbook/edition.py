"""What the text says of an execution: true of the recorded one, and of yours.

The book's sentences were written for the stored parameters. Where the book is built and tested
(`RR_EDITION=1`) a sentence's condition is asserted, so that the book cannot say what it did not
find. Everywhere else the same condition chooses the sentence: no run of a reader ends in an
assertion that guards somebody else's numbers.
"""

import html
import os

import IPython.display

from .glue import glue

VARIABLE = "RR_EDITION"  # set where the stored edition itself is executed


def edition(condition: object, otherwise: str) -> None:
    """Assert what the text says where the book is built; elsewhere say where it fails.

    otherwise: the sentence for a run in which the condition is false, with its numbers.
    """
    if condition:
        return
    assert os.environ.get(VARIABLE) != "1", otherwise
    words = f"<b>In this run it is otherwise:</b> {html.escape(otherwise)}"
    IPython.display.display(IPython.display.HTML(f"<p>{words}</p>"))


def verdict(name: str, condition: object, yes: str, no: str) -> None:
    """Glue the sentence that is true of this execution under `name`, for the text to quote.

    yes: the book's own, which is asserted where the book is built; no: the other one.
    """
    assert condition or os.environ.get(VARIABLE) != "1", no
    glue(name, yes if condition else no, display=False)
