"""The plan of a sweep: every combination of the given options, each a run, once."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from rr.errors import RRError, nearest
from rr.model.costs import flops_per_token
from rr.model.sizes import RUNGS, other_size
from rr.specs import RUN_OPTIONS, Run
from rr.training.planning import plan as plan_run
from rr.training.planning import text_of
from rrstudy.perf.ladder import PAPER_ARMS, group

# Options that have several values in a sweep, in the order of the combinations: the last varies
# fastest. Defaults of those after the fourth depend on these four.
OUTER = ("protocol", "corpus", "tokenizer", "rung")
AXES = (*OUTER, "seed", "flavour", "loops", "values", "rule")
AXES += tuple(
    name for name, option in RUN_OPTIONS.items() if name not in AXES and option.read is not bool
)
SWITCHES = tuple(name for name, option in RUN_OPTIONS.items() if option.read is bool)


@dataclass(frozen=True)
class Cell:
    """One run of the sweep. `cells()` makes them.

    Example:
        >>> from rrstudy.sweep import cells
        >>> (cell,) = cells({"rung": ["nano"], "seed": [3]}, say=print)
        >>> cell.name, cell.words["seed"]
        ('review seed 3', 3)
    """

    run: Run
    words: Mapping[str, object]  # the options given to `rr.plan`
    flops: int  # FLOP of all its training steps, those of decay branches included
    name: str = ""  # for people: the options in which the cells differ, "60M review seed 0"

    @property
    def id(self) -> str:
        """The run's id."""
        return self.run.id


def _named(plan: Sequence[Cell]) -> list[Cell]:
    """The cells with their names."""
    plain = ("rung", "rule")
    differ = [
        key
        for key in ("rung", "rule", *AXES)
        if len({str(cell.words.get(key)) for cell in plan}) > 1
    ]
    shown = dict.fromkeys([*differ, "rule", "seed"])
    named = []
    for cell in plan:
        words = [str(cell.words[key]) for key in plain if key in shown]
        words += [
            f"{key}={cell.words[key]}"
            for key in shown
            if key in cell.words and key not in (*plain, "seed")
        ]
        named.append(replace(cell, name=" ".join([*words, f"seed {cell.words['seed']}"])))
    return named


def cells(
    options: Mapping[str, Sequence | bool | None],
    say: Callable[[str], None],
) -> list[Cell]:
    """Every combination of `options`, each a run; nothing is created or downloaded.

    options: for each name of `AXES`, which are options of `rr.plan`, a list, or None for the
    default; and for each of `SWITCHES` a bool. Under protocol `paper` the defaults are the study's
    own: every published rung, its three arms, the seeds that the study gave the rung, tinystories.
    say: called with a line where two combinations are the same run, which is run once, and where a
    published rung's name is given another size.

    The runs come small models first, all arms of a seed together, so that an interrupted sweep
    leaves complete pairs. Raises RRError, before anything is created, for what `rr.plan` refuses.

    Example:
        >>> from rrstudy.sweep import cells
        >>> rules = ["review", "standard"]
        >>> options = {"rung": ["nano"], "rule": rules, "seed": [0, 1]}
        >>> [cell.name for cell in cells(options, say=print)]
        ['standard seed 0', 'review seed 0', 'standard seed 1', 'review seed 1']
    """
    for name, value in options.items():
        if name not in (*AXES, *SWITCHES):
            raise RRError(f"unknown option {name!r}: {nearest(name, (*AXES, *SWITCHES))}")
        if name in SWITCHES and not isinstance(value, bool | None):
            raise RRError(f"{name} must be True or False, got {value!r}")
    given = {key: _axis(key, options.get(key)) for key in AXES}
    plan: dict[str, Cell] = {}
    duplicates = 0
    for protocol, corpus, tokenizer, rung in _outer(given):
        corpus, _ = text_of(rung, corpus, tokenizer)
        seeds = given["seed"] or _seeds(protocol, rung)
        rules = given["rule"] or (PAPER_ARMS if protocol == "paper" else ["review"])
        rest = [
            [(key, value) for value in values]
            for key in AXES[5:]
            if (values := rules if key == "rule" else given[key])
        ]
        for seed, chosen in itertools.product(seeds, itertools.product(*rest)):
            more = dict(chosen)
            words = {
                "rung": rung,
                "rule": more.pop("rule"),
                **more,
                "seed": seed,
                "protocol": protocol,
                "corpus": corpus,
            }
            if tokenizer is not None:
                words["tokenizer"] = tokenizer
            words |= {name: True for name in SWITCHES if options.get(name)}
            run = plan_run(**words)
            words["corpus"] = run.source["corpus"]  # a branch of the hub by its commit
            if run.id in plan:
                duplicates += 1
            else:
                plan[run.id] = Cell(run, words, _flops(run))
    if duplicates:
        total = duplicates + len(plan)
        say(f"{duplicates} of {total} combinations are the same run as another: run once")
    for line in dict.fromkeys(other_size(cell.run) for cell in plan.values()):
        if line:
            say(line)
    return _named(sorted(plan.values(), key=lambda cell: place(cell.run)))


def place(run: Run) -> tuple:
    """A sort key: the run's place among `cells()`."""
    return *group(run), run.rule != "standard", run.rule, run.values


def _outer(given: dict[str, list | None]) -> list[tuple]:
    """(protocol, corpus, tokenizer, rung) of every combination: other defaults depend on these."""
    combinations = []
    for protocol in given["protocol"] or ["clean"]:
        paper = protocol == "paper"
        corpora = given["corpus"] or ["tinystories" if paper else None]
        rungs = given["rung"] or (
            [rung.name for rung in RUNGS.values() if rung.published] if paper else ["nano"]
        )
        tokenizers = given["tokenizer"] or [None]
        combinations += itertools.product([protocol], corpora, tokenizers, rungs)
    return combinations


def _seeds(protocol: str, rung: str) -> Sequence[int]:
    """The study's seeds of its rungs; seed 0 elsewhere."""
    known = RUNGS.get(rung.partition(":")[0])
    return known.seeds if protocol == "paper" and known else [0]


def _axis(name: str, values: Sequence | bool | None) -> list | None:
    if values is None:
        return None
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise RRError(f"{name} must be a list, got {values!r}")
    if not values:
        raise RRError(f"{name} must be a list of at least one value, got none")
    return list(values)


def _flops(run: Run) -> int:
    """FLOPs of all training steps that the run takes."""
    return flops_per_token(run.model) * run.tokens
