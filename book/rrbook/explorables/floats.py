"""Chapter 16's explorable: a number and a sum, rounded as four formats round them."""

import math

from . import kit

# bits after the first, lowest and highest exponent of two at full precision
FORMATS = {"fp32": (23, -126, 127), "tf32": (10, -126, 127), "bf16": (7, -126, 127),
           "fp16": (10, -14, 15)}  # fmt: skip
NAMES = {"fp32": "fp32", "tf32": "TF32", "bf16": "bf16", "fp16": "fp16"}
ORDERS = {"down": "largest first", "up": "smallest first", "pairs": "in pairs"}


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
    return {
        "x": x,
        "rounded": rounded(x, format),
        "spacing": spacing(x, format),
        "errors": harmonic(2**terms, format),
    }


def float_sentence(power: float, format: str, terms: int) -> str:
    """The result in words."""
    found, name = float_numbers(power, format, terms), NAMES[format]
    x, y = found["x"], found["rounded"]
    if y == 0:
        effect = f"{kit.number(x)} is 0 in {name}: too small for it."
    elif math.isinf(y):
        effect = f"{kit.number(x)} is infinite in {name}: too large for it."
    else:
        effect = (
            f"{kit.number(x)} in {name} is off by {kit.share(abs(y - x) / x)}; its neighbours "
            f"there are {kit.number(found['spacing'])} apart, and numbers closer "
            "than that may become the same."
        )
    errors = ", ".join(f"{kit.share(e)} {ORDERS[o]}" for o, e in found["errors"].items())
    return f"{effect} 1 + 1/2 + … + 1/{2**terms}, rounded after every addition, is off by {errors}."


def float_formats(power: float = 0.4, format: str = "fp16", terms: int = 8) -> kit.Explorable:
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
        said=said,
        note="Red: the number itself. Large dots: the chosen format; small ones: the other three "
        "(TF32 and fp16 coincide here), on a scale of powers of ten. Rounding is to nearest, ties "
        "to even. Hardware keeps the sums of TF32, bf16 and fp16 products in fp32; here each "
        "partial sum is rounded.",
    )
