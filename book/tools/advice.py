"""Numbers behind the advice: pooled estimates, sizes, and what the field study discloses.

`NAMED` is part of that of known.py. Differences are arm − baseline in nats per token.
"""

import json
from functools import cache, partial

import scipy.stats
from wording import signed, spread

import rr
from rr.model import sizes
from rr.model.costs import count, flops_per_token
from rr.residual import REGISTRY
from rr.training import memory
from rr.training.backend import parse_backend
from rr.training.planning import recipe
from rrbook.explorables import at_scale, which
from rrbook.stats import field
from rrbook.stats.emergence import TUNING
from rrstudy import stats
from rrstudy.perf.benchmark import ratios
from rrstudy.stats.results import arm_of

MEASURED = rr.DATA / "measured"
# studies with Review and the state gate at 300 steps under AdamW, in the order of their days
BOTH_GATES = ("mini_arms", "e1_rates", "f1_pairs", "f2_field")
STREAMS = ("hyper-connections", "standard")
BOUND = 0.01  # nats per token: an interval inside ±BOUND is called equal
LARGE = 1e8  # parameters


def _gaps(name: str) -> list[float]:
    """Review − state gate in one study at `mini`, by seed."""
    runs = stats.read_results(MEASURED / name)
    runs = runs[(runs.rung == "mini") & (runs.seed < TUNING) & (runs["values"] == "own")]
    loss = runs.pivot_table("val_loss", "seed", "rule")
    return list(loss["review"] - loss["state-gate"])


def _pooled(*without: str) -> str:
    """Review − state gate over the pairs of all studies as one sample, without some of them."""
    gaps = [gap for name in BOTH_GATES if name not in without for gap in _gaps(name)]
    over = stats.interval(gaps)
    return spread(over.mean, over.lo, over.hi)


def _studies_differ() -> str:
    """p of an analysis of variance of Review − state gate, the studies its groups."""
    return f"{scipy.stats.f_oneway(*map(_gaps, BOTH_GATES)).pvalue:.2f}"


def _shared_rates(change: bool = False) -> str:
    """G3: Review − state gate by seed, mean of its rates; or at the largest less the smallest."""
    runs = stats.read_results(MEASURED / "g3_rates")
    loss = runs.pivot_table("val_loss", "seed", ["rule", "lr"])
    gap = loss["review"] - loss["state-gate"]
    by_seed = gap[gap.columns.max()] - gap[gap.columns.min()] if change else gap.mean(axis=1)
    over = stats.interval(list(by_seed))
    return spread(over.mean, over.lo, over.hi)


def _passes() -> str:
    """E5: eight passes − one under 1/N, each at the rate of its lowest mean; paired by seed."""
    runs = stats.read_results(MEASURED / "e5_loops")
    runs = runs[runs.rung.str.contains("n_layer=2,") & ~runs.rule.str.contains("law=sqrt")]
    best = {}
    for loops, rows in runs.groupby("loops"):
        loss = rows.pivot_table("val_loss", "seed", "lr")
        best[loops] = loss[loss.mean().idxmin()]
    over = stats.paired(best[8], best[1])
    return spread(over.mean, over.lo, over.hi, digits=4)


def _family(first: bool = False) -> list[dict]:
    """F2's family of tests, as reported or as its two replaced runs gave it."""
    runs = field.read_runs()
    return field.against_both(field.as_first_run(runs) if first else runs)


def _survivors(first: bool = False) -> str:
    rows = _family(first)
    return f"{sum(row['holm'] < 0.05 for row in rows)} of {len(rows)}"


def _of_streams(first: bool = False) -> str:
    """Holm's p of four streams − standard."""
    (row,) = [row for row in _family(first) if (row["arm"], row["baseline"]) == STREAMS]
    return f"{row['holm']:.3f}"


def _from_first(arm: str) -> str:
    """G1 − F2: an arm at the best rate that its search tried, from the same at F2's rate."""
    losses = [runs[runs.arm == arm].set_index("seed").val_loss.sort_index() for runs in
              (field.read_runs(field.AGAIN), field.read_runs())]  # fmt: skip
    over = stats.paired(*losses)
    return spread(over.mean, over.lo, over.hi)


def _run_time(arm: str) -> str:
    """The quickest run of an arm of F2 over that of the standard residual, at equal size."""
    return f"{field.times().time[arm]:.2f}"


def _rate(arm: str, again: bool = False) -> str:
    """An arm's learning rate in F2, or in G1, over that of the standard residual."""
    return f"{field.rates(field.mended() if again else field.read_runs())[arm]:.2f}"


def _under_muon() -> str:
    """How far below its loss under AdamW each arm of F4 finishes: the least and the most."""
    means = []
    for name in ("f1_pairs", "f4_muon"):
        runs = stats.read_results(MEASURED / name)
        means.append(runs[runs.seed < TUNING].groupby("rule").val_loss.mean())
    gain = (means[0] - means[1]).dropna()
    return f"{gain.min():.2f} to {gain.max():.2f}"


def _rates_under_muon(planned: bool) -> str:
    """At how many rates of F4's search Review is below constant ½: those planned, or added."""
    runs = stats.read_results(MEASURED / "f4_muon")
    runs = runs[(runs.seed >= TUNING) & ((runs.lr <= 3e-3) == planned)]
    loss = runs.pivot_table("val_loss", "lr", "rule")
    gap = (loss["review"] - loss["constant"]).dropna()
    return f"{(gap < 0).sum()} of {len(gap)}"


def _on_a_gpu(rung: str, rule: str = "highway") -> str:
    """A bf16 step of a rule over one of the standard network, medians. highway has a gate."""
    rows = json.loads((MEASURED / "gpu_h200" / "steps.json").read_text())["rows"]
    of = {
        row["rule"]: row["step_ms_median"]
        for row in rows
        if row["rung"] == rung and row["precision"] == "bf16"
    }
    return f"{of[rule] / of['standard']:.2f}"


def _second_card() -> list[dict]:
    """The rows of the second session on a GPU, those that launches decide among them."""
    kept = json.loads((MEASURED / "gpu_check" / "steps.json").read_text())
    return kept["rows"] + kept["launch_bound"]


def _review_on_a_gpu(rung: str) -> str:
    """Review's compiled step over the standard one: median, least and most of three repeats."""
    (over,) = [r for r in ratios(_second_card(), {"rule": "standard"}) if r["rung"] == rung]
    return "{time:.2f} ({least:.2f} to {most:.2f})".format(**over)


def _review_in_memory() -> str:
    """Predicted over measured peak of Review's rows there, least and most."""
    rows = [row for row in _second_card() if row["rule"] == "review"]
    over = [row["predicted_bytes"] / row["peak_bytes"] for row in rows]
    return f"{min(over):.2f} to {max(over):.2f}"


def _size(steps: int | None, folder: str = "f1_pairs") -> dict:
    """Parameters and tokens of Review's runs of so many steps."""
    runs = stats.read_results(MEASURED / folder)
    return next(r for r in stats.as_rows(runs) if arm_of(r) == "review" and r["steps"] == steps)


def _million(what: str, steps: int, folder: str) -> str:
    return f"{_size(steps, folder)[what] / 1e6:.1f} million"


def _ratio(steps: int, folder: str) -> str:
    run = _size(steps, folder)
    return f"{run['tokens'] / run['params']:.2g}"


@cache
def _verdicts() -> dict[str, str]:
    """Our verdict on each rule, in the form that ran."""
    ours = which.measured()
    return {which.spec(*rule, ours.get(rule)): said for rule, said in which.verdicts(ours).items()}


def _rules(verdict: str) -> str:
    """How many rules the table of *Which rule* gives this verdict, and which."""
    names = [rule for rule, said in _verdicts().items() if said == verdict]
    return f"{len(names)} ({', '.join(names)})"


def _at_scale(rule: str, source: str = at_scale.FACTORY, least: float = 0) -> str:
    """What one source measured of a rule, size by size, from `least` parameters on."""
    shown = [
        f"{signed(float(r['difference']))} at {r['size']}"
        for r in at_scale.rows_of(rule, source)
        if not least or at_scale.parameters(r) >= least
    ]
    return ", ".join(shown)


def _time_at_scale(rule: str) -> str:
    """The time of a step over the baseline's, at the sizes from 100M on that have a speed."""
    rows = at_scale.rows_of(rule)
    return at_scale.times([row for row in rows if at_scale.parameters(row) >= LARGE])


@cache
def _bytes_and_flops(rule: str, values: str) -> tuple[int, int]:
    """Predicted peak without the driver's context, and FLOPs per token, at 320M, not widened."""
    shape, batch = sizes.RUNGS["320M"], 64
    config = rr.ModelConfig(
        50257,
        n_layer=shape.n_layer,
        n_head=shape.n_head,
        d_model=shape.d_model,
        d_ff=4 * shape.d_model,
        seq_len=shape.seq_len,
        rule=rule,
        values=values,
    )
    backend = parse_backend("compiled:attention=cudnn,precision=bf16")
    held = memory.stacked(config, backend, batch, "cuda", recipe("320M", batch=batch))
    return held - memory.CONTEXT["cuda"], flops_per_token(config)


def _computed(rule: str, values: str = "own") -> str:
    """Memory and FLOPs of a step over those of the standard network, neither widened."""
    standard = _bytes_and_flops("standard", "own")
    ratios = [a / b for a, b in zip(_bytes_and_flops(rule, values), standard, strict=True)]
    return "memory ×\u00a0{:.2f}, FLOPs ×\u00a0{:.2f}".format(*ratios)


def _largest(what: str, source: str) -> str:
    """The size or the tokens of a source that has one row."""
    (row,) = [r for r in at_scale.rows() if r["source"] == source]
    return row[what]


COMPUTED = {
    "mHC": ("hyper-connections:sinkhorn=1",),
    "unet": ("unet",),
    "state-gate": ("state-gate",),
    "2V₁ + Vₙ": ("standard", "constant-resformer:lam=2"),
    "half the first block's values": ("standard", "identity"),
}
SCALED = {
    "MUDD": "MUDD with norms around it",
    "mHC": "mHC, four streams",
    "AttnRes": "AttnRes, full",
    "hyper-connections": "hyper-connections, dynamic",
}
ELSEWHERE = {  # of other sources: the rule in their words, the source
    "one wider stream": ("one wider stream: 1,536 for 512, 1,792 for 768", "marin #9295"),
    "mHC, marin": ("mHC", "marin #9290"),
    "AttnRes, marin": ("AttnRes, full", "marin #9290"),
    "gated streams": ("gated streams, four", "2608.30320"),
}
FROM_100M = {  # likewise; without a source the largest comparison of others
    "MUDD": (SCALED["MUDD"],),
    "mHC": (SCALED["mHC"],),
    "half the first block's values": ("half the first block's values", "2410.17897"),
    "AttnRes, blocks": ("AttnRes, blocks", "2603.15031"),
}
SHORT, LONG = (300, "f1_pairs"), (4800, "e2_training")
NAMED = {
    "bound of equality": lambda: f"{BOUND}",
    "review - state-gate, four studies pooled": _pooled,
    "review - state-gate, pooled without the largest": lambda: _pooled("f1_pairs"),
    "review - state-gate, p that the studies agree": _studies_differ,
    "review - state-gate, mean of three shared rates": _shared_rates,
    "review - state-gate, largest shared rate less smallest": partial(_shared_rates, change=True),
    "eight passes - one pass": _passes,
    "f4_muon, below AdamW": _under_muon,
    "f4_muon, planned rates with Review below": partial(_rates_under_muon, planned=True),
    "f4_muon, added rates with Review below": partial(_rates_under_muon, planned=False),
    "g1_misfits, rate of standard + constant": partial(_rate, "standard + constant", again=True),
    "f2_field, survivors": _survivors,
    "f2_field, survivors as first run": lambda: _survivors(first=True),
    "f2_field, p of four streams": _of_streams,
    "f2_field, p of four streams as first run": lambda: _of_streams(first=True),
    "mini with GPT-2's tokenizer": lambda: f"{count(sizes.arm('mini')) / 1e6:.0f} million",
    "short run, parameters": lambda: _million("params", *SHORT),
    "short run, tokens": lambda: _million("tokens", *SHORT),
    "short run, tokens per parameter": lambda: _ratio(*SHORT),
    "long run, tokens": lambda: _million("tokens", *LONG),
    "long run, tokens per parameter": lambda: _ratio(*LONG),
    "rules": lambda: str(sum(map(len, REGISTRY.values()))),
    **{f"rules, {kind}": lambda kind=kind: str(len(REGISTRY[kind])) for kind in REGISTRY},
    **{f"rules to {verdict}": partial(_rules, verdict) for verdict in ("use", "try", "skip")},
    **{f"at scale: {name}": partial(_at_scale, rule) for name, rule in SCALED.items()},
    **{f"at scale: {name}": partial(_at_scale, *of) for name, of in ELSEWHERE.items()},
    **{
        f"at 100M or more: {name}": partial(_at_scale, *of, least=LARGE)
        for name, of in FROM_100M.items()
    },
    **{
        f"time at 100M or more: {name}": partial(_time_at_scale, SCALED[name])
        for name in ("MUDD", "mHC")
    },
    **{f"computed at 320M: {name}": partial(_computed, *of) for name, of in COMPUTED.items()},
    "at scale: identity mixing, sizes": lambda: _largest("size", "zhihu, Feb 2026"),
    "at scale: identity mixing, tokens": lambda: _largest("tokens", "zhihu, Feb 2026"),
    "at scale: DepthBench, sizes": lambda: _largest("size", "2609.32534"),
    **{f"gate on a GPU, {rung}": partial(_on_a_gpu, rung) for rung in ("60M", "320M", "1B")},
    "constant on a GPU, 1B": partial(_on_a_gpu, "1B", "constant"),
    "review on a GPU, memory": _review_in_memory,
    **{
        f"review on a GPU, {rung}": partial(_review_on_a_gpu, rung)
        for rung in ("60M", "150M", "320M")
    },
    **{
        f"g1_misfits: {arm} - the same in F2": partial(_from_first, arm)
        for arm in ("scaled", "orthogonal", field.WIDER, "standard + constant")
    },
    **{
        f"f2_field, run of {arm}": partial(_run_time, arm)
        for arm in (
            "review",
            "state-gate",
            "unet",
            "standard + constant",
            "hyper-connections",
            "scales-skips:attnres=1",
        )
    },
    **{
        f"f2_field, rate of {arm}": partial(_rate, arm)
        for arm in ("state-gate", "unet", "rezero:init=paper", "standard + constant")
    },
}
