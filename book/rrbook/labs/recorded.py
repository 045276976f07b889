"""A lab's recorded grid: what the real code says at some settings, for pages without a kernel.

The page shows it in place of the widgets (`book/tools/labs.py`): a form in the explorables' style,
whose controls go through the recorded settings. Equal lines of the pictures are kept once, and all
is compressed; the browser unpacks it.
"""

import base64
import json
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from itertools import product
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from rr.errors import RRError

from ..explorables import kit
from ..figures.svg import svg

MOST = 44_000  # bytes that a page carries of one lab
FIGURE = '<figure class="rr-explorable rr-lab"'
# the explorables' letters are not those of matplotlib's figures
STYLE = ".rr-explorable svg.rr-figure text{font-size:inherit;fill:inherit}"


def settings(control: Any) -> list[tuple[str, Any]]:
    """(words, value) of what a selection offers; none for other controls."""
    offered = getattr(control, "options", ())
    pairs = offered.items() if isinstance(offered, Mapping) else offered
    return [one if isinstance(one, tuple) else (_words(one), one) for one in pairs]


def _words(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}".replace("-", "−") if isinstance(value, int | float) else str(value)


def axis(name: str, control: Any, values: Sequence) -> tuple[dict, str]:
    """The words of a control's recorded values, and the form's control for them."""
    if control.value not in values:
        raise RRError(f"{name} starts at {control.value!r}, which is not recorded: add it")
    named = {repr(value): words for words, value in settings(control)}
    words = [named.get(repr(value), _words(value)) for value in values]
    start, label = list(values).index(control.value), escape(control.description)
    if all(isinstance(value, int | float) for value in values) and len(values) > 2:
        made = kit.slider(name, label, 0, len(values) - 1, 1, start)
    else:
        options = {str(i): escape(text) for i, text in enumerate(words)}
        made = kit.choice(name, label, options, str(start))
    return {"name": name, "words": words}, made


def packed(states: Iterable[tuple[str, str]]) -> str:
    """Pictures (SVG) and sentences, each line once, compressed, in base64."""
    lines: dict[str, int] = {}
    kept = [
        {
            "said": sentence,
            "lines": [lines.setdefault(line, len(lines)) for line in drawn.split("\n")],
        }
        for drawn, sentence in states
    ]
    text = json.dumps({"lines": list(lines), "states": kept}, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def drawn(figure: Figure) -> str:
    """The figure as the page's SVG, in tenths of a point, and closed."""
    text = svg(figure, data=False)
    plt.close(figure)
    tenth = re.compile(r"-?\d+\.\d\d\b")
    return re.sub(
        r"<[^>]*>", lambda tag: tenth.sub(lambda x: f"{float(x[0]):.1f}", tag[0]), text
    ).strip()


def record(
    name: str,
    controls: Mapping[str, Any],
    draw: Callable[..., tuple[Figure, str]],
    lead: str,
    grid: Mapping[str, Sequence],
) -> str:
    """The lab at every setting of the grid, as HTML; controls that are not in it stay as they are.

    Raises RRError for a grid without a control's first value and for one of more than `MOST` bytes.
    """
    axes, form = zip(
        *(axis(key, controls[key], values) for key, values in grid.items()), strict=True
    )
    start = {key: control.value for key, control in controls.items()}
    states, first = [], ("", "")
    for values in product(*grid.values()):
        at = {**start, **dict(zip(grid, values, strict=True))}
        figure, sentence = draw(**at)
        states.append((drawn(figure), sentence))
        if at == start:
            first = states[-1]
    data = json.dumps({"axes": axes, "packed": packed(states)}, separators=(",", ":"))
    if len(data) > MOST:
        raise RRError(
            f"lab {name}: {len(states)} recorded settings take {len(data)} bytes, "
            f"at most {MOST} are allowed: record fewer"
        )
    picture = f'<svg class="rr-picture rr-figure" role="img" aria-label="{escape(first[1])}"></svg>'
    return "\n".join(
        [
            f'{FIGURE} data-explorable="lab-{name}" data-values="{escape(data)}">',
            f"<style>{kit.style()}{STYLE}</style>",
            f"<figcaption><strong>Lab</strong>{lead}</figcaption>",
            '<div class="rr-live" hidden>',
            f'<form autocomplete="off">{"".join(form)}</form>',
            f'<div class="rr-figure-box">{picture}</div>',
            '<p class="rr-said" aria-live="polite"></p>',
            "</div>",
            f"<noscript>{first[0]}<p>{escape(first[1])}</p></noscript>",
            f'<p class="rr-note">The real code was run at {len(states)} settings for this page. '
            "In the notebook the lab computes any other, too.</p>",
            f"<script>\n{kit.script_of('kit.js', 'lab.js')}\n</script>",
            "</figure>",
        ]
    )
