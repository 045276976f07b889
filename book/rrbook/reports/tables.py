"""What the report of a folder shows of it: the table, the figure's points, the cost."""

import itertools
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

from rrstudy.stats.results import GROUP, TOLD, arm_of, group_key
from rrstudy.stats.show import columns, grouped, written_arm

from .folder import Survey, run_of, sizes_of


def labelled(here: Survey) -> list[dict]:
    """The rows, each with `where`: what tells its group from others of its rung, or ""."""
    groups = [(title.split(" · "), rows) for title, rows in grouped(here.rows)]
    labelled = []
    for title, rows in groups:
        others = [parts for parts, each in groups if each[0]["rung"] == rows[0]["rung"]]
        own = [part for part in title if not all(part in parts for parts in others)]
        where = f", {', '.join(own)}," if own else ""
        labelled += [row | {"where": where} for row in rows]
    return labelled


def shown(here: Survey) -> list[dict]:
    """The table as text, one mapping per row; `runs` names the group where there are several.

    The same columns as `rr table`.
    """
    if not here.rows:  # the baseline is missing: the arms' means are there all the same
        return _means(here.results)
    shown = []
    groups = list(grouped(here.rows))
    for title, rows in groups:
        for row in rows:
            cells = columns(row)
            shown.append({"runs": title, **cells} if len(groups) > 1 else cells)
    return shown


def _means(results: Sequence[dict]) -> list[dict]:
    """The mean loss of each arm at each rate over its finished runs, among comparable runs."""
    groups, lines = list(grouped([row for row in results if row["status"] == "finished"])), []
    for title, rows in groups:
        arms = defaultdict(list)
        for row in rows:
            arms[arm_of(row), row["lr"]].append(row)
        for (arm, lr), runs in sorted(arms.items()):
            seeds, loss = {row["seed"] for row in runs}, fmean(row["val_loss"] for row in runs)
            line = {"rung": rows[0]["rung"], "arm": written_arm(arm), "lr": f"{lr:g}",
                    "seeds": len(seeds), "val_loss": f"{loss:.4f}"}  # fmt: skip
            lines.append({"runs": title, **line} if len(groups) > 1 else line)
    return lines


def points(here: Survey) -> tuple[list[dict], list[str]]:
    """Gap of each arm against its baseline by size, for the emergence figure; arms without a gap.

    Points `arm, rule, series, rung, size` (parameters), `gap, lo, hi` (nats per token, t interval),
    `n` (pairs), `diverged`. A series is an arm over all rungs, each at its own steps and batch;
    where a rung was run at several, or on several texts or recipes, its steps are part of its name.
    """
    sizes = defaultdict(list)
    for row in here.results:
        sizes[group_key(row), arm_of(row), row["lr"]].append(row["params"])
    rows = labelled(here)
    arms = [(row["rung"], row["arm"]) for row in rows]
    several = len({*arms}) < len(arms) or len({_recipe(row) for row in rows}) > 1
    shown, without = [], []
    for row in rows:
        if row["baseline"] is None:
            if row["notes"] and arm_of(row) != row["arm"]:
                without.append(_named(row))
            continue
        if row["difference"] is None:
            without.append(_named(row))
            continue
        size = max(sizes[group_key(row), arm_of(row), row["lr"]])
        series = arm_of(row)
        if several:
            series += row["where"].rstrip(",") or f", {row['steps']} steps"
        shown.append(
            {
                **{name: row[name] for name in ("arm", "rule", "rung", "lo", "hi")},
                "series": series,
                "size": size,
                "gap": row["difference"],
                "n": len(row["pairs"]),
                "diverged": len(row["diverged"]),
            }
        )
    return shown, without


def _named(row: dict) -> str:
    return f"{row['rung']}{row['where'].rstrip(',')}, {row['arm']}: {'; '.join(row['notes'])}"


def lacking(here: Survey) -> list[str]:
    """Which seeds are missing, a line for each arm of a group, named as in `labelled`."""
    where = {group_key(row): row["where"].rstrip(",") for row in labelled(here)}
    lines = []
    for gap in here.missing:
        like = gap["like"]
        group = where.get(group_key(like), "") if like and like["rung"] == gap["rung"] else ""
        seeds = ", ".join(map(str, gap["seeds"]))
        lines.append(f"{gap['rung']}{group}, {gap['arm']}: lacks seed {seeds}")
    return lines


def _recipe(row: dict) -> tuple:
    """A key of a series: all of a group's fields but its rung and what a rung has of its own."""
    own = ("rung", "batch", "steps", "warmup")
    return tuple(repr(row.get(name)) for name in GROUP + TOLD if name not in own)


COST = ("rung", "arm", "device", "runs", "diverged", "tokens", "hours", "tokens/s")


def cost_by_arm(here: Survey) -> list[dict]:
    """The cost of the runs of each rung, arm and device: runs, tokens, hours, tokens/s; then all.

    A run with decay branches counts once, with the tokens of them all. Hours are those of training;
    runs that are unfinished or corrupt are not counted.
    """
    whole = {}
    for row in here.results:  # rows of one run follow one another, the longest budget last
        whole[row["id"].partition("/")[0]] = row
    by_arm = defaultdict(list)
    for name, row in whole.items():
        record = here.runs.get(name, {})
        made = record.get("provenance", {})
        if row["status"] == "finished" and (run := run_of(record)):
            row = row | {"tokens": run.tokens}
        device = made.get("device", "unknown")
        threads = row.get("threads")
        place = f"{device}, threads: {threads}" if device == "cpu" else device
        by_arm[row["rung"], arm_of(row), place].append(row)
    by_size = sizes_of(here.results)
    lines = [
        _cost(rung, arm, place, runs)
        for (rung, arm, place), runs in sorted(
            by_arm.items(), key=lambda item: (by_size[item[0][0]], *item[0])
        )
    ]
    total = list(itertools.chain.from_iterable(by_arm.values()))
    return [*lines, _cost("all", "", "", total)] if total else []


def _cost(rung: str, arm: str, device: str, runs: list[dict]) -> dict:
    seconds = sum(row["seconds"] for row in runs)
    tokens = sum(row["tokens"] for row in runs)
    diverged = sum(row["status"] == "diverged" for row in runs)
    speed = tokens / seconds if seconds else None
    row = (rung, arm, device, len(runs), diverged, tokens, seconds / 3600, speed)
    return dict(zip(COST, row, strict=True))
