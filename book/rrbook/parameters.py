"""The parameters of a notebook, checked in one line before anything is trained.

papermill injects whatever it is given: it only warns of a name that the notebook does not have, and
a list that was given by `-p` arrives as text. `check` stands in the cell of derived values, which
runs right after the injected one, and reads both cells in the kernel's history.
"""

import ast
import contextlib
import sys
from collections.abc import Mapping
from typing import Any

from rr.config import RRError, nearest

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
    """A parameter that a notebook refuses; Jupyter shows the line alone, without a traceback."""

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


def check(tier: str, settings: Mapping[str, Any]) -> Any:
    """What `settings` holds for the tier, once all of the notebook's parameters are valid.

    Raises BadParameter, in one line, for a name that the cell tagged `parameters` does not assign,
    a value of another type than the one it stores, and an unknown tier. Outside of a kernel there
    are no such cells, and the tier alone is checked.
    """
    known, given, values = _history()
    for name in given:
        if name not in known:
            raise BadParameter(f"unknown parameter {name!r}: {nearest(name, known)}")
    for name, default in known.items():
        if name in values:
            values[name] = _number(values[name], default)
        if name in values and not _fits(values[name], default):
            raise BadParameter(_refusal(name, values[name], default))
    if tier not in settings:
        raise BadParameter(f"unknown tier {tier!r}: {nearest(str(tier), settings)}")
    return settings[tier]


def require(condition: object, line: str) -> None:
    """Raise BadParameter with this line, what is allowed and what was given, unless it holds."""
    if not condition:
        raise BadParameter(line)


def _number(value: Any, default: Any) -> Any:
    """A number that YAML reads as a text, such as 1e-3, as the number that was meant."""
    if isinstance(value, list) and isinstance(default, list) and default:
        return [_number(one, default[0]) for one in value]
    if isinstance(default, float) and isinstance(value, str):
        with contextlib.suppress(ValueError):
            return float(value)
    return value


def _history() -> tuple[dict[str, Any], list[str], dict[str, Any]]:
    """Parameters with their stored values, names injected since, and the kernel's variables."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    known, given = {}, []
    for source in shell.history_manager.input_hist_raw if shell else ():
        assigned = _assigned(source)
        if source.startswith(INJECTED):
            given = list(assigned)
        elif next(iter(assigned), None) == "tier":
            known = {name: ast.literal_eval(value) for name, value in assigned.items()}
            given = []
    return known, given if known else [], shell.user_ns if shell else {}


def _assigned(source: str) -> dict[str, ast.expr]:
    """Name and value of each line of a cell of assignments alone; none for any other cell."""
    try:
        lines = ast.parse(source).body
    except SyntaxError:
        return {}
    found = {}
    for line in lines:
        if not isinstance(line, ast.Assign | ast.AnnAssign) or line.value is None:
            return {}
        target = line.target if isinstance(line, ast.AnnAssign) else line.targets[0]
        if not isinstance(target, ast.Name):
            return {}
        found[target.id] = line.value
    return found


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
    said = f"parameter {name} must be {kind}, got {value!r}"
    if isinstance(default, list) and isinstance(value, str):
        wanted = value if value.startswith("[") else default
        return f'{said}; papermill takes a list by -y "{name}: {wanted}"'
    if isinstance(default, str):
        return f'{said}; papermill takes text as it is by -r {name} "{value}"'
    return said
