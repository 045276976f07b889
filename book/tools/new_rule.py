"""Begin a residual rule of your own: a file of ten lines that trains, and the commands for it.

    python book/tools/new_rule.py damped            (or: make new-rule NAME=damped)

Writes my_rules/damped.py with the class Damped, which starts as h + c·u. Nothing else is edited:
the file is named on the command line as my_rules/damped.py:Damped.
"""

import argparse
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rr.errors import RRError
from rr.residual import (
    REGISTRY,
    values,  # noqa: F401  (registers the value rules, as the residual ones are)
)

ROOT = Path(__file__).resolve().parents[2]

TEMPLATE = '''import rr
from rr import residual


class {cls}(rr.Rule):
    """h + c·u: say here what the rule is for."""

    equation = r"h_l = h_{{l-1}} + c \\, u_l"
    source = "my own"
    options = {{"c": residual.Option(0.5, "coefficient on the update")}}

    # `read(state)` gives the sublayer a normalised stream, unless you write one.
    def write(self, state, u):  # each (B, T, d): the stream, and the update
        return state + self.opt.c * u

    def coefficient(self, site):  # on u, before training; None where it depends on h and u
        return self.opt.c
'''


def new_rule(name: str, folder: Path) -> Path:
    """Write the file; returns its path. Raises RRError for a name that is not free or no name."""
    if not name:
        raise RRError("a name is needed: make new-rule NAME=damped")
    if not re.fullmatch(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*", name):
        raise RRError(f"a rule's name holds small letters, digits, - and _, got {name!r}")
    for kind, names in REGISTRY.items():
        if name in names:
            raise RRError(f"{name!r} is a {kind} rule that ships with rr: choose another name")
    path = folder / f"{name.replace('-', '_')}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(TEMPLATE.format(cls=class_of(name)))
    except FileExistsError:
        raise RRError(f"{path} exists already: choose another name") from None
    return path


def class_of(name: str) -> str:
    """`half-step` -> `HalfStep`."""
    return "".join(part.capitalize() for part in re.split("[-_]", name))


def programs(python: Path) -> tuple[str, str]:
    """`rr` and `pytest` of this Python's environment, which need not be activated."""
    folder = python.parent
    here = folder.relative_to(ROOT) if folder.is_relative_to(ROOT) else folder
    commands = [str(here / name) for name in ("rr", "pytest") if (folder / name).exists()]
    if len(commands) == 2:
        return commands[0], commands[1]
    return f"{here / python.name} -m rrstudy.cli", f"{here / python.name} -m pytest"


def next_commands(rule: str, name: str, rr: str, pytest: str) -> list[tuple[str, str]]:
    """What to run next, and why; rr and pytest: how these two are called."""
    file, out = rule.rpartition(":")[0], f"runs/{name}"
    trained = f"{rr} train --rung nano --rule $rule --seed $seed --out {out}"
    return [
        ("test it", f"RR_RULE={rule} {pytest} tests/unit/test_registry.py -k {file}"),
        (
            "train it at nano, three paired seeds, beside the standard rule and constant ½",
            f"for seed in 0 1 2; do for rule in standard constant {rule}; do {trained}; done; done",
        ),
        (
            "see it ranked against each of the two",
            f"for rule in standard constant; do {rr} table {out} --baseline $rule; done",
        ),
    ]


def main(arguments: list[str] | None = None) -> int:
    """The command line; 2 where the name is refused."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", help="what the rule is called, as damped or half-step")
    parser.add_argument("--to", type=Path, default=ROOT / "my_rules", help="folder of the file")
    given = parser.parse_args(arguments)
    try:
        path = new_rule(given.name, given.to)
    except (RRError, OSError) as error:
        print(f"new-rule: {error}", file=sys.stderr)
        return 2
    shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    rule = f"{shown}:{class_of(given.name)}"
    print(
        f"{shown}: the class {class_of(given.name)}, which writes h + u/2 as the rule `constant` "
        "does. Change it, then:"
    )
    for why, command in next_commands(rule, given.name, *programs(Path(sys.executable))):
        print(f"\n# {why}\n{command}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
