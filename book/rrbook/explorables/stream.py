"""Chapter 01's explorable: who is left in the stream after l sublayers?"""

import math

from . import kit

# what a write rule keeps of the state and lets in of the update: h ← carry·h + write·u
RULES = {
    "sum": (1.0, 1.0, "h + u"),
    "half": (1.0, 0.5, "h + u/2"),
    "convex": (0.5, 0.5, "(h + u)/2"),
}
LEFT, RIGHT, TOP, BOTTOM, ROOF, FLOOR, WIDTH = 46, 578, 22, 222, 254, 318, 682


def stream_numbers(sublayers: int, rule: str) -> dict[str, list[float]]:
    """Shares of the last state's variance, and the stream's rms, under the toy assumption.

    Embedding and updates are independent, with mean 0 and variance 1 in each channel (a pre-norm
    sublayer's update does not depend on the size of the stream). With h_l = c·h_{l−1} + w·u_l,
    write k holds w²c^{2(S−k)} of Var h_S = c^{2S} + w² Σ_{k<S} c^{2k}. Returns `shares` (the
    embedding's, then each write's: S + 1 numbers that sum to 1) and `rms` after 0 … S sublayers.
    """
    carry, write, _ = RULES[rule]
    rms, variance = [1.0], 1.0
    for _ in range(sublayers):
        variance = carry**2 * variance + write**2
        rms.append(math.sqrt(variance))
    parts = [carry ** (2 * sublayers)]
    parts += [write**2 * carry ** (2 * (sublayers - k)) for k in range(1, sublayers + 1)]
    return {"rms": rms, "shares": [part / variance for part in parts]}


def stream_sentence(sublayers: int, rule: str) -> str:
    """The result in words."""
    found = stream_numbers(sublayers, rule)
    first, last = found["shares"][0], found["shares"][-1]
    held = f"{kit.share(first)} of the variance"
    if rule == "sum":
        held = f"1/{sublayers + 1} of the variance ({kit.share(first)})"
    size = kit.number(found["rms"][-1])
    grown = f". The stream has grown to {size} times the embedding’s rms."
    rest = {
        "sum": f", exactly as much as every write{grown}",
        "half": f", four times as much as any single write{grown}",
        "convex": f"; the last write alone holds {kit.share(last)}. "
        f"The stream has settled at {size} times the embedding’s rms.",
    }[rule]
    return f"After {sublayers} sublayers under {RULES[rule][2]} the embedding holds {held}{rest}"


def _static(sublayers: int, rule: str) -> tuple[int, int, list[str]]:
    """The picture for a page without scripts."""
    final = stream_numbers(sublayers, rule)
    gap = (RIGHT - LEFT) / (sublayers + 1)
    bar = 0.8 * gap
    bands = [""] * (sublayers + 1)
    for depth in range(sublayers + 1):
        at = BOTTOM
        for k, part in enumerate(stream_numbers(depth, rule)["shares"]):
            height = part * (BOTTOM - TOP)
            if height > 0.04:
                left = f"{LEFT + gap * depth:.1f}"
                bands[k] += f"M{left} {at:.1f}h{bar:.1f}v-{height:.1f}h-{bar:.1f}z"
            at -= height
    out = [kit.tag("text", "share of the state’s variance", x=0, y=12, class_="soft")]
    for k, d in enumerate(bands):
        if k == 0:
            out.append(kit.tag("path", d=d, class_="is-red"))
        elif d:
            shade = f"{1 - 0.75 * k / sublayers:.2f}"
            out.append(kit.tag("path", d=d, class_="band", stroke_width=0.6, fill_opacity=shade))
    for value in (0, 50, 100):
        y = BOTTOM - value / 100 * (BOTTOM - TOP) + 4
        words = f"{value}\u00a0%"
        out.append(kit.tag("text", words, x=LEFT - 8, y=y, text_anchor="end", class_="soft"))
    for y, words, kind in (
        (TOP + 11, "last write", "b"),
        (TOP + 28, kit.share(final["shares"][-1]), ""),
        (BOTTOM - 17, "embedding", "b is-red"),
        (BOTTOM, kit.share(final["shares"][0]), ""),
        (FLOOR + 18, "sublayer", "soft"),
    ):
        out.append(kit.tag("text", words, x=RIGHT + 6, y=y, class_=kind))
    points = [
        (LEFT + gap * depth + bar / 2, FLOOR - rms / 8.1 * (FLOOR - ROOF))
        for depth, rms in enumerate(final["rms"])
    ]
    out.append(kit.tag("text", "rms of the state", x=0, y=ROOF - 10, class_="soft"))
    for value in (0, 4, 8):
        y = FLOOR - value / 8.1 * (FLOOR - ROOF)
        out.append(kit.tag("path", d=f"M{LEFT} {y:.1f}H{RIGHT}", class_="grid"))
        out.append(
            kit.tag("text", str(value), x=LEFT - 8, y=y + 4, text_anchor="end", class_="soft")
        )
    out.append(kit.tag("path", d=kit.path(points), class_="blue line"))
    size = f"× {kit.number(final['rms'][-1])}"
    out.append(kit.tag("text", size, x=RIGHT + 6, y=points[-1][1] + 4, class_="b"))
    for depth in range(0, sublayers + 1, 2):
        x = points[depth][0]
        out.append(
            kit.tag("text", str(depth), x=x, y=FLOOR + 18, text_anchor="middle", class_="soft")
        )
    return WIDTH, 352, out


def stream_share(sublayers: int = 16, rule: str = "sum") -> kit.Explorable:
    """Explorable: each write's share of the stream's variance, by depth and write rule.

    `sublayers` (2 to 64) and `rule` ("sum", "half", "convex") are where it starts.
    """
    said = stream_sentence(sublayers, rule)
    return kit.explorable(
        "stream-share",
        script="stream.js",
        title="Who is left in the stream?",
        lead="Each column is the state after one more sublayer, split into what put it there.",
        controls=[
            kit.slider("sublayers", "sublayers", 2, 64, 1, sublayers),
            kit.choice("rule", "how an update u is written", {
                "sum": "h + u (standard)",
                "half": "h + u/2 (constant ½)",
                "convex": "(h + u)/2 (convex)",
            }, rule),
        ],
        picture="Stacked columns: share of the variance by sublayer; below, the rms of the stream",
        static=_static(sublayers, rule),
        alt=f"Stacked columns of variance shares by sublayer, and the stream’s rms below. {said}",
        said=said,
        note="Toy: embedding and updates are independent with variance 1 in every channel, as "
        "pre-norm roughly makes them. With h<sub>l</sub> = c·h<sub>l−1</sub> + w·u<sub>l</sub>, "
        "write k holds w²c<sup>2(S−k)</sup> of the variance "
        "c<sup>2S</sup> + w²(1 + c² + … + c<sup>2(S−1)</sup>) after S sublayers. The older a "
        "write, the darker its band.",
    )  # fmt: skip
