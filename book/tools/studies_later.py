"""The third and the fourth plan of data/measured/, and all studies by name."""

import math
from dataclasses import replace

from studies import (
    ALIKE,
    BLOCKS,
    COMPILED,
    Options,
    Study,
    e1,
    e1_starts,
    e2,
    e2_after,
    e2_rates,
    e3,
    e4,
    e5,
    e6,
    mini_arms,
    nano_rules,
    rules,
)

# The third plan: data/measured/third_plan.md.


def f1() -> Study:
    """Does reading the update help? Twenty new pairs at the rates that E1 chose."""
    rates = {
        "constant": 1.82e-3,
        "state-gate": 2.03e-3,
        "update-gate": 1.67e-3,
        "review": 1.87e-3,
    }
    return Study(
        {rule: {"rule": rule, "lr": rate} for rule, rate in rates.items()},
        {"rung": "mini", "tokenizer": "bpe:4096", "steps": 300, **ALIKE},
        seeds=tuple(range(15, 35)),
        path=COMPILED,
    )


def f2() -> Study:
    """The field at one size: baselines at E1's rates, the other arms at rates of their own."""
    arms = f1().arms
    del arms["update-gate"]
    arms = {"standard": {"rule": "standard", "lr": 1.72e-3}} | arms
    arms |= rules(
        "layerscale",
        "rezero:init=paper",
        "scaled",
        "denseformer",
        "attnres",
        "attnres:block=2",  # with six blocks seven sources; Kimi-K3 has eight
        "hyper-connections",
        "hyper-connections:sinkhorn=1,start=published,head=sigmoid",
        "hyper-connections:mix=identity",
        "x0-scales:start=nanochat",
        "unet",
        "scales-skips:attnres=1",
        "orthogonal",
        "gated-residual",
    )
    for values in ("gated-attention", "identity", "constant:lam=2"):
        arms[f"values {values}"] = {"rule": "standard", "values": values}
    # as many parameters as the others: its gates are as large as 96 of the MLP's 1,152 channels
    arms["values gated-attention"]["rung"] = "mini:d_ff=1056"
    # 4,402,068 parameters, as four streams have (4,403,832); the MLP stays four times as wide
    arms["one wider stream"] = {"rule": "standard", "rung": "mini:d_model=216,d_ff=898"}
    return Study(
        arms,
        {"rung": "mini", "tokenizer": "bpe:4096", "steps": 300, **ALIKE},
        seeds=(35, 36, 37, 38, 39),
        rates=(0.75e-3, 1.06e-3, 1.5e-3, 2.1e-3, 3.0e-3),
        rate_seeds=(100,),
        path=BLOCKS,
    )


def f3() -> Study:
    """Loops at eight passes, two scales, five rates; `--corpus` says on which text."""
    laws = {"1/N": "linear", "1/√N": "sqrt"}
    return Study(
        {
            name: {
                "rung": "nano:n_layer=2,d_model=64,n_head=2,d_ff=176,seq_len=64",
                "rule": f"scaled:init=flat,law={law},reference=2",
                "loops": 8,
            }
            for name, law in laws.items()
        },
        {"flavour": "llama", "tokenizer": "bpe:1024", "batch": 8, "steps": 1200, **ALIKE},
        seeds=(),
        rates=(2e-3, 2.83e-3, 4e-3, 5.66e-3, 8e-3),
        rate_seeds=(3, 4, 5, 6, 7, 8),
        path=BLOCKS,
    )


def f4() -> Study:
    """Muon in F1's setting."""
    return Study(
        rules("constant", "state-gate", "review"),
        {"rung": "mini", "tokenizer": "bpe:4096", "steps": 300, "optimizer": "muon", **ALIKE},
        seeds=tuple(range(40, 48)),
        rates=(0.75e-3, 1.06e-3, 1.5e-3, 2.1e-3, 3.0e-3),
        rate_seeds=(100,),
        path=COMPILED,
    )


def f5() -> Study:
    """E4's short window again: rates searched as long as the reported runs, six new seeds."""
    study = e4()
    arms = {
        name.removesuffix(", 64"): arm for name, arm in study.arms.items() if name.endswith(", 64")
    }
    del arms["neutreno"]
    # half the cache of keys and values, as SVFormer has 0.5625 of it
    arms["own, one KV head"] = {**arms["own"], "rung": f"{arms['own']['rung']},n_kv_head=1"}
    return replace(
        study,
        arms=arms,
        common=study.common | study.reporting,
        seeds=tuple(range(3, 9)),
        rate_seeds=(100, 101),
        searching={},
        reporting={},
    )


# The fourth plan: data/measured/fourth_plan.md.

CLIFF = 0.1
SHORT: Options = {"rung": "mini", "tokenizer": "bpe:4096", "steps": 300, **ALIKE}
FULL: Options = SHORT | {"precision": "fp32"}  # G3 to G5: the plan says why
PLAIN: Options = {"rule": "standard"}
OWN_AS_LARGE = f"constant:lam=0,own={math.sqrt(5):.10g}"  # as 2V₁ + Vₙ


def as_f2(arms: dict[str, Options], seeds: tuple[int, ...]) -> Study:
    """Arms searched as F2's, on seed 100; but a run that blew up is no point of a parabola."""
    return Study(
        arms,
        FULL,
        seeds=seeds,
        rates=f2().rates,
        rate_seeds=(100,),
        path=BLOCKS,
        cliff=CLIFF,
    )


def g1() -> Study:
    """F2's misfits at the best rate that F2 tried, on its seeds."""
    wider = f2().arms["one wider stream"]
    return Study(
        {
            "scaled": {"rule": "scaled", "lr": 2.1e-3},
            "orthogonal": {"rule": "orthogonal", "lr": 1.5e-3},
            "one wider stream": {**wider, "lr": 2.1e-3},
            "2V₁ + Vₙ": {**PLAIN, "values": "constant:lam=2", "lr": 2.1e-3},
            "standard": {**PLAIN, "lr": 1.72e-3},
        },
        SHORT,
        seeds=(35, 36, 37, 38, 39),
        path=BLOCKS,
    )


def g2() -> Study:
    """The field under Muon."""
    arms = rules("standard", "constant", "state-gate", "unet")
    arms["2V₁ + Vₙ"] = {**PLAIN, "values": "constant:lam=2"}
    arms["own × √5"] = {**PLAIN, "values": OWN_AS_LARGE}
    return Study(
        arms,
        SHORT | {"optimizer": "muon"},
        seeds=tuple(range(48, 56)),
        rates=(1.5e-3, 2.12e-3, 3.0e-3, 4.24e-3, 6.0e-3, 8.49e-3, 12.0e-3),
        rate_seeds=(100, 101),
        path="eager",  # on the GPU of its reported runs; the plan says which were made before
        cliff=CLIFF,
    )


def g3() -> Study:
    """Review against the state gate at three rates, nothing chosen; seed by seed."""
    return Study(
        {
            f"{rule}, {rate:g}": {"rule": rule, "lr": rate}
            for rate in (1.06e-3, 1.5e-3, 2.1e-3)
            for rule in ("review", "state-gate")
        },
        FULL,
        seeds=tuple(range(56, 66)),
        path=BLOCKS,
    )


def g4() -> Study:
    """What the skips are worth: their control of size, and scales and skips without attention."""
    return as_f2(
        {
            "standard": {**PLAIN, "lr": 1.72e-3},
            "constant": {"rule": "constant", "lr": 1.82e-3},
            "unet": {"rule": "unet", "lr": 1.90e-3},
            "scales-skips:attnres=1": {"rule": "scales-skips:attnres=1", "lr": 2.48e-3},
            "2V₁ + Vₙ": {**PLAIN, "values": "constant:lam=2", "lr": 2.1e-3},
            "own × √5": {**PLAIN, "values": OWN_AS_LARGE},
            **rules("unet:adds=own", "scales-skips"),
        },
        seeds=(66, 67, 68, 69, 70),
    )


def g5() -> Study:
    """The norm's place: arms as data/measured/fourth_plan.md defines them."""
    places = {"post": "stream", "sandwich": "both", "output": "output", "LNS": "depth"}
    arms = {"pre": {**PLAIN, "lr": 1.72e-3}}
    arms |= {name: {"rule": f"norm-place:place={place}"} for name, place in places.items()}
    return as_f2(arms | rules("keel"), seeds=(71, 72, 73, 74, 75))


def f6() -> Study:
    """Does the lead last? Three budgets as branches, one rate, new seeds."""
    arms = rules("standard", "constant", "state-gate")
    arms["2V₁ + Vₙ"] = {**PLAIN, "values": "constant:lam=2"}
    return Study(
        arms,
        {
            "rung": "mini",
            "tokenizer": "bpe:4096",
            "budgets": (1200, 2400, 4800),
            "lr": 1.0e-3,
            **ALIKE,
        },
        seeds=tuple(range(3, 11)),  # along the path that rr train takes: on a CPU BLOCKS
    )


def f6_pilot() -> Study:
    """F6's first two seeds: their spread decides whether its runs get longer."""
    return replace(f6(), seeds=(3, 4))


STUDIES = {
    study.__name__.replace("_", "-"): study
    for study in (
        nano_rules,
        mini_arms,
        e1,
        e1_starts,
        e2,
        e2_after,
        e2_rates,
        e3,
        e4,
        e5,
        e6,
        f1,
        f2,
        f3,
        f4,
        f5,
        g1,
        g2,
        g3,
        g4,
        g5,
        f6_pilot,
        f6,
    )
}
