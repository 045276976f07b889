"""A figure as SVG that takes the colours of the page it stands on: light, dark or print.

The neutral colours of `style.py` (letters, axes, grid, background), its two blues and the darkened
colours of words become CSS variables, each with its own value as the fallback; the other hues are
read on either ground and stay. Letters are text, in the reader's own sans-serif. Where a page sets
no variable the figure is the near-white card of its PNG; `DARK` sets them for a dark ground. The
element `metadata` holds what is drawn as tables (`data.py`).
"""

import html
import io
import re
from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib import colors
from matplotlib.collections import Collection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

from .data import as_json
from .phone import phone
from .style import CARD, HUES, PAGE, readable

DARK = Path(__file__).with_name("dark.css")
FAMILY = "var(--rr-fig-font, system-ui, sans-serif)"
HIDDEN = '<svg class="rr-phone" display="none" '  # how the figure for a phone begins
DENSE = 3000  # vertices of one line or collection, above which it is drawn as a picture


@cache
def variables() -> dict[str, str]:
    """Each colour that a page may set, as hex -> the name of its CSS variable."""
    words = {f"word-{name}": colors.to_hex(readable(hue)) for name, hue in HUES.items()}
    return {hex_.lower(): f"--rr-fig-{name}" for name, hex_ in {**words, **PAGE}.items()}


def svg(fig: Figure, data: bool = True) -> str:
    """The figure as SVG text, the same to the letter for the same data.

    With `data` it holds what is drawn as tables, and the figure as a phone shows it (`phone.py`),
    in an element of class `rr-phone` that other programs do not display.
    """
    text = _drawn(fig)
    if not data:
        return text
    held = f"<metadata>{html.escape(as_json(fig), quote=False)}</metadata>\n"
    if (small := phone(fig)) is not None:
        held += prefixed(_drawn(small), "p-").replace("<svg ", HIDDEN, 1)
    return text.replace("</svg>", f"{held}</svg>")


def layouts(text: str) -> list[str]:
    """What `svg` put into one text: the figure, then, where there is one, that of a phone."""
    wide, *narrow = text.strip().removesuffix("</svg>").split(HIDDEN)
    return [f"{wide}</svg>", *(f"<svg {one}" for one in narrow)] if narrow else [text]


def prefixed(text: str, prefix: str) -> str:
    """SVG whose ids begin with the prefix, where they are given and where they are used."""
    names = set(re.findall(r'\bid="([^"]+)"', text))
    return re.sub(
        r'(\bid="|#)([^")]+)(?=["\)])',
        lambda match: f"{match[1]}{prefix if match[2] in names else ''}{match[2]}",
        text,
    )


def _drawn(fig: Figure) -> str:
    haloed = [text for text in fig.findobj(Text) if text.get_path_effects()]
    before = [(text, text.get_path_effects(), text.get_gid()) for text in haloed]
    dense = [
        one
        for ax in fig.axes
        for one in (*ax.lines, *ax.collections)
        if not one.get_rasterized() and _vertices(one) > DENSE
    ]
    try:
        for text in haloed:  # as a path effect matplotlib would draw the letters as curves
            text.set_path_effects([])
            text.set_gid("halo")
        for one in dense:
            one.set_rasterized(True)
        with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "rr"}):
            file = io.BytesIO()
            nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
            fig.savefig(file, format="svg", bbox_inches="tight", dpi=150, metadata=nothing)
    finally:
        for text, effects, gid in before:
            text.set_path_effects(effects)
            text.set_gid(gid)
        for one in dense:
            one.set_rasterized(False)
    return _themed(file.getvalue().decode())


def _vertices(artist: Line2D | Collection) -> int:
    if isinstance(artist, Line2D):
        return np.size(artist.get_xdata())
    return sum(np.size(path.vertices, 0) for path in artist.get_paths()) * max(
        1, np.size(artist.get_offsets(), 0) if len(artist.get_paths()) == 1 else 1
    )


def _themed(text: str) -> str:
    """matplotlib's SVG without prologue, group names and hundredths, in colours a page can set."""
    text = text[text.index("<svg") :]
    for needless in (
        r"<metadata>.*?</metadata>",
        r"<!--.*?-->",
        r"<defs>\s*<style.*?</defs>",
        r' transform="rotate\(-0 [^"]*"',
    ):
        text = re.sub(needless, "", text, flags=re.DOTALL)
    view = re.findall(r'viewBox="[^"]*"', text)[0]
    head = (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
        f' {view} style="stroke-linejoin: round; stroke-linecap: butt">'
    )
    text = head + text[text.index(">") + 1 :]
    halo = f"paint-order: stroke; stroke: {CARD}; stroke-width: 3"
    text = text.replace('<g id="halo">', f'<g style="{halo}">')
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    text = re.sub(r"font-family: [^;\"]*", f"font-family: {FAMILY}", text)
    text = re.sub(r"(font: (?:\w+ )*[\d.]+px) [^;\"]*", rf"\1 {FAMILY}", text)
    known = variables()

    def hundredths(tag: re.Match) -> str:  # of coordinates; a label keeps its digits
        return re.sub(r"-?\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", tag[0])

    text = re.sub(r"<[^>]*>", hundredths, text)

    def variable(colour: re.Match) -> str:
        name = known.get(colour[0].lower())
        return f"var({name}, {colour[0]})" if name else colour[0]

    text = re.sub(r"(?<=: )#[0-9a-fA-F]{6}\b", variable, text)
    return re.sub(r"\s*\n\s*", "\n", text).replace('\n"', '"').strip() + "\n"
