"""Chapter 16's explorable: a number and a sum, rounded as four formats round them."""

import math

from . import kit

# bits after the first, lowest and highest exponent of two at full precision
FORMATS = {"fp32": (23, -126, 127), "tf32": (10, -126, 127), "bf16": (7, -126, 127),
           "fp16": (10, -14, 15)}  # fmt: skip
NAMES = {"fp32": "fp32", "tf32": "TF32", "bf16": "bf16", "fp16": "fp16"}
ORDERS = {"down": "largest first", "up": "smallest first", "pairs": "in pairs"}
AROUND = 0.02  # of the number, both ways, on the picture
TICKS = 90  # more numbers than this are drawn as a band
FLOOR, TOP = -9, 0  # powers of ten of the errors on the picture
LEFT, RIGHT, WIDTH = 118, 640, 682


def spacing(x: float, name: str) -> float:
    """Distance between neighbouring numbers of a format at x: 2^(e − p), e the exponent of x."""
    bits, low, _ = FORMATS[name]
    return 2.0 ** (max(math.frexp(abs(x))[1] - 1, low) - bits)


def rounded(x: float, name: str) -> float:
    """The number of a format ("fp32", "tf32", "bf16", "fp16") nearest to x, ties to even.

    Below the format's range to 0 or to its denormals, above it to infinity (IEEE 754).
    """
    if x == 0 or math.isinf(x):
        return x
    step = spacing(x, name)
    y = round(x / step) * step
    return y if abs(y) < 2.0 ** (FORMATS[name][2] + 1) else math.copysign(math.inf, x)


def harmonic(terms: int, name: str) -> dict[str, float]:
    """Relative error of 1 + 1/2 + … + 1/n in three orders, each partial sum rounded.

    The terms are rounded first and the error is against *their* sum, so that it is of adding alone.
    """
    parts = [rounded(1 / k, name) for k in range(1, terms + 1)]
    true = down = up = 0.0
    for part in reversed(parts):
        true += part
        up = rounded(up + part, name)
    for part in parts:
        down = rounded(down + part, name)
    while len(parts) > 1:
        pairs = [rounded(a + b, name) for a, b in zip(parts[::2], parts[1::2], strict=False)]
        parts = pairs + parts[len(parts) - len(parts) % 2 :]
    found = {"down": down, "up": up, "pairs": parts[0]}
    return {order: abs(total - true) / true for order, total in found.items()}


def float_numbers(power: float, format: str, terms: int) -> dict:
    """10^power as the format has it, and a sum of 2^terms parts in three orders."""
    x = 10**power
    return {"x": x, "rounded": rounded(x, format), "spacing": spacing(x, format),
            "errors": harmonic(2**terms, format)}  # fmt: skip


def float_sentence(power: float, format: str, terms: int) -> str:
    """The result in words."""
    found, name = float_numbers(power, format, terms), NAMES[format]
    x, y = found["x"], found["rounded"]
    if y == 0:
        told = f"{kit.number(x)} is 0 in {name}: too small for it."
    elif math.isinf(y):
        told = f"{kit.number(x)} is infinite in {name}: too large for it."
    else:
        told = (
            f"{kit.number(x)} in {name} is off by {kit.share(abs(y - x) / x)}; its neighbours "
            f"there are {kit.number(found['spacing'])} apart, and what is closer is the same."
        )
    errors = ", ".join(f"{kit.share(e)} {ORDERS[o]}" for o, e in found["errors"].items())
    return f"{told} 1 + 1/2 + … + 1/{2**terms}, rounded after every addition, is off by {errors}."


def neighbours(x: float, name: str) -> list[float] | None:
    """The format's numbers within 2 % of x, rising; None where there are too many to draw."""
    y = rounded(x, name)
    if y == 0 or math.isinf(y):
        return []
    found = [y] if abs(y - x) <= AROUND * x else []
    for way in (1, -1):
        at = y
        while len(found) <= TICKS:
            # just below a power of two the numbers are twice as dense as above it
            at += way * spacing(at if way > 0 else at * (1 - 2.0**-30), name)
            if abs(at - x) > AROUND * x:
                break
            found.append(at)
    return sorted(found) if len(found) <= TICKS else None


def _static(power: float, format: str, terms: int) -> tuple[int, int, list[str]]:
    """The picture for a page without scripts."""
    found, x = float_numbers(power, format, terms), 10**power

    def at(value: float) -> float:
        return 20 + (WIDTH - 40) * ((value / x - 1) / AROUND + 1) / 2

    def across(error: float) -> float:
        place = FLOOR if error == 0 else max(FLOOR, math.log10(error))
        return LEFT + (RIGHT - LEFT) * (place - FLOOR) / (TOP - FLOOR)

    out = [
        kit.tag(
            "text",
            f"numbers of {NAMES[format]} within 2 % of {kit.number(x)}",
            x=0,
            y=12,
            class_="soft",
        ),
        kit.tag("path", d=f"M20 60H{WIDTH - 20}", class_="grid"),
    ]
    marks = neighbours(x, format)
    if marks is None:
        out.append(kit.tag("path", d=f"M20 46H{WIDTH - 20}V60H20z", class_="is-mid"))
    for value in marks or []:
        out.append(kit.tag("path", d=f"M{at(value):.1f} 44V60", class_="blue thin"))
    out.append(kit.tag("path", d=f"M{at(x):.1f} 30V68", class_="red line"))
    out.append(kit.tag("text", "error of the sum", x=0, y=104, class_="soft"))
    for i, (order, words) in enumerate(ORDERS.items()):
        y = 132 + 28 * i
        out.append(kit.tag("path", d=f"M{LEFT} {y}H{RIGHT}", class_="grid"))
        out.append(kit.tag("text", words, x=LEFT - 12, y=y + 4, text_anchor="end"))
        for name in FORMATS:
            error = found["errors"][order] if name == format else harmonic(2**terms, name)[order]
            here = name == format
            out.append(kit.tag("circle", cx=across(error), cy=y, r=6 if here else 3.5,
                               class_="is-blue" if here else "soft"))  # fmt: skip
    for tick in (-9, -6, -3, 0):
        words = "1" if tick == 0 else "10" + str(tick).translate(kit.SUPERSCRIPT)
        out.append(kit.tag("text", words, x=across(10.0**tick), y=218, text_anchor="middle",
                           class_="soft"))  # fmt: skip
    return WIDTH, 226, out


def float_formats(power: float = 0.4, format: str = "bf16", terms: int = 10) -> kit.Explorable:
    """Explorable: what four float formats make of a number and of a sum.

    power (−9 to 5, in tenths): the number is 10^power; format: "fp32", "tf32", "bf16" or "fp16";
    terms (4 to 12): the sum has 2^terms parts. Where it starts.
    """
    said = float_sentence(power, format, terms)
    return kit.explorable(
        "float-formats",
        script="floats.js",
        title="What does a format keep?",
        lead="A number among its neighbours, and one sum added up in three orders.",
        controls=[
            kit.slider("power", "the number: ten to the power of", -9, 5, 0.1, power),
            kit.slider("terms", "terms of the sum: two to the power of", 4, 12, 1, terms),
            kit.radios("format", "Format", NAMES, format),
        ],
        picture="Above, the numbers of the format within two per cent of the chosen one; below, "
        "the relative error of the sum in three orders, for all four formats",
        static=_static(power, format, terms),
        alt=f"Numbers of a format around one, and errors of a sum in three orders. {said}",
        said=said,
        note="Red: the number itself. Large dots: the chosen format; small ones: the other three, "
        "on a scale of powers of ten. Rounding is to nearest, ties to even. Hardware keeps the "
        "sums of TF32, bf16 and fp16 products in fp32; here each partial sum is rounded.",
    )
