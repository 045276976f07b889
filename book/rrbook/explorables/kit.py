"""What the explorables share: the HTML frame, its controls, static SVG, numbers in words.

An explorable is one self-contained `<figure>`: own style, inline SVG and a small script. It needs
no kernel, no network and no module loader, and its HTML is the same on every run. The script
computes, draws and says what the picture shows; a page without scripts shows what it drew and said
when the notebook was stored (`book/tools/drawings.py`).
"""

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from html import escape
from pathlib import Path

HERE = Path(__file__).parent
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, repr=False)
class Explorable:
    """A picture with controls that shows itself in notebooks and on static pages."""

    name: str
    html: str

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return f"<explorable {self.name}: needs a page that shows HTML>"


# ---- numbers in words --------------------------------------------------------------------------


def number(x: float) -> str:
    """Three significant digits, or two and a power of ten below 0.001 and from 1000 on."""
    if x == 0:
        return "0"
    exact = Decimal(x)
    plain = 0.001 <= abs(x) < 1000
    digits = 2 if plain else 1
    rounded = exact.quantize(Decimal(1).scaleb(exact.adjusted() - digits), ROUND_HALF_UP)
    if plain:
        text = f"{rounded:f}"
        text = text.rstrip("0").rstrip(".") if "." in text else text
    else:
        power = rounded.adjusted()
        mantissa = f"{rounded.scaleb(-power):f}".rstrip("0").rstrip(".")
        text = f"{mantissa}\u00a0×\u00a010{str(power).translate(SUPERSCRIPT)}"
    return text.replace("-", "−")


def share(x: float) -> str:
    """A share as a percentage, or as a plain power of ten where a percentage says nothing."""
    return f"{number(100 * x)}\u00a0%" if x >= 1e-4 else number(x)


# ---- controls ----------------------------------------------------------------------------------


def slider(
    name: str, label: str, low: float, high: float, step: float, value: float, unit: str = ""
) -> str:
    """A labelled `<input type="range">`; its label shows the value and the unit."""
    shown = f"{value:g}{unit}".replace("-", "−")
    return (
        f'<label>{label} <b aria-hidden="true">{shown}</b><input type="range" name="{name}" '
        f'min="{low:g}" max="{high:g}" step="{step:g}" value="{value:g}" '
        f'data-unit="{escape(unit)}"></label>'
    )


def choice(name: str, label: str, options: dict[str, str], value: str) -> str:
    """A labelled `<select>`; options: value -> words."""
    items = "".join(
        f'<option value="{key}"{" selected" * (key == value)}>{words}</option>'
        for key, words in options.items()
    )
    return f'<label>{label}<select name="{name}">{items}</select></label>'


def radios(name: str, legend: str, options: dict[str, str], value: str) -> str:
    """A group of radio buttons; options: value -> words."""
    items = "".join(
        f'<label><input type="radio" name="{name}" value="{key}"{" checked" * (key == value)}>'
        f"{words}</label>"
        for key, words in options.items()
    )
    return f"<fieldset><legend>{legend}</legend>{items}</fieldset>"


def checks(legend: str, options: dict[str, str], chosen: Collection[str]) -> str:
    """A group of checkboxes; options: name -> words. The script reads each as true or false."""
    items = "".join(
        f'<label><input type="checkbox" name="{key}"{" checked" * (key in chosen)}>{words}</label>'
        for key, words in options.items()
    )
    return f"<fieldset><legend>{legend}</legend>{items}</fieldset>"


# ---- static SVG --------------------------------------------------------------------------------


def tag(name: str, text: str | None = None, **attributes: object) -> str:
    """One SVG element; `class_` and names with `_` become `class` and names with `-`."""
    words = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_short(value)}"'
        for key, value in attributes.items()
    )
    return f"<{name}{words}/>" if text is None else f"<{name}{words}>{escape(text)}</{name}>"


def _short(value: object) -> str:
    return f"{round(value, 1):g}" if isinstance(value, float) else escape(str(value))


# ---- the frame ---------------------------------------------------------------------------------


def script_of(*files: str) -> str:
    """The files as one function, without comment lines and indentation."""
    text = "\n".join((HERE / file).read_text(encoding="utf-8") for file in files)
    lines = (line.strip() for line in text.splitlines())
    body = "\n".join(line for line in lines if line and not line.startswith("//"))
    return f'(function () {{\n"use strict";\n{body}\n}})();'


def style(file: str = "kit.css") -> str:
    return re.sub(r"\s+", " ", (HERE / file).read_text(encoding="utf-8")).strip()


def explorable(
    name: str,
    *,
    script: str,
    title: str,
    lead: str,
    controls: Sequence[str],
    picture: str,
    note: str,
    data: object = None,
    shared: Sequence[str] = (),
    below: str = "",
) -> Explorable:
    """Assemble an explorable.

    script: its file in this folder; shared: files that it shares with others. title, lead, note:
    HTML. picture: what the SVG is, in words, for a reader who cannot see it (its numbers are in the
    sentence that the script writes below it). data: JSON for the script. below: HTML under the
    sentence, which the script fills; its tables are kept for a page without scripts.
    """
    values = ""
    if data is not None:
        text = json.dumps(data, separators=(",", ":"), allow_nan=False)
        values = f' data-values="{escape(text)}"'
    html = "\n".join(
        [
            f'<figure class="rr-explorable" data-explorable="{name}"{values}>',
            f"<style>{style()}</style>",
            f"<figcaption><strong>{title}</strong>{lead}</figcaption>",
            '<div class="rr-live" hidden>',
            f'<form autocomplete="off">{"".join(controls)}</form>',
            f'<div><svg class="rr-picture" role="img" aria-label="{escape(picture)}"></svg></div>',
            '<p class="rr-said" aria-live="polite"></p>',
            *([below] if below else []),
            "</div>",
            f"<noscript><p>{escape(picture)}</p></noscript>",
            f'<p class="rr-note">{note}</p>',
            f"<script>\n{script_of('kit.js', *shared, script)}\n</script>",
            "</figure>",
        ]
    )
    return Explorable(name, html)
