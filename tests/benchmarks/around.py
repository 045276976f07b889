"""What surrounds the steps of a run: held-out evaluation, tokenising, the start of a verb.

    python tests/benchmarks/around.py --out data/measured/08_make_it_fast/around.json

All in seconds of the processor on one thread, so that a machine that does other work may be used.
Evaluation of as many tokens as protocol `clean` scores at most is compared with training along the
path that a long run takes, in turns; every repeat is kept. The text that is tokenised is in memory.
Each verb is a process of its own, started twice: the first time with an empty cache.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
os.environ["RAYON_NUM_THREADS"] = "1"  # before the tokenizer starts its threads

import torch

import rr
from rr import io
from rr.data import open_corpus
from rr.data.documents import source
from rr.training import OptimizerStep, ordered, parse_backend
from rr.training.backend import COMPILED_CPU as COMPILED
from rr.training.device import prepare_device
from rr.training.evaluate import CLEAN_LIMIT
from rrstudy.perf.benchmark import made_by

VERBS = {
    "import rr": ["-c", "import rr"],
    "rr rules": ["-m", "rr.cli", "rules"],
    "rr sweep --dry-run": [
        "-m", "rrstudy.cli", "sweep", "--dry-run", "--rung", "nano", "mini",
        "--rule", "standard", "constant", "review", "--seed", "0", "1", "2",
    ],
}  # fmt: skip


def evaluation(rung: str, steps: int, repeats: int) -> dict:
    """Seconds of a training step and of the evaluation of as many windows."""
    run, cpu = rr.plan(rung, "review"), torch.device("cpu")
    prepare_device(cpu, 1)
    backend, micro = parse_backend(COMPILED), run.recipe.batch
    model = rr.model.initialise(rr.Model(run.model), 0).train()
    step = OptimizerStep(model, run.recipe, backend, cpu, precision="bf16")
    source_of_ids, window = torch.Generator().manual_seed(0), run.model.seq_len
    ids = torch.randint(run.model.vocab_size, (micro, window + 1), generator=source_of_ids)
    batches = CLEAN_LIMIT // (micro * window)
    scored = torch.randint(
        run.model.vocab_size, (batches * micro * window + 1,), generator=source_of_ids
    )

    def train() -> None:
        for _ in range(steps):
            step(ids[:, :-1], ids[:, 1:])

    def evaluate() -> None:
        with backend.evaluation(cpu, "bf16"):
            ordered(model, scored.numpy(), micro)

    seconds: dict[str, list[float]] = {"train": [], "evaluate": []}
    for work in (train, evaluate):  # compiles
        work()
    for _ in range(repeats):
        for work, each in ((train, steps), (evaluate, batches)):
            began = time.process_time()
            work()
            seconds[work.__name__].append((time.process_time() - began) / each)
    ratios = [t / e for t, e in zip(seconds["train"], seconds["evaluate"], strict=True)]
    return {"rung": rung, "path": COMPILED, "tokens": micro * window, "scored": batches,
            "seconds": seconds, "evaluation_over_training": ratios}  # fmt: skip


def tokenising(corpus: str, tokenizer: str | None, characters: int, repeats: int) -> dict:
    """Tokens per second of at most so many characters of the corpus, document by document."""
    vocabulary = open_corpus(corpus, tokenizer, log=lambda line: None).vocabulary
    texts, held = [], 0
    for text in source(corpus).train():
        texts.append(text)
        held += len(text)
        if held >= characters:
            break
    rates = []
    for _ in range(repeats):
        began = time.process_time()
        count = sum(len(ids) for ids, _ in vocabulary.stream(texts))
        rates.append(count / (time.process_time() - began))
    return {"tokenizer": vocabulary.name, "documents": len(texts), "characters": held,
            "tokens": count, "tokens_per_second": rates}  # fmt: skip


def started(words: list[str], cache: str) -> dict:
    """Seconds of a process, by the processor and by the clock, the second time and the first."""
    env = os.environ | {"PYTHONPATH": str(ROOT), "RR_CACHE": cache}
    taken: dict = {}
    for when in ("first_", ""):
        began, clock = os.times(), time.perf_counter()
        subprocess.run([sys.executable, *words], env=env, check=True, capture_output=True)
        taken[f"{when}seconds"], ended = time.perf_counter() - clock, os.times()
        parts = ("children_user", "children_system")
        taken[f"{when}cpu_seconds"] = sum(getattr(ended, n) - getattr(began, n) for n in parts)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rungs", nargs="*", default=["nano", "mini"])
    parser.add_argument("--corpus", default="fables", help="text to tokenise")
    parser.add_argument("--tokenizer")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    kept: dict = {"made_by": made_by(torch.device("cpu"), 1)}
    with tempfile.TemporaryDirectory() as cache:
        python = started(["-c", "pass"], cache)
        kept["verbs"] = {"python alone": python}
    for name, words in VERBS.items():
        with tempfile.TemporaryDirectory() as cache:
            kept["verbs"][name] = started(words, cache)
    kept["tokenising"] = tokenising(args.corpus, args.tokenizer, 2_000_000, args.repeats)
    kept["evaluation"] = []
    for rung in args.rungs:
        kept["evaluation"].append(evaluation(rung, 20, args.repeats))
        io.write_json(args.out, kept)
    io.write_json(args.out, kept)
    for name, took in kept["verbs"].items():
        print(f"{name}: {took['cpu_seconds']:.2f} s, first {took['first_cpu_seconds']:.2f} s")
    print(f"tokenising: {median(kept['tokenising']['tokens_per_second']):,.0f} tokens/s")
    for row in kept["evaluation"]:
        print(f"{row['rung']}: {median(row['evaluation_over_training']):.2f} times as fast")


if __name__ == "__main__":
    main()
