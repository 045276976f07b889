"""Draw the picture of the title page: a residual stream, and a gate that reads state and update.

    python book/tools/picture.py          writes book/_static/stream.svg

Coordinates are in the units of the view box; colours are from the Okabe-Ito palette, each with its
own line style, on a card of its own so that it reads the same in light and dark.
"""

from nbkit import ROOT

TARGET = ROOT / "book" / "_static" / "stream.svg"
WIDTH, HEIGHT = 600, 290
STREAM, UPDATE, GATE, INK, CARD = "#0072B2", "#B84A00", "#00734F", "#1b1f24", "#fbfbf9"
ALT = (
    "A thick residual stream runs left to right. A sublayer reads it through a norm and proposes an"
    " update u. A gate below the sublayer reads both the stream and u, and gives r. The product of"
    " r and u is added to the stream, which goes on uninterrupted."
)


def text(x: float, y: float, words: str, colour: str = INK, size: int = 17, **attributes) -> str:
    extra = "".join(f' {k.replace("_", "-")}="{v}"' for k, v in attributes.items())
    return f'<text x="{x}" y="{y}" fill="{colour}" font-size="{size}"{extra}>{words}</text>'


def line(
    points: list[tuple[float, float]],
    colour: str,
    width: float = 2.5,
    arrow: bool = True,
    dash: str = "",
) -> str:
    path = "M" + " L".join(f"{x} {y}" for x, y in points)
    end = f' marker-end="url(#end-{colour[1:]})"' if arrow else ""
    style = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{width}"{style}{end}/>'


def box(x: float, y: float, width: float, height: float, colour: str) -> str:
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="#ffffff"'
        f' stroke="{colour}" stroke-width="2.5"/>'
    )


def node(x: float, y: float, sign: str, colour: str) -> str:
    circle = (
        f'<circle cx="{x}" cy="{y}" r="15" fill="#ffffff" stroke="{colour}" stroke-width="2.5"/>'
    )
    if sign == "+":
        inside = (
            f'<path d="M{x - 8} {y} H{x + 8} M{x} {y - 8} V{y + 8}" stroke="{colour}"'
            ' stroke-width="2.5"/>'
        )
    else:  # the product, channel by channel
        inside = f'<circle cx="{x}" cy="{y}" r="3.5" fill="{colour}"/>'
    return circle + inside


def marker(colour: str) -> str:
    return (
        f'<marker id="end-{colour[1:]}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="11"'
        ' markerHeight="11" markerUnits="userSpaceOnUse" orient="auto-start-reverse">'
        f'<path d="M0 0 L10 5 L0 10 z" fill="{colour}"/></marker>'
    )


def italic(letter: str, below: str = "") -> str:
    sub = f'<tspan dy="5" font-size="12">{below}</tspan><tspan dy="-5"></tspan>' if below else ""
    return f'<tspan font-style="italic">{letter}</tspan>{sub}'


def draw() -> str:
    """The picture as SVG text."""
    low, high, mid = 245, 60, 172  # the stream, the sublayer's row, the gate's row
    tap, back = 78, 520  # where the sublayer reads, where it writes
    parts = [
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="14" fill="{CARD}"/>',
        "<defs>" + "".join(marker(c) for c in (STREAM, UPDATE, GATE)) + "</defs>",
        # the stream, whole
        line([(24, low), (back - 15, low)], STREAM, 9, arrow=False),
        line([(back + 15, low), (556, low)], STREAM, 9, arrow=False),
        f'<path d="M552 {low - 15} L580 {low} L552 {low + 15} z" fill="{STREAM}"/>',
        text(24, low + 32, italic("h", "l−1"), STREAM, 19),
        text(545, low + 32, italic("h", "l"), STREAM, 19),
        text(300, low + 32, "residual stream", STREAM, text_anchor="middle"),
        # reading
        line([(tap, low - 4), (tap, high), (126, high)], STREAM),
        box(128, high - 20, 64, 40, STREAM),
        text(160, high + 6, "norm", STREAM, text_anchor="middle"),
        line([(192, high), (226, high)], STREAM),
        box(228, high - 28, 152, 56, UPDATE),
        text(304, high + 6, "attention or MLP", UPDATE, text_anchor="middle"),
        # the update
        line([(380, high), (back, high), (back, mid - 17)], UPDATE),
        text(456, high - 12, f"update {italic('u')}", UPDATE, text_anchor="middle"),
        # the gate reads both
        line([(tap, mid), (142, mid)], STREAM, dash="6 4"),
        line([(425, high), (425, 114), (286, 114), (286, mid - 32)], UPDATE, dash="6 4"),
        box(144, mid - 30, 284, 60, GATE),
        text(286, mid - 6, f"gate {italic('r')} in (0, 1)", GATE, text_anchor="middle"),
        text(
            286,
            mid + 18,
            f"σ({italic('W')}[rms {italic('h')} ; rms {italic('u')}] + {italic('b')})",
            GATE,
            16,
            text_anchor="middle",
        ),
        line([(428, mid), (back - 17, mid)], GATE),
        text(465, mid - 10, italic("r"), GATE, 19, text_anchor="middle"),
        # writing
        node(back, mid, "·", UPDATE),
        line([(back, mid + 15), (back, low - 17)], UPDATE),
        node(back, low, "+", STREAM),
    ]
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
        f' aria-label="{ALT}" font-family="system-ui, -apple-system, Segoe UI, Roboto,'
        f' Helvetica, Arial, sans-serif">\n{body}\n</svg>\n'
    )


if __name__ == "__main__":
    TARGET.write_text(draw(), encoding="utf-8")
    print(f"picture: {TARGET.relative_to(ROOT)} ({TARGET.stat().st_size} bytes)")
