"""Command lines that reproduce a run: `rr train …`, `rr sample …`."""

import shlex
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rr.model.sizes import arm
from rr.options import options_of, parse_spec, written
from rr.specs import Recipe, Run
from rr.training import planning

WIDTH = 78  # characters of a printed line


def options(run: Run) -> dict[str, object]:
    """The options of `rr train` that describe this run, without those at their default."""
    recipe = run.recipe
    given: dict[str, object] = {"rung": run.rung, "rule": run.rule}
    for name, default in (("values", "own"), ("loops", 1), ("flavour", "gpt2")):
        if getattr(run, name) != default:
            given[name] = getattr(run, name)
    given["corpus"] = run.source.get("corpus", run.corpus)
    if "tokenizer" in run.source:
        given["tokenizer"] = run.source["tokenizer"]
    given |= {"protocol": run.protocol, "seed": run.seed}
    if recipe.budgets:
        given["budgets"] = list(recipe.budgets)
    elif recipe.steps != planning.recipe(run.rung, run.protocol).steps:
        given["steps"] = recipe.steps
    usual = asdict(planning.recipe(run.rung, run.protocol))
    usual["warmup"] = planning.usual_warmup(run.protocol, recipe.steps)
    for name in options_of(Recipe):
        if name not in ("steps", "budgets") and getattr(recipe, name) != usual[name]:
            given[name] = getattr(recipe, name)
    return given


def named_by_options(run: Run) -> bool:
    """Whether `options(run)` name this run's recipe and model; RRError for an unknown rule."""
    given: Any = options(run)
    chosen = {name: given[name] for name in options_of(Recipe) if name in given}
    body = run.model
    model = arm(
        run.rung,
        body.rule,
        body.vocab_size,
        run.protocol,
        body.values,
        body.n_loops,
        body.flavour,
    )
    return (planning.recipe(run.rung, run.protocol, **chosen), model) == (run.recipe, body)


def sample_command(run: Run, out: str) -> str:
    """`rr sample …` for a run in the folder `out`, with the rules in files that it needs."""
    line = ["rr", "sample", f"{out}/{run.id}", "--tokens", "80"]
    names = [parse_spec(spec)[0] for spec in (run.rule, run.values)]
    in_files = [name for name in names if ".py:" in name]
    if in_files:
        line += ["--rule", *in_files]
    return shlex.join(line)


def words(given: Mapping[str, object], verb: str, out: str) -> str:
    """A command line, `rr train …` or, with lists, `rr sweep …`."""
    options = {**given, "out": out}
    if "budgets" in options:
        options["budgets"] = [options["budgets"]]
    return shlex.join(["rr", verb, *typed(options)])


def typed(options: Mapping[str, object]) -> list[str]:
    """Options as command-line words: `--seed 0 1 --budgets 10,20 30,60 --depth-lr`.

    options: by name. A list gives an option several values; a list within it is one value with
    commas. None and False leave an option out, True gives it no value.
    """
    words = []
    for name, value in options.items():
        if value is None or value is False:
            continue
        words.append(f"--{name.replace('_', '-')}")
        if value is True:
            continue
        for item in value if isinstance(value, list | tuple) else [value]:
            item = written(str(item)) if name == "values" else item
            words.append(",".join(map(str, item)) if isinstance(item, list | tuple) else str(item))
    return words


def wrapped(command: str) -> str:
    """A command on several lines that a shell reads as one: each but the last ends in a backslash.

    It breaks before options alone, so that a long value stays whole.
    """
    head, *options = command.split(" --")
    lines = [head]
    for option in options:
        if len(lines[-1]) + len(option) + 5 <= WIDTH:
            lines[-1] += f" --{option}"
        else:
            lines.append(f"    --{option}")
    return " \\\n".join(lines)
