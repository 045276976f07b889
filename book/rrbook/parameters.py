"""The parameters of a notebook, checked in one line before anything is trained.

papermill injects whatever it is given: it only warns of a name that the notebook does not have, and
a list that was given by `-p` arrives as text. `check` stands in the cell of derived values, which
runs right after the injected one, and reads both cells in the kernel's history. A number that YAML
took for text, such as `1e-3`, becomes a number.
"""

import ast
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rr.data.corpus import Tokens, default_tokenizer, open_corpus
from rr.errors import RRError, nearest
from rr.training.device import pick_device

KINDS = {
    bool: "True or False",
    int: "an integer",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "a dictionary",
}
EACH = {int: "integers", float: "numbers", str: "texts", list: "lists"}
INJECTED = "# Parameters\n"  # how the cell begins that papermill writes


class BadParameter(RRError):
    """A parameter that a notebook refuses."""


@dataclass(frozen=True)
class Allowed:
    """Which values a parameter, or each element of a list, may have: a test, and its words."""

    words: str
    test: Callable[[Any], bool]
    least: int = 0  # elements of a list
    most: int | None = None

    def refuses(self, value: Any) -> str:
        """What was expected instead of the value; nothing where it is allowed."""
        if isinstance(value, list):
            different = len(set(map(str, value))) == len(value)
            many = len(value) >= self.least and (self.most is None or len(value) <= self.most)
            if many and different and all(map(self.test, value)):
                return ""
        elif not self.least and self.most is None:  # of one value
            return "" if self.test(value) else self.words
        count = f"of at least {self.least} " if self.least else "of "
        if self.most is not None:
            count = f"of {self.least} to {self.most} "
        return f"a list {count}different values, each {self.words}"


def whole(low: int, high: int, step: int = 1, least: int = 0, most: int | None = None) -> Allowed:
    """Multiples of `step` from low to high; of a list at least and at most so many."""
    words = f"a multiple of {step}" if step > 1 else "an integer"

    def test(value: Any) -> bool:
        return isinstance(value, int) and low <= value <= high and value % step == 0

    return Allowed(f"{words} from {low} to {high}", test, least, most)


def number(low: float, high: float, least: int = 0, most: int | None = None) -> Allowed:
    """Numbers from low to high; of a list at least and at most so many."""

    def test(value: Any) -> bool:
        return isinstance(value, int | float) and low <= value <= high

    return Allowed(f"a number from {low:g} to {high:g}", test, least, most)


def one_of(*values: Any) -> Allowed:
    return Allowed(f"one of {', '.join(map(str, values))}", lambda value: value in values)


SEEDS = whole(0, 999, least=2)  # paired differences and their spread need two
# of the machine, wherever a chapter trains
MACHINE = {"device": one_of("auto", "cpu", "cuda", "mps"), "threads": whole(1, 1024)}


def opened(
    corpus: str, tokenizer: str, device: str, threads: int, least: int = 1
) -> tuple[Tokens, dict[str, str], dict[str, Any]]:
    """The text and the machine of a chapter's runs, as `rr train` takes the options so named.

    An empty tokenizer is the corpus's default. Returns the tokens, at least so many in each part;
    what `rr.plan` takes of the text; and what `rr.train` takes of the machine. BadParameter where
    the text cannot be opened, or this machine has no such device.
    """
    machine = {"device": device, "threads": threads}
    for name, value in machine.items():
        if wanted := MACHINE[name].refuses(value):
            raise BadParameter(f"parameter {name} must be {wanted}, got {value!r}")
    try:
        tokenizer = tokenizer or default_tokenizer(corpus)
        tokens = open_corpus(corpus, tokenizer, min_tokens=least, log=lambda line: None)
        machine["device"] = pick_device(device).type
    except RRError as error:
        raise BadParameter(str(error)) from None
    return tokens, {"corpus": corpus, "tokenizer": tokenizer}, machine


def check(tier: str, settings: Mapping[str, Any], **allowed: Allowed) -> Any:
    """What `settings` holds for the tier, once all of the notebook's parameters are valid.

    Raises BadParameter, in one line, for a name that the cell tagged `parameters` does not assign,
    a value of another type than the one it stores, one that `allowed` refuses, and an unknown tier.
    Outside of a kernel there are no such cells, and the tier alone is checked.
    """
    known, given, values = _history()
    for name in given:
        if name not in known and not name.startswith("PAPERMILL_"):  # as --inject-paths gives
            raise BadParameter(f"unknown parameter {name!r}: {nearest(name, known)}")
    for name, default in known.items():
        if name not in values:
            continue
        values[name] = _as_number(values[name], default)
        if not _fits(values[name], default):
            raise BadParameter(_refusal(name, values[name], default))
        wanted = allowed[name].refuses(values[name]) if name in allowed else ""
        if wanted:
            raise BadParameter(f"parameter {name} must be {wanted}, got {values[name]!r}")
    if tier not in settings:
        raise BadParameter(f"unknown tier {tier!r}: {nearest(str(tier), settings)}")
    return settings[tier]


def _as_number(value: Any, default: Any) -> Any:
    """The number that a text such as `1e-3` means where numbers are stored; else the value."""
    if isinstance(value, list) and isinstance(default, list) and default:
        return [_as_number(each, default[0]) for each in value]
    if not isinstance(value, str) or type(default) not in (int, float):
        return value
    try:
        number = float(value)
    except ValueError:
        return value
    return int(number) if type(default) is int and number.is_integer() else number


def _history() -> tuple[dict[str, Any], list[str], dict[str, Any]]:
    """Parameters with their stored values, names injected since, and the kernel's variables."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    known, given = {}, []
    computed = shell.user_ns if shell else {}
    for source in shell.history_manager.input_hist_raw if shell else ():
        assigned = _assigned(source)
        if source.startswith(INJECTED):
            given = list(assigned)
        elif next(iter(assigned), None) == "tier":
            known = {name: _stored(value, computed.get(name)) for name, value in assigned.items()}
            given = []
    return known, given if known else [], computed


def _stored(value: ast.expr, computed: Any) -> Any:
    """What a cell of parameters stores: a value, or what its expression came to."""
    try:
        return ast.literal_eval(value)
    except ValueError:
        return computed


def _assigned(source: str) -> dict[str, ast.expr]:
    """Name and value of each line of a cell of assignments alone; none for any other cell."""
    try:
        lines = ast.parse(source).body
    except SyntaxError:
        return {}
    assigned = {}
    for line in lines:
        if not isinstance(line, ast.Assign | ast.AnnAssign) or line.value is None:
            return {}
        target = line.target if isinstance(line, ast.AnnAssign) else line.targets[0]
        if not isinstance(target, ast.Name):
            return {}
        assigned[target.id] = line.value
    return assigned


def _fits(value: Any, default: Any) -> bool:
    """Whether a value may stand where the stored one stood."""
    if isinstance(value, bool) or isinstance(default, bool):
        return isinstance(value, bool) and isinstance(default, bool)
    if isinstance(default, float):
        return isinstance(value, int | float)
    if isinstance(default, list):
        return isinstance(value, list) and all(_fits(v, d) for v in value for d in default[:1])
    return isinstance(value, type(default))


def _refusal(name: str, value: Any, default: Any) -> str:
    """What is wrong with a value, what was expected, and how papermill takes it."""
    kind = KINDS[type(default)]
    if isinstance(default, list) and default:
        kind += f" of {EACH.get(type(default[0]), 'dictionaries')}"
    message = f"parameter {name} must be {kind}, got {value!r}"
    if isinstance(default, list) and isinstance(value, str):
        wanted = value if value.startswith("[") else default
        return f'{message}; papermill takes a list by -y "{name}: {wanted}"'
    if isinstance(default, str):
        return f'{message}; papermill takes text as it is by -r {name} "{value}"'
    return message
