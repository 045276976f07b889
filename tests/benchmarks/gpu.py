"""Every figure that waits for a GPU, in one go of under nine minutes on one H100 or H200.

    python tests/benchmarks/gpu.py --out FOLDER

Needs torch, numpy and tokenizers; no text and no network. Stages run in the order of the plan in
data/measured/README.md and each writes one JSON file after every repeat, so that what is cut off
loses nothing that was measured; called again with the same folder, it goes on with the stages that
are missing. A stage that would not fit into --minutes is left out, and said to be.

    60M … 1B        review and its matched standard, reference path and fast path, interleaved:
                    step times, tokens/s, MFU, peak memory; at 60M each optimisation undone alone
    gates           the gated write alone, forward and backward, at the five widths
    ablate-590M     each optimisation undone alone
    summary         the rows to reach, and hours for the study's 42 runs

Every stage compares at one batch and micro-batch. The 1B rung takes its 64 windows as 2 × 32, so
that four of its models fit beside the reference path's activations; a card of 80 GB needs
--micro-batch 16 and gets no comparison at 64.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
os.environ["PYTHONPATH"] = str(ROOT)  # the cases' processes

import torch

from rr.config import RRError
from rr.model import ladder
from rr.ops import gated_write
from rr.perf.benchmark import made_by, measure, ratios
from rr.perf.benchmark_case import Case
from rr.training.backend import ablations
from rr.training.device import pick_device

BEGAN = time.monotonic()
GOOD, GRAPHED = "compiled:attention=cudnn", "compiled:attention=cudnn,graph=step"
SMALL = ("60M", "150M")  # bound by launches: a CUDA graph of the whole step is measured too
ARMS = 3  # of the study: review, highway, standard


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


def gates(args) -> None:
    """The gated write alone: milliseconds forward and backward on 64 × 256 tokens, bf16."""
    device = pick_device(args.device)
    rows = []

    def plain(h, u, w, b):
        return h + gated_write.review_gate(h, u, w, b) * u

    def fast(h, u, w, b):
        return gated_write.gated_write(h, u, w, b)

    def triton(h, u, w, b):
        return gated_write.triton_gated_write(h, u, w, b)

    forms = {
        "plain": plain,
        "fast": fast,
        "triton": triton,
        "plain-compiled": torch.compile(plain, dynamic=False),
        "fast-compiled": torch.compile(fast, dynamic=False),
    }
    tokens = 64 * 256
    for d in sorted({rung.d_model for rung in ladder.RUNGS.values() if rung.published}):
        source = torch.Generator(device).manual_seed(0)
        h, u, along = (torch.randn(1, tokens, d, device=device, generator=source) for _ in range(3))
        w = torch.randn(d, 2 * d, device=device, generator=source) / d**0.5
        leaves = [h, u.bfloat16(), w, torch.zeros(d, device=device)]
        leaves = [t.requires_grad_() for t in leaves]
        exact = None
        for name, form in forms.items():

            def once(form=form, leaves=leaves, along=along):
                with torch.autocast(device.type, torch.bfloat16):
                    out = form(*leaves)
                return out.detach(), torch.autograd.grad(out, leaves, along)

            row = {"d": d, "tokens": tokens, "form": name}
            try:
                out, grads = once()
                exact = exact or (out, grads)  # the plain form, first in line
                row["apart"] = [
                    ((a - b).float().norm() / b.float().norm()).item()
                    for a, b in zip((out, *grads), (exact[0], *exact[1]), strict=True)
                ]
                times = []
                for _ in range(5):
                    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                    begin.record()
                    for _ in range(10):
                        once()
                    end.record()
                    torch.cuda.synchronize()
                    times.append(begin.elapsed_time(end) / 10)
                row |= {"ms": median(times), "least": min(times), "most": max(times)}
            except Exception as error:  # one form that fails leaves the others their rows
                row["failed"] = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
            rows.append(row)
            say(f"gate d={d} {name}: {row.get('failed') or format(row['ms'], '.3f') + ' ms'}")
        write(
            args.out,
            "gates",
            {
                "made_by": made_by(device, 1),
                "rows": rows,
                "complete": d == max(r.d_model for r in ladder.RUNGS.values()),
            },
        )


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
        speeds += [r for r in found["over_the_reference"] if r["path"] in (GOOD, GRAPHED)]
        for row in found["rows"]:
            key = (row["rung"], row["rule"])
            if row["failed"] or row["path"] not in (GOOD, GRAPHED):
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
    parser.add_argument("--minutes", type=float, default=9)
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
    stages = []  # name, seconds it took or is expected to take on an H200, what to do
    expected = {"60M": 95, "150M": 60, "320M": 75, "590M": 100, "1B": 150}
    for name in names:
        good = GOOD if cuda else "fast"
        paths = ["reference", good] + ([GRAPHED] if cuda and name in SMALL else [])
        chosen = cases(
            name, paths, both, min(32, args.micro_batch) if name == "1B" else args.micro_batch
        )
        if name == "60M" and cuda:
            undone = cases(name, ablations(GRAPHED, where), ("review",), args.micro_batch)
            chosen = [*undone, *chosen]
        together = {"60M": 8, "150M": 6, "320M": 4, "590M": 2}.get(name, 1)
        stages.append(
            (
                name.partition(":")[0],
                expected.get(name, 30),
                lambda s, c=chosen, t=together: throughput(args, s, c, args.steps, t),
            )
        )
    if cuda:
        stages.append(("gates", 60, lambda s: gates(args)))
    if cuda and "590M" in names:
        chosen = cases("590M", [*ablations(GOOD, where), GOOD], ("review",), args.micro_batch)
        stages.append(
            ("ablate-590M", 95, lambda s: throughput(args, s, chosen, max(1, args.steps // 2), 2))
        )
    measured = []
    for name, seconds, run in stages:
        path = args.out / f"{name}.json"
        if name not in ("gates", "ablate-590M"):
            measured.append(name)
        if path.exists() and json.loads(path.read_text())["complete"]:
            say(f"{name}: measured already")
            continue
        if time.monotonic() - BEGAN + seconds > 60 * args.minutes:
            say(f"{name}: not reached within {args.minutes:g} minutes; call again to have it")
            continue
        say(f"{name}: begins")
        try:
            run(name)
        except (RuntimeError, subprocess.SubprocessError, OSError) as error:
            say(f"{name}: failed: {' '.join(str(error).split())[:200]}")
        summary(args, measured)
    return 0


if __name__ == "__main__":
    sys.exit(main())
