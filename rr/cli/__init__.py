"""The command line: `rr VERB …`. Each verb is a module here, with its arguments and what it runs.

A verb's module has `add_arguments(parser)` and `run(args)`; it is imported when its verb is asked
for, and imports torch only once it runs.

Exit codes: 0 success; 2 bad input (one line on stderr: what is wrong, what was expected, what to
do); 3 a run that failed or diverged; 130 interrupted, the checkpoint saved.
"""

import argparse
import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Container, Mapping, Sequence
from importlib import import_module

from ..errors import Interrupted, RRError, RunFailed, missing_package
from ..options import written
from .output import log, print_anywhere

# The module of each verb, and its line in `rr --help`.
Verbs = Mapping[str, tuple[str, str]]
VERBS: Verbs = {
    "rules": (f"{__name__}.rules", "list the residual and value rules: cost, start, source"),
    "prepare": (f"{__name__}.prepare", "tokenise a corpus once; report how predictable it is"),
    "train": (f"{__name__}.train", "train one run, or resume it; prints the run's folder last"),
    "sample": (f"{__name__}.sample", "generate text with a trained run"),
}


class Parser(argparse.ArgumentParser):
    """argparse, but an error is one line, as all errors of `rr` are."""

    def error(self, message: str):
        raise RRError(f"{message} ({self.prog} --help lists the options)")


def parser(
    named: Container[str] | None = None, groups: Mapping[str, Verbs] | None = None
) -> Parser:
    """The command line's parser.

    named: the verbs that get their arguments; others cost nothing. None: all of them. groups: verbs
    by the heading that `--help` lists them under; None: those of `rr` alone, without a heading.

    >>> parser().parse_args(["sample", "runs/0123"]).run
    'runs/0123'
    """
    groups = groups or {"": VERBS}
    listed = "\n\n".join(filter(None, (f"{t}{_listed(v)}" for t, v in groups.items())))
    main_parser = Parser(
        prog="rr",
        usage="rr VERB [options]",
        description="Train, compare and inspect transformers that differ in their residual rule."
        f"\n\n{listed}",
        epilog="rr VERB --help lists the options of a verb.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    subparsers = main_parser.add_subparsers(
        dest="verb",
        required=True,
        metavar="VERB",
        prog="rr",
        parser_class=Parser,
        help=argparse.SUPPRESS,
    )
    for verbs in groups.values():
        for verb, (module, help) in verbs.items():
            sub = subparsers.add_parser(verb, description=help, allow_abbrev=False)
            sub.set_defaults(module=module)
            if named is None or verb in named:
                import_module(module).add_arguments(sub)
    return main_parser


def _listed(verbs: Verbs) -> str:
    """A line for each verb, wrapped beside its name."""
    indent = " " * 10
    width = max(24, min(79, shutil.get_terminal_size().columns - 1))
    return "\n".join(
        textwrap.fill(text, width, initial_indent=f"  {verb:8}", subsequent_indent=indent)
        for verb, (_, text) in verbs.items()
    )


def main(argv: Sequence[str] | None = None, groups: Mapping[str, Verbs] | None = None) -> int:
    """Run one verb, of `groups` as `parser` takes them; returns the exit code."""
    print_anywhere()
    groups = groups or {"": VERBS}
    try:
        argv = sys.argv[1:] if argv is None else argv
        args = parser(argv, groups).parse_args(argv)
        args.command = shlex.join(["rr", *argv])
        _name_again(getattr(args, "values", None))
        code = import_module(args.module).run(args) or 0
        sys.stdout.flush()
        return code
    except Interrupted as stop:
        return _fail(130, stop)
    except RunFailed as failure:
        return _fail(3, failure)
    except RRError as error:
        return _fail(2, error)
    except ModuleNotFoundError as error:
        own = {module.split(".")[0] for verbs in groups.values() for module, _ in verbs.values()}
        if (error.name or "").split(".")[0] in own:
            raise
        words = f"this verb {missing_package(error)}"
        return _fail(2, words)
    except KeyboardInterrupt:
        return _fail(130, "interrupted")
    except BrokenPipeError:  # the reader of our output, `| head`, has gone
        _discard_output()
        return 0
    except OSError as error:  # a folder that may not be read, or no space left for the output
        _discard_output()
        return _fail(2, f"{error.filename or 'output'}: {error.strerror or error}")


def _name_again(values: str | Sequence[str] | None) -> None:
    """One line for a value rule that has another name now; the old one is accepted."""
    for spec in [values] if isinstance(values, str) else values or ():
        if (name := written(spec)) != spec:
            log(f"--values {spec} is now written {name}; the run and its id are the same")


def _discard_output() -> None:
    """Send what is still buffered nowhere: Python would fail to write it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _fail(code: int, why: object) -> int:
    """One line on stderr, whatever the message contains; returns `code`."""
    log(f"rr: {' '.join(str(why).split())}")
    return code
