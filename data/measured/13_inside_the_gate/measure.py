"""What the gates of trained runs do: one file a run beside this one, for chapter 13.

    python data/measured/13_inside_the_gate/measure.py CORPUS RUNS [ID ...]    # resumable
    python data/measured/13_inside_the_gate/measure.py story RUNS

CORPUS is `file:` and the folder of the TinyStories slice; RUNS holds finished runs with their
checkpoints; without ID all of them that have an additive gate and a seed below 100. `story` trains
the small net of the explorable on fables into RUNS and writes story.json.
"""

import json
import sys
from hashlib import sha256
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

import rr
from rr.data import batches
from rr.io import read_sealed, write_atomic
from rr.training.provenance import git_state
from rr.training.run_folder import finished
from rrbook import gates

HERE = Path(__file__).parent
RULES = ("review", "review:groups=2", "state-gate", "update-gate")
WINDOWS = {"review": 32}  # the others stand beside it, on half as many
KEPT = ("id", "rung", "rule", "seed", "lr", "steps", "tokens", "params", "val_loss", "corpus",
        "corpus_id", "tokenizer", "weights_sha256")  # fmt: skip


def short(x: object) -> object:
    """Numbers to seven digits, so that a record can be read."""
    if isinstance(x, dict):
        return {key: short(value) for key, value in x.items()}
    if isinstance(x, list):
        return [short(value) for value in x]
    return float(f"{x:.7g}") if isinstance(x, float) else x


def made_by() -> dict:
    """What made the numbers: the commit, and the file that holds the analysis."""
    code = sha256((ROOT / "rr" / "inside.py").read_bytes()).hexdigest()
    return {"git": git_state(), "inside_sha256": code, "torch": torch.__version__,
            "precision": "fp32", "threads": torch.get_num_threads()}  # fmt: skip


def write(name: str, found: dict) -> None:
    text = json.dumps(short(found), indent=1, ensure_ascii=False)
    write_atomic(HERE / name, f"{text}\n".encode())


def measure(corpus: str, folder: Path) -> None:
    """Write the record of one run."""
    result = finished(folder)
    model, run, _ = rr.load(folder, "cpu")
    tokens = rr.open_corpus(corpus, run.source["tokenizer"], log=lambda line: None)
    if tokens.identity != {"corpus": run.corpus, "tokenizer": run.tokenizer}:
        raise rr.RRError(f"{corpus} is not the text that run {run.id} was trained on")
    seen = gates.report(model, tokens, WINDOWS.get(run.rule, 16))
    found = {name: result[name] for name in KEPT}
    write(f"{run.id}.json", found | {"made_by": made_by()} | seen)


def story(runs: Path) -> None:
    """Train the explorable's net on fables and write what its gates do on one held-out story."""
    plan = rr.plan("nano:d_model=64,n_head=2,seq_len=64", "review", seed=0, steps=1000, batch=8,
                   lr=3e-3, precision="fp32", eval_batches=64)  # fmt: skip
    folder = rr.train(plan, runs, rr.Request(threads=1), log=lambda line: None)
    model, _, vocabulary = rr.load(folder, "cpu")
    tokens = rr.open_corpus("fables", log=lambda line: None)
    begins = int((tokens.valid == vocabulary.eot).argmax())  # the story after the first end-of-text
    idx, targets = batches.gather(tokens.valid, [begins], plan.model.seq_len)
    seen, base = gates.trace_gates(model, idx), gates.losses(model, idx, targets)
    without = gates.one_by_one(model, idx, targets, gates.nothing)
    found = {name: finished(folder)[name] for name in KEPT}
    write("story.json", found | {
        "made_by": made_by(), "kinds": list(seen.kinds),
        "words": ["", *(vocabulary.decode([i]) for i in idx[0, 1:])],
        "held": (1 - seen.r.double().mean(-1))[:, 0].tolist(),
        "saved": (without - base)[:, 0].tolist(), "loss": base[0].tolist(),
    })  # fmt: skip


def main(corpus: str, runs: Path, ids: list[str]) -> None:
    for path in sorted(runs.glob("*/result.json")):
        result = read_sealed(path)
        chosen = result["rule"] in RULES and result["seed"] < 100
        done = (HERE / f"{result['id']}.json").exists()
        if not done and (result["id"] in ids or not ids and chosen):
            measure(corpus, path.parent)
            print(result["id"], result["rule"], result["seed"], flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "story":
        story(Path(sys.argv[2]))
    else:
        main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
