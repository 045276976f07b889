"""The command line: `rr VERB …`. Each verb is a module here, with its arguments and what it runs.

A verb's module has `add_arguments(parser)` and `run(args)`; it is imported when its verb is asked
for, and imports torch only once it runs.

Exit codes: 0 success; 2 bad input (one line on stderr: what is wrong, what was expected, what to
do); 3 a run that failed or diverged; 130 interrupted, the checkpoint saved.
"""

import argparse
import os
import shlex
import sys
import textwrap
from collections.abc import Container, Mapping
from importlib import import_module

from ..config import Interrupted, RRError, RunFailed, missing_package
from .output import log

# One module here for each verb; the text is its line in `rr --help`.
USED = {
    "rules": "list the residual and value rules: cost, initial coefficient, source",
    "ladder": "list the model sizes: shape, exact parameter counts, cost, training budget",
    "prepare": "tokenise a corpus once, and report how predictable it is",
    "train": "train one run, or resume it; prints the run's folder last",
    "sample": "generate text with a trained run",
    "sweep": "train every combination of the given options; the same command resumes it",
    "table": "compare the rules in a folder of runs, or the arms of a tidy table",
    "report": "the report of a run, or of a folder of runs, as a notebook and as one HTML page",
    "power": "how many seeds a difference needs, before training",
    "plan": "estimate which runs a GPU, hours or dollars pay for; without options of a run, the "
    "study's own 42 runs",
    "doctor": "check this machine, its disk and its network for a sweep; without options of a run, "
    "for the study's own 42 runs",
    "eval": "score a trained run on tasks of lm-evaluation-harness",
}
KEPT = {
    "bench": "measure what a training step costs: tokens/s, MFU, peak memory",
    "records": "move finished runs into a campaign's tables of records, or out of them",
    "verify": "run a record again, and say how far this machine agrees",
}
VERBS = USED | KEPT


class Parser(argparse.ArgumentParser):
    """argparse, but an error is one line, as all errors of `rr` are."""

    def error(self, message: str):
        raise RRError(f"{message} ({self.prog} --help lists the options)")


def parser(verbs: Container[str] = frozenset(VERBS)) -> Parser:
    """The command line's parser. Only the named `verbs` get their arguments: others cost nothing.

    >>> parser().parse_args(["table", "runs"]).path
    'runs'
    """
    main_parser = Parser(
        prog="rr",
        usage="rr VERB [options]",
        description="Train, compare and inspect transformers that differ in their residual rule."
        f"\n\n{_listed(USED)}\n\nfor measurements and records:\n\n{_listed(KEPT)}",
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
    for verb, help in VERBS.items():
        sub = subparsers.add_parser(verb, description=help, allow_abbrev=False)
        if verb in verbs:
            _module(verb).add_arguments(sub)
    return main_parser


def _listed(verbs: Mapping[str, str]) -> str:
    """A line for each verb, wrapped beside its name."""
    indent = " " * 10
    return "\n".join(
        textwrap.fill(text, 79, initial_indent=f"  {verb:8}", subsequent_indent=indent)
        for verb, text in verbs.items()
    )


def main(argv: list[str] | None = None) -> int:
    """Run one verb; returns the exit code."""
    try:
        argv = sys.argv[1:] if argv is None else argv
        args = parser(argv).parse_args(argv)
        args.command = shlex.join(["rr", *argv])
        code = _module(args.verb).run(args) or 0
        sys.stdout.flush()
        return code
    except Interrupted as stop:
        return _fail(130, stop)
    except RunFailed as failure:
        return _fail(3, failure)
    except RRError as error:
        return _fail(2, error)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "rr":
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


def _module(verb: str):
    return import_module(f".{verb}", __name__)


def _discard_output() -> None:
    """Send what is still buffered nowhere: Python would fail to write it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _fail(code: int, why: object) -> int:
    """One line on stderr, whatever the message contains; returns `code`."""
    log(f"rr: {' '.join(str(why).split())}")
    return code
