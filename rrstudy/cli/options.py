"""Arguments that several verbs of many runs share: a benchmark, and how their seeds are paired."""

from argparse import ArgumentParser


def add_measured(parser: ArgumentParser) -> None:
    """A benchmark to estimate the time of runs with."""
    parser.add_argument(
        "--measured",
        metavar="FILE",
        help="output of rr bench --json on this machine, to estimate hours with",
    )


def add_design(parser, prefix: str = "") -> None:
    """--paired or --unpaired: whether runs of one seed saw the same data."""
    design = parser.add_mutually_exclusive_group()
    for name, value, help in (
        ("paired", "paired", "runs of one seed saw the same data in the same order"),
        ("unpaired", "independent", "runs of one seed share nothing"),
    ):
        design.add_argument(
            f"--{name}", dest="design", action="store_const", const=value, help=prefix + help
        )
