"""What nbval compares otherwise than to the letter, so that stored outputs hold on any machine.

    pytest -p tests.notebooks.glued --nbval ...

A value that a cell glues for the prose may be trained or measured, and such a number differs on
another CPU. Glued values are compared by name: a text's words to the letter, numbers within 5 %,
and those that stand rounded in a text within one unit of their last decimal. A number that moves
more than that belongs in a cell with the tag `nbval-ignore-output`. stderr (a library's warning
under a newer Python) is left out, and so are figures. All other text and HTML stays as nbval has
it, to the letter.
"""

import math
import re
from functools import partial

from nbval.plugin import IPyNbCell, IPyNbFile

from rrbook.glue import glued

NUMBER = re.compile(r"[-+−]?\d+(?:,\d{3})*(?:\.\d+)?(?:[eE][-+]?\d+)?")
RELATIVE, SMALLEST = 0.05, 1e-6


def pytest_collectstart(collector) -> None:
    if isinstance(collector, IPyNbFile):
        collector.skip_compare += ("stderr", "image/svg+xml")


def pytest_itemcollected(item) -> None:
    if isinstance(item, IPyNbCell):
        item.compare_outputs = partial(compare, item, item.compare_outputs)
        item.output_timeout = 60  # seconds for outputs to follow a cell's end; 5 fails when busy


def compare(cell: IPyNbCell, to_the_letter, test: list, stored: list) -> bool:
    """nbval's comparison of all that is not glued, then the glued values by name."""
    same = to_the_letter(*([o for o in outputs if not glued([o])] for outputs in (test, stored)))
    now, before = glued(test), glued(stored)
    for name in sorted(now.keys() | before.keys()):
        if not agree(before.get(name, "nothing"), now.get(name, "nothing")):
            said = f"glued {name}: {before.get(name)} is stored, {now.get(name)} came out"
            cell.comparison_traceback.append(said)
            same = False
    return same


def agree(stored: str, now: str) -> bool:
    """Whether two glued texts have the same words, and numbers within the tolerance."""
    if NUMBER.sub("#", stored) != NUMBER.sub("#", now):
        return False
    rounded = stored.startswith(("'", '"'))  # formatted by the cell; else a number at full length
    pairs = zip(NUMBER.findall(stored), NUMBER.findall(now), strict=True)
    return all(_near(one, other, rounded) for one, other in pairs)


def _near(one: str, other: str, rounded: bool) -> bool:
    a, b = (float(text.replace("−", "-").replace(",", "")) for text in (one, other))
    decimals = len(one.partition(".")[2]) if "e" not in one.lower() else 0
    unit = 1.001 * 10.0**-decimals if rounded and decimals else 0.0
    return math.isclose(a, b, rel_tol=RELATIVE, abs_tol=max(SMALLEST, unit))
