"""Run the studies that data/measured/ plans, on a CPU, losing nothing.

    python book/tools/campaign.py e1 --corpus file:TINYSTORIES --out runs/e1
    python book/tools/campaign.py e1 --corpus file:TINYSTORIES --out runs/e1 --dry-run

nano-rules   every registered rule and value rule at `nano`, three paired seeds, one budget
mini-arms    eight arms at `mini`: the best of three rates each, then five paired seeds
e1 ... e6    the second plan, and what was added beside it: data/measured/second_plan.md says what
             each of them asks
f1 ... f5    the third plan, likewise: data/measured/third_plan.md
g1 ... g4, f6-pilot, f6    the fourth: data/measured/fourth_plan.md

A study is lists of runs, trained by `rrstudy.sweep`: those that search rates, then those that are
reported. What has finished is skipped and what was cut off resumes, so the same command is given
again until nothing is missing. `--dry-run` prints the commands that are known so far.
"""

import argparse
import json
import math
import shlex
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean as mean

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rr.config import RunFailed
from rr.model.ladder import describe
from rrbook.stats.rates import basin, before_cliff
from rrstudy.sweep import Cell, Runner, cells, commands, sweep

Options = dict[str, str | int | float | tuple]  # of one `rr train`; True is a flag

# Forms of a rule that its papers compare, beside the default of each.
FORMS = (
    "attnres:size=2",
    "hyper-connections:dynamic=0",
    "hyper-connections:sinkhorn=1",
    "review:groups=2",
)
VALUE_FORMS = ("neutreno:lam=0.2,residual=1",)
EXTENSIONS = 3  # rates that may be added beyond an edge that wins


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
PLAIN: Options = {"rule": "standard"}
OWN_AS_LARGE = f"constant:lam=0,own={math.sqrt(5):.10g}"  # as 2V₁ + Vₙ


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
        path=BLOCKS,
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
        SHORT,
        seeds=tuple(range(56, 66)),
        path=BLOCKS,
    )


def g4() -> Study:
    """What the skips are worth: their control of size, and scales and skips without attention."""
    return Study(
        {
            "standard": {**PLAIN, "lr": 1.72e-3},
            "constant": {"rule": "constant", "lr": 1.82e-3},
            "unet": {"rule": "unet", "lr": 1.90e-3},
            "scales-skips:attnres=1": {"rule": "scales-skips:attnres=1", "lr": 2.48e-3},
            "2V₁ + Vₙ": {**PLAIN, "values": "constant:lam=2", "lr": 2.1e-3},
            "own × √5": {**PLAIN, "values": OWN_AS_LARGE},
            **rules("unet:adds=own", "scales-skips"),
        },
        SHORT,
        seeds=(66, 67, 68, 69, 70),
        rates=f2().rates,
        rate_seeds=(100,),
        path=BLOCKS,
        cliff=CLIFF,
    )


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
        seeds=tuple(range(3, 11)),
        path=BLOCKS,
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
        f6_pilot,
        f6,
    )
}


class Campaign:
    """Trains lists of runs in the folder `out` and reads their held-out losses."""

    def __init__(
        self,
        corpus: str,
        tokenizer: str | None,
        out: Path,
        jobs: int,
        machine: dict[str, str | int | None],
        dry: bool,
    ) -> None:
        self.corpus, self.tokenizer = corpus, tokenizer  # where a study's gpt2 is, if not None
        self.out, self.jobs, self.machine, self.dry = out, jobs, machine, dry
        self.missing = 0

    def cell(self, options: Options) -> Cell:
        """The run of these options."""
        given = {**options, "corpus": self.corpus}
        if given.get("tokenizer") == "gpt2" and self.tokenizer:
            given["tokenizer"] = self.tokenizer
        lists = {name: value if value is True else [value] for name, value in given.items()}
        return cells(lists, say=print)[0]

    def run(self, runs: Iterable[Options]) -> list[float | None]:
        """The held-out loss of each run, infinite where it diverged, None where it is missing."""
        plan = [self.cell(options) for options in runs]
        if self.dry:
            for command in commands(plan, Runner("direct", self.out, self.machine)):
                print(shlex.join(command))
            return [None] * len(plan)
        try:
            sweep(plan, self.out, runner="direct", jobs=self.jobs, machine=self.machine)
        except RunFailed as error:  # some diverged, or are missing
            print(error, flush=True)
        return [self._loss(cell) for cell in plan]

    def _loss(self, cell: Cell) -> float | None:
        path = self.out / cell.id / "result.json"
        if not path.exists():
            self.missing += 1
            return None
        loss = json.loads(path.read_text())["val_loss"]
        return math.inf if loss is None else loss

    def study(self, study: Study) -> None:
        """Choose each arm's learning rate, then run the reported seeds, seed by seed.

        In that order whatever is cut off leaves complete pairs.
        """
        searched = {name for name, arm in study.arms.items() if study.rates and "lr" not in arm}
        rates = {name: {"lr": rate} for name, rate in self._choose(study, searched).items()}
        missing = searched - rates.keys()
        if missing and not self.dry:
            return
        self.run(
            {**study.common, **study.reporting, **arm, **rates.get(name, {}), "seed": seed}
            for seed in study.seeds
            for name, arm in study.arms.items()
            if name not in missing
        )

    def _choose(self, study: Study, searched: set[str]) -> dict[str, float]:
        """The rate of each arm that is searched, from the mean loss over the search's seeds."""
        chosen = {}
        for name, arm in study.arms.items():
            if name not in searched:
                continue
            tried = self._search(study, arm, study.rates)
            if tried is None:
                continue
            means = {lr: mean(losses) for lr, losses in tried.items()}
            points = means
            if math.isfinite(study.cliff):
                points = {lr: means[lr] for lr in before_cliff(tried, study.cliff)}
            best = min(means, key=means.__getitem__)
            if study.vertex and len(points) >= 3:
                best = float(f"{basin(points).lr:.3g}")
            chosen[name] = best
            shown = ", ".join(
                f"{lr:g}: {loss:.4f}" + ("" if lr in points else " no point")
                for lr, loss in sorted(means.items())
            )
            print(f"{name}: lr {best:g} ({shown})", flush=True)
        return chosen

    def _search(
        self, study: Study, arm: Options, rates: tuple[float, ...]
    ) -> dict[float, list[float]] | None:
        """Losses by rate, one per seed; while an edge of their means wins, one rate more outward.

        None where a run is missing.
        """
        tried: dict[float, list[float]] = {}
        step = study.rates[1] / study.rates[0]
        for _ in range(EXTENSIONS + 1):
            cells = [
                {**study.common, **study.searching, **arm, "lr": rate, "seed": seed}
                for rate in rates
                for seed in study.rate_seeds
            ]
            results = [loss for loss in self.run(cells) if loss is not None]
            if len(results) < len(cells):
                return None
            per = len(study.rate_seeds)
            tried |= {lr: results[i * per : (i + 1) * per] for i, lr in enumerate(rates)}
            best = min(tried, key=lambda lr: mean(tried[lr]))
            if best == max(tried):
                rates = (float(f"{best * step:.3g}"),)
            elif best == min(tried):
                rates = (float(f"{best / step:.3g}"),)
            else:
                break
        return tried


def main() -> int:
    """The command line; 3 where a run is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", choices=STUDIES)
    parser.add_argument("--corpus", required=True, help="as `rr train` takes it")
    parser.add_argument("--tokenizer", help="folder of GPT-2's vocab.json and merges.txt, for e6")
    parser.add_argument("--out", required=True, type=Path, help="folder of the runs")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time (default: 1)")
    parser.add_argument("--threads", type=int, default=1, help="of each run (default: 1)")
    parser.add_argument("--dry-run", action="store_true")
    given = parser.parse_args()
    study = STUDIES[given.name]()
    machine = {"threads": given.threads, "path": study.path}
    campaign = Campaign(
        given.corpus, given.tokenizer, given.out, given.jobs, machine, given.dry_run
    )
    campaign.study(study)
    if not given.dry_run:
        print(f"campaign: {campaign.missing} runs missing")
    return 3 if campaign.missing else 0


if __name__ == "__main__":
    sys.exit(main())
