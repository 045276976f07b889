"""What `rr` raises for bad input and failed runs, and the checks and words of its messages."""

import difflib
import math
import os
from collections.abc import Callable
from typing import Any


class RRError(Exception):
    """Bad input: the message is one line, what is wrong, what was expected and what to do.

    `rr.errors.RunFailed` is its subclass: a run that cannot continue, or a corrupt file. On the
    command line an RRError ends with exit code 2, a RunFailed with 3.

    Example:
        >>> import rr
        >>> try:
        ...     rr.plan("nano", seed=-1)
        ... except rr.RRError as error:
        ...     print("seed" in str(error))
        True
    """

    def _render_traceback_(self) -> list[str]:  # in a notebook, too, the line alone is shown
        return [f"{type(self).__name__}: {self}"]


# the extra of the distribution that installs a package
EXTRAS = {
    **dict.fromkeys(("pandas", "scipy", "tabulate", "pyarrow"), "stats"),
    **dict.fromkeys(("matplotlib", "ipywidgets", "ipykernel"), "notebooks"),
    **dict.fromkeys(("nbconvert", "papermill"), "book"),
    **dict.fromkeys(("datasets", "huggingface_hub", "safetensors"), "hub"),
    "lm_eval": "eval",
    "ray": "ray",
    "transformers": "hf",
}


def missing_package(error: ModuleNotFoundError) -> str:
    """`needs pandas, which is missing: pip install …`, for a message about a failed import."""
    package = (error.name or "").partition(".")[0]
    how = install(EXTRAS[package]) if package in EXTRAS else f"pip install '{package}'"
    return f"needs the package {package}, which is missing: {how}"


def install(extra: str, address: str | None = None) -> str:
    """The command that installs an extra: in the project's checkout, or from its `address`.

    Never by the distribution's name alone: no package index has it from us, so whoever took the
    name there would run code on the reader's machine.
    """
    if address:
        return f"pip install 'review-residuals[{extra}] @ git+{address}'"
    return f"pip install -e '.[{extra}]' in the checkout of rr"


class RunFailed(RRError):
    """A run that could not continue, or whose loss is not finite. The CLI exits with 3."""


class CompiledWrong(RRError):
    """Compiled blocks give other outputs or gradients than the same blocks uncompiled."""


class Interrupted(Exception):
    """A run stopped by SIGTERM or Ctrl-C, its checkpoint saved. The CLI exits with 130."""


def nearest(word: str, known: Any) -> str:
    """`did you mean …? expected one of: …`, for error messages about an unknown word.

    >>> nearest("reveiw", ["review", "standard"])
    'did you mean review? expected one of: review, standard'
    """
    names = sorted(map(str, known))
    close = difflib.get_close_matches(word, names, n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    return f"{hint}expected one of: {', '.join(names)}"


def positive(name: str, value: Any) -> None:
    """Raise RRError unless `value` is an integer from 1 to 2³¹ − 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise RRError(f"{name} must be an integer ≥ 1, got {value!r}")
    if value >= 2**31:
        raise RRError(f"{name} must be an integer below 2**31, got {value}")


def check_number(name: str, value: Any, wanted: str, holds: Callable[[Any], bool]) -> None:
    """Raise RRError unless `value` is a number for which `holds` is true; `wanted` names those."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not holds(value):
        raise RRError(f"{name} must be {wanted}, got {value!r}")


def number_of(variable: str, default: float | None = None) -> float:
    """The number in an environment variable; RRError where it holds none."""
    given = os.environ.get(variable, default)
    try:
        number = float(given)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise RRError(f"{variable} must be a number, got {given!r}: unset it")
    return number


def check_texts(spec: object, *names: str) -> None:
    """Raise unless these attributes are strings: specifications are read from files, too."""
    for name in names:
        if not isinstance(getattr(spec, name), str):
            raise RRError(f"{name} must be a string, got {getattr(spec, name)!r}")
