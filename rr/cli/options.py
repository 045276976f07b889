"""Arguments that several verbs share: the text, the run, the order of runs, the machine."""

from argparse import ArgumentParser
from typing import Any

from ..config import RRError

RUN = ("protocol", "seed", "values", "loops", "flavour", "steps", "budgets", "warmup", "lr",
       "batch", "eval_batches", "precision", "optimizer", "depth_lr")  # fmt: skip
MACHINE = ("threads", "device", "path", "micro_batch", "save_every", "parallel", "log")


def pick(args, names) -> dict[str, Any]:
    """The named attributes of the parsed arguments, as keyword arguments."""
    return {name: getattr(args, name) for name in names}


def add_text(parser, usual: str, default: str | None = None, **more) -> None:
    """Which text, and with which tokenizer. usual: the default in words."""
    parser.add_argument(
        "--corpus",
        default=default,
        **more,
        help=f"fables, tinystories, fineweb-edu, file:PATH, or a dataset of the Hugging Face hub "
        f"(default: {usual})",
    )
    parser.add_argument(
        "--tokenizer",
        **more,
        help="gpt2, bpe:N (trained on the corpus, N tokens), or a folder with vocab.json and "
        "merges.txt (default: bpe:1024 for fables, else gpt2)",
    )


def add_run(parser: ArgumentParser, many: bool = False) -> None:
    """What a run is and how it is trained. many: each option that is part of the run takes a list.

    A list has no default here: that of protocol `paper` differs.
    """
    group = parser.add_argument_group(
        "the run", "what is trained; any change here is another run, with another id"
    )

    def option(name: str, default: object = None, help: str = "", **more) -> None:
        more |= {"nargs": "+"} if many else {"default": default}
        group.add_argument(f"--{name}", help=help, **more)

    add_text(group, "fables for nano and mini", **({"nargs": "+"} if many else {}))
    option(
        "rung",
        "nano",
        "model size: nano, mini, 60M … 1B, with options: nano:n_layer=16,d_model=64 "
        "(default: nano)",
    )
    option(
        "rule",
        "review",
        "residual rule with its options, constant:c=0.5, or your own, my_rule.py:Class "
        "(default: review)",
    )
    option("values", "own", "value rule (default: own)")
    option("loops", 1, "passes over the stack of blocks (default: 1)", type=int)
    option("flavour", "gpt2", "architecture: gpt2 or llama (default: gpt2)")
    option("protocol", "clean", "clean, or paper: as the study trained (default: clean)")
    option("seed", 0, "random seed of weights and batches (default: 0)", type=int)
    option("steps", None, "optimiser steps (default: the rung's)", type=int)
    option(
        "budgets",
        None,
        "several training lengths in one run: a learning-rate decay branches off one plateau "
        "for each of these numbers of steps",
        type=_budgets,
        metavar="STEPS,STEPS,…",
    )
    option("warmup", None, "steps of linear warm-up (default: the protocol's)", type=int)
    option("lr", None, "peak learning rate (default: the rung's)", type=float)
    option("batch", None, "windows per step (default: the rung's)", type=int)
    option(
        "eval-batches",
        None,
        "shorten the evaluation to this many batches; the result says so",
        type=int,
    )
    option("precision", None, "fp32, tf32, bf16 or fp16 (default: the protocol's)")
    option("optimizer", None, "adamw, or muon for the blocks' matrices (default: adamw)")
    group.add_argument(
        "--depth-lr",
        action="store_true",
        help="scale the blocks' learning rate and AdamW's eps by (L/12)^-1/2 for L blocks",
    )


def add_order(parser: ArgumentParser) -> None:
    """In which order runs are trained, and a benchmark to estimate their time with."""
    group = parser.add_argument_group("order and time")
    group.add_argument(
        "--order",
        default="smallest",
        help="smallest: small models first, all rules of a seed together; longest: longest run "
        "first; given: as the options list them (default: smallest)",
    )
    group.add_argument(
        "--measured",
        metavar="FILE",
        help="output of rr bench --json on this machine, to estimate hours with",
    )


def add_machine(parser: ArgumentParser, many: bool = False) -> None:
    """Where and how a run is computed; none of it is part of the run's id."""
    group = parser.add_argument_group("the machine", "how it is computed; the run's id stays")
    group.add_argument("--threads", type=int, help="CPU threads (default: OMP_NUM_THREADS or all)")
    group.add_argument("--device", help="auto (cuda, else cpu), cpu, cuda or mps (default: auto)")
    group.add_argument(
        "--path",
        help="how a step is computed: reference, eager, fast, compiled or triton, with options: "
        "fast:recompute=layer (default: compiled on a GPU, and on a CPU where the run is long "
        "enough to win the compilation back; else eager)",
    )
    group.add_argument(
        "--micro-batch",
        type=int,
        help="windows that a process takes at once; gradients are accumulated over the batch "
        "(default: the whole batch, halved until it fits the memory)",
    )
    group.add_argument(
        "--parallel",
        help="under torchrun: ddp, every process holds the model, or fsdp, each holds a shard "
        "(default: ddp)",
    )
    group.add_argument(
        "--save-every",
        type=_seconds,
        metavar="SECONDS",
        help="seconds between checkpoints (default: auto, from how long a save takes)",
    )
    group.add_argument(
        "--log",
        default=None if many else "",
        metavar="NAME,…",
        help="also log curves to tensorboard, wandb (default: metrics.jsonl alone)",
    )


def _seconds(word: str) -> float | None:
    """A number of seconds; None for auto."""
    try:
        return None if word == "auto" else float(word)
    except ValueError:
        raise RRError(f"save-every must be a number of seconds or auto, got {word!r}") from None


def _budgets(words: str) -> list[int]:
    """`2000,4000` as numbers."""
    try:
        return [int(word) for word in words.split(",")]
    except ValueError:
        raise RRError(f"budgets must be integers, as in 2000,4000, got {words!r}") from None


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
