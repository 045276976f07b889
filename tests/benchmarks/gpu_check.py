"""Is this GPU, with this torch, right and as fast as it should be? At most five minutes a call.

    python tests/benchmarks/gpu_check.py --out FOLDER

Each stage writes one JSON file after every part; called again with the same folder, it goes on with
what is missing. A stage that would not fit into --minutes is left to the next call, and named.

    doctor      `rr doctor` for the study's arms at 60M, with two steps
    gradients   of every rule and value rule in float32: compiled and uncompiled on the device, each
                against float64 on the CPU
    resume      one `rr train` killed after a checkpoint and resumed, beside an undisturbed one
    steps       the five published rungs, Review and its matched standard, along the path of a run:
                step times, tokens/s, MFU, peak memory and its prediction
    study       the study's own step at 60M, as published, under autocast, and with `torch.compile`
    tests       the tests marked gpu; only where pytest is installed

Needs torch, numpy and tokenizers, no text and no network. The rows of `steps` are what `rr plan`
reads once they lie in data/measured. --rehearse: the same stages with tiny settings, on any
machine. data/measured/gpu_check has what ran on a GPU: gradients, resume and a part of steps.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
os.environ["PYTHONPATH"] = str(ROOT)  # the processes that are started here

import torch

import rr
from rr import io
from rr.errors import RRError
from rr.model import Model, initialise, sizes
from rr.residual import RULES
from rr.residual.base import REGISTRY
from rr.specs import ModelConfig, Recipe
from rr.training import finished, planning, predict
from rr.training.backend import default, parse_backend
from rr.training.checkpoint import Checkpoints
from rr.training.compile_check import differences
from rr.training.device import cores, device_name, pick_device
from rr.training.step import OptimizerStep
from rrstudy.perf import doctor, ladder
from rrstudy.perf.benchmark import made_by, measure, ratios, side_by_side
from rrstudy.perf.benchmark_case import Case

BEGAN = time.monotonic()
EACH = [(rule, "own") for rule in RULES]
EACH += [("standard", values) for values in REGISTRY["values"] if values != "own"]
SHAPE = {"n_layer": 3, "n_head": 2, "d_model": 64, "d_ff": 128, "seq_len": 32}
TOLERANCE = 1e-3  # of a gradient in float32, relative to its root mean square
GROUPS = (("60M", "150M", "320M"), ("590M", "1B"))  # of rungs that are in memory together
ARMS = ("standard", "review")


def say(line: str) -> None:
    print(f"{time.monotonic() - BEGAN:5.0f} s  {line}", flush=True)


def write(args, stage: str, complete: bool, **found) -> None:
    """The stage's file, whole or not there."""
    about = made_by(pick_device(args.device), torch.get_num_threads())
    io.write_json(args.out / f"{stage}.json", {"complete": complete, "made_by": about} | found)


def before(args, stage: str) -> dict:
    """What an earlier call wrote of this stage."""
    path = args.out / f"{stage}.json"
    return io.read_json(path) if path.exists() else {}


# -- stages -------------------------------------------------------------------------------------


def examined(args) -> None:
    rung = "nano" if args.rehearse else "60M"
    text: dict = {"corpus": "fables", "tokenizer": "bpe:1024"}
    if args.rehearse:
        text["batch"] = 2
    runs = [rr.plan(rung, rule, protocol="paper", **text) for rule in ladder.PAPER_ARMS]
    checks = doctor.examine(runs, args.out / "trial", args.device, say=say)
    for line in doctor.rows(checks):
        say(" ".join(line))
    write(args, "doctor", True, checks=[vars(check) for check in checks])


def gradients_of(
    rule: str, values: str, path: str, device: str, compiler: str = "eager", double: bool = False
) -> dict:
    """Each parameter's gradient after one batch, by name, in float64 on the CPU."""
    torch.compiler.reset()
    model = initialise(Model(ModelConfig(97, rule=rule, values=values, **SHAPE)), 0)
    source = torch.Generator().manual_seed(1)
    with torch.no_grad():  # off the first values: a gate that starts at 0 hides what is below it
        for p in model.parameters():
            p += 0.05 * torch.randn(p.shape, generator=source)
    ids = torch.randint(97, (4, SHAPE["seq_len"] + 1), generator=source)
    where = torch.device(device)
    step = OptimizerStep(model.to(where).train(), Recipe(4, 4, 1e-3, 1), parse_backend(path), where,
                         compiler=compiler)  # fmt: skip
    if double:
        model.double()
    step.gradients(ids[:, :-1].to(where), ids[:, 1:].to(where))
    named = model.named_parameters()
    return {name: p.grad.double().cpu() for name, p in named if p.grad is not None}


def compared(rule: str, values: str, device: str, compiler: str) -> dict:
    """The largest difference from float64 of each way; runs in a process of its own."""
    torch.set_num_threads(1)
    full = "precision=fp32,loss=whole"
    row: dict = {"rule": rule, "values": values}
    exact = gradients_of(rule, values, f"reference:{full}", "cpu", double=True)
    for way, path in (("compiled", f"compiled:{full}"), ("uncompiled", f"reference:{full}")):
        try:
            found = gradients_of(rule, values, path, device, compiler)
            errors = differences(found, exact) if found.keys() == exact.keys() else {"names": 1e9}
            row[way] = max(errors.values())
            row[f"{way} worst"] = max(errors, key=errors.__getitem__)
        except Exception as error:  # the other rules still have their rows
            row["failed"] = f"{way}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
    errors = [row.get(way, 1e9) for way in ("compiled", "uncompiled")]
    return row | {"right": "failed" not in row and max(errors) <= TOLERANCE}


def gradients(args) -> None:
    rows = before(args, "gradients").get("rows", [])
    there = {(row["rule"], row["values"]) for row in rows}
    each = [("standard", "own"), ("review", "own"), ("attnres", "own")] if args.rehearse else EACH
    missing = [case for case in each if case not in there]
    compiler = "aot_eager" if args.rehearse else "inductor"
    many = 1 if args.rehearse else max(1, min(12, cores() - 2))
    with ProcessPoolExecutor(many, get_context("spawn")) as pool:
        jobs = [pool.submit(compared, *case, args.device, compiler) for case in missing]
        for job in as_completed(jobs):
            rows.append(job.result())
            write(args, "gradients", len(rows) == len(each), rows=rows, tolerance=TOLERANCE)
    wrong = [f"{row['rule']} {row['values']}" for row in rows if not row["right"]]
    say(f"gradients: {len(rows) - len(wrong)} of {len(rows)} right{': not ' * bool(wrong)}"
        f"{', '.join(wrong)}")  # fmt: skip


def resumed(args) -> None:
    rung = "nano:n_layer=2,d_model=32,seq_len=64" if args.rehearse else "mini"
    run = rr.plan(rung, "review", steps=300 if args.rehearse else 400, eval_batches=4)
    words = [sys.executable, "-m", "rr.cli", "train", "--rung", rung, "--rule", "review", "--steps",
             str(run.recipe.steps), "--eval-batches", "4", "--device", args.device]  # fmt: skip

    def begin(out: Path, *more: str) -> subprocess.Popen:
        out.mkdir(parents=True, exist_ok=True)
        log = (out / "log").open("a")
        return subprocess.Popen([*words, "--out", str(out), *more], stdout=log, stderr=log)

    calm, torn = (args.out / "resume" / name for name in ("calm", "torn"))
    beside, process = begin(calm), begin(torn, "--save-every", "0.05")
    saved, folder = [], torn / run.id
    while process.poll() is None and not saved:
        time.sleep(0.05)
        saved = Checkpoints(folder, run.id).steps() if folder.exists() else []
    process.send_signal(signal.SIGKILL)
    killed = process.wait()  # 0 where it had ended by itself: then nothing was resumed
    codes = begin(torn).wait(), beside.wait()
    results = [finished(out / run.id) or {} for out in (calm, torn)]
    losses = [result.get("val_loss") for result in results]
    near = None not in losses and abs(losses[0] - losses[1]) < 0.05
    say(f"resume: killed at a checkpoint of step {saved[-1:]}; held-out losses {losses}")
    bits = [result.get("weights_sha256") for result in results]
    write(args, "resume", True, killed=killed, killed_after=saved[-1:], codes=codes,
          val_loss=losses, agree=near, same_bits=bits[0] == bits[1])  # fmt: skip


def cases_of(args, rungs: tuple[str, ...]) -> list[Case]:
    """The arms at these rungs, along the path and in the precision of a run."""
    device, cases = pick_device(args.device), []
    roomy = device.type == "cuda" and torch.cuda.mem_get_info()[1] > 100e9
    for rung in rungs:
        usual = default(device, sizes.arm(rung))
        path = f"{usual}{',' if ':' in usual else ':'}precision=bf16"
        batch = 2 if args.rehearse else planning.recipe(rung).batch
        micro = min(batch, (32 if roomy else 16) if rung == "1B" else batch)
        cases += [Case(rung, rule, path, batch, micro, "paper") for rule in ARMS]
    return cases


def steps(args) -> None:
    kept = before(args, "steps").get("rows", [])
    groups = (("nano:n_layer=1,d_model=16,n_head=2,seq_len=16",),) if args.rehearse else GROUPS
    count, repeats = (1, 2) if args.rehearse else (8, 3)
    device = pick_device(args.device)
    for rungs in groups:
        if all(any(row["rung"] == rung for row in kept) for rung in rungs):
            continue
        cases = cases_of(args, rungs)

        def keep(rows: list[dict], done: bool = False, kept=tuple(kept), rungs=rungs) -> None:
            whole = [*kept, *rows] if done else list(kept)
            write(args, "steps", done and rungs == groups[-1], rows=whole,
                  under_way=[] if done else rows, steps=count, repeats=repeats,
                  over_the_standard=ratios(whole, {"rule": "standard"}))  # fmt: skip

        many = side_by_side(cases, device, None)
        rows = measure(cases, count, repeats, args.device, None, many, keep, say)
        for case, row in zip(cases, rows, strict=True):
            kind, recipe = device.type, planning.recipe(case.rung, "paper", batch=case.batch)
            held = predict(case.config, parse_backend(case.path), case.micro_batch, kind, recipe)
            row["predicted_bytes"] = held["step"] - held["context"]  # torch's peak has no context
        kept += rows
        keep(rows, True)
        for row in rows:
            told = row["failed"] or f"{row['step_ms_median']:.1f} ms"
            say(f"{row['rung']} {row['rule']}: {told}")


def study(args) -> None:
    path = args.out / "study_rows.json"
    usual = default(pick_device(args.device), sizes.arm("60M"))
    names = ["script tf32", "script bf16", usual]
    names += [] if args.rehearse else ["script bf16 compiled"]  # a minute on a CPU
    tiny = ["--rung", "nano:n_layer=1,d_model=16,n_head=2,seq_len=16"]
    tiny += ["--batch", "2", "--steps", "1", "--repeats", "2"]
    full = ["--rung", "60M", "--batch", "64", "--steps", "8", "--repeats", "3"]
    script = ROOT / "tests" / "benchmarks" / "study_step.py"
    words = [*(tiny if args.rehearse else full), "--device", args.device, "--rules", "review"]
    command = [sys.executable, str(script), "--threads", str(cores()), *words, "--out", str(path)]
    done = subprocess.run([*command, "--cases", *names], capture_output=True, text=True)
    for line in done.stdout.splitlines():
        say(line)
    rows = io.read_json(path)["rows"] if path.exists() else []
    write(args, "study", done.returncode == 0, rows=rows, error=done.stderr[-2000:])


def tested(args) -> None:
    if find_spec("pytest") is None:
        say("tests: pytest is not installed: left out")
        return write(args, "tests", True, left_out="pytest is not installed")
    names = ("compile_check",) if args.rehearse else ("on_gpu", "fast_path", "compile_check")
    files = [f"tests/unit/test_{name}.py" for name in names]  # others need packages of the book
    many = ["-n", "4"] if find_spec("xdist") and not args.rehearse else []
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider"]
    command += [*many, *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    lines = (done.stdout + done.stderr).splitlines()[-60:]
    say(f"tests: code {done.returncode}: {lines[-1] if lines else ''}")
    write(args, "tests", True, code=done.returncode, lines=lines)


# What each stage is expected to take on an H200, seconds; the measured stages first.
STAGES: tuple[tuple[str, int, Callable], ...] = (
    ("doctor", 30, examined),
    ("gradients", 60, gradients),
    ("steps", 110, steps),
    ("study", 50, study),
    ("resume", 40, resumed),
    ("tests", 60, tested),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--stages", nargs="+", choices=[name for name, *_ in STAGES])
    parser.add_argument("--rehearse", action="store_true", help="tiny; on a CPU: --device cpu")
    args = parser.parse_args()
    try:
        say(f"{device_name(pick_device(args.device))}, torch {torch.__version__}")
    except RRError as error:
        print(f"gpu_check.py: {error}", file=sys.stderr)
        return 2
    args.out.mkdir(parents=True, exist_ok=True)
    for name, seconds, run in STAGES:
        if args.stages and name not in args.stages:
            continue
        if before(args, name).get("complete"):
            say(f"{name}: done already")
            continue
        expected = 0 if args.rehearse else seconds
        if time.monotonic() - BEGAN + expected > 60 * args.minutes:
            say(f"{name}: not begun within {args.minutes:g} minutes; call again to have it")
            continue
        say(f"{name}: begins")
        try:
            run(args)
        except (RRError, RuntimeError, OSError) as error:
            say(f"{name}: failed: {' '.join(str(error).split())[:200]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
