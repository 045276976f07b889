"""Result paragraphs of the READMEs in data/measured, recomputed by pandas and scipy.

Each decimal of such a text must be one that is computed here: what is typed and computed nowhere
fails, and so does a number that the records no longer give.
"""

import itertools
import json
import re
from functools import cache

import numpy as np
import pandas as pd
import pytest
import scipy.stats as st

import rr
from rr.data import baselines
from rrstudy import stats

MEASURED = rr.DATA / "measured"
HALF, LARGE = "constant:lam=0.0,own=0.7071067812", "constant:lam=0.0,own=2.236067977"
BASELINES = ("standard", "constant")
NAMED = ("scales-skips:attnres=1", "rezero:init=paper", "unet", "state-gate",
         "standard + constant", "review", "attnres:block=2", "hyper-connections", "attnres",
         "one wider stream", "hyper-connections:mix=identity", "gated-residual")  # fmt: skip
LINEAR, ROOT = "scaled:init=flat,reference=2", "scaled:init=flat,law=sqrt,reference=2"


@cache
def ends(name: str) -> pd.DataFrame:
    """A row for each budget of each run, with the warm-up of its recipe."""
    rows, table = [], pd.read_parquet(MEASURED / name / "runs.parquet")
    for result, run in zip(table.result.map(json.loads), table.run.map(json.loads), strict=True):
        for budget in result.get("budgets") or [result]:
            rows.append(result | budget | {"warmup": run["run"]["recipe"].get("warmup")})
    return pd.DataFrame(rows)


def reported(name: str, **where) -> pd.DataFrame:
    rows = ends(name)
    rows = rows[rows.seed < 100]
    for key, value in where.items():
        rows = rows[rows[key] == value]
    return rows


def loss(name: str, by: str = "rule", **where) -> pd.DataFrame:
    """Held-out loss, seeds × arms."""
    return reported(name, **where).pivot(index="seed", columns=by, values="val_loss")


@cache
def curves(name: str) -> pd.DataFrame:
    lines = pd.read_parquet(MEASURED / name / "curves.parquet")
    lines = lines[lines.loss.notna() & lines.budget.isna()]
    return lines.merge(ends(name).drop_duplicates("id")[["id", "rule", "seed"]].assign(
        id=lambda rows: rows.id.str.partition("/")[0]), on="id")  # fmt: skip


def window(name: str, first: int, last: int) -> pd.DataFrame:
    """Training loss over some steps (mean of the logged lines), seeds × arms."""
    lines = curves(name)
    lines = lines[(lines.seed < 100) & lines.step.between(first, last)]
    return lines.groupby(["seed", "rule"]).loss.mean().unstack()


def bigram(name: str) -> float:
    return json.loads((MEASURED / name / "baselines.json").read_text())["bigram_nats"]


def warmups(name: str) -> tuple[set, set]:
    """Of the runs that searched for a rate, and of the reported ones."""
    rows = ends(name)
    return set(rows[rows.seed >= 100].warmup), set(rows[rows.seed < 100].warmup)


def minus(text: str) -> str:
    return text.replace("-", "−")


def p_of(x) -> float:
    return st.ttest_1samp(x, 0).pvalue


def undecided(x) -> bool:
    low, high = st.ttest_1samp(x, 0).confidence_interval(0.95)
    return low < 0 < high


def within_a_hundredth(x) -> float:
    """p of both one-sided tests against ±0.01."""
    below = st.ttest_1samp(x, -0.01, alternative="greater").pvalue
    return max(below, st.ttest_1samp(x, 0.01, alternative="less").pvalue)


def mean(x, digits=3) -> str:
    return minus(f"{np.mean(x):+.{digits}f}")


def held(x, digits=3, test=None) -> str:
    """Mean and 95 % t interval."""
    low, high = (test or st.ttest_1samp(x, 0)).confidence_interval(0.95)
    value = np.mean(x) if test is None else x
    return minus(f"{value:+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})")


def joined(x) -> str:
    """The same where p or a remark follows inside the brackets."""
    return held(x)[:-1]


def e1():
    own, first = loss("e1_rates", rung="mini"), loss("mini_arms")
    base = {name: own[name] - own["constant"] for name in own}
    reading = [rows["review"] - rows["state-gate"] for rows in (own, first)]
    ten = pd.concat(reading)
    update = [rows["update-gate"] - rows["state-gate"] for rows in (own, first)]
    # the sentence "accounts for the lead": what is left is less than a fifth of it
    low = st.ttest_1samp(reading[0], 0).confidence_interval(0.95).low
    assert low < 0 < -base["review"].mean() and -low < -base["review"].mean() / 5
    assert len(ten) == 10
    assert reported("e1_rates", rung="mini").val_loss.min() > bigram("mini_arms")
    return [held(base["review"]), held(reading[0]), f"at most {-low:.3f}", joined(update[0]),
            held(base["update-gate"]), held(reading[1]), held(update[1]), held(ten), "±0.01",
            f"p = {within_a_hundredth(ten):.3f}"]  # fmt: skip


def e2():
    steps = (300, 1200, 4800)
    final_loss = {n: loss("e2_training", steps=n) for n in steps}
    assert all(rows.shape == (3, 4) for rows in final_loss.values())
    slopes = {}
    for one, other in itertools.combinations(("review", "standard", "constant", "state-gate"), 2):
        gaps = pd.DataFrame({n: rows[one] - rows[other] for n, rows in final_loss.items()})
        slopes[one, other] = [st.linregress(np.log10(steps), row).slope for row in gaps.to_numpy()]
        assert undecided(slopes[one, other])  # "as have those of all six pairs of arms"
    gaps = {n: rows["review"] - rows["constant"] for n, rows in final_loss.items()}
    beside = {n: rows["review"] - rows["state-gate"] for n, rows in final_loss.items()}
    assert all(undecided(gap) for gap in beside.values())
    train = {span: window("e2_training", *span)
             for span in ((601, 1200), (1201, 2400), (2401, 3400), (3841, 4800))}  # fmt: skip
    early, late = train[601, 1200], train[2401, 3400]
    phrases = [
        *(held(gaps[n]) for n in (300, 1200)),
        joined(gaps[4800]),
        f"p = {p_of(gaps[4800]):.2f}",
        held(beside[4800]),
        mean(early["review"] - early["constant"]),
        held(late["review"] - late["constant"]),
    ]
    for arm in ("review", "state-gate"):
        change = (late[arm] - late["constant"]) - (early[arm] - early["constant"])
        phrases.append(f"{joined(change)}, p = {p_of(change):.3f}")
    phrases += [f"{(part['review'] - part['constant']).std():.3f}" for part in train.values()]
    last_tenth = window("e2_training", 4321, 4800)
    assert (last_tenth.columns == final_loss[4800].columns).all()
    both = [rows.to_numpy().ravel() for rows in (last_tenth, final_loss[4800])]
    phrases.append(f"{np.corrcoef(*both)[0, 1]:.2f}")
    phrases += [minus(f"{np.corrcoef(rows['review'], rows['constant'])[0, 1]:.2f}")
                for rows in final_loss.values()]  # fmt: skip
    assert warmups("e2_training") == ({60}, {240})
    # in the text the mean has its sign in front, its interval behind other words
    slope, interval = held(slopes["review", "constant"]).split(maxsplit=1)
    return [*phrases, slope, interval]


def e2_after():
    phrases = []
    for n in (300, 1200, 4800):
        wide = loss("e2_training", steps=n)["review"]
        bare = loss("e2_after", steps=n)["constant"]
        assert len(wide) == len(bare) == 3
        phrases.append(held(wide - bare))
    sizes = [reported("e2_training", rule="review").params.iloc[0],
             reported("e2_after", rule="constant").params.iloc[0]]  # fmt: skip
    assert abs(sizes[1] / sizes[0] - 0.8) < 0.02  # "a fifth fewer"
    tried = ends("e2_after")
    narrow = tried.rung != "mini"
    assert set(tried[narrow & (tried.seed >= 100)].warmup) == {60}
    assert set(tried[~narrow | (tried.seed < 100)].warmup) == {240}
    tried = tried[(tried.seed == 100) & (tried.steps == 4800)]
    tried = tried.pivot(index="lr", columns="rule", values="val_loss")
    gap = tried["review"] - tried["constant"]
    assert tried["review"].idxmin() == tried["constant"].idxmin() == 2.1e-3 and (gap < 0).all()
    rest = gap.drop(2.1e-3)
    return [*phrases, mean(gap[2.1e-3]), mean(rest.max()), mean(rest.min()), "0.0021"]


def e3():
    big, small = loss("e3_size"), loss("e2_training", steps=1200)
    gaps = [rows["review"] - rows["constant"] for rows in (big, small)]
    test = st.ttest_ind(*gaps, equal_var=False)
    sizes = [reported(name, rule="review").params.iloc[0] / 1e6
             for name in ("e2_training", "e3_size")]  # fmt: skip
    change = held(gaps[0].mean() - gaps[1].mean(), test=test)
    rows = ends("e3_size")
    assert warmups("e3_size") == ({24}, {198})
    assert set(rows[rows.seed >= 100].steps) == {488}
    rate = reported("e3_size").groupby("rule").lr.first()
    parts = [window("e3_size", *span) for span in ((1, 1000), (1001, 2000), (2001, 3178))]
    noise = np.hypot(*(gap.std() for gap in gaps))
    return [
        change[:-1],
        f"p = {test.pvalue:.2f}",
        *(held(gap) for gap in gaps),
        *(mean(gap) for gap in gaps[0]),
        held(big["state-gate"] - big["constant"]),
        *(f"{size:.1f}M" for size in sizes),
        f"{rate['review'] / rate['constant']:.1f} times",
        f"state {rate['state-gate'] / rate['constant']:.1f} times",
        *(held(part["review"] - part["constant"]) for part in parts),
        held(parts[-1]["state-gate"] - parts[-1]["constant"]),
        f"{stats.detectable_gap(3, noise):.2f} nats",
    ]


def e4():
    def at(window_, n, arm, base):
        rows = loss("e4_values", "values", batch=512 // window_, steps=n)
        return rows[arm] - rows[base]

    lead = [at(w, 4800, "constant", LARGE) for w in (64, 256)]
    plain = [at(w, 4800, "constant", "own") for w in (64, 256)]
    failed = [at(w, 4800, "identity", HALF) for w in (64, 256)]
    of_size = {"identity": HALF, "constant": LARGE, "svformer": "own", "neutreno": "own",
               HALF: "own", LARGE: "own"}  # fmt: skip
    p = {(w, arm): p_of(at(w, 4800, arm, base))
         for w in (64, 256) for arm, base in of_size.items()}  # fmt: skip
    order, holm, worst = sorted(p, key=p.get), {}, 0.0
    for place, key in enumerate(order):  # Holm, by hand
        worst = max(worst, min(1.0, (len(order) - place) * p[key]))
        holm[key] = worst
    assert [key for key, value in holm.items() if value < 0.05] == [(64, "constant")]
    average, interval = held(lead[1])[:-1].split(" (")
    phrases = [*(held(x) for x in failed), held(lead[0]), average, interval,
               f"corrected p {holm[256, 'constant']:.2f}", *(held(x) for x in plain),
               f"{bigram('e4_values'):.2f}"]  # fmt: skip
    phrases += [mean(at(w, n, "svformer", "own")) for w in (64, 256) for n in (1200, 4800)]
    for n in (300, 1200, 4800):
        rows = reported("e4_values", steps=n).val_loss
        phrases.append(f"{rows.min():.2f} to {rows.max():.2f}")
    assert warmups("e4_values") == ({60}, {240})
    above, looks = [], pd.read_json(MEASURED / "e4_values" / "looks.json").set_index("id")
    for w in (64, 256):
        even = np.array([sum(1 / i for i in range(j, w + 1)) for j in range(1, w + 1)]) / w
        mine = reported("e4_values", steps=4800, batch=512 // w)
        mine = mine.assign(run=mine.id.str.partition("/")[0]).set_index("run").sort_values("seed")
        by = {
            values: pd.DataFrame({row.seed: looks.entropy[run] for run, row in part.iterrows()})
            for values, part in mine.groupby("values")
        }  # blocks × seeds
        null = st.entropy(even)
        above += [*(by["own"].mean(axis=1) - null)]
        assert (by["constant"].mean() > by["own"].mean()).all()  # "raises it in every seed"
    below = [x for x in above if x < 0]
    assert len(below) == 1 and len(above) == 16
    # "by up to 0.03 nats in the search": chapter 5 computes it, as `missed_most`
    return [*phrases, f"by {-below[0]:.3f}", "0.03 nats in the search"]


def e5():
    rows = reported("e5_loops")
    tokens = rr.open_corpus("fables", log=lambda line: None)
    assert rows.val_loss.max() < baselines(tokens)["bigram_nats"]
    rows = rows[rows.rung.str.contains("n_layer=2,")]
    at_lowest, averaged, at_own = [], [], []
    for n in (2, 4, 8):
        part = rows[rows.loops == n].pivot_table("val_loss", "seed", ["rule", "lr"])
        assert part[LINEAR].shape == part[ROOT].shape == (3, 5)
        best = [part[law][part[law].mean().idxmin()] for law in (LINEAR, ROOT)]
        at_lowest.append(best[0] - best[1])
        averaged.append((part[LINEAR] - part[ROOT]).mean(axis=1))
        at_own.append(part[LINEAR].min(axis=1) - part[ROOT].min(axis=1))
    assert not any((x < 0).all() for x in at_lowest) and (averaged[2] < 0).all()
    assert (at_lowest[2] < 0).sum() == 2
    return [*(held(x, 4) for x in (*at_lowest, averaged[0], averaged[1])),
            f"{held(averaged[2], 4)[:-1]}, p = {p_of(averaged[2]):.3f}",
            *(held(x, 4) for x in at_own[1:]),
            f"{at_lowest[2].max():.5f} in one",
            # the spans of best rates and their bootstrap: test_known and chapter 6 have them
            "0.3 doublings", "0.9 under", "−0.6 (−1.5 to −0.1)"]  # fmt: skip


def mini():
    rows = loss("mini_arms")
    return [held(rows[arm] - rows["constant"]) for arm in ("review", "update-gate")]


def f1():
    rows = loss("f1_pairs")
    assert rows.shape == (20, 4) and set(ends("f1_pairs").status) == {"finished"}
    reading = rows["review"] - rows["state-gate"]
    pairs = [("state-gate", "constant"), ("review", "constant"), ("update-gate", "constant"),
             ("update-gate", "state-gate")]  # fmt: skip
    p = stats.holm([st.ttest_rel(rows[arm], rows[base]).pvalue for arm, base in pairs])
    assert [value <= 0.05 for value in p] == [True, True, False, True]
    assert (reading > 0).sum() == 17  # "in 17 of the 20 seeds"
    return [held(reading), "±0.01", f"p = {within_a_hundredth(reading):.2f}",
            f"p = {p_of(reading):.5f}",
            *(held(rows[arm] - rows[base]) for arm, base in pairs)]  # fmt: skip


def f4():
    rows, under_adamw = loss("f4_muon"), loss("f1_pairs")
    assert rows.shape == (8, 3) and len(ends("f4_muon")) == 24 + 23
    lead = rows["review"] - rows["constant"]
    beside = rows["review"] - rows["state-gate"]
    p = stats.holm([p_of(x) for x in (lead, beside)])
    assert p[0] < 0.05 < p[1] and lead.mean() > 0
    more = (under_adamw.mean() - rows.mean()).dropna()
    return [held(lead), held(beside), held(rows["state-gate"] - rows["constant"]),
            f"{more.min():.2f} to {more.max():.2f} higher"]  # fmt: skip


def at_shared_rates() -> pd.DataFrame:
    """G3: review − state-gate, seeds × rates."""
    table = reported("g3_rates").pivot_table("val_loss", "seed", ["rule", "lr"])
    assert table.shape == (10, 6) and set(reported("g3_rates").status) == {"finished"}
    return table["review"] - table["state-gate"]


def g2():
    table = armed("g2_muon", precision="bf16")
    assert table.shape == (8, 6) and set(reported("g2_muon").status) == {"finished"}
    own = f"standard + {LARGE}"
    first = [("state-gate", "constant"), ("state-gate", "standard"), ("unet", "standard"),
             ("standard + constant", "standard"), ("standard + constant", own)]  # fmt: skip
    primary = [table[arm] - table[base] for arm, base in first]
    holm = stats.holm([p_of(x) for x in primary])
    later = [("standard + constant", "constant"), ("unet", "constant"), (own, "standard")]
    assert [p < 0.05 for p in holm] == [True, False, True, True, True]
    return [*(f"{held(x)}, p {small(p)}" for x, p in zip(primary, holm, strict=True)),
            held(table["constant"] - table["standard"]),
            *(held(table[arm] - table[base]) for arm, base in later)]  # fmt: skip


def small(p: float) -> str:
    """A p-value in words; from a thousandth down only that it is below one."""
    return f"= {p:.3f}" if p >= 0.001 else "< 0.001"


def g3():
    gap = at_shared_rates()
    primary = gap.mean(axis=1)
    holm = stats.holm([p_of(gap[rate]) for rate in gap])
    return [held(primary), f"p = {p_of(primary):.3f}", "±0.01",
            f"p = {within_a_hundredth(primary):.3f}", *(held(gap[rate]) for rate in gap),
            *(f"{value:.3f}" for value in holm), held(gap[2.1e-3] - gap[1.06e-3])]  # fmt: skip


def g4():
    table = armed("g4_skips", precision="fp32")
    assert table.shape == (5, 8) and set(reported("g4_skips").status) == {"finished"}
    first = [("unet", "unet:adds=own"), ("standard + constant", f"standard + {LARGE}"),
             ("scales-skips:attnres=1", "scales-skips"), ("scales-skips", "unet")]  # fmt: skip
    primary = [table[arm] - table[base] for arm, base in first]
    second = [table[arm] - table[base] for base in BASELINES for arm in table
              if arm not in BASELINES]  # fmt: skip
    holm = stats.holm([p_of(x) for x in primary])
    return [*(f"{held(x)}, p = {p:.3f}" for x, p in zip(primary, holm, strict=True)),
            *(held(x) for x in second), held(table["constant"] - table["standard"])]  # fmt: skip


def g5():
    rows = loss("g5_norms")
    assert rows.shape == (5, 6) and set(reported("g5_norms").precision) == {"fp32"}
    gaps = {arm: rows[arm] - rows["standard"] for arm in rows if arm != "standard"}
    holm = dict(zip(gaps, stats.holm([p_of(x) for x in gaps.values()]), strict=True))
    depth = holm.pop("norm-place:place=depth")
    assert all(p < 0.05 and gaps[arm].min() > 0 for arm, p in holm.items()) and depth > 0.05
    return [held(x) for x in gaps.values()]


def f3():
    rows, phrases = reported("f3_loops"), []
    rows = rows[rows.lr <= 8e-3]  # the five planned rates
    assert len(rows) == 120
    for corpus_, digits, exact in (("fables", 4, 3), (None, 3, 4)):
        part = rows[(rows.corpus == "fables") == (corpus_ == "fables")]
        table = part.pivot_table("val_loss", "seed", ["rule", "lr"])
        assert table.shape == (6, 10)
        gap = (table[LINEAR] - table[ROOT]).mean(axis=1)
        assert (gap < 0).all()
        phrases += [held(gap, digits), f"p = {p_of(gap):.{exact}f}"]
    return phrases


def armed(name: str, precision: str) -> pd.DataFrame:
    """Losses, seeds × arms; with values of its own or a wider stream a network is another arm."""
    rows = reported(name)
    arm = rows.rule.where(rows["values"] == "own", "standard + " + rows["values"])
    rows = rows.assign(arm=arm.where(~rows.rung.str.contains("d_model"), "one wider stream"))
    table = rows.pivot(index="seed", columns="arm", values="val_loss")
    assert table.notna().all(axis=None) and set(rows.precision) == {precision}
    return table


@cache
def field() -> tuple[pd.DataFrame, dict]:
    """F2: losses, seeds × arms; whether each arm − baseline survives Holm over all of them."""
    table = armed("f2_field", precision="bf16")
    assert table.shape == (5, 22)
    return table, {pair: value < 0.05 for pair, value in family(table).items()}


def family(table: pd.DataFrame) -> dict[tuple[str, str], float]:
    """Holm's p of each arm − standard and − constant ½."""
    pairs = [(arm, base) for base in BASELINES for arm in table if arm != base]
    pairs.remove(BASELINES)
    p = stats.holm([st.ttest_rel(table[arm], table[base]).pvalue for arm, base in pairs])
    return dict(zip(pairs, p, strict=True))


def surviving(sign: int) -> dict[str, list[str]]:
    """Arms that survive on one side, by how many baselines, in the order of their losses."""
    table, sure = field()
    by: dict[int, list[str]] = {1: [], 2: []}
    for arm in table.mean().sort_values().index:
        beaten = [base for base in BASELINES if sure.get((arm, base))
                  and (table[arm] - table[base]).mean() * sign > 0]  # fmt: skip
        if beaten:
            by[len(beaten)].append(f"`{arm}`")
    return {"one": by[1], "both": by[2]}


def f2():
    table, sure = field()
    phrases = [f"{len(sure)} comparisons"]
    for side, sign in (("lower", -1), ("higher", 1)):
        for count, arms in surviving(sign).items():
            phrases.append(f"{side} than {count}: {', '.join(arms) or 'none'}")
    phrases += [f"`{arm}` {held(table[arm] - table['standard'])}" for arm in NAMED]
    phrases += ["more than 0.1 above"]  # the fourth plan's words, not a result
    phrases += [f"`{arm}` {misfit(**of):.3f}" for arm, of in MISFITS.items()]
    first = table.copy()
    for run in pd.read_parquet(MEASURED / "f2_field" / "replaced_runs.parquet").itertuples():
        assert run.precision == "fp32" and abs(first.loc[run.seed, run.rule] - run.val_loss) < 0.01
        first.loc[run.seed, run.rule] = run.val_loss
    p = {name: family(rows) for name, rows in (("first", first), ("now", table))}
    counts = {name: sum(value < 0.05 for value in values.values()) for name, values in p.items()}
    assert p["now"].keys() == sure.keys()
    streams = [p[name]["hyper-connections", "standard"] for name in ("first", "now")]
    return [*phrases, f"With them {counts['first']} of the {len(sure)} comparisons survive, "
            f"with the present ones {counts['now']}:",
            "from " + " to ".join(f"p = {value:.3f}" for value in streams)]  # fmt: skip


def g1():
    again, (first, _) = armed("g1_misfits", precision="bf16"), field()
    assert list(again.index) == list(first.index) and set(again) == set(MISFITS)
    for arm, row in MISFITS.items():  # the best rate that F2's search tried
        where = {key: value for key, value in row.items() if key not in ("lr", "best")}
        assert set(reported("g1_misfits", **where).lr) == {row["best"]}, arm
    gaps = {(arm, base): again[arm] - first[base] for arm in again for base in BASELINES}
    p = dict(zip(gaps, stats.holm([p_of(x) for x in gaps.values()]), strict=True))
    sure = [f"`{arm}` − {base}" for (arm, base), value in p.items() if value < 0.05]
    machine = pd.read_parquet(MEASURED / "g1_misfits" / "machine_runs.parquet")
    apart = machine.set_index("seed").val_loss.sort_index() - first["standard"]
    assert set(machine.precision) == {"bf16"} and len(apart.dropna()) == 5
    return [f"{len(p)} comparisons", f"survive: {', '.join(sure) or 'none'}",
            *(held(x) for x in gaps.values()), *(held(again[arm] - first[arm]) for arm in again),
            held(first["hyper-connections"] - again["one wider stream"]),
            held(apart), f"at most {apart.abs().max():.4f}"]  # fmt: skip


# F2's arms whose search holds a run that blew up: how the arm is found, its rate and its best one
MISFITS = {
    "scaled": {"rule": "scaled", "lr": 1.31e-3, "best": 2.1e-3},
    "orthogonal": {"rule": "orthogonal", "lr": 1.08e-3, "best": 1.5e-3},
    "one wider stream": {"rung": "mini:d_model=216,d_ff=898", "lr": 1.26e-3, "best": 2.1e-3},
    "standard + constant": {"values": "constant", "lr": 1.46e-3, "best": 2.1e-3},
}


def misfit(lr: float, best: float, **arm: str) -> float:
    """The search's loss at `lr`, on the line between its neighbours, less that at the best rate."""
    rows = ends("f2_field")
    for key, value in arm.items():
        rows = rows[rows[key] == value]
    assert set(rows[rows.seed < 100].lr) == {lr}
    search = rows[rows.seed == 100].set_index("lr").val_loss.sort_index()
    assert search.idxmin() == best and search.diff().max() > 0.1
    below, above = search.index[search.index < lr].max(), search.index[search.index > lr].min()
    share = np.log(lr / below) / np.log(above / below)
    return (1 - share) * search[below] + share * search[above] - search[best]


def gpu():
    rows = json.loads((MEASURED / "gpu_h200" / "steps.json").read_text())["rows"]
    by = {(row["rung"], row["rule"], row["precision"]): row for row in rows}
    # void: a compiled Review step had no backward pass
    assert {row["rule"] for row in rows} == {"standard", "highway", "constant"}
    phrases = []
    for size, round_to in (("60M", -3), ("320M", -3), ("1B", -2)):
        row = by[size, "standard", "bf16"]
        assert row["step_ms_median"] == np.median(row["step_ms"])
        speed = row["tokens_per_step"] / row["step_ms_median"] * 1000
        mfu = speed * row["flops_per_token"] / 989e12
        assert (speed, mfu) == pytest.approx((row["tokens_per_second"], row["mfu"]))
        phrases += [f"{row['step_ms_median']:.1f} ms", f"{round(speed, round_to):,.0f}",
                    f"{100 * mfu:.0f} %"]  # fmt: skip
        assert 2 < by[size, "standard", "tf32"]["step_ms_median"] / row["step_ms_median"] < 2.3
    over = [row["predicted_bytes"] / row["peak_bytes"] for row in rows]
    return [*phrases, f"between {min(over):.2f} and {max(over):.2f}"]


def checked():
    """The second session on an H200: gradients, resuming, and a step of Review at 320M."""
    folder = MEASURED / "gpu_check"
    gradients, steps = (json.loads((folder / f"{name}.json").read_text())
                        for name in ("gradients", "steps"))  # fmt: skip
    resume = json.loads((folder / "resume.json").read_text())
    rows = gradients["rows"]
    assert len({(row["rule"], row["values"]) for row in rows}) == 37 == len(rows)
    worst = max(row[way] for row in rows for way in ("compiled", "uncompiled"))
    assert all(row["right"] for row in rows) and worst < gradients["tolerance"]
    assert resume["same_bits"] and resume["killed"] == -9 and resume["codes"] == [0, 0]
    by = {(row["rung"], row["rule"]): row for row in (*steps["rows"], *steps["launch_bound"])}
    assert len(by) == 6 and {row["rung"] for row in steps["rows"]} == {"320M"}
    (over,) = steps["over_the_standard"]
    longer = {rung: np.divide(by[rung, "review"]["step_ms"], by[rung, "standard"]["step_ms"])
              for rung in ("320M", "60M", "150M")}  # fmt: skip
    assert np.median(longer["320M"]) == pytest.approx(over["time"])
    times = [f"{np.median(x):.2f}{{}} ({min(x):.2f} to {max(x):.2f})" for x in longer.values()]
    peak = {at: row["predicted_bytes"] / row["peak_bytes"] for at, row in by.items()}
    spans = [[peak[at] for at in peak if at[1] == rule] for rule in ("standard", "review")]
    return [f"all {len(rows)}", f"by at most {worst:.0e}".replace("e-06", "e-6"),
            *(f"{by['320M', rule]['step_ms_median']:.1f} ms" for rule in ("standard", "review")),
            times[0].format(" times"),
            f"{over['memory']:.2f} times the memory",
            *(f"{min(span):.2f} to {max(span):.2f}" for span in spans),
            *(f"{by[rung, rule]['step_ms_median']:.1f}" for rung in ("60M", "150M")
              for rule in ("standard", "review")),
            *(time.format("") for time in times[1:])]  # fmt: skip


def pairs():
    """One block of four: differences without an interval."""
    budgets = ends("gpu_pairs")
    end = budgets.set_index(["seed", "rule", "steps"]).val_loss
    assert len(end) == 12 and set(budgets.status) == {"finished"}
    assert {seed for seed, rule, _ in end.index if rule == "state-gate"} == {20}
    return [minus(f"{end[20, 'state-gate', steps] - end[20, base, steps]:+.3f}")
            for base in ("constant", "standard") for steps in (450, 900, 1800)]  # fmt: skip


def test_the_readme_says_what_an_h200_measured():
    text = " ".join((rr.DATA.parent / "README.md").read_text(encoding="utf-8").split())
    *steps, _ = gpu()
    said = text.partition("On one H200")[2].partition("Review's compiled step was void")[0]
    for phrase in steps:
        assert phrase in said, phrase
        said = said.replace(phrase, "", 1)
    assert set(re.findall(r"\d+", said)) == {"16", "64", "60", "320", "1"}, said
    time, span = next(x for x in checked() if "times (" in x).split(" times (")
    assert (
        f"took {time} times as long as a standard one (median of three repeats, {span[:-1]};"
        in text
    )
    table = armed("g2_muon", precision="bf16")
    gap = (table["standard + constant"] - table["standard"]).mean()
    assert (
        f"the perplexity of the third is {100 * -np.expm1(gap):.0f} % lower than the standard"
        in text
    )


COMPUTED = {"f1_pairs": f1, "f2_field": f2, "f3_loops": f3, "f4_muon": f4, "g1_misfits": g1,
            "g2_muon": g2, "g3_rates": g3, "g4_skips": g4, "g5_norms": g5, "e1_rates": e1,
            "e2_training": e2, "e2_after": e2_after, "e3_size": e3, "e4_values": e4, "e5_loops": e5,
            "mini_arms": mini, "gpu_h200": gpu, "gpu_check": checked,
            "gpu_pairs": pairs}  # fmt: skip


@pytest.mark.parametrize(("name", "computed"), COMPUTED.items(), ids=[*COMPUTED])
def test_every_number_of_a_result_is_computed_from_the_records(name, computed):
    text = " ".join((MEASURED / name / "README.md").read_text(encoding="utf-8").split())
    text = text.partition("**Result.**")[2]
    text = re.split(
        r"Origin|All \d+|The runs at|Rates: constant|`baselines.json`|One run of", text
    )[0]
    for phrase in sorted(computed(), key=len, reverse=True):
        assert phrase in text, phrase
        text = text.replace(phrase, "")
    assert not re.findall(r"\d\.\d+", text), text


def test_the_readme_says_which_nets_finish_below_a_bigram_table():
    """README.md, the pages, E1 to E5: which lengths of run finish on which side."""
    text = " ".join((rr.DATA.parent / "README.md").read_text(encoding="utf-8").split())
    short = "no run of 150 to 300 steps under AdamW reaches a lower loss than a bigram table"
    assert short in text
    long = "the reported ones under Muon do, and so do those of 4,800 steps and most of 1,200"
    assert long in text
    page = (rr.DATA.parent / "book" / "what_we_know.md").read_text(encoding="utf-8")
    assert "runs of 300 and 1,200 steps finish above a" in " ".join(page.split())
    sides: dict[int, set[bool]] = {}
    for name in ("mini_arms", "e4_values", "02_gate_equation"):
        for steps, losses in reported(name, corpus="tinystories").groupby("steps").val_loss:
            sides.setdefault(steps, set()).update(losses < bigram(name))
    assert sides == {150: {False}, 300: {False}, 1200: {True}, 4800: {True}}
    for name in ("f4_muon", "g2_muon"):
        assert (reported(name).val_loss < bigram("mini_arms")).all()
    for name in ("f1_pairs", "f2_field"):
        assert (reported(name).val_loss > bigram("mini_arms")).all()
    loops = reported("f3_loops", corpus="tinystories")
    below = loops.val_loss < bigram("e4_values")  # of the same text and tokens
    assert below[~loops.rule.str.contains("law=sqrt")].all() and 0.5 < below.mean() < 1
    # technical documentation: Review's 300 and 1,200 steps above, 4,800 and E3 below
    floor = bigram("e2_training")
    by = reported("e2_training").groupby("steps").val_loss.agg(["min", "max"])
    assert by["min"][300] > floor and by["min"][1200] > floor > by["max"][4800]
    assert reported("e3_size").val_loss.max() < floor


def test_what_the_pages_say_of_the_field():
    """README.md, *Which rule should I use?*, *What we know*, *What failed*, chapters 4, 5 and 7."""
    table, sure = field()
    gap = {arm: table[arm] - table["standard"] for arm in table}
    interval = {arm: st.ttest_1samp(gap[arm], 0).confidence_interval() for arm in gap}
    assert table.mean().idxmin() == "scales-skips:attnres=1"
    for arm in ("unet", "state-gate", "review", "standard + constant"):
        assert interval[arm].high < 0 and sure[arm, "standard"]
    for arm in ("constant", "one wider stream", "hyper-connections:mix=identity"):
        assert interval[arm].low < 0 < interval[arm].high
    for arm in ("attnres", "standard + identity"):
        assert -0.03 < gap[arm].mean() < 0 and not sure[arm, "standard"]
    for arm in ("layerscale", "scaled", "gated-residual", "orthogonal"):
        assert gap[arm].mean() > 0.02
    assert not any(sure["hyper-connections", base] for base in BASELINES)
    assert gap["attnres:block=2"].mean() < gap["attnres"].mean() < 0
