"""The runs behind chapter 03, in the order of the plan in README.md beside this file.

    python data/measured/03_depth_stability/campaign.py RUNS      # resumable; start it again
    rr records import RUNS --to data/measured/03_depth_stability

Several copies may work on the same RUNS folder: each run is written by one of them.
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

import rr
from rr.errors import RunFailed
from rr.specs import Run
from rr.training.trainer import finished

RULES = ("standard", "review", "review-convex", "review-convex:bias=-3", "highway-carry")
RATES = (1e-3, 3e-3, 1e-2, 3e-4)


def run(
    rule: str,
    sublayers: int,
    seed: int,
    lr: float,
    steps: int = 300,
    width: int = 64,
    batch: int = 8,
) -> Run:
    """One run of the campaign: fables, bpe:1024, windows of 64 tokens, heads of 32 channels."""
    shape = f"n_layer={sublayers // 2},d_model={width},n_head={width // 32},seq_len=64"
    return rr.plan(
        f"nano:{shape}",
        rule,
        seed=seed,
        steps=steps,
        batch=batch,
        lr=lr,
        eval_batches=60,
        precision="fp32",
    )


def rate_check() -> list[Run]:
    """Stage A: the convex arm alone, on a seed that is not reported elsewhere."""
    return [run("review-convex", depth, 100, lr) for depth in (16, 32) for lr in RATES]


def chosen_rate(out: Path) -> float:
    """The rate at which the *convex* arm ends lowest, averaged over its two depths."""

    def loss(lr: float) -> float:
        ends = [finished(out / run("review-convex", depth, 100, lr).id) for depth in (16, 32)]
        losses = [end["val_loss"] for end in ends]
        return float("inf") if None in losses else sum(losses)

    return min(RATES, key=loss)


def rest(lr: float) -> Iterator[Run]:
    """Stages B to F, so ordered that stopping early leaves whole seeds."""
    depths = (4, 8, 16, 32)
    yield run("review-convex", 32, 0, lr, steps=3000)  # C
    yield run("review-convex", 32, 0, 3e-4, steps=4000)  # F
    yield from (run(rule, depth, 0, lr) for depth in depths for rule in RULES)  # B, seed 0
    wide = ("review-convex", "review-convex:bias=-3")
    yield from (
        run(rule, 32, seed, 1e-3, 100, width=256, batch=4) for seed in (0, 1) for rule in wide
    )  # D
    yield from (
        run(rule, depth, seed, lr) for seed in (1, 2) for depth in depths for rule in RULES
    )  # B, its other seeds
    yield from (run(rule, 64, 0, lr) for rule in RULES[1:4])  # E


def work(runs: list[Run], out: Path) -> None:
    """Train what is not finished; wait for what another copy is training."""
    while left := [r for r in runs if finished(out / r.id) is None]:
        for one in left:
            try:
                rr.train(one, out, rr.Request(threads=1), log=lambda line: None)
            except RunFailed as error:
                if "another process" not in str(error):
                    raise
                continue
            ended = finished(out / one.id)
            print(
                one.id,
                one.rung,
                one.rule,
                one.seed,
                one.recipe.lr,
                one.recipe.steps,
                ended["val_loss"],
                flush=True,
            )
        time.sleep(5)


def main(out: Path) -> None:
    work(rate_check(), out)
    work(list(rest(chosen_rate(out))), out)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
