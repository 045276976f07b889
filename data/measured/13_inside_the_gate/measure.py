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

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

import rr
from rr.data import Tokens, batches
from rr.io import read_sealed, write_atomic
from rr.model import Model
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
    code = sha256(Path(gates.__file__).read_bytes()).hexdigest()
    return {"git": git_state(), "inside_sha256": code, "torch": torch.__version__,
            "precision": "fp32", "threads": torch.get_num_threads()}  # fmt: skip


def write(name: str, found: dict) -> None:
    text = json.dumps(short(found), indent=1, ensure_ascii=False)
    write_atomic(HERE / name, f"{text}\n".encode())


def report(model: Model, tokens: Tokens, windows: int, seed: int = 0) -> dict:
    """All measures of `rrbook.gates` for one model on `windows` held-out windows, as plain numbers.

    Costs are in nats per token, [mean, standard error over windows]; frequency and repetition in
    units of r, by sublayer, with the standard deviation of tokens' mean gates beside them.
    """
    t = model.config.seq_len
    idx, targets = gates.held_windows(tokens, t, windows)
    known = gates.trace_gates(model, gates.known_windows(tokens, t, windows))
    seen = gates.trace_gates(model, idx)
    alters = gates.constants(model, known) | gates.partly(model, known) | gates.shuffled(seed)
    base = gates.losses(model, idx, targets)
    cost = gates.costs(model, idx, targets, alters, base)
    without = gates.one_by_one(model, idx, targets, gates.nothing)
    alike = gates.one_by_one(model, idx, targets, alters["a number a channel"])
    saved, choice, offered = (x.numpy() for x in (without - base, alike - base, without - alike))
    first, common, place = gates.first_seen(idx), gates.fifths(tokens, idx), gates.places(idx)
    ends, rows = (common == 0) | (common == 4), []
    for i, kind in enumerate(seen.kinds):
        gate, held = seen.r[i].double().mean(-1).numpy(), seen.held[i].double().numpy()
        rows.append(
            {
                "kind": kind,
                "sublayer": i + 1,
                **gates.distribution(seen.r[i].flatten(0, 1)),
                "logit": gates.logit_shares(seen.cov[i]),
                "token_sd": float(gate.std()),
                "by_fifth": [float(gate[common == k].mean()) for k in range(5)],
                "rare": gates.matched(gate[ends], common[ends] == 0, place[ends]),
                "repeated": float(gate[~first].mean() - gate[first].mean()),
                "repeated_matched": gates.matched(gate, ~first, 5 * place + common),
                "saved": [float(saved[i].mean()), _error(saved[i].mean(1))],
                "choice": [float(choice[i].mean()), _error(choice[i].mean(1))],
                "helped": float((saved[i] > 0).mean()),
                "with_saved": gates.correlations(1 - gate, saved[i], 5 * place + common, seed),
                "with_offered": gates.correlations(1 - gate, offered[i], 5 * place + common, seed),
                "held_with_offered": gates.correlations(held, offered[i], 5 * place + common, seed),
            }
        )
    return {
        "windows": windows,
        "loss": float(base.mean()),
        "costs": {name: [float(x.mean()), _error(x.numpy())] for name, x in cost.items()},
        "sublayers": rows,
    }


def _error(x: np.ndarray) -> float:
    return float(x.std(ddof=1) / len(x) ** 0.5)


def measure(corpus: str, folder: Path) -> None:
    """Write the record of one run."""
    result = finished(folder)
    model, run, _ = rr.load(folder, "cpu")
    tokens = rr.open_corpus(corpus, run.source["tokenizer"], log=lambda line: None)
    if tokens.identity != {"corpus": run.corpus, "tokenizer": run.tokenizer}:
        raise rr.RRError(f"{corpus} is not the text that run {run.id} was trained on")
    seen = report(model, tokens, WINDOWS.get(run.rule, 16))
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
