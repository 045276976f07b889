"""The field guide's cards: each rule's picture, equation, source and cost, from the registry.

One grammar for every picture. The thick blue line is the residual stream, from left to right. A
sublayer *reads* at the tap on the left and *writes* at the ⊕ on the right; a round node on the
path of the update holds its coefficient at the start, a node on the stream the carry. Red lines
show what a gate sees, green arcs what comes from earlier depths; an update that is kept apart ends
in a green dot. A dashed ring can learn.
"""

import re
from collections.abc import Sequence
from fractions import Fraction
from html import escape

from rr.errors import RRError, nearest
from rr.options import written

from . import kit
from .kit import tag

SIZE = (340, 118)
LINE, TOP = 88, 30  # heights of the stream and of the sublayer
_STEPS = {1: "M", 2: "L", 3: "Q", 4: "C", 79: "Z"}  # matplotlib's codes of a path, in SVG's letters
ARXIV = re.compile(r"\b(\d{4}\.\d{5})\b")


def amount(x: float | None) -> str:
    """A coefficient in a few letters: ½, 0.1, 1; "?" where it depends on the input."""
    if x is None:
        return "?"
    known = {Fraction(1, 2): "½", Fraction(1, 4): "¼", Fraction(3, 4): "¾"}
    return known.get(Fraction(x).limit_denominator(1000), kit.number(x))


# ---- the pictures ------------------------------------------------------------------------------


def _node(x: float, y: float, words: str, style: str = "", r: float = 12) -> str:
    return tag("circle", cx=x, cy=y, r=r, class_=f"box {style}".strip()) + tag(
        "text", words, x=x, y=y + 4.5, class_="m"
    )


def _box(x: float, y: float, wide: float, words: str, style: str = "") -> str:
    shape = tag(
        "rect", x=x - wide / 2, y=y - 11, width=wide, height=22, rx=5, class_=f"box {style}".strip()
    )
    return shape + tag("text", words, x=x, y=y + 4.5, class_="m")


def _line(d: str, style: str) -> str:
    return tag("path", d=d, class_=style)


def _plus(x: float, y: float) -> str:
    return tag("circle", cx=x, cy=y, r=8, class_="box") + _line(
        f"M{x - 5:g} {y}H{x + 5:g}M{x} {y - 5:g}V{y + 5:g}", "flow"
    )


def _dot(x: float, y: float) -> str:
    return tag("circle", cx=x, cy=y, r=3.2, class_="is-green")


def _dots(y: float) -> list[str]:
    return [_dot(x, y) for x in (12, 25, 38)]


def _arcs(to: float, y: float, gap: float = 12) -> list[str]:
    """Arcs below the stream from three earlier depths to a node at x = `to`, `gap` below it."""
    low = y + 34
    return [_line(f"M{x} {y + 3}C{x} {low} {to} {low} {to} {y + gap}", "arc") for x in (12, 25, 38)]


def picture(facts: dict) -> tuple[int, int, list[str]]:
    """Width, height and elements of a rule's picture, from `anatomy`."""
    return _value_picture(facts) if facts["family"] == "values" else _stream_picture(facts)


def _stream_picture(facts: dict) -> tuple[int, int, list[str]]:
    tap, write, n = 62, 272, facts["streams"]
    half = 15 if facts["weighs"] == "one" else 12
    ys = [LINE - half + 2 * half * i / (n - 1) for i in range(n)] if n > 1 else [float(LINE)]
    out = [_line(f"M6 {y:.1f}H334", "strand") for y in ys[: n * (n > 1)]]
    if n == 1:
        out.append(_line(f"M6 {LINE}H328", "stream"))
        out.append(_line(f"M326 {LINE - 5}L335 {LINE}L326 {LINE + 5}", "stream"))
    below = ys[0] - 8 if facts["weighs"] == "one" else LINE - 8
    out.append(_line(f"M{tap} {ys[0] if n > 1 else LINE:g}V{TOP}H{write}V{below:g}", "flow"))
    if facts["mixes"] and not (facts["reads"] == "earlier" and facts["adds"]):
        at = tap if facts["mixes"] == "read" else 305
        one = facts["reads"] == "both" and facts["adds"]  # the stream and one earlier state
        many = slice(1 if one else None)
        out += [*_arcs(at, LINE)[many], *_dots(LINE)[many], _node(at, LINE, "Σ", "learned")]
    if facts["norm"] in ("read", "both") and not facts["apart"]:
        out.append(_box(tap, 60 if n == 1 else 53, 42, "norm"))
    out.append(_box(122, TOP, 66, "sublayer"))
    out.append(tag("text", "u", x=168, y=TOP - 6, class_="m"))
    out += _coefficients(facts, tap)
    if n > 1:
        out += _streams(facts, tap, write, ys)
    else:
        out.append(_plus(write, LINE) if facts["adds"] else _dot(write, LINE - 11))
    if facts["norm"] in ("write", "both"):
        out.append(_box(304, LINE, 40, "norm"))
    return *SIZE, out


def _streams(facts: dict, tap: float, write: float, ys: list[float]) -> list[str]:
    """What stands on several streams: how they are read, mixed and written to."""
    if facts["weighs"] == "one":  # the sublayer reads the upper one; a number for each writes
        carry = [_box(168, y, 40, amount(facts["carry"]), "learned") for y in ys]
        links = _line(f"M{write} {ys[0] + 8:g}V{ys[1] - 8:g}", "flow")
        scale = _node(222, TOP, "w", "learned")
        return [*carry, links, scale, *(_plus(write, y) for y in ys)]
    out = [_box(write, LINE, 22, "B", "learned")]
    if facts["mixed"]:
        out.append(_box(168, LINE, 26, "Aᵣ", "learned"))
    gated = facts["weighs"] == "each channel"
    words, style = ("σ", "gate learned") if gated else ("Aₘ", "learned")
    if facts["apart"]:  # first the norm of each stream, then their weights
        return [*out, _box(tap, LINE, 42, "norm"), _box(tap, 54, 26, words, style)]
    return [*out, _box(tap, LINE, 26, words, style)]


def _coefficients(facts: dict, tap: float) -> list[str]:
    """The nodes on the update and on the stream, and what a gate sees."""
    on_u, on_h, out, at = facts["coefficient"], facts["carry"], [], 222
    if facts["orthogonal"]:
        return [_line(f"M100 {LINE}V70H{at}V{TOP + 13}", "seen"), _node(at, TOP, "⊥")]
    if facts["erases"]:
        seen = _line(f"M100 {LINE}V70H{at}V{TOP + 11}", "seen")
        return [seen, _box(at, TOP, 84, "β(v − k·h)k", "gate learned")]
    if facts["resized"]:
        return [_box(at, TOP, 42, "norm", "learned")]
    if facts["gate"]:
        if "state" in facts["gate"]:
            out.append(_line(f"M100 {LINE}V70H{at}V{TOP + 13}", "seen"))
            out += _seen(150, 70, facts["gate"]["state"])
        if "update" in facts["gate"]:
            out.append(_line(f"M180 {TOP}V9H{at}V{TOP - 13}", "seen"))
            out += _seen(199, 9, facts["gate"]["update"])
        if facts["remade"]:
            out += [_line(f"M193 70V{TOP + 11}", "seen"), _box(193, TOP, 20, "ĥ", "learned")]
        out.append(_node(at, TOP, "σ" if on_u is None else amount(on_u), "gate learned"))
    elif facts["streams"] == 1 and (facts["learned"] or on_u != 1) and not facts["mixes"]:
        if on_u is not None:
            style = "learned" if facts["learned"] else ""
            out.append(_node(at, TOP, amount(on_u), style, r=15 if len(amount(on_u)) > 2 else 12))
    if facts["family"] == "carry":
        post = facts["norm"] in ("write", "both")
        words = "α" if post else "1−σ" if on_h is None else amount(on_h)
        if post:
            out.append(_node(190, LINE, words))
        else:
            out.append(_node(190, LINE, words, "gate learned", r=15 if len(words) > 2 else 12))
    return out


def _seen(x: float, y: float, how: str) -> list[str]:
    """The small word on a gate's line: whether what it sees is normalised."""
    words = "rms" if how == "normalised" else "raw"
    return [tag("text", words, x=x, y=y + 4, class_="m halo is-red")]


def _value_picture(facts: dict) -> tuple[int, int, list[str]]:
    first, own, learned = facts["first"], facts["own"], facts["learned"]
    out, add, style = [], 196, "learned" if learned else ""
    uses_first = bool(first or facts["others"] or facts["after"] or learned)
    if uses_first:
        out.append(_line(f"M6 {LINE}H328", "strand"))
        out.append(tag("text", "V₁", x=14, y=LINE - 7, class_="m"))
    out.append(_line(f"M14 {TOP}H334", "flow"))
    out.append(tag("text", "x", x=14, y=TOP - 7, class_="m"))
    if own is None:  # no projection of its own: the line begins at the mix
        out = [*out[:-2], _line(f"M{add} {LINE}V{TOP}H334", "flow")]
    else:
        out.append(_box(66, TOP, 54, "project"))
        out.append(tag("text", "Vₙ", x=104, y=TOP - 7, class_="m"))
        if own != 1 or learned:
            out.append(_node(142, TOP, amount(own), style, r=15 if len(amount(own)) > 2 else 12))
        if first or learned:
            out.append(_line(f"M{add} {LINE}V{TOP + 8}", "flow"))
            words = amount(first)
            out.append(_node(add, 62, words, style, r=(12, 15, 18)[min(2, max(0, len(words) - 2))]))
            out.append(_plus(add, TOP))
    if facts["others"]:
        out += [*_arcs(add, LINE, 0)[1:], *_dots(LINE)[1:]]
    if facts["looks_up"]:
        out.append(_box(add, LINE, 62, "E[token]", "learned"))
        out.append(_line(f"M{add} {LINE - 11}V{TOP + 8}", "flow"))
        out += [_line(f"M30 {TOP}V62H{add - 12}", "seen"), _node(add, 62, "σ", "gate learned")]
        out.append(_plus(add, TOP))
    out.append(_box(248, TOP, 52, "attend"))
    if facts["gated"]:
        out.append(_line(f"M30 {TOP}V66H300V{TOP + 12}", "seen"))
        out.append(_node(300, TOP, "σ", "gate learned"))
    if facts["after"]:
        out.append(_line(f"M300 {LINE}V{TOP + 8}", "flow"))
        out.append(_node(300, 62, "λ"))
        out.append(_plus(300, TOP))
    return *SIZE, out


# ---- the words ---------------------------------------------------------------------------------


def reads(facts: dict) -> str:
    """What the sublayer reads, in a few words."""
    if facts["family"] == "values" and facts["looks_up"]:
        blocks = " and ".join(map(str, facts["looks_up"]))
        return f"its own values, and in blocks {blocks} of 4 those of the token in a table"
    if facts["family"] == "values":
        return "its own values only" if not facts["blocks"] else _blocks(facts["blocks"])
    if facts["streams"] > 1:
        n, how = facts["streams"], facts["weighs"]
        if how == "one":
            return f"one of {n} streams, normalised: attention the first, the MLP the second"
        return (
            f"{n} streams, normalised"
            + {
                "number": ", with one number for each",
                "each channel": ", through a gate for each channel",
            }[how]
        )
    what = "the stream"
    if facts["reads"] == "both" and facts["adds"]:
        what = "the stream with an earlier state added"
    elif facts["reads"] != "stream":
        what = "what the block began with" if facts["adds"] else "all earlier updates, mixed"
    return what + (", normalised" if facts["norm"] in ("read", "both") else ", as it is")


def _blocks(blocks: Sequence[int]) -> str:
    return (
        f"the first block’s values, in block{'s' * (len(blocks) > 1)} "
        + (f"{blocks[0]} to {blocks[-1]}" if len(blocks) > 1 else str(blocks[0]))
        + " of 4"
    )


def writes(facts: dict) -> str:
    """How the update is written, in a few words."""
    if facts["family"] == "values" and facts["looks_up"]:
        return "Vₙ × 1, and the token’s values through a gate, which sees x"
    if facts["family"] == "values" and facts["gated"]:
        return f"Vₙ × 1; the result of attention through a gate for {facts['gated']}, which sees x"
    if facts["family"] == "values":
        own = "no values of its own" if facts["own"] is None else f"Vₙ × {amount(facts['own'])}"
        first = f"V₁ × {amount(facts['first'])}, " * bool(facts["first"] or facts["learned"])
        return (
            first
            + own
            + (", and others" * facts["others"] + ", more after attention" * facts["after"])
        )
    if facts["gate"]:
        seen = " and ".join(f"the {how} {what}" for what, how in facts["gate"].items())
        remade = "a function ĥ of update and state, " if facts["remade"] else ""
        return f"{remade}through a gate for {facts['channels']}, which sees {seen}".replace(
            "for one", "for the token"
        )
    if facts["streams"] > 1:
        whole = facts["carry"] == 1
        kept = (
            "are mixed" if facts["mixed"] else "never mix" if whole else "are scaled, never mixed"
        )
        return f"spread over the streams, which {kept}"
    if facts["erases"]:
        return "along the update’s direction k alone: what the stream holds there is set towards v"
    if facts["orthogonal"]:
        return "without its part along the stream"
    if facts["resized"]:
        return "normalised, then added"
    how = "added" if facts["family"] != "carry" else "added to the scaled stream, then normalised"
    if facts["mixes"] == "write":
        return "added; after each block, earlier blocks are mixed in"
    if not facts["adds"]:
        return "kept apart, as one more thing to read"
    scaled = facts["learned"] and not facts["mixes"] and facts["norm"] not in ("write", "both")
    return how + (", with a learned scale" if scaled else "")


def mark(row: dict, facts: dict) -> str:
    """The rule's line and mark in the figures of the book, in its colour."""
    from matplotlib.markers import MarkerStyle  # explorables need no matplotlib, but for this
    from matplotlib.transforms import Affine2D

    from ..figures.style import FAMILIES, style_of
    from ..figures.svg import variables

    style = style_of(row["name"])
    if facts["family"] == "values":
        style |= dict(zip(("color", "marker"), FAMILIES["values"], strict=True), linestyle="-")
    shape = MarkerStyle(style["marker"])
    place = shape.get_transform() + Affine2D().scale(9, -9).translate(17, 8)
    outline = ""
    for points, code in shape.get_path().transformed(place).iter_segments(simplify=False):
        step = _STEPS[int(code)]
        outline += step + (" ".join(f"{x:.1f}" for x in points) if step != "Z" else "")
    dash = {"-": "none", "--": "5 3", "-.": "6 2 2 2", ":": "2 2"}[style["linestyle"]]
    themed = variables().get(style["color"].lower())
    colour = f"var({themed}, {style['color']})" if themed else style["color"]
    return (
        f'<svg class="rr-mark" viewBox="0 0 34 16" aria-hidden="true" style="stroke: {colour}; '
        f'fill: {colour}"><path d="M1 8H33" stroke-width="2" stroke-dasharray="{dash}"/>'
        f'<path d="{outline}"/></svg>'
    )


def name(row: dict, facts: dict) -> str:
    """The head of a card: the rule's name, with its mark."""
    return f'<p class="rr-name">{written(row["name"], row["kind"])}</p>{mark(row, facts)}'


def equation(row: dict) -> str:
    """A rule's equation, in lines that fit a narrow card."""
    parts = re.split(r",\s*\\quad", row["equation"])
    lines = "".join(f'<div class="math">\\({escape(e.strip())}\\)</div>' for e in parts)
    return f'<div class="rr-eq">{lines}</div>'


def drawing(row: dict, facts: dict) -> str:
    """A rule's picture, with its words for a reader who does not see it."""
    width, height, elements = picture(facts)
    description = f"{written(row['name'], row['kind'])}: {reads(facts)}; {writes(facts)}"
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(description)}">'
        f"{''.join(elements)}</svg>"
    )


def card(row: dict, facts: dict) -> str:
    """HTML of one rule: a row of `rr.residual.table.describe` and its `anatomy`."""
    source_link = ARXIV.sub(r'<a href="https://arxiv.org/abs/\1">\1</a>', escape(row["source"]))
    cost = row["cost"]
    entries = {
        "reads": reads(facts),
        "writes": writes(facts),
        "parameters": f"{cost['params_per_block']} per block".replace("-", "−"),
        "matmul FLOP": f"{cost['matmul_flops_per_token_and_block']} per token and block".replace(
            "-", "−"
        ),
    }
    if row["kind"] == "residual":
        start = {"u": facts["coefficient"], "h": facts["carry"]}
        known = [f"{name} × {amount(x)}" for name, x in start.items() if x is not None]
        mute = " and ".join(name for name, x in start.items() if x is None)
        entries["at the start"] = ", ".join(known + [f"{mute}: no one number"] * bool(mute))
    own = [key for key in row["options"] if key not in ("per_pass", "rate")]  # of every rule
    if own:
        entries["options"] = ", ".join(f"<code>{key}</code>" for key in own)
    listed = "".join(f"<dt>{key}</dt><dd>{words}</dd>" for key, words in entries.items())
    # the equation stands outside: its own SVG, once MathJax made it, is none of the kit's
    part = '<div class="rr-explorable rr-part">'
    return (
        f'<div class="rr-rule">{part}{name(row, facts)}'
        f'<p class="rr-from">{source_link}</p>'
        f"{drawing(row, facts)}</div>"
        f"{equation(row)}{part}<dl>{listed}</dl></div></div>"
    )


def rule_gallery(family: str, *names: str) -> kit.Explorable:
    """The cards of a family (`rrbook.anatomy.FAMILIES`): of all its rules, or of those named."""
    from rr.residual.table import describe
    from rrbook.anatomy import FAMILIES, anatomy

    if family not in FAMILIES:
        raise RRError(f"no family {family!r}: {nearest(family, FAMILIES)}")
    cards = []
    for row in describe():
        facts = anatomy(row["name"], row["kind"])
        if facts["family"] == family and (not names or written(row["name"], row["kind"]) in names):
            cards.append(card(row, facts))
    style = kit.style() + kit.style("gallery.css")
    return kit.Explorable(
        f"rules-{family}",
        f'<div class="rr-gallery"><style>{style}</style>{"".join(cards)}</div>',
    )


# ---- how to read a card ------------------------------------------------------------------------

PINS = {  # a number beside a part of the picture, and what that part says
    (20, 74): "The thick blue line is the stream, from left to right. Several thin lines are "
    "several streams.",
    (30, 60): "Here the sublayer reads. The box says that it reads a normalised copy.",
    (122, 8): "The sublayer computes an update <i>u</i>.",
    (150, 56): "Orange lines show what a gate sees: the state, the update or both. <i>rms</i> "
    "means divided by its size, <i>raw</i> means as it is.",
    (245, 14): "¼, ½, 0: how much of the update is written at first; without a node it is all. "
    "A dashed ring can learn. σ stands where even the start depends on the input.",
    (292, 74): "⊕ is the write. A node on the stream says how much of it is kept. Green arcs come "
    "from earlier depths.",
}


def annotated_card(rule: str = "review") -> kit.Explorable:
    """The picture of one residual rule with numbers, and what each numbered part says.

    Raises RRError for an unknown rule.
    """
    from rrbook.anatomy import anatomy

    width, height, elements = picture(anatomy(rule))
    for number, (x, y) in enumerate(PINS, 1):
        elements.append(tag("circle", cx=x, cy=y, r=7, class_="pin"))
        elements.append(tag("text", str(number), x=x, y=y + 3.7, class_="pinned"))
    style = kit.style() + kit.style("gallery.css")
    listed = "".join(f"<li>{words}</li>" for words in PINS.values())
    return kit.Explorable(
        "rules-annotated",
        f'<div class="rr-gallery rr-annotated"><style>{style}</style><div class="rr-rule">'
        f'<div class="rr-explorable rr-part"><p class="rr-name">{rule}</p>'
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{rule}, with numbers 1 to '
        f'{len(PINS)}; the list says what they mean">{"".join(elements)}</svg></div>'
        f"<ol>{listed}</ol></div></div>",
    )
