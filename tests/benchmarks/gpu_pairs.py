"""Is the small networks' lead there at 13 times the size? Twelve paired runs of 60M on one GPU.

    python tests/benchmarks/gpu_pairs.py --out FOLDER --text TOKENS.bin --tokenizer FOLDER
    python tests/benchmarks/gpu_pairs.py --out FOLDER --text TEXT.txt --tokenizer bpe:16384

The experiment is that of data/measured/fourth_plan.md, *On a GPU*, which holds the arms, the seeds,
the two tests and the rule that follows from them; its text is copied into what is written.

Each call takes at most --minutes (9): runs that are under way are then asked to save, and the next
call with the same folder goes on with them. Two calls are planned. `pairs.json` is written after
every run; `records/ID` holds the run's three small files, which `rr records import` reads. Only
whole blocks, all arms of a seed, count; --jobs processes share the card.

Needs torch, numpy and tokenizers. --text is a file of uint16 token ids, whose last 3 % are held out
(with --tokenizer, the folder with its vocab.json and merges.txt), or a text. --rehearse: the same
with a tiny network, one seed and eight steps, on any machine. One block is in
data/measured/gpu_pairs; its README says how to go on from there.
"""

import argparse
import hashlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np
import torch

from rr import io
from rr.data import open_corpus
from rr.data.cache import digest
from rr.data.corpus import Tokens
from rr.data.tokenizer import identity as tokenizer_identity
from rr.data.tokenizer import open_vocabulary
from rr.errors import Interrupted, RRError
from rr.options import Request
from rr.specs import Run
from rr.training import finished, planning
from rr.training.context import Context
from rr.training.device import cores, pick_device
from rr.training.distributed import World
from rr.training.progress import Progress
from rr.training.trainer import Training
from rrstudy.perf.benchmark import made_by

ARMS = ("standard", "constant", "state-gate")  # each widened to Review's count
RATES = {20: 6e-4, 21: 1.2e-3, 22: 6e-4, 23: 1.2e-3}  # by seed: a factor of the blocks
SHAPE = {"rung": "60M", "batch": 64, "budgets": [450, 900, 1800], "warmup": 90}
REHEARSAL = {"rung": "nano", "batch": 1, "budgets": [2, 4, 8], "warmup": 1, "eval_batches": 1}
TESTS = (("state-gate", "constant"), ("state-gate", "standard"))  # one Holm family
BELOW, WITHIN = -0.02, 0.015  # nats per token: the bounds of the rule
SPARE = 25  # seconds at the end of a call, for runs to save
HELD_OUT = 0.03
BEGAN = time.monotonic()


def say(line: str) -> None:
    print(f"{time.monotonic() - BEGAN:5.0f} s  {line}", flush=True)


def plan_text() -> str:
    """The plan of this experiment, as it was committed before the first run."""
    text = (ROOT / "data" / "measured" / "fourth_plan.md").read_text(encoding="utf-8")
    return "On a GPU" + text.partition("## On a GPU")[2].partition("\n## ")[0].rstrip()


# -- the runs -----------------------------------------------------------------------------------


def text_of(args) -> Tokens:
    """The tokens of --text: as they are in a .bin, else made once and kept beside the runs."""
    cache = args.out / "cache"
    if args.text.suffix != ".bin":
        return open_corpus(f"file:{args.text}", args.tokenizer, cache=cache, log=say)
    try:
        ids = np.memmap(args.text, np.uint16, "r")
    except (OSError, ValueError) as error:
        raise RRError(f"cannot read {args.text}: {error}") from None
    name = f"uint16 {digest(args.text)}"
    exact = tokenizer_identity(args.tokenizer, name)
    vocabulary = open_vocabulary(args.tokenizer, name, lambda: iter(()), cache, say)
    if int(ids.max()) >= vocabulary.size:
        raise RRError(
            f"{args.text} has token {int(ids.max())}, the tokenizer {args.tokenizer} has "
            f"{vocabulary.size} tokens: give the tokenizer that it was made with"
        )
    at = int(len(ids) * (1 - HELD_OUT))
    parts = {"train": ids[:at], "valid": ids[at:]}
    return Tokens(
        args.text.stem,
        vocabulary.name,
        {"corpus": name, "tokenizer": exact},
        parts["train"],
        parts["valid"],
        {part: hashlib.sha256(piece).hexdigest() for part, piece in parts.items()},
        vocabulary,
    )


def planned(args, tokens: Tokens, seed: int, rule: str) -> Run:
    """The run of one arm of one block."""
    shape = REHEARSAL if args.rehearse else SHAPE
    names = {"corpus": str(args.text), "tokenizer": args.tokenizer}
    given = tokens.identity | {"vocab_size": tokens.vocab_size, "source": names}
    return planning.specify(rule=rule, seed=seed, lr=RATES[seed], **given, **shape)


def train_one(args, seed: int, rule: str) -> int:
    """Train or resume one run in this process; 130 where it was asked to stop, and saved."""
    tokens = text_of(args)
    run = planned(args, tokens, seed, rule)
    folder, request = args.out / "runs" / run.id, Request(device=args.device, threads=args.threads)
    with io.locked(folder):
        if finished(folder) is None:
            world = World(device=pick_device(args.device))
            context = Context(run, folder, tokens, request, world, say)
            try:
                Training(context, Progress(say)).go()
            except Interrupted:
                return 130
    kept = args.out / "records" / run.id
    kept.mkdir(parents=True, exist_ok=True)
    for name in ("run.json", "metrics.jsonl", "result.json"):  # the result last
        shutil.copyfile(folder / name, kept / name)
    shutil.rmtree(folder)  # the weights
    return 0


def check_records(args, tokens: Tokens) -> None:
    """Raise RRError for a record that is none of the planned runs on this text."""
    ids = {planned(args, tokens, seed, rule).id for seed in RATES for rule in ARMS}
    for row in results(args):
        if row["id"] not in ids:
            raise RRError(
                f"{args.out / 'records' / row['id']} is no run of this plan on this text and "
                "tokenizer: give those that it was made with, or another --out"
            )


def results(args) -> list[dict]:
    """A row for each record."""
    rows = []
    for file in sorted((args.out / "records").glob("*/result.json")):
        result = io.read_json(file)
        losses = {budget["steps"]: budget["val_loss"] for budget in result["budgets"]}
        kept = ("id", "rule", "seed", "lr", "params", "status", "seconds", "precision")
        rows.append({name: result[name] for name in kept} | {"losses": losses})
    return rows


# -- the tests ----------------------------------------------------------------------------------


def t_cdf(t: float, df: int) -> float:
    """Student's distribution: with t = √df·tan θ the integral of cos(θ)^(df − 1), by Simpson."""
    ends = math.atan(t / math.sqrt(df))
    n = 2000
    heights = [math.cos(ends * i / n) ** (df - 1) for i in range(n + 1)]
    area = heights[0] + heights[-1] + 4 * sum(heights[1:-1:2]) + 2 * sum(heights[2:-1:2])
    scale = math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(math.pi)
    return 0.5 + scale * area * ends / n / 3


def t_quantile(p: float, df: int) -> float:
    """By bisection, for p above a half."""
    low, high = 0.0, 1e6
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, df) < p else (low, middle)
    return high


def paired(differences: Sequence[float]) -> dict:
    """Mean, 95 % t interval and p of differences within blocks; without two, the mean alone."""
    n, mean = len(differences), sum(differences) / len(differences)
    if n < 2:
        return {"n": n, "mean": mean}
    error = math.sqrt(sum((x - mean) ** 2 for x in differences) / (n - 1) / n)
    half = t_quantile(0.975, n - 1) * error
    p = 2 * (1 - t_cdf(abs(mean) / error, n - 1)) if error else 0.0
    return {"n": n, "mean": mean, "lo": mean - half, "hi": mean + half, "p": p}


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values, in the order given."""
    adjusted, most = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        most = max(most, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = most
    return adjusted


def verdict(tests: Sequence[dict], blocks: int) -> str:
    """What follows, by the rule of the plan; nothing before all blocks are whole."""
    if blocks < len(RATES):
        return f"{blocks} of {len(RATES)} blocks are whole: the rule is not applied"
    if all(test["hi"] < BELOW for test in tests):
        return "both intervals are below -0.02: five more quarters of an hour"
    if all(-WITHIN < test["lo"] and test["hi"] < WITHIN for test in tests):
        return "both intervals are within ±0.015: gates are dropped from the advice"
    return "unknown: nothing is added"


def analysed(rows: Sequence[dict]) -> dict:
    """Both tests at each budget over the whole blocks, and what follows from the longest."""
    loss = {(row["seed"], row["rule"]): row["losses"] for row in rows}
    whole = [seed for seed in RATES if all((seed, rule) in loss for rule in ARMS)]
    # A run that diverged has no loss: its block has no difference, and the tests say so.
    usable = [s for s in whole if all(None not in loss[s, rule].values() for rule in ARMS)]
    tests = []
    steps = sorted(map(int, next(iter(loss.values()), {})))
    for at in steps if usable else []:
        family = []
        for arm, base in TESTS:
            gaps = [loss[s, arm][at] - loss[s, base][at] for s in usable]
            family.append({"arm": arm, "baseline": base, "steps": at, **paired(gaps)})
        if all("p" in test for test in family):
            for test, p in zip(family, holm([test["p"] for test in family]), strict=True):
                test["holm"] = p
        tests += family
    return {"blocks": whole, "usable": usable, "tests": tests,
            "verdict": verdict(tests[-len(TESTS):], len(usable))}  # fmt: skip


def write(args) -> list[dict]:
    """pairs.json: the plan, the rows and what they say so far."""
    rows = results(args)
    about = made_by(pick_device(args.device), args.threads)
    found = {"plan": plan_text(), "made_by": about, "rows": rows, **analysed(rows)}
    io.write_json(args.out / "pairs.json", found)
    return rows


# -- a call -------------------------------------------------------------------------------------


def begin(args, seed: int, rule: str) -> subprocess.Popen:
    """A process for one run."""
    words = ["--out", args.out, "--text", args.text, "--tokenizer", args.tokenizer]
    words += ["--device", args.device, "--threads", args.threads, "--one", seed, rule]
    words += ["--rehearse"] if args.rehearse else []
    say(f"{rule} seed {seed}: begins")
    with open(args.out / f"{rule}-{seed}.log", "a") as log:
        return subprocess.Popen(
            [sys.executable, __file__, *map(str, words)], stdout=log, stderr=log,
            env=os.environ | {"OMP_NUM_THREADS": str(args.threads)},
        )  # fmt: skip


def go_through(args) -> int:
    """Begin the missing runs, block by block, --jobs at a time, until the time is up."""
    there = {(row["seed"], row["rule"]) for row in write(args)}
    seeds = list(RATES)[:1] if args.rehearse else list(RATES)
    left = [(seed, rule) for seed in seeds for rule in ARMS if (seed, rule) not in there]
    running: dict[tuple, subprocess.Popen] = {}
    failed = 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))  # runs are asked to save, as below
    try:
        while left or running:
            if time.monotonic() - BEGAN > 60 * args.minutes - SPARE:
                say(f"time is up: {len(left) + len(running)} runs are left; call again")
                break
            while left and len(running) < args.jobs and not failed:
                running[left[0]] = begin(args, *left[0])
                left.pop(0)
            for cell, process in list(running.items()):
                if (code := process.poll()) is not None:
                    del running[cell]
                    failed += code != 0
                    say(f"{cell[1]} seed {cell[0]}: {'done' if code == 0 else f'code {code}'}")
                    write(args)
            if failed and not running:
                break  # the others would probably fail, too
            time.sleep(0.1)
    finally:
        for process in running.values():
            process.send_signal(signal.SIGTERM)  # save
        for process in running.values():
            try:
                process.wait(SPARE - 5)
            except subprocess.TimeoutExpired:
                process.kill()
        write(args)
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--tokenizer", required=True, help="a folder, or bpe:N of a text")
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--jobs", type=int, default=3, help="runs that share the card")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rehearse", action="store_true", help="tiny; on a CPU: --device cpu")
    parser.add_argument("--one", nargs=2, metavar=("SEED", "RULE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.threads = args.threads or max(1, cores() // args.jobs)
    try:
        if args.one:
            return train_one(args, int(args.one[0]), args.one[1])
        pick_device(args.device)
        args.out.mkdir(parents=True, exist_ok=True)
        check_records(args, text_of(args))  # made once, before several processes ask for it
        torch.set_num_threads(args.threads)
        code = go_through(args)
    except RRError as error:
        print(f"gpu_pairs.py: {error}", file=sys.stderr)
        return 2
    found = json.loads((args.out / "pairs.json").read_text())
    for test in found["tests"]:
        interval = f" ({test['lo']:+.3f} to {test['hi']:+.3f})" if "lo" in test else ""
        say(f"{test['arm']} - {test['baseline']}, {test['steps']} steps, {test['n']} blocks: "
            f"{test['mean']:+.3f}{interval}")  # fmt: skip
    say(found["verdict"])
    return code


if __name__ == "__main__":
    sys.exit(main())
