"""The runs of this folder, in the order of the plan: python campaign.py OUT [SEED …].

A run that is finished is not repeated, so the campaign can be stopped and started again.
"""

import sys

import rr

SHAPE = "nano:n_layer=2,d_model=64,n_head=2,d_ff=176,seq_len=64"
RATES = (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)
LAWS = ("linear", "sqrt", "none")


def arms():
    """(N, rule) of the plan; at N = 1 the three laws are the same."""
    for loops in (1, 2, 4, 8):
        for law in LAWS if loops > 1 else LAWS[:1]:
            yield loops, "scaled:reference=2" + ("" if law == "linear" else f",law={law}")


def grid(seed, rates=RATES, chosen=None):
    """The runs of one seed, or only those of the chosen (N, rule)."""
    for loops, rule in chosen or arms():
        for lr in rates:
            yield rr.plan(
                SHAPE,
                rule,
                loops=loops,
                flavour="llama",
                seed=seed,
                lr=lr,
                steps=120,
                batch=4,
                eval_batches=32,
                precision="fp32",
            )


if __name__ == "__main__":
    out, *seeds = sys.argv[1:]
    for seed in map(int, seeds or (0, 1, 2)):
        for run in grid(seed):
            rr.train(run, out, rr.Request(threads=1), log=lambda line: None)
