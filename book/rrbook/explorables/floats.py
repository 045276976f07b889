"""Chapter 16's explorable: a number and a sum, rounded as four formats round them."""

from . import kit

NAMES = {"fp32": "fp32", "tf32": "TF32", "bf16": "bf16", "fp16": "fp16"}


def float_formats() -> kit.Explorable:
    """Explorable: what four float formats make of a number and of a sum."""
    return kit.explorable(
        "float-formats",
        script="floats.js",
        title="What does a format keep?",
        lead="A number among its neighbours, and one sum added up in three orders.",
        controls=[
            kit.slider("power", "the number: ten to the power of", -9, 5, 0.1, 0.4),
            kit.slider("terms", "terms of the sum: two to the power of", 4, 12, 1, 8),
            kit.radios("format", "Format", NAMES, "fp16"),
        ],
        picture="Above, the numbers of the format within two per cent of the chosen one; below, "
        "the relative error of the sum in three orders, for all four formats",
        note="Red: the number itself. Large dots: the chosen format; small ones: the other three "
        "(TF32 and fp16 coincide here), on a scale of powers of ten. Rounding is to nearest, ties "
        "to even. Hardware keeps the sums of TF32, bf16 and fp16 products in fp32; here each "
        "partial sum is rounded.",
    )
