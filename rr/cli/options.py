"""Arguments that several verbs share: the text, the run, the machine."""

from argparse import ArgumentParser
from typing import Any

from ..options import Request, RunOption, options_of
from ..specs import RUN_OPTIONS


def pick(args, names) -> dict[str, Any]:
    """The named attributes of the parsed arguments, as keyword arguments."""
    return {name: getattr(args, name) for name in names}


def machine(args) -> dict[str, Any]:
    """The parsed options of the machine that were chosen, by the fields of `Request`."""
    chosen = pick(args, options_of(Request))
    return {name: v for name, v in chosen.items() if v is not None and v is not False}


def add_text(parser, usual: str, default: str | None = None) -> None:
    """Which text, and with which tokenizer. usual: the default in words."""
    corpus, tokenizer = RUN_OPTIONS["corpus"], RUN_OPTIONS["tokenizer"]
    words = corpus.help.partition(" (default")[0]
    parser.add_argument("--corpus", default=default, help=f"{words} (default: {usual})")
    parser.add_argument("--tokenizer", help=tokenizer.help)


def add_run(parser: ArgumentParser, many: bool = False) -> None:
    """What a run is and how it is trained. many: each option that is part of the run takes a list.

    A list has no default here: that of protocol `paper` differs.
    """
    group = parser.add_argument_group(
        "the run", "what is trained; any change here is another run, with another id"
    )
    for name, option in RUN_OPTIONS.items():
        _add(group, name, option, many)


def add_machine(parser: ArgumentParser) -> None:
    """Where and how a run is computed; none of it is part of the run's id."""
    group = parser.add_argument_group("the machine", "how it is computed; the run's id stays")
    for name, option in options_of(Request).items():
        _add(group, name, option)


def _add(group, name: str, option: RunOption, many: bool = False) -> None:
    """One option; many: it takes a list."""
    more: dict[str, Any] = {"type": option.read, "metavar": option.metavar}
    if option.read is bool:
        more = {"action": "store_true"}
    elif many:
        more["nargs"] = "+"
    else:
        more["default"] = option.default
    group.add_argument(f"--{name.replace('_', '-')}", dest=name, help=option.help, **more)
