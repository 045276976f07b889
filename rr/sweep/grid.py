"""The plan of a sweep: every combination of the options given, each a run of its own, once."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..config import RRError, Run, nearest
from ..model.ladder import PAPER_ARMS, RUNGS, flops_per_token, group, other_size
from ..training.run_folder import plan, text_of

# What `rr.plan` takes, in the order of the combinations: the last varies fastest.
AXES = ("protocol", "corpus", "tokenizer", "rung", "seed", "flavour", "loops", "values", "rule",
        "steps", "budgets", "warmup", "lr", "batch", "eval_batches", "precision",
        "optimizer")  # fmt: skip

# smallest: small models first, by seed, all arms of a seed together, so that what there is time for
# can be compared. longest: fewest idle places at the end, where several run at once. given: as the
# options list them, the last option of AXES fastest.
ORDERS = ("smallest", "longest", "given")


@dataclass(frozen=True)
class Cell:
    """One run of the sweep. words: the options that `rr.plan` was given.

    flops: of all its training, flops_per_token · tokens, those of decay branches included.
    name: what a person calls it, `60M review seed 0`: the options that are not those of all cells.
    """

    run: Run
    words: Mapping[str, object]
    flops: int
    name: str = ""

    @property
    def id(self) -> str:
        """The run's."""
        return self.run.id


def _named(found: Sequence[Cell]) -> list[Cell]:
    """The cells with their names."""
    plain = ("rung", "rule")
    differ = [key for key in ("rung", "rule", *AXES)
              if len({str(cell.words.get(key)) for cell in found}) > 1]  # fmt: skip
    shown = dict.fromkeys([*differ, "rule", "seed"])
    made = []
    for cell in found:
        words = [str(cell.words[key]) for key in plain if key in shown]
        words += [f"{key}={cell.words[key]}" for key in shown
                  if key in cell.words and key not in (*plain, "seed")]  # fmt: skip
        made.append(replace(cell, name=" ".join([*words, f"seed {cell.words['seed']}"])))
    return made


def cells(
    options: Mapping[str, Sequence | bool | None],
    say: Callable[[str], None],
    cache: str | Path | None = None,
    order: str = "smallest",
) -> list[Cell]:
    """Every combination of `options`, in one of ORDERS; nothing is made or downloaded.

    options: for each name of AXES a list, or None for the default; and `depth_lr`, a bool. Under
    protocol `paper` the defaults are the study's own: every published rung, its three arms, the
    seeds that the study gave the rung, tinystories. Two combinations that are one run are run once,
    which is said; so is a published rung's name on another size. RRError, before anything is made,
    for what `rr.plan` refuses.
    """
    if order not in ORDERS:
        raise RRError(f"unknown order {order!r}: {nearest(order, ORDERS)}")
    given = {key: _axis(key, options.get(key)) for key in AXES}
    found: dict[str, Cell] = {}
    same = 0
    for protocol, corpus, tokenizer, rung in _outer(given):
        corpus, _ = text_of(rung, corpus, tokenizer)
        seeds = given["seed"] or _seeds(protocol, rung)
        rules = given["rule"] or (PAPER_ARMS if protocol == "paper" else ["review"])
        rest = [[(key, value) for value in values] for key in AXES[5:]
                if (values := rules if key == "rule" else given[key])]  # fmt: skip
        for seed, chosen in itertools.product(seeds, itertools.product(*rest)):
            more = dict(chosen)
            words = {"rung": rung, "rule": more.pop("rule"), **more, "seed": seed,
                     "protocol": protocol, "corpus": corpus}  # fmt: skip
            if tokenizer is not None:
                words["tokenizer"] = tokenizer
            if options.get("depth_lr"):
                words["depth_lr"] = True
            run = plan(**words, cache=cache)
            same += run.id in found
            found.setdefault(run.id, Cell(run, words, _flops(run)))
    if same:
        say(f"{same} of {same + len(found)} combinations are the same run as another: run once")
    for line in dict.fromkeys(line for cell in found.values() if (line := other_size(cell.run))):
        say(line)
    return _named(sorted(found.values(), key=lambda cell: place(cell.run, order)))


def place(run: Run, order: str) -> tuple:
    """The run's place in an order, as a key to sort by."""
    if order == "smallest":
        return *group(run), run.rule != "standard", run.rule, run.values
    return (-_flops(run) if order == "longest" else 0,)


def _outer(given: dict[str, list | None]) -> list[tuple]:
    """(protocol, corpus, tokenizer, rung) of every combination: what the other defaults hang on."""
    made = []
    for protocol in given["protocol"] or ["clean"]:
        paper = protocol == "paper"
        corpora = given["corpus"] or ["tinystories" if paper else None]
        rungs = given["rung"] or (
            [rung.name for rung in RUNGS.values() if rung.published] if paper else ["nano"]
        )
        tokenizers = given["tokenizer"] or [None]
        made += itertools.product([protocol], corpora, tokenizers, rungs)
    return made


def _seeds(protocol: str, rung: str) -> Sequence[int]:
    """The study's seeds of its rungs; seed 0 elsewhere."""
    known = RUNGS.get(rung.partition(":")[0])
    return known.seeds if protocol == "paper" and known else [0]


def _axis(name: str, values: Sequence | None) -> list | None:
    if values is None:
        return None
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise RRError(f"{name} is {values!r}: a list is accepted")
    if not values:
        raise RRError(f"no {name} is given: a list of at least one is accepted")
    return list(values)


def _flops(run: Run) -> int:
    """FLOPs of all training steps that the run takes."""
    steps = run.recipe.segments[-1].end
    return flops_per_token(run.model) * steps * run.recipe.batch * run.model.seq_len
