"""The studies that data/measured/ plans, as lists of runs: what campaign.py trains."""

import math
from dataclasses import dataclass, field, replace

from rr.residual.table import describe

Options = dict[str, str | int | float | tuple]  # of one `rr train`; True is a flag

# Forms of a rule that its papers compare, beside the default of each.
FORMS = (
    "attnres:size=2",
    "hyper-connections:dynamic=0",
    "hyper-connections:sinkhorn=1",
    "review:groups=2",
)
VALUE_FORMS = ("neutreno:lam=0.2,residual=1",)


@dataclass(frozen=True)
class Study:
    """Arms, the rates among which each arm's own is chosen, and the seeds that are reported.

    `rates` are ascending. An arm with an `lr` of its own is not searched. With no rates, each arm
    trains as its options say; with no `seeds`, the runs over rates are themselves what is reported.
    """

    arms: dict[str, Options]
    common: Options
    seeds: tuple[int, ...]
    rates: tuple[float, ...] = ()
    rate_seeds: tuple[int, ...] = ()
    searching: Options = field(default_factory=dict)  # beside `common` while rates are searched
    reporting: Options = field(default_factory=dict)  # beside `common` in the reported runs
    path: str | None = None  # of computation; None: what the machine chooses
    vertex: bool = True  # the rate of a parabola's vertex; else the lowest of the rates tried
    cliff: float = math.inf  # nats per token above its smaller neighbour: such a run blew up


def rules(*names: str) -> dict[str, Options]:
    """An arm for each rule."""
    return {name: {"rule": name} for name in names}


def nano_rules() -> Study:
    """Every rule on its own values, then every value rule on the standard residual."""
    names = {
        kind: [rule["name"] for rule in describe() if rule["kind"] == kind]
        for kind in ("residual", "values")
    }
    arms = rules(*names["residual"], *FORMS)
    for kind in (*names["values"], *VALUE_FORMS):
        if kind != "own":
            arms[f"values {kind}"] = {"rule": "standard", "values": kind}
    return Study(arms, {"rung": "nano", "tokenizer": "bpe:1024"}, seeds=(0, 1, 2))


def mini_arms() -> Study:
    """The first campaign at `mini`."""
    return Study(
        rules(
            "standard",
            "constant",
            "state-gate",
            "update-gate",
            "review:groups=2",
            "review",
            "highway",
            "layerscale",
        ),
        {"rung": "mini", "tokenizer": "bpe:4096"},
        seeds=(0, 1, 2, 3, 4),
        rates=(5e-4, 1.5e-3, 4.5e-3),
        rate_seeds=(100,),
        vertex=False,
    )


def e1() -> Study:
    """Rates resolved, controls complete."""
    arms = rules(
        "standard",
        "constant",
        "highway",
        "state-gate",
        "state-gate:groups=2",
        "update-gate",
        "review:groups=2",
        "review",
    )
    arms["constant, unwidened"] = {"rule": "constant", "rung": "mini:d_ff=768"}
    return Study(
        arms,
        {"rung": "mini", "tokenizer": "bpe:4096", "steps": 300},
        seeds=(10, 11, 12, 13, 14),
        rates=(0.75e-3, 1.06e-3, 1.5e-3, 2.1e-3, 3.0e-3),
        rate_seeds=(100, 101),
    )


def e1_starts() -> Study:
    """Beside E1: three rules with the start of their own papers, and with the one all share."""
    names = ("deepnorm", "fixup", "rezero")
    return Study(
        rules(*(name + start for name in names for start in ("", ":init=paper"))),
        {"rung": "nano", "tokenizer": "bpe:1024"},
        seeds=(0, 1, 2),
    )


# From here on all arms of an experiment ask for the same. A CPU without bf16 instructions takes
# fp32 all the same: its results say so, and such runs are to be given to another machine.
ALIKE: Options = {"precision": "bf16"}
COMPILED = "compiled"
# a quarter faster where windows are short, measured before the first run that is reported
BLOCKS = "compiled:attention=blocks"


def e2() -> Study:
    """Head start or lasting gain: three budgets as branches of one run."""
    return Study(
        rules("standard", "constant", "state-gate", "review"),
        {"rung": "mini", "tokenizer": "bpe:4096", **ALIKE},
        seeds=(0, 1, 2),
        rates=(0.75e-3, 1.06e-3, 1.5e-3, 2.1e-3),
        rate_seeds=(100,),
        searching={"steps": 1200},
        reporting={"budgets": (300, 1200, 4800)},
        path=COMPILED,
    )


def e2_after() -> Study:
    """Is it the wider MLP? The half without it, as E2."""
    return replace(
        e2(), arms={"constant, unwidened": {"rule": "constant", "rung": "mini:d_ff=768"}}
    )


def e2_rates() -> Study:
    """Is it the rate? Two arms of E2 at the longest budget."""
    return replace(
        e2(),
        arms=rules("constant", "review"),
        rates=(1.06e-3, 1.5e-3, 2.1e-3),
        searching={"budgets": (300, 1200, 4800)},
        seeds=(),
    )


def e3() -> Study:
    """Size at fixed training: 14.53M parameters in all three arms, matched by the MLP's width."""
    body = "mini:n_layer=8,d_model=320,n_head=5,d_ff="
    return Study(
        {
            "constant": {"rule": "constant", "rung": f"{body}1920"},
            "state-gate": {"rule": "state-gate", "rung": f"{body}1600"},
            "review": {"rule": "review", "rung": f"{body}1280"},
        },
        {"tokenizer": "bpe:4096", **ALIKE},
        seeds=(0, 1, 2),
        rates=(0.75e-3, 1.06e-3, 1.5e-3),
        rate_seeds=(100,),
        searching={"steps": 488},  # 1M tokens
        reporting={"steps": 3973},  # the tokens per parameter of 1,200 steps of `mini`
        path=COMPILED,
    )


def e4() -> Study:
    """Value residuals with controls of size, at two lengths of window, 512 tokens per step."""
    values = {
        "own": "own",
        "own × √½": f"constant:lam=0,own={math.sqrt(0.5):.10g}",
        "own × √5": f"constant:lam=0,own={math.sqrt(5):.10g}",
        "identity": "identity",
        "λ = 2": "constant:lam=2",
        "svformer": "svformer",
        "neutreno": "neutreno",
    }
    arms = {}
    for window in (64, 256):
        rung = f"nano:n_layer=8,d_model=128,n_head=2,d_ff=352,seq_len={window}"
        for name, rule in values.items():
            arms[f"{name}, {window}"] = {"rung": rung, "values": rule, "batch": 512 // window}
    return Study(
        arms,
        {"rule": "standard", "flavour": "llama", "tokenizer": "bpe:1024", **ALIKE},
        seeds=(0, 1, 2),
        rates=(1e-3, 1.73e-3, 3e-3),
        rate_seeds=(100,),
        searching={"steps": 1200},
        reporting={"budgets": (300, 1200, 4800)},
        path=BLOCKS,
    )


def e5() -> Study:
    """Loops: five rates for each number of passes, three seeds, nothing chosen."""
    rung = "nano:n_layer={},d_model=64,n_head=2,d_ff=176,seq_len=64"
    arms: dict[str, Options] = {}
    for loops in (1, 2, 4, 8):
        for law in ("linear", "sqrt") if loops > 1 else ("linear",):  # one network at one pass
            rule = f"scaled:init=flat,law={law},reference=2"
            arms[f"L = 2, N = {loops}, {law}"] = {
                "rung": rung.format(2),
                "rule": rule,
                "loops": loops,
            }
    for loops in (1, 4):
        for flag in ({}, {"depth_lr": True}):
            arms[f"L = 8, N = {loops}, {'depth_lr' if flag else 'one rate'}"] = {
                "rung": rung.format(8),
                "rule": "scaled:init=flat,law=linear,reference=2",
                "loops": loops,
                **flag,
            }
    return Study(
        arms,
        {
            "flavour": "llama",
            "tokenizer": "bpe:1024",
            "batch": 8,
            "steps": 1200,
            **ALIKE,
        },
        seeds=(),
        rates=(2e-3, 2.83e-3, 4e-3, 5.66e-3, 8e-3),
        rate_seeds=(0, 1, 2),
        path=BLOCKS,
    )


def e6() -> Study:
    """The published 60M rung for a tenth of its budget, one seed, the study's own rate."""
    return Study(
        rules("constant", "standard", "review"),
        {"rung": "60M", "tokenizer": "gpt2", "steps": 800, "lr": 2e-4, **ALIKE},
        seeds=(0,),
        path=COMPILED,
    )
