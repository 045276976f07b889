"""Everything that waits for a GPU, in half an hour on one H100 or H200.

    python tests/benchmarks/gpu.py --out FOLDER --text file:PATH --tokenizer FOLDER

Needs torch, numpy and tokenizers. Each stage writes one JSON file after every part, so that what is
cut off at any moment loses nothing that was measured; called again with the same folder, it goes on
with what is missing. A stage that would not fit into --minutes is left out, and said to be.

    doctor          `rr doctor` for the study's arms at 60M, with two steps
    tests           the tests marked gpu, where pytest is installed
    paths           Review at 60M: compiled, with cuDNN's attention
    60M … 1B        review and its matched standard, reference path and the path of a run: step
                    times, tokens/s, MFU, peak memory; at 60M each optimisation undone alone
    ablate-590M     each optimisation undone alone
    pairs           the third plan's first question for a GPU: 60M on the published steps, constant
                    ½, state gate and Review, seed by seed, for as long as there is time (--text)
    summary         the rows to reach, and hours for the study's 42 runs

The rows are what `rr plan` reads once they lie in data/measured. Every stage compares at one batch
and micro-batch. The 1B rung takes its 64 windows as 2 × 32, so that four of its models fit beside
the reference path's activations; a card of 80 GB needs --micro-batch 16.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
os.environ["PYTHONPATH"] = str(ROOT)  # the cases' processes

import torch

import rr
from rr.config import Interrupted, RRError
from rr.model import ladder
from rr.training.backend import ablations
from rr.training.checkpoint import Checkpoints
from rr.training.device import pick_device
from rrstudy.perf import doctor
from rrstudy.perf.benchmark import made_by, measure, ratios
from rrstudy.perf.benchmark_case import Case

BEGAN = time.monotonic()
GOOD = "compiled:attention=cudnn"
ARMS = 3  # of the study: review, highway, standard
PATHS = ("compiled", GOOD)
PAIRS = ("constant", "state-gate", "review")
SEEDS = range(5)


def say(line: str) -> None:
    print(f"{time.monotonic() - BEGAN:5.0f} s  {line}", flush=True)


def write(out: Path, stage: str, found: dict) -> None:
    aside = out / f".{stage}.json"
    aside.write_text(json.dumps(found, indent=1) + "\n")
    aside.replace(out / f"{stage}.json")


def cases(rung: str, paths: list[str], rules: tuple[str, ...], micro: int) -> list[Case]:
    batch = ladder.recipe(rung).batch
    return [Case(rung, rule, path, batch, min(micro, batch)) for path in paths for rule in rules]


def throughput(args, stage: str, rungs: list[Case], steps: int, together: int) -> None:
    """Measure one group of cases and keep what there is after every repeat."""
    where = pick_device(args.device)

    def keep(rows: list[dict], done: bool = False) -> None:
        write(
            args.out,
            stage,
            {
                "made_by": made_by(where, torch.get_num_threads()),
                "steps": steps,
                "repeats": args.repeats,
                "complete": done,
                "rows": rows,
                "over_the_reference": ratios(rows, "path", "reference"),
                "over_the_standard": ratios(rows, "rule", "standard"),
                "over_the_fast_path": ratios(rows, "path", rungs[-1].path),
            },
        )

    rows = measure(rungs, steps, args.repeats, args.device, None, together, keep, say)
    keep(rows, True)
    for row in rows:
        told = row["failed"] or (
            f"{row['step_ms_median']:.2f} ms, {row['tokens_per_second']:,.0f} tokens/s, "
            f"MFU {'–' if row['mfu'] is None else format(row['mfu'], '.1%')}, "
            f"{row['peak_bytes'] / 2**30:.1f} GiB"
        )
        say(f"{row['rung']} {row['rule']} {row['path']}: {told}")


def examined(args) -> None:
    """`rr doctor`, whose runs are the study's three arms at the first rung."""
    rung = args.names[0]
    runs = [
        rr.plan(
            rung, rule, protocol="paper", corpus=args.text or "fables", tokenizer=args.tokenizer
        )
        for rule in ("standard", "highway", "review")
    ]
    checks = doctor.examine(runs, args.out / "trial", args.device, say=say)
    for line in doctor.rows(checks):
        say(" ".join(line))
    write(args.out, "doctor", {"complete": True, "checks": [vars(check) for check in checks]})


def tested(args) -> None:
    """The tests that need a GPU."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider"]
    done = subprocess.run([*command, "tests/unit"], cwd=ROOT, capture_output=True, text=True)
    lines = (done.stdout + done.stderr).splitlines()[-15:]
    say(f"tests: code {done.returncode}: {lines[-1] if lines else ''}")
    write(args.out, "tests", {"complete": True, "code": done.returncode, "lines": lines})


def paired(args) -> None:
    """60M pairs on the published steps, one run after the other; a run that is cut off resumes."""
    left = 60 * args.minutes - (time.monotonic() - BEGAN) - 20
    for seed in SEEDS:
        for rule in PAIRS:
            text = {"corpus": args.text, "tokenizer": args.tokenizer}
            run = rr.plan(args.names[0], rule, protocol="paper", seed=seed, **text)
            home = args.out / "runs"
            until = time.monotonic() + left
            while rr.training.finished(home / run.id) is None:
                if time.monotonic() > until:
                    return
                with contextlib.suppress(Interrupted):  # saved: the next call goes on
                    done = steps_done(home / run.id)
                    rr.train(run, home, stop_after=done + args.portion, log=say)
    write(args.out, "pairs", {"complete": True})


def steps_done(folder: Path) -> int:
    """Steps of a run's newest checkpoint."""
    return max(Checkpoints(folder, folder.name).steps(), default=0)


def summary(args, stages: list[str]) -> None:
    """The rows to reach. A run's evaluation is counted as half a step for each of its batches:
    62 at the end, 16 at each of three points; highway's step as the slower of the two measured."""
    best: dict[tuple[str, str], dict] = {}
    speeds = []
    for stage in stages:
        path = args.out / f"{stage}.json"
        if not path.exists():
            continue
        found = json.loads(path.read_text())
        speeds += [r for r in found["over_the_reference"] if r["path"] == GOOD]
        for row in found["rows"]:
            key = (row["rung"], row["rule"])
            if row["failed"] or row["path"] != GOOD:
                continue
            if key not in best or row["step_ms_median"] < best[key]["step_ms_median"]:
                best[key] = row
    hours, missing = 0.0, []
    for name, rung in ladder.RUNGS.items():
        if not rung.published:
            continue
        pair = [best.get((name, rule)) for rule in ("review", "standard")]
        if None in pair:
            missing.append(name)
            continue
        ms = [row["step_ms_median"] for row in pair]
        steps = rung.steps + (62 + 3 * 16) / 2
        hours += len(rung.seeds) * steps * (sum(ms) + max(ms) * (ARMS - 2)) / 3.6e6
    write(
        args.out,
        "summary",
        {
            "mfu": [
                {k: row[k] for k in ("rung", "rule", "path", "mfu", "tokens_per_second")}
                for row in best.values()
            ],
            "over_the_reference": speeds,
            "hours_of_42_runs": None if missing else hours,
            "rungs_missing": missing,
        },
    )
    say(f"42 runs: {'not all rungs measured' if missing else f'{hours:.2f} hours'}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--minutes", type=float, default=29)
    parser.add_argument("--text", help="for the pairs: fables, or file:PATH of TinyStories")
    parser.add_argument(
        "--tokenizer", default="bpe:1024", help="of the pairs: gpt2, or a folder with its two files"
    )
    parser.add_argument("--portion", type=int, default=1000, help="steps of a pair between looks")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--micro-batch", type=int, default=64)
    parser.add_argument("--rung", nargs="+", help="these alone (a rehearsal: nano)")
    args = parser.parse_args()
    try:
        where = pick_device(args.device)
    except RRError as error:
        print(f"gpu.py: {error}", file=sys.stderr)
        return 2
    args.out.mkdir(parents=True, exist_ok=True)
    cuda, both = args.device == "cuda", ("review", "standard")
    names = args.rung or [name for name, rung in ladder.RUNGS.items() if rung.published]
    args.names = names
    # name, seconds it took or is expected to take on an H200, what to do
    stages = [("doctor", 60, lambda s: examined(args)), ("tests", 60, lambda s: tested(args))]
    if cuda:
        several = cases(names[0], list(PATHS), ("review",), args.micro_batch)
        stages.append(("paths", 90, lambda s: throughput(args, s, several, args.steps, 4)))
    expected = {"60M": 95, "150M": 60, "320M": 75, "590M": 100, "1B": 150}
    for name in names:
        good = GOOD if cuda else "eager"
        paths = ["reference", good]
        chosen = cases(
            name, paths, both, min(32, args.micro_batch) if name == "1B" else args.micro_batch
        )
        if name == "60M" and cuda:
            undone = cases(name, ablations(GOOD, where), ("review",), args.micro_batch)
            chosen = [*undone, *chosen]
        together = {"60M": 8, "150M": 6, "320M": 4, "590M": 2}.get(name, 1)
        stages.append(
            (
                name.partition(":")[0],
                expected.get(name, 30),
                lambda s, c=chosen, t=together: throughput(args, s, c, args.steps, t),
            )
        )
    if cuda and "590M" in names:
        chosen = cases("590M", [*ablations(GOOD, where), GOOD], ("review",), args.micro_batch)
        stages.append(
            ("ablate-590M", 95, lambda s: throughput(args, s, chosen, max(1, args.steps // 2), 2))
        )
    if args.text:
        stages.append(("pairs", 30, lambda s: paired(args)))
    measured = [name.partition(":")[0] for name in names]
    for name, seconds, run in stages:
        path = args.out / f"{name}.json"
        if path.exists() and json.loads(path.read_text())["complete"]:
            say(f"{name}: measured already")
            continue
        if time.monotonic() - BEGAN + seconds > 60 * args.minutes:
            say(f"{name}: not reached within {args.minutes:g} minutes; call again to have it")
            continue
        say(f"{name}: begins")
        try:
            run(name)
        except (RRError, RuntimeError, subprocess.SubprocessError, OSError) as error:
            say(f"{name}: failed: {' '.join(str(error).split())[:200]}")
        summary(args, measured)
    return 0


if __name__ == "__main__":
    sys.exit(main())
