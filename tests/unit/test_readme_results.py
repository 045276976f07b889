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
from rr import stats
from rr.data import corpus

MEASURED = rr.DATA / "measured"
HALF, LARGE = "constant:lam=0.0,own=0.7071067812", "constant:lam=0.0,own=2.236067977"
BASELINES = ("standard", "constant")
TOLD = ("scales-skips:attnres=1", "rezero:init=paper", "unet", "state-gate",
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


def minus(text: str) -> str:
    return text.replace("-", "−")


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
    both = max(st.ttest_1samp(ten + 0.01, 0, alternative="greater").pvalue,
               st.ttest_1samp(ten - 0.01, 0, alternative="less").pvalue)  # fmt: skip
    # the sentence "accounts for the lead": what is left is less than a fifth of it
    low = st.ttest_1samp(reading[0], 0).confidence_interval(0.95).low
    assert low < 0 < -base["review"].mean() and -low < -base["review"].mean() / 5
    assert len(ten) == 10
    bigram = json.loads((MEASURED / "mini_arms" / "baselines.json").read_text())["bigram_nats"]
    assert reported("e1_rates", rung="mini").val_loss.min() > bigram
    return [held(base["review"]), held(reading[0]), f"at most {-low:.3f}", joined(update[0]),
            held(base["update-gate"]), held(reading[1]), held(update[1]), held(ten), "±0.01",
            f"p = {both:.3f}"]  # fmt: skip


def e2():
    steps, gaps = (300, 1200, 4800), {}
    for n in steps:
        rows = loss("e2_training", steps=n)
        gaps[n] = rows["review"] - rows["constant"]
        beside = rows["review"] - rows["state-gate"]
        low, high = st.ttest_1samp(beside, 0).confidence_interval(0.95)
        assert low < 0 < high and rows.shape == (3, 4)
    logs = np.log10(steps)
    slopes = [st.linregress(logs, row).slope for row in pd.DataFrame(gaps).to_numpy()]
    pairs = itertools.combinations(("standard", "constant", "state-gate", "review"), 2)
    for one, other in pairs:  # "as have those of all six pairs of arms"
        each = pd.concat([loss("e2_training", steps=n)[one] - loss("e2_training", steps=n)[other]
                          for n in steps], axis=1)  # fmt: skip
        all_slopes = [st.linregress(logs, row).slope for row in each.to_numpy()]
        low, high = st.ttest_1samp(all_slopes, 0).confidence_interval(0.95)
        assert low < 0 < high
    train = {span: window("e2_training", *span)
             for span in ((601, 1200), (1201, 2400), (2401, 3400), (3841, 4800))}  # fmt: skip
    early, late = train[601, 1200], train[2401, 3400]
    said = [
        *(held(gaps[n]) for n in (300, 1200)),
        joined(gaps[4800]),
        f"p = {st.ttest_1samp(gaps[4800], 0).pvalue:.2f}",
        held(beside),
        mean(early["review"] - early["constant"]),
        held(late["review"] - late["constant"]),
    ]
    for arm in ("review", "state-gate"):
        change = (late[arm] - late["constant"]) - (early[arm] - early["constant"])
        said.append(f"{joined(change)}, p = {st.ttest_1samp(change, 0).pvalue:.3f}")
    said += [f"{(part['review'] - part['constant']).std():.3f}" for part in train.values()]
    last = loss("e2_training", steps=4800)
    assert (train[3841, 4800].columns == last.columns).all()
    final = window("e2_training", 4321, 4800)  # the last tenth
    said.append(f"{np.corrcoef(final.to_numpy().ravel(), last.to_numpy().ravel())[0, 1]:.2f}")
    said += [minus(f"{np.corrcoef(rows['review'], rows['constant'])[0, 1]:.2f}")
             for rows in (loss("e2_training", steps=n) for n in steps)]  # fmt: skip
    warm = ends("e2_training").groupby(ends("e2_training").seed >= 100).warmup.unique()
    assert list(warm[True]) == [60] and list(warm[False]) == [240]
    # said with its sign in front, its interval behind other words
    return [*said, mean(slopes), minus("({:+.3f} to {:+.3f})".format(
        *st.ttest_1samp(slopes, 0).confidence_interval(0.95)))]  # fmt: skip


def e2_after():
    wide, said = None, []
    for n in (300, 1200, 4800):
        wide = loss("e2_training", steps=n)["review"]
        bare = loss("e2_after", steps=n)["constant"]
        assert len(wide) == len(bare) == 3
        said.append(held(wide - bare))
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
    return [*said, mean(gap[2.1e-3]), mean(rest.max()), mean(rest.min()), "0.0021"]


def e3():
    big, small = loss("e3_size"), loss("e2_training", steps=1200)
    gaps = [rows["review"] - rows["constant"] for rows in (big, small)]
    test = st.ttest_ind(*gaps, equal_var=False)
    sizes = [reported(name, rule="review").params.iloc[0] / 1e6
             for name in ("e2_training", "e3_size")]  # fmt: skip
    change = held(gaps[0].mean() - gaps[1].mean(), test=test)
    rows = ends("e3_size")
    assert set(rows[rows.seed >= 100].warmup) == {24} and set(rows[rows.seed < 100].warmup) == {198}
    assert set(rows[rows.seed >= 100].steps) == {488}
    rate = reported("e3_size").groupby("rule").lr.first()
    said = [
        change[:-1],
        f"p = {test.pvalue:.2f}",
        *(held(gap) for gap in gaps),
        *(mean(gap) for gap in gaps[0]),
        held(big["state-gate"] - big["constant"]),
        *(f"{size:.1f}M" for size in sizes),
        *(f"{rate[arm] / rate['constant']:.1f} times" for arm in ("review",)),
        f"state {rate['state-gate'] / rate['constant']:.1f} times",
    ]
    for span in ((1, 1000), (1001, 2000), (2001, 3178)):
        part = window("e3_size", *span)
        said.append(held(part["review"] - part["constant"]))
    said.append(held(part["state-gate"] - part["constant"]))
    noise = np.hypot(*(gap.std() for gap in gaps))
    find = stats.detectable_gap(3, noise)
    return [*said, f"{find:.2f} nats"]


def e4():
    def at(window_, n, arm, base):
        rows = loss("e4_values", "values", batch=512 // window_, steps=n)
        return rows[arm] - rows[base]

    lead = [at(w, 4800, "constant", LARGE) for w in (64, 256)]
    plain = [at(w, 4800, "constant", "own") for w in (64, 256)]
    failed = [at(w, 4800, "identity", HALF) for w in (64, 256)]
    of_size = {"identity": HALF, "constant": LARGE, "svformer": "own", "neutreno": "own",
               HALF: "own", LARGE: "own"}  # fmt: skip
    p = {(w, arm): st.ttest_1samp(at(w, 4800, arm, base), 0).pvalue
         for w in (64, 256) for arm, base in of_size.items()}  # fmt: skip
    order, holm, worst = sorted(p, key=p.get), {}, 0.0
    for place, key in enumerate(order):  # Holm, by hand
        worst = max(worst, min(1.0, (len(order) - place) * p[key]))
        holm[key] = worst
    assert [key for key, value in holm.items() if value < 0.05] == [(64, "constant")]
    low, high = st.ttest_1samp(lead[1], 0).confidence_interval(0.95)
    said = [*(held(x) for x in failed), held(lead[0]), mean(lead[1]),
            minus(f"{low:+.3f} to {high:+.3f}"), f"corrected p {holm[256, 'constant']:.2f}",
            *(held(x) for x in plain)]  # fmt: skip
    said += [mean(at(w, n, "svformer", "own")) for w in (64, 256) for n in (1200, 4800)]
    bigram = json.loads((MEASURED / "e4_values" / "baselines.json").read_text())["bigram_nats"]
    said.append(f"{bigram:.2f}")
    for n in (300, 1200, 4800):
        rows = reported("e4_values", steps=n).val_loss
        assert rows.min() > bigram if n == 300 else rows.max() < bigram
        said.append(f"{rows.min():.2f} to {rows.max():.2f}")
    rows = ends("e4_values")
    assert set(rows[rows.seed >= 100].warmup) == {60}
    assert set(rows[rows.seed < 100].warmup) == {240}
    above, looks = [], pd.read_json(MEASURED / "e4_values" / "looks.json").set_index("id")
    for w in (64, 256):
        even = np.array([sum(1 / i for i in range(j, w + 1)) for j in range(1, w + 1)]) / w
        mine = reported("e4_values", steps=4800, batch=512 // w)
        mine = mine.assign(run=mine.id.str.partition("/")[0]).set_index("run")
        by = {
            values: pd.DataFrame({row.seed: looks.entropy[run] for run, row in part.iterrows()})[
                [0, 1, 2]
            ]
            for values, part in mine.groupby("values")
        }  # blocks × seeds
        null = st.entropy(even)
        above += [*(by["own"].mean(axis=1) - null)]
        assert (by["constant"].mean() > by["own"].mean()).all()  # "raises it in every seed"
    below = [x for x in above if x < 0]
    assert len(below) == 1 and len(above) == 16
    # "by up to 0.03 nats in the search": chapter 5 computes it, as `missed_most`
    return [*said, f"by {-below[0]:.3f}", "0.03 nats in the search"]


def e5():
    rows = reported("e5_loops")
    assert rows.val_loss.max() < corpus.baselines(
        rr.open_corpus("fables", log=lambda line: None))["bigram_nats"]  # fmt: skip
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
    p = st.ttest_1samp(averaged[2], 0).pvalue
    return [*(held(x, 4) for x in (*at_lowest, averaged[0], averaged[1])),
            f"{held(averaged[2], 4)[:-1]}, p = {p:.3f}", *(held(x, 4) for x in at_own[1:]),
            f"{at_lowest[2].max():.5f} in one",
            # the spans of best rates and their bootstrap: test_known and chapter 6 have them
            "0.3 doublings", "0.9 under", "−0.6 (−1.5 to −0.1)"]  # fmt: skip


def mini():
    rows = loss("mini_arms")
    bigram = json.loads((MEASURED / "mini_arms" / "baselines.json").read_text())["bigram_nats"]
    assert rows.min(axis=None) > bigram
    return [held(rows[arm] - rows["constant"]) for arm in ("review", "update-gate")]


def f1():
    rows = loss("f1_pairs")
    assert rows.shape == (20, 4) and set(ends("f1_pairs").status) == {"finished"}
    reading = rows["review"] - rows["state-gate"]
    both = max(st.ttest_1samp(reading + 0.01, 0, alternative="greater").pvalue,
               st.ttest_1samp(reading - 0.01, 0, alternative="less").pvalue)  # fmt: skip
    pairs = [("state-gate", "constant"), ("review", "constant"), ("update-gate", "constant"),
             ("update-gate", "state-gate")]  # fmt: skip
    p = stats.holm([st.ttest_rel(rows[arm], rows[base]).pvalue for arm, base in pairs])
    assert [value <= 0.05 for value in p] == [True, True, False, True]
    assert (reading > 0).sum() == 17  # "in 17 of the 20 seeds"
    two_sided = st.ttest_1samp(reading, 0).pvalue
    return [held(reading), "±0.01", f"p = {both:.2f}", f"p = {two_sided:.5f}",
            *(held(rows[arm] - rows[base]) for arm, base in pairs)]  # fmt: skip


def f4():
    rows, under_adamw = loss("f4_muon"), loss("f1_pairs")
    assert rows.shape == (8, 3) and len(ends("f4_muon")) == 24 + 23
    lead = rows["review"] - rows["constant"]
    beside = rows["review"] - rows["state-gate"]
    p = stats.holm([st.ttest_1samp(x, 0).pvalue for x in (lead, beside)])
    assert p[0] < 0.05 < p[1] and lead.mean() > 0
    more = (under_adamw.mean() - rows.mean()).dropna()
    return [held(lead), held(beside), held(rows["state-gate"] - rows["constant"]),
            f"{more.min():.2f} to {more.max():.2f} higher"]  # fmt: skip


def f3():
    rows, told = reported("f3_loops"), []
    rows = rows[rows.lr <= 8e-3]  # the five planned rates
    assert len(rows) == 120
    for corpus_, digits, exact in (("fables", 4, 3), (None, 3, 4)):
        part = rows[(rows.corpus == "fables") == (corpus_ == "fables")]
        table = part.pivot_table("val_loss", "seed", ["rule", "lr"])
        assert table.shape == (6, 10)
        gap = (table[LINEAR] - table[ROOT]).mean(axis=1)
        assert (gap < 0).all()
        told += [held(gap, digits), f"p = {st.ttest_1samp(gap, 0).pvalue:.{exact}f}"]
    return told


@cache
def field() -> tuple[pd.DataFrame, dict]:
    """F2: losses, seeds × arms; whether each arm − baseline survives Holm over all of them."""
    rows = reported("f2_field")
    arm = rows.rule.where(rows["values"] == "own", "standard + " + rows["values"])
    rows = rows.assign(arm=arm.where(~rows.rung.str.contains("d_model"), "one wider stream"))
    table = rows.pivot(index="seed", columns="arm", values="val_loss")
    assert table.notna().all(axis=None) and table.shape == (5, 22)
    assert set(rows.precision) == {"bf16"}
    pairs = [(arm, base) for base in BASELINES for arm in table if arm != base]
    pairs.remove(BASELINES)
    p = stats.holm([st.ttest_rel(table[arm], table[base]).pvalue for arm, base in pairs])
    return table, {pair: value < 0.05 for pair, value in zip(pairs, p, strict=True)}


def surviving(sign: int) -> dict[str, list[str]]:
    """Arms that survive on one side, by how many baselines, in the order of their losses."""
    table, sure = field()
    by: dict[int, list[str]] = {1: [], 2: []}
    for arm in table.mean().sort_values().index:
        found = [base for base in BASELINES if sure.get((arm, base))
                 and (table[arm] - table[base]).mean() * sign > 0]  # fmt: skip
        if found:
            by[len(found)].append(f"`{arm}`")
    return {"one": by[1], "both": by[2]}


def f2():
    table, sure = field()
    lower, higher = surviving(-1), surviving(1)
    said = [f"{len(sure)} comparisons"]
    for words, arms in (
        ("lower than both", lower["both"]),
        ("lower than one", lower["one"]),
        ("higher than both", higher["both"]),
        ("higher than one", higher["one"]),
    ):
        said.append(f"{words}: {', '.join(arms) or 'none'}")  # fmt: skip
    return said + [f"`{arm}` {held(table[arm] - table['standard'])}" for arm in TOLD]


@pytest.mark.parametrize(
    ("name", "computed"),
    [
        ("f1_pairs", f1),
        ("f2_field", f2),
        ("f3_loops", f3),
        ("f4_muon", f4),
        ("e1_rates", e1),
        ("e2_training", e2),
        ("e2_after", e2_after),
        ("e3_size", e3),
        ("e4_values", e4),
        ("e5_loops", e5),
        ("mini_arms", mini),
    ],
)
def test_every_number_of_a_result_is_computed_from_the_records(name, computed):
    text = " ".join((MEASURED / name / "README.md").read_text(encoding="utf-8").split())
    text = text.partition("**Result.**")[2]
    text = re.split(r"All \d+|The runs at|Rates: constant|`baselines.json`|One run of", text)[0]
    for phrase in sorted(computed(), key=len, reverse=True):
        assert phrase in text, phrase
        text = text.replace(phrase, "")
    assert not re.findall(r"\d\.\d+", text), text


def test_the_readme_says_which_nets_finish_below_a_bigram_table():
    """README.md, the pages, E1 to E5: which lengths of run finish on which side."""
    text = " ".join((rr.DATA.parent / "README.md").read_text(encoding="utf-8").split())
    short = "on TinyStories no run of 150 to 300 steps reaches a lower loss than a bigram table"
    assert short in text
    page = (rr.DATA.parent / "book" / "what_we_know.md").read_text(encoding="utf-8")
    assert "runs of 300 and 1,200 steps finish above a" in " ".join(page.split())
    assert "those of 1,200 and 4,800 steps do" in text
    sides: dict[int, set[bool]] = {}
    for name, counted in (("mini_arms", "mini_arms"), ("e1_rates", "mini_arms"),
                          ("e4_values", "e4_values"),
                          ("02_gate_equation", "02_gate_equation")):  # fmt: skip
        bigram = json.loads((MEASURED / counted / "baselines.json").read_text())["bigram_nats"]
        rows = reported(name, corpus="tinystories")
        if name == "e1_rates":
            rows = rows[rows.rung.str.startswith("mini")]
        for steps, losses in rows.groupby("steps").val_loss:
            sides.setdefault(steps, set()).update(losses < bigram)
    assert sides == {150: {False}, 300: {False}, 1200: {True}, 4800: {True}}
    # technical documentation: Review's 300 and 1,200 steps above, 4,800 and E3 below
    bigram = json.loads((MEASURED / "e2_training" / "baselines.json").read_text())["bigram_nats"]
    by = reported("e2_training").groupby("steps").val_loss.agg(["min", "max"])
    assert by["min"][300] > bigram and by["min"][1200] > bigram > by["max"][4800]
    assert reported("e3_size").val_loss.max() < bigram


def test_what_the_pages_say_of_the_field():
    """README.md, *Which rule should I use?*, *What we know*, *What failed*, chapters 4, 5 and 7."""
    table, sure = field()
    gap = {arm: table[arm] - table["standard"] for arm in table}
    ends = {arm: st.ttest_1samp(gap[arm], 0).confidence_interval() for arm in gap}
    assert table.mean().idxmin() == "scales-skips:attnres=1"
    for arm in ("unet", "state-gate", "review", "standard + constant"):
        assert ends[arm].high < 0 and sure[arm, "standard"]
    for arm in ("constant", "one wider stream", "hyper-connections:mix=identity"):
        assert ends[arm].low < 0 < ends[arm].high
    for arm in ("attnres", "standard + identity"):
        assert -0.03 < gap[arm].mean() < 0 and not sure[arm, "standard"]
    for arm in ("layerscale", "scaled", "gated-residual", "orthogonal"):
        assert gap[arm].mean() > 0.02
    assert not any(sure["hyper-connections", base] for base in BASELINES)
    assert 0.35 < gap["hyper-connections"].mean() / gap["unet"].mean() < 0.65  # "about half"
    assert gap["hyper-connections:mix=identity"].mean() > 0  # "no lower than one plain stream"
    assert gap["attnres:block=2"].mean() < gap["attnres"].mean() < 0
    rows = json.loads((MEASURED / "04_field_guide" / "steps.json").read_text())["rows"]
    time = {row["name"]: row["time"] for row in rows}
    assert abs(time["review"] - 4 / 3) < 0.05 and abs(time["hyper-connections"] - 1.5) < 0.1
