"""The runs behind chapter 05, in the order of the plan in README.md beside this file.

    python data/measured/05_value_residual/campaign.py CORPUS RUNS     # resumable; start it again
    rr records import RUNS --to data/measured/05_value_residual

It ends by measuring the trained models and writes what it finds to looks.json beside this file.
CORPUS is `file:` and the folder of the TinyStories slice. Several copies may share a RUNS folder.
"""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

import rr
from rr.data import batches
from rr.errors import RunFailed
from rr.specs import Run
from rr.training.run_folder import finished
from rrbook import attention

ARMS = (
    "own",
    "identity",
    "constant",
    "svformer",
    "learnable",
    "learnable-plus",
    "constant:lam=0.5",
    "constant:lam=1.0",
    "constant:lam=5.0",
    "sparse",
    "dense",
    "neutreno",
)
SEEDS = (0, 1, 2)
SIZE = "constant:lam=0.0,own=2.2360679775"  # C: √5·V_n, as large as 2V_1 + V_n at the start
BOTH = ("own", "constant")  # of the check of the learning rate
RATES = (1e-3, 3e-3, 9e-3)
LR = 3e-3  # the rung's own


def run(corpus: str, values: str, seed: int, lr: float = LR) -> Run:
    """One run: Llama flavour, 8 blocks of width 64, 300 steps of 8 windows of 64 tokens."""
    return rr.plan("nano:n_layer=8,d_model=64,n_head=2,d_ff=224,seq_len=64", "standard",
                   values=values, flavour="llama", corpus=corpus, tokenizer="bpe:1024", seed=seed,
                   steps=300, batch=8, lr=lr, eval_batches=64, precision="fp32")  # fmt: skip


def plan(corpus: str) -> Iterator[Run]:
    """Seed by seed, then the control of size, then the learning rates."""
    yield from (run(corpus, values, seed) for seed in SEEDS for values in ARMS)
    yield from (run(corpus, SIZE, seed) for seed in SEEDS)
    yield from (run(corpus, values, 100, lr) for lr in RATES for values in BOTH)


def looks(corpus: str, out: Path) -> list[dict]:
    """What the trained models of stages A and C do on the first 64 held-out windows, run by run."""
    tokens = rr.open_corpus(corpus, "bpe:1024", log=lambda line: None)
    idx, targets = batches.gather(tokens.valid, range(0, 64 * 64, 64), 64)
    found = []
    for seed in SEEDS:
        for values in (*ARMS, SIZE):
            one = run(corpus, values, seed)
            model = rr.load(out / one.id)[0].cpu()
            found.append({
                "id": one.id, "values": values, "seed": seed,
                "weights_sha256": finished(out / one.id)["weights_sha256"],
                "mixing": attention.mixing(model).tolist(),
                "value_gradient": attention.value_gradients(model, idx, targets),
                **attention.by_block(model, idx),
            })  # fmt: skip
    return found


def main(corpus: str, out: Path) -> None:
    while left := [one for one in plan(corpus) if finished(out / one.id) is None]:
        for one in left:
            try:
                rr.train(one, out, rr.Request(threads=1), log=lambda line: None)
            except RunFailed as error:
                if "another process" not in str(error):
                    raise
                continue
            ended = finished(out / one.id)
            print(one.id, one.values, one.seed, one.recipe.lr, ended["val_loss"], flush=True)
        time.sleep(5)
    rows = ",\n".join(json.dumps(row) for row in looks(corpus, out))
    Path(__file__).with_name("looks.json").write_text(f"[\n{rows}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
