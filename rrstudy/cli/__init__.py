"""The whole command line: the verbs of `rr.cli`, and those of many runs, a module here each."""

from collections.abc import Container, Sequence

from rr import cli

MANY = {
    "ladder": "list the model sizes: shape, parameters (GPT-2's tokenizer), cost, training budget",
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


def _here(verbs: dict[str, str]) -> cli.Verbs:
    return {verb: (f"{__name__}.{verb}", help) for verb, help in verbs.items()}


GROUPS = {
    "one run:\n\n": cli.VERBS,
    "many runs:\n\n": _here(MANY),
    "measurements and records:\n\n": _here(KEPT),
}
VERBS = {verb: place for verbs in GROUPS.values() for verb, place in verbs.items()}


def parser(named: Container[str] | None = None) -> cli.Parser:
    """The parser of all verbs; `named` as in `rr.cli.parser`."""
    return cli.parser(named, GROUPS)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code."""
    return cli.main(argv, GROUPS)
