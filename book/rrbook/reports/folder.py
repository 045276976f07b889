"""The report of a folder of runs: results, missing runs, and the command that trains those."""

import csv
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rr import DATA
from rr.errors import RRError
from rr.model.sizes import canonical_rung
from rr.residual import allow_rule, as_allowed, canonical
from rr.specs import Run
from rrstudy.command_line import options, words
from rrstudy.stats import as_rows, compare, scan
from rrstudy.stats.records import read_record, read_records
from rrstudy.stats.results import arm_of, group_key
from rrstudy.sweep.grid import cells

from .run import bigram

STUDY = DATA / "published" / "review_residuals.csv"


def published() -> tuple[list[dict], dict[str, dict]]:
    """The 42 runs of arXiv 2606.31859: rows as `read_results` has them, and run.json by id.

    Each has the id of the run that `rr sweep --protocol paper` trains in its place. Losses, sizes
    and minutes are the study's.
    """
    with open(STUDY, newline="") as file:
        stated = {(row["rung"], row["arm"], int(row["seed"])): row for row in csv.DictReader(file)}
    rows, runs = [], {}
    for cell in cells({"protocol": ["paper"]}, say=lambda line: None):
        run, recipe = cell.run, cell.run.recipe
        figures = stated.pop((run.rung, run.rule, run.seed))
        steps = int(figures["steps"])
        rows.append({
            "id": run.id, "rung": run.rung, "rule": run.rule, "values": run.values,
            "loops": run.loops, "flavour": run.flavour, "seed": run.seed,
            "protocol": run.protocol, "corpus": run.source["corpus"], "corpus_id": run.corpus,
            "tokenizer": run.source["tokenizer"], "tokenizer_id": run.tokenizer,
            "precision": recipe.precision, "lr": recipe.lr, "warmup": recipe.warmup,
            "batch": recipe.batch, "steps": steps, "eval_shortened": False, "eval_batches": None,
            "status": "finished", "val_loss": float(figures["val_loss"]),
            "ece": float(figures["ece"]),
            "params": round(1e6 * float(figures["params_M"])),
            "tokens": steps * recipe.batch * run.model.seq_len,
            "seconds": 60 * float(figures["minutes"]),
        })  # fmt: skip
        runs[run.id] = {"id": run.id, "run": run.spec(), "source": run.source,
                        "provenance": {"device": "the study's GPU"}}  # fmt: skip
    assert not stated, f"{STUDY} holds runs that are not in the study's plan"
    return rows, runs


@dataclass
class Survey:
    """The content of a folder of runs. Lists of lines are for people: each names a run and why."""

    folder: Path
    shown: str  # the folder as a command can name it
    results: list[dict]  # of the runs in the plan; with decay branches, a row per budget
    rows: list[dict]  # of `stats.compare`
    runs: dict[str, dict]  # run.json by run id, of results and of runs that are waiting
    damaged: list[str] = field(default_factory=list)
    begun: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)  # not in the plan: not in the table
    missing: list[dict] = field(default_factory=list)  # `group, rung, arm, seeds, like, given`
    notes: list[str] = field(default_factory=list)  # why a table or a command is missing
    bigrams: dict[tuple, tuple[float | None, str]] = field(default_factory=dict)  # by `text_of`


def survey(
    folder: str | Path,
    rungs: Sequence[str] = (),
    rules: Sequence[str] = (),
    seeds: Sequence[int] = (),
    baseline: str = "standard",
) -> Survey:
    """Read every run below `folder`, complete or not; whatever is left out is named.

    folder: a path, the name of a record in data/measured, or "review_residuals": the published
    runs of that study (`published`). rungs, rules, seeds: the plan. Runs
    outside it are named and not compared; runs of the plan that the folder lacks are `missing`.
    Without a plan every group of comparable runs should have each of its arms at each of its seeds.
    Raises RRError where there is no such folder, or no run in it.
    """
    path = Path(folder)
    study = str(folder) == STUDY.stem and not path.is_dir()
    if study:
        path = STUDY
    elif not path.is_dir():
        path = DATA / "measured" / folder
    if not str(folder) or not path.exists():
        raise RRError(
            f"no folder {folder}: expected a folder of runs, {STUDY.stem} or a name in "
            "data/measured"
        )
    rules = [_arm(words) for words in rules]
    rungs = [canonical_rung(words) for words in rungs]
    recorded = path.resolve().is_relative_to(DATA.resolve())
    if study:
        rows, runs = published()
        corrupt, unfinished = [], []
    else:
        known, runs = scan(path), _specifications(path)
        rows = as_rows(known)
        corrupt, unfinished = known.attrs["corrupt"], known.attrs["unfinished"]
    here = Survey(path, "RUNS" if recorded else str(folder), [], [], runs)
    here.damaged = [_damaged(place.relative_to(path), why) for place, why in corrupt]
    here.begun = [_begun(place, path) for place in unfinished]
    for row in rows:
        reason = _outside(row, rungs, rules, seeds)
        if reason:
            here.outside.append(f"{row['id']}: {arm_of(row)}, {reason}")
        else:
            here.results.append(row)
    if not (here.results or here.damaged or here.begun or here.outside):
        raise RRError(f"no run below {path}: expected a folder of runs")
    try:
        here.rows = as_rows(compare(here.results, baseline)) if here.results else []
    except RRError as error:  # the baseline itself is missing
        here.notes.append(str(error))
    by_size = sizes_of(here.results)
    here.rows.sort(key=lambda row: by_size[row["rung"]])
    here.missing = _missing(here, rungs, rules, seeds)
    if here.missing or here.begun:
        here.notes += _unread(here)
    if bare := [
        gap["like"]["id"] for gap in here.missing if gap["like"] and not _options(here, gap)
    ]:
        here.notes.append(
            f"{bare[0]} has no run.json, or settings that no option gives: no command "
            "can train others like it"
        )
    if not recorded:  # of a record the text need not be here
        here.bigrams = _bigrams(here)
    return here


def text_of(row: Mapping) -> tuple[str, str, str]:
    """Which text a result is of, and in which tokens."""
    return row["corpus"], row.get("corpus_id") or "", row["tokenizer"]


def _bigrams(here: Survey) -> dict[tuple, tuple[float | None, str]]:
    """Of each text the held-out loss of a table of token pairs, or None and why there is none."""
    found = {}
    for row in here.results:
        run = run_of(here.runs.get(row["id"].partition("/")[0], {}))
        if run is None or text_of(row) in found:
            continue
        corpus = run.source["corpus"]
        if corpus != "fables" and not corpus.startswith("file:"):
            prepare = f"rr prepare --corpus {corpus} --tokenizer {run.source['tokenizer']}"
            why = f"`{prepare}` prints the table's loss"
            found[text_of(row)] = None, why  # a report downloads nothing
            continue
        try:
            found[text_of(row)] = bigram(run), ""
        except RRError as error:
            found[text_of(row)] = None, str(error)
    return found


def _damaged(place: Path, why: str) -> str:
    """A corrupt file, and what to do about it: `rr` never replaces one."""
    if place.name == "run.json":
        return f"{place}: {why}; restore it, or remove its folder, and the run is trained again"
    return f"{place}: {why}; remove this file, and the command below trains the run again"


def sizes_of(results: Sequence[dict]) -> dict[str, int]:
    """Parameters of the smallest run of each rung, by which rungs are in order."""
    sizes = defaultdict(list)
    for row in results:
        sizes[row["rung"]].append(row["params"])
    return {rung: min(counted) for rung, counted in sizes.items()}


def _unread(here: Survey) -> list[str]:
    """A line for each rule in a file that is not allowed: a command that names it would run it."""
    read = {}
    for record in here.runs.values():
        run = run_of(record)
        if run is not None:
            read |= {run.rule: run.rule_content, run.values: run.values_content}
    notes = []
    for rule in read.items():
        try:
            as_allowed([rule], (), here.shown)
        except RRError as error:  # here no rule can be allowed
            notes.append(str(error).partition(", then allow it")[0])
    return notes


def _arm(words: str) -> str:
    """An arm of the plan as tables name it, "constant" for "constant:c=0.5"; RRError if unknown."""
    rule, _, values = words.partition(" + ")
    if not values:
        allow_rule(rule)
        return canonical(rule)
    allow_rule(rule, values)
    return f"{canonical(rule)} + {canonical(values, 'values')}"


def _specifications(path: Path) -> dict[str, dict]:
    """run.json by the id that it says; `scan` names what cannot be read."""
    by_id = {}
    for record in read_records(path):
        try:
            metadata = json.loads(record.read("run.json"))
            by_id[metadata["id"]] = metadata
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
    return by_id


def _begun(place: Path, folder: Path) -> str:
    """A run without a result, and how far it has come."""
    record = read_record(place)
    try:
        spec = json.loads(record.read("run.json"))["run"]
        words = f"{spec['rung']}, {spec['rule']}, seed {spec['seed']}"
        steps = spec["recipe"]["steps"]
    except (OSError, ValueError, KeyError, TypeError):
        return f"{place.relative_to(folder)}: its run.json is corrupt"
    try:
        last = json.loads(record.read("metrics.jsonl").splitlines()[-1])["step"]
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        last = 0
    return f"{place.relative_to(folder)}: {words}, begun, at step {last} of {steps}"


def _outside(row: dict, rungs: Sequence, rules: Sequence, seeds: Sequence) -> str:
    """Why a run is not in the plan, "" where it is."""
    for name, value, plan in (
        ("rung", row["rung"], rungs),
        ("rule", arm_of(row), rules),
        ("seed", row["seed"], seeds),
    ):
        if plan and value not in plan:
            return f"{name} {value} is not in the plan"
    return ""


def _missing(here: Survey, rungs: Sequence, rules: Sequence, seeds: Sequence) -> list[dict]:
    """Arms and seeds that a group of comparable runs lacks, and missing rungs of the plan.

    An arm may have been run at several learning rates: at any of them a seed counts as run.
    """
    groups: dict[tuple, dict] = defaultdict(lambda: defaultdict(list))
    for row in here.results:
        groups[group_key(row)][arm_of(row)].append(row)
    out = []
    for arms in groups.values():
        wanted = {row["seed"] for runs in arms.values() for row in runs} | set(seeds)
        first = next(iter(arms.values()))
        for arm in dict.fromkeys([*arms, *rules]):
            runs = arms.get(arm, [])
            lacking = sorted(wanted - {row["seed"] for row in runs})
            if lacking:
                # the rate at which the arm has most runs; a new arm is like the first
                rates = [row["lr"] for row in runs]
                like = max(runs, key=lambda row: rates.count(row["lr"])) if runs else first[0]
                out.append(
                    {
                        "rung": like["rung"],
                        "arm": arm,
                        "seeds": lacking,
                        "like": like,
                        "own": bool(runs),
                    }
                )
    for rung in rungs:
        if any(row["rung"] == rung for row in here.results):
            continue
        like = here.results[0] if here.results else None
        arms = rules or list(dict.fromkeys(arm_of(row) for row in here.results))
        wanted = sorted(set(seeds) or {row["seed"] for row in here.results})
        out += [
            {"rung": rung, "arm": arm, "seeds": wanted, "like": like, "own": False} for arm in arms
        ]
    return out


def command(here: Survey) -> list[str]:
    """The `rr sweep` commands that train what is missing and resume what was begun.

    A sweep skips what is finished, so that runs of equal options become one command.
    """
    wanted: dict[str, tuple[dict, dict, set]] = {}
    for gap in here.missing:
        if not (given := _options(here, gap)):
            continue
        seeds = gap["seeds"]
        rule = given.pop("rule")
        key = repr(sorted(given.items(), key=repr))
        _, rules, known = wanted.setdefault(key, (given, {}, set()))
        rules[rule] = None
        known.update(seeds)
    lines = [
        words(given | {"rule": list(rules), "seed": sorted(seeds)}, "sweep", here.shown)
        for given, rules, seeds in wanted.values()
    ]
    results = {row["id"].partition("/")[0] for row in here.results}
    for name, record in here.runs.items():
        if name in results or not any(name in line for line in here.begun):
            continue
        given = _spec_options(record)
        planned = any(
            gap["rung"] == given.get("rung")
            and given.get("seed") in gap["seeds"]
            and gap["arm"] == arm_of({"values": "own", **given})
            for gap in here.missing
        )
        if given and not planned:
            lines.append(words(given, "train", here.shown))
    return lines


def run_of(record: Mapping) -> Run | None:
    """The run of a run.json; None where it is none."""
    try:
        return Run.from_spec(record["run"], dict(record["source"]))
    except (RRError, KeyError, TypeError, ValueError):
        return None


def _spec_options(record: Mapping) -> dict:
    run = run_of(record)
    try:
        return options(run) if run is not None else {}
    except RRError:  # a rung that is none of the ladder's
        return {}


def _options(here: Survey, gap: Mapping) -> dict:
    """Options of a missing run without its seed: those of the run that it should be like.

    Empty where that run has no run.json: a result does not say everything; and where it has
    settings that no option gives.
    """
    like = gap["like"]
    given = _spec_options(here.runs.get(like["id"].partition("/")[0], {})) if like else {}
    if like and (not given or like.get("settings")):
        return {}
    given |= {"rung": gap["rung"]}
    given.pop("seed", None)
    if gap["rung"] != (like or {}).get("rung"):  # another rung: its own steps, batch and rate
        for name in ("steps", "budgets", "warmup", "batch", "lr"):
            given.pop(name, None)
    if not gap["own"]:
        rule, _, values = gap["arm"].partition(" + ")
        given |= {"rule": rule}
        given.pop("values", None)
        given |= {"values": values} if values else {}
    return given
