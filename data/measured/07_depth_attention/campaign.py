"""The runs behind chapter 07, in the order of the plan in README.md beside this file.

    python data/measured/07_depth_attention/campaign.py CORPUS RUNS     # resumable; start it again
    rr records import RUNS --to data/measured/07_depth_attention

It ends by measuring the trained models and writes what it finds to looks.json beside this file.
CORPUS is `file:` and the folder of the TinyStories slice.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

import rr
from rr.analysis import probes
from rr.data import batches
from rr.specs import Run
from rr.training.run_folder import finished

SIZES = (1, 2, 4, 8, 16)  # sublayers a block, of 16
ARMS = (
    "standard",
    "attnres",
    "attnres:query=zero",
    "denseformer",
    "constant",
    "attnres:neutral=1",
    *(f"attnres:neutral=1,size={size}" for size in SIZES[1:]),
)
RATES = (1e-3, 3e-3, 9e-3)
LR = 3e-3  # the rung's own
LOOKED_AT = ("standard", "denseformer", "attnres:neutral=1")


def run(corpus: str, rule: str, seed: int, lr: float = LR) -> Run:
    """One run: 8 blocks of width 64, windows of 128 tokens, 150 steps of 8 windows."""
    return rr.plan("nano:n_layer=8,d_model=64,n_head=2,seq_len=128", rule, corpus=corpus,
                   tokenizer="bpe:1024", seed=seed, steps=150, batch=8, lr=lr, eval_batches=32,
                   precision="fp32")  # fmt: skip


def plan(corpus: str) -> Iterator[Run]:
    """Seed by seed, then the learning rates."""
    yield from (run(corpus, rule, seed) for seed in (0, 1, 2) for rule in ARMS)
    both = ("standard", "attnres:neutral=1")
    yield from (run(corpus, rule, 100, lr) for lr in RATES for rule in both)


def looks(corpus: str, out: Path) -> list[dict]:
    """What the trained models of stage A do, on the first 32 held-out windows, run by run."""
    tokens = rr.open_corpus(corpus, "bpe:1024", log=lambda line: None)
    idx, targets = batches.gather(tokens.valid, range(0, 32 * 128, 128), 128)
    found = []
    for seed in (0, 1, 2):
        trained = [run(corpus, rule, seed) for rule in LOOKED_AT]
        if any(finished(out / one.id) is None for one in trained):
            continue  # whole seeds only
        for one, rule in zip(trained, LOOKED_AT, strict=True):
            model = rr.load(out / one.id)[0].cpu()
            sizes, slopes = probes.updates_by_depth(model, idx, targets)
            row = {"id": one.id, "rule": rule, "seed": seed,
                   "weights_sha256": finished(out / one.id)["weights_sha256"],
                   "update_rms": sizes, "update_gradient": slopes}  # fmt: skip
            if rule.startswith("attnres"):
                row["alpha"] = probes.depth_attention(model, idx).tolist()
            elif rule == "denseformer":
                row["alpha"] = [layer.mlp_rule.alpha.tolist() for layer in model.layers]
            found.append(row)
    return found


def main(corpus: str, out: Path) -> None:
    for one in plan(corpus):
        if finished(out / one.id) is None:
            rr.train(one, out, rr.Request(threads=1), log=lambda line: None)
        ended = finished(out / one.id)
        print(one.id, one.rule, one.seed, one.recipe.lr, ended["val_loss"], flush=True)
    rows = ",\n".join(json.dumps(row) for row in looks(corpus, out))
    Path(__file__).with_name("looks.json").write_text(f"[\n{rows}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
