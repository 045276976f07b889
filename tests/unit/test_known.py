"""The numbers of the page *What we know*, by a second method, and what is refused.

Tables, intervals and windows of training come from test_readme_results, by pandas and scipy alone.
"""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.stats as st
from test_readme_results import (
    LINEAR,
    ROOT,
    at_shared_rates,
    ends,
    field,
    held,
    loss,
    mean,
    reported,
    window,
)

import rr

BOOK = Path(__file__).parents[2] / "book"
sys.path.insert(0, str(BOOK / "tools"))
import on_card  # noqa: E402
from known import number  # noqa: E402

PAGE = "".join(
    (BOOK / page).read_text(encoding="utf-8")
    for page in (
        "what_we_know.md",
        "which_rule.md",
        "at_scale.md",
        "questions.md",
        "what_failed.md",
        "intro.md",
        "recipes/index.md",
    )
)
LARGE = "standard + constant:lam=0.0,own=2.236067977"
SMALL = "standard + constant:lam=0.0,own=0.7071067812"


def values(text):
    return [float(part.replace("−", "-")) for part in re.findall(r"[−+]?\d+\.\d+", text)]


def test_every_number_of_the_page_can_be_computed():
    names = re.findall(r"\{known\}`([^`]+)`", PAGE)
    assert len(names) > 20
    for name in names:
        assert re.search(r"\d", number(name)), name


def passes(corpus):
    """F3 by seed: 1/N less 1/√N, averaged over the planned rates."""
    rows = reported("f3_loops", corpus=corpus)
    table = rows[rows.lr <= 8e-3].pivot_table("val_loss", "seed", ["rule", "lr"])
    return (table[LINEAR] - table[ROOT]).mean(axis=1)


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("f1_pairs: review - constant", {}),
        ("f1_pairs: review - state-gate", {}),
        ("f1_pairs: update-gate - constant", {}),
        ("f4_muon: review - constant", {}),
        ("mini_arms: review - constant", {}),
        ("mini_arms[lr=0.0015,steps=300]: review - constant", {}),
        ("e1_rates[rung=mini]: review - constant", {"rung": "mini"}),
        ("e2_training[steps=4800]: review - constant", {"steps": 4800}),
    ],
)
def test_a_difference_by_scipy(name, rows):
    arm, base = name.partition(": ")[2].split(" - ")
    table = loss(re.split(r"[\[:]", name)[0], **rows)
    gap = table[arm] - table[base]
    assert number(name) == held(gap) and number(f"{name}, mean") == mean(gap)


def test_a_difference_in_words_is_one_of_perplexity():
    early = window("e2_training", 601, 1200)
    gap = early["review"] - early["constant"]
    lower = 100 * (1 - np.exp(gap.mean()))
    name = "e2_training: review - constant, steps"
    assert number(f"{name} 601-1200, mean, percent") == f"{lower:.0f} % lower"
    late = window("e2_training", 2401, 3400)
    gap = late["review"] - late["constant"]
    ends = st.t.interval(0.95, len(gap) - 1, gap.mean(), gap.sem())
    low, high = (100 * np.expm1(end) for end in ends)
    said = f"between {-low:.0f} % lower and {high:.0f} % higher"
    assert number(f"{name} 2401-3400, percent") == said
    whole = number("f4_muon: review - constant, percent")
    assert re.fullmatch(r"[\d.]+ % higher \([\d.]+ % higher to [\d.]+ % higher\)", whole)


@pytest.mark.parametrize(
    ("said", "name"),
    [
        (
            "In twenty pairs Review's perplexity is {} than that of the network that halves",
            "f1_pairs: review - constant, mean",
        ),
        ("three seeds cannot tell: it is {}.", "e2_training[steps=4800]: review - constant"),
        ("Review's perplexity is {} than its", "f4_muon: review - constant, mean"),
    ],
)
def test_the_readme_says_sizes_that_the_records_have(said, name):
    text = " ".join((BOOK.parent / "README.md").read_text(encoding="utf-8").split())
    assert said.format(number(f"{name}, percent")) in text


def test_differences_between_campaigns_mixtures_and_windows_by_scipy():
    wide, bare = loss("e2_training", steps=4800), loss("e2_after", steps=4800)
    gap = wide["review"] - bare["constant"]
    assert number("review - unwidened constant, 4,800 steps") == held(gap)
    mixtures = loss("e4_values", "values", batch=8, steps=4800)
    for arm, base in (("constant", LARGE), ("identity", SMALL)):
        gap = mixtures[arm] - mixtures[base.split(" + ")[1]]
        name = "e4_values[batch=8,steps=4800]: standard + "
        assert number(f"{name}{arm} - {base}") == held(gap)
    parts = (window("e2_training", *span) for span in ((601, 1200), (2401, 3400)))
    early, late = (part["review"] - part["constant"] for part in parts)
    assert number("e2_training: review - constant, steps 601-1200") == held(early)
    *change, p = values(number("review - constant, change along the run"))
    assert change == values(held(late - early))
    assert p == round(st.ttest_1samp(late - early, 0).pvalue, 3)
    (stories,) = set(reported("f3_loops").corpus) - {"fables"}
    for words, corpus in (("mean of the rates", "fables"), ("TinyStories", stories)):
        assert number(f"1/N - 1/√N at eight passes, {words}") == held(passes(corpus), 4)


def test_the_larger_net_by_hand():
    tables = (loss("e3_size"), loss("e2_training", steps=1200))
    gaps = [table["review"] - table["constant"] for table in tables]
    test = st.ttest_ind(*gaps, equal_var=False)
    change = held(gaps[0].mean() - gaps[1].mean(), test=test)
    assert number("review - constant, larger net less smaller") == change
    size = [reported(name, rule="review").params.iloc[0] for name in ("e3_size", "e2_training")]
    assert number("larger net over smaller") == f"{size[0] / size[1]:.1f}"
    rate = reported("e3_size").groupby("rule").lr.first()
    over = f"{rate['review'] / rate['constant']:.1f}"
    assert number("larger net, rate of review over constant") == over


def test_both_gates_in_four_studies_by_scipy():
    tables = (loss("mini_arms"), loss("e1_rates", rung="mini"), loss("f1_pairs"), field()[0])
    gaps = [table["review"] - table["state-gate"] for table in tables]
    assert [len(gap) for gap in gaps] == [5, 5, 20, 5]
    assert number("review - state-gate, four studies pooled") == held(pd.concat(gaps))
    rest = pd.concat([gaps[0], gaps[1], gaps[3]])
    assert number("review - state-gate, pooled without the largest") == held(rest)
    p = st.f_oneway(*gaps).pvalue
    assert number("review - state-gate, p that the studies agree") == f"{p:.2f}"


def test_both_gates_at_shared_rates_by_scipy():
    gap = at_shared_rates()
    whole = number("review - state-gate, mean of three shared rates")
    assert whole == held(gap.mean(axis=1))
    change = number("review - state-gate, largest shared rate less smallest")
    assert change == held(gap[2.1e-3] - gap[1.06e-3])
    for rate in gap:
        assert number(f"g3_rates[lr={rate:g}]: review - state-gate") == held(gap[rate])


def test_eight_passes_against_one_by_scipy():
    rows = reported("e5_loops")
    rows = rows[rows.rung.str.contains("n_layer=2,")]
    lowest = []
    for part in (rows[rows.loops == 1], rows[(rows.loops == 8) & (rows.rule == LINEAR)]):
        table = part.pivot_table("val_loss", "seed", "lr")
        lowest.append(table[table.mean().idxmin()])
    assert number("eight passes - one pass") == held(lowest[1] - lowest[0], 4)


def test_sizes_and_costs_by_hand():
    """4,096 · 192 of the embedding, then six blocks; 8 windows of 256 tokens a step."""
    params = reported("f1_pairs", rule="review").params.iloc[0]
    for name, steps in (("short run", 300), ("long run", 4800)):
        tokens = steps * 8 * 256
        assert number(f"{name}, tokens") == f"{tokens / 1e6:.1f} million"
        assert number(f"{name}, tokens per parameter") == f"{tokens / params:.2g}"
    assert number("short run, parameters") == f"{params / 1e6:.1f} million"
    seconds = (
        reported("f2_field", **{"values": "own", "rung": "mini"}).groupby("rule").seconds.min()
    )
    for arm in ("review", "unet"):
        expected = f"{seconds[arm] / seconds['standard']:.2f}"
        assert number(f"f2_field, run of {arm}") == expected


def test_muon_by_hand():
    gain = loss("f1_pairs").mean() - loss("f4_muon").mean()
    assert values(number("f4_muon, below AdamW")) == [round(gain.min(), 2), round(gain.max(), 2)]
    search = (
        ends("f4_muon").query("seed == 100").pivot(index="lr", columns="rule", values="val_loss")
    )
    below = (search.review < search.constant)[search[["review", "constant"]].notna().all(axis=1)]
    assert list(below.index.round(5)) == [
        7.5e-4,
        1.06e-3,
        1.5e-3,
        2.1e-3,
        3e-3,
        4.24e-3,
        5.99e-3,
        8.47e-3,
    ]
    for kind, part in (("planned", below.iloc[:5]), ("added", below.iloc[5:])):
        text = number(f"f4_muon, {kind} rates with Review below")
        assert text == f"{part.sum()} of {len(part)}"


def test_what_the_first_screen_says_of_larger_networks():
    """Of sizes from 100M on, read off the file; the FLOPs of a gate at 320M by hand."""
    assert number("at 100M or more: mHC") == "−0.040 at 303.6M, −0.029 at 1.21B"
    for name in ("MUDD", "mHC"):  # speeds of 0.53 and 0.54
        assert number(f"time at 100M or more: {name}") == "×\u00a01.9"
    d, blocks, tokens, vocabulary = 1024, 16, 256, 50257
    block = 2 * 12 * d * d + 2 * (tokens + 1) * d  # matrices, and attention counted as causal
    forward = blocks * block + 2 * vocabulary * d
    gates = blocks * 2 * 2 * d * d  # of state-gate: two per block
    _, _, flops = number("computed at 320M: state-gate").partition("FLOPs ×\u00a0")
    assert float(flops) == pytest.approx(1 + gates / forward, abs=0.006)


def test_a_gate_on_a_gpu_by_hand():
    """The three repeats of each case, in milliseconds: those that the folder's README has."""
    by_hand = {"60M": (29.1, 22.2), "320M": (92.6, 88.1), "1B": (247.9, 232.5)}
    for rung, (gated, plain) in by_hand.items():
        ratio = float(number(f"gate on a GPU, {rung}"))
        assert ratio == pytest.approx(gated / plain, abs=0.006)


def test_the_published_study_by_hand():
    """test_stats has Holm's three of ten; the size at equal training is weighted by hand."""
    runs = pd.read_csv(rr.DATA / "published" / "review_residuals.csv")
    assert number("published comparisons that survive") == "3 of 10"
    assert number("published comparisons that survive at 590M and 1B") == "3 of 4"
    assert number("published comparisons that survive unpaired") == "0 of 10"
    of_590m = dict(list(runs[runs.rung == "590M"].groupby("arm").val_loss))
    p = [st.ttest_ind(of_590m["review"], of_590m[base], equal_var=False).pvalue
         for base in ("standard", "highway")]  # fmt: skip
    assert values(number("p at 590M as published")) == [round(x, 3) for x in p]
    gaps, x = [], []
    for rung in runs.rung.unique():
        part = runs[runs.rung == rung].pivot(index="seed", columns="arm", values="val_loss")
        gaps.append((part.review - part.standard).dropna().to_numpy())
        row = runs[(runs.rung == rung) & (runs.arm == "review")].iloc[0]
        x.append([1, np.log10(1e6 * row.params_M), np.log10(row.steps * 64 * 256)])
    df = sum(len(gap) - 1 for gap in gaps)
    sd = (sum(((gap - gap.mean()) ** 2).sum() for gap in gaps) / df) ** 0.5
    weights = np.linalg.pinv(np.array(x))[1:].sum(0)  # b_N + b_D
    gap = weights @ [gap.mean() for gap in gaps]
    error = sd * np.sqrt((weights**2 / [len(gap) for gap in gaps]).sum())
    half = st.t.ppf(0.975, df) * error
    expected = [round(v, 3) for v in (gap, gap - half, gap + half)]
    assert df == 9 and values(number("published size at equal training")) == expected


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("e1_rates[rung=mini]: review - constant", "below"),  # "holds in short runs"
        ("mini_arms: review - constant", "below"),
        *((f"e4_values[batch={batch},steps=4800]: standard + constant - {base}", "below")
          for batch in (8, 2) for base in (LARGE, "standard")),  # "another mixture leads"
        ("mini_arms: review - constant, steps 1-30", "above"),
        ("f1_pairs: review - state-gate", "above"),  # "contradicted in short runs"
        ("review - unwidened constant, 4,800 steps", "above"),  # "behind"
        ("review - constant, change along the run", "above"),
        ("e1_rates[rung=mini]: review - state-gate", "unknown"),
        ("review - state-gate, four studies pooled", "above"),
        ("review - state-gate, pooled without the largest", "equal"),
        ("g3_rates[lr=0.00106]: review - state-gate", "below"),  # "the rate decides"
        ("g3_rates[lr=0.0021]: review - state-gate", "above"),
        ("review - state-gate, largest shared rate less smallest", "above"),
        ("review - state-gate, mean of three shared rates", "unknown"),
        ("eight passes - one pass", "above"),
        ("f1_pairs: update-gate - constant", "equal"),
        ("e2_training[steps=4800]: review - state-gate", "unknown"),
        ("e2_training[steps=4800]: review - constant", "unknown"),
        ("e2_training: review - constant, steps 2401-3400", "unknown"),  # "to about nothing"
        ("published size at equal training", "unknown"),
        ("review - constant, larger net less smaller", "unknown"),
    ],
)  # fmt: skip
def test_a_verdict_is_that_of_its_interval(name, verdict):
    """Equal: at zero and within ±0.01; unknown: at zero and wider."""
    _, low, high = values(number(name))[:3]
    if low < 0 < high:
        assert verdict == ("equal" if -0.01 < low and high < 0.01 else "unknown")
    else:
        assert verdict == ("below" if high < 0 else "above")


def test_what_is_inconclusive_and_what_follows_from_an_equation():
    *_, chance = values(number("spread of the best rate, 1/N less 1/√N"))
    assert chance > 0.05
    assert float(number("SVFormer's cache")) == (8 + 1) / (2 * 8)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("published comparisons that survived", "did you mean published"),
        ("mini_arms: reviw - constant", "did you mean review"),
        ("mini_arms[lr=9]: seeds", "no run"),
        ("mini_arms: middle", "not understood"),
        ("06_looped_transformers: scaled:reference=2 - scaled:law=none,reference=2", "several"),
    ],
)
def test_what_is_not_there_is_named(text, says):
    with pytest.raises(rr.RRError, match=says):
        number(text)


def test_what_a_gpu_took_is_of_its_record():
    """By hand from the rows; the void ones are called by their own name alone."""
    kept = json.loads((rr.DATA / "measured" / "gpu_h200" / "steps.json").read_text())
    by = {(row["rung"], row["rule"], row["precision"]): row for row in kept["rows"]}
    row = by["1B", "standard", "bf16"]
    assert number("H200: 1B standard bf16, ms") == f"{np.median(row['step_ms']):.0f}"
    speed = 16384 / np.median(row["step_ms"])
    assert number("H200: 1B standard bf16, tokens") == f"{round(speed)},000"
    mfu = speed * 1000 * row["flops_per_token"] / 989e12
    assert number("H200: 1B standard bf16, MFU") == f"{100 * mfu:.0f} %"
    assert values(number("H200: memory, least"))[0] < 1 < values(number("H200: memory, most"))[0]
    assert number("void: rows") == "6" and number("void: wrong") == "torch 2.11.0"
    for wrong in ("H200: 1B review bf16, ms", "H200: 1B standard bf16", "void: ms"):
        with pytest.raises(rr.RRError, match="is no number"):
            number(wrong)


def test_a_day_is_what_rr_plan_says(monkeypatch):
    monkeypatch.setattr(on_card.budget.memory, "stacked", lambda *a: 10**9)
    least, most = (float(number(f"day: H200, hours, {end}")) for end in ("least", "most"))
    assert 0 < least < most < 20
    assert float(number("day: H200, dollars, least")) == pytest.approx(2 * least, abs=2)
    assert float(number("day: H200, GB, least")) < float(number("day: H200, GB, most"))
