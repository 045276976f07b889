"""Every figure in data/published that can be recomputed is recomputed here, from other rows."""

import csv
import math
from collections import Counter, defaultdict
from pathlib import Path
from statistics import fmean

import pytest
import scipy.stats as scipy_stats

FOLDER = Path(__file__).parents[2] / "data" / "published"
RUNS = list(csv.DictReader((FOLDER / "review_residuals.csv").open()))
COLUMNS = "paper where size arm setting metric value unit source evidence note".split()
FILES = ("review_residuals_summary", "looped", "value_residual", "attention_residuals", "others",
         "threads")  # fmt: skip
MARKS = {"primary", "secondary", "figure", "computed", "unverified"}
SIZES = {"60M": (512, 8, 8), "150M": (768, 12, 12), "320M": (1024, 16, 16), "590M": (1280, 20, 20),
         "1B": (1536, 24, 16)}  # fmt: skip


def load(name):
    return list(csv.DictReader((FOLDER / f"{name}.csv").open()))


def only(rows, **fields):
    """The value of the one row that matches, as a number."""
    (row,) = (r for r in rows if all(r[k] == v for k, v in fields.items()))
    return float(row["value"])


def computed(rows):
    return [r for r in rows if r["evidence"] == "computed"]


def rounds_to(value, text, places):
    """`text` is `value` rounded to that many places (trailing zeros may be left out)."""
    return abs(value - float(text)) <= 0.5 * 10**-places + 1e-9


def cell(rung, arm, what="val_loss"):
    """One number a seed, in the order of seeds."""
    runs = [r for r in RUNS if (r["rung"], r["arm"]) == (rung, arm)]
    return [float(r[what]) for r in sorted(runs, key=lambda r: r["seed"])]


# ---- Form --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_rows_are_tidy(name):
    rows = load(name)
    assert rows and list(rows[0]) == COLUMNS
    for row in rows:
        assert row["evidence"] in MARKS, row
        assert all(row[k] for k in ("paper", "where", "metric", "unit", "source")), row
        assert row["size"] or row["arm"] or row["setting"], row
        assert math.isfinite(float(row["value"])) if row["value"] else row["note"], row
        assert (row["where"] == "derived") == (row["evidence"] == "computed"), row
        assert row["evidence"] != "unverified" or not row["value"], row
    keys = Counter(tuple(row[k] for k in COLUMNS if k not in ("note", "source")) for row in rows)
    assert not [k for k, n in keys.items() if n > 1]


# ---- Review Residuals --------------------------------------------------------------------------


def test_the_design_is_42_runs_whose_arms_pair():
    designs = defaultdict(list)
    for run in RUNS:
        designs[run["rung"], run["arm"]].append((run["seed"], run["steps"]))
    assert len(RUNS) == 42 and len(designs) == 15
    for (size, _), design in designs.items():
        assert sorted(design) == sorted(designs[size, "review"])
        assert len(design) == (2 if size == "320M" else 3)


def test_the_15_cells_reproduce_to_four_decimals():
    table = [r for r in load("review_residuals_summary") if r["where"] == "Table 2"]
    stated = {(r["size"], r["arm"]): r["value"] for r in table if r["metric"] == "val_loss"}
    assert len(stated) == 15
    for (size, arm), value in stated.items():
        assert f"{fmean(cell(size, arm)):.4f}" == f"{float(value):.4f}", (size, arm)


def test_the_stated_welch_t_are_the_runs_own_and_the_stated_p_is_not():
    rows = load("review_residuals_summary")
    stated = [r for r in rows if r["where"] == "Table 2" and r["metric"] == "Welch t"]
    assert len(stated) == 4
    for r in stated:
        base = cell(r["size"], r["setting"].removeprefix("vs "))
        t = scipy_stats.ttest_ind(base, cell(r["size"], "review"), equal_var=False).statistic
        assert rounds_to(t, r["value"], 1), r
    p = only(rows, where="text", metric="Welch p")
    ours = [
        only(rows, where="derived", size="1B", metric="Welch p", setting=f"vs {base}")
        for base in ("highway", "standard")
    ]
    assert min(ours) - p > 0.005  # "about 0.07" rounds neither of them
    assert only(rows, metric="gate share of total", where="Discussion") < min(
        float(r["value"]) for r in computed(rows) if r["metric"] == "gate share of total"
    )


def _params(d, layers, gate_inputs):
    """Of the study's model: tied head, learned positions, biases on every linear layer."""
    block = 12 * d * d + 9 * d + 2 * d  # attention and MLP, their biases, two norms
    gates = 2 * (gate_inputs * d * d + d) if gate_inputs else 0
    return 50257 * d + 256 * d + layers * (block + gates) + d, layers * gates


def _review_figures():
    """(size, arm, setting, metric) -> (value, decimals) of all that follows from code and runs."""
    out = {}
    for size, (d, layers, heads) in SIZES.items():
        total, gates = _params(d, layers, 2)
        shape, steps = f"d={d}, L={layers}", int(cell(size, "review", "steps")[0])
        tokens = steps * 64 * 256
        for metric, value, places in (
            ("params", total, 0),
            ("gate params", gates, 0),
            ("gate share of total", 100 * gates / total, 2),
            ("gate share over the ungated model", 100 * gates / (total - gates), 2),
            ("tokens per parameter", tokens / total, 3),
        ):
            out[size, "review", shape, metric] = value, places
        out[size, "", shape, "training tokens"] = tokens / 1e6, 3
        for arm, inputs in (("highway", 1), ("standard", 0)):
            width = d  # widened in steps of the number of heads until no smaller than Review
            while _params(width, layers, inputs)[0] < total:
                width += heads
            out[size, arm, f"L={layers}", "d_model"] = width, 0
            out[size, arm, f"L={layers}", "params"] = _params(width, layers, inputs)[0], 0
        for arm in ("review", "highway", "standard"):
            out[size, arm, "mean over seeds", "ece"] = fmean(cell(size, arm, "ece")), 4
        for base in ("highway", "standard"):
            a, b = cell(size, base), cell(size, "review")
            pair, apart = scipy_stats.ttest_rel(a, b), scipy_stats.ttest_ind(a, b, equal_var=False)
            for metric, value, places in (
                ("gap, baseline - review", fmean(a) - fmean(b), 4),
                ("paired t", pair.statistic, 2),
                ("paired df", pair.df, 0),
                ("paired p", pair.pvalue, 4),
                ("Welch t", apart.statistic, 2),
                ("Welch df", apart.df, 2),
                ("Welch p", apart.pvalue, 4),
            ):
                out[size, "review", f"vs {base}", metric] = value, places
    return out


def test_every_computed_figure_of_the_study():
    rows, figures = computed(load("review_residuals_summary")), _review_figures()
    keys = [(r["size"], r["arm"], r["setting"], r["metric"]) for r in rows]
    assert sorted(keys) == sorted(figures)
    for key, row in zip(keys, rows, strict=True):
        assert rounds_to(figures[key][0], row["value"], figures[key][1]), (key, row["value"])
    for r in RUNS:  # and the counted totals are what the data file states
        kind = f"d={SIZES[r['rung']][0]}, L={SIZES[r['rung']][1]}"
        setting = kind if r["arm"] == "review" else f"L={SIZES[r['rung']][1]}"
        assert rounds_to(figures[r["rung"], r["arm"], setting, "params"][0] / 1e6, r["params_M"], 2)


# ---- Looped transformers -----------------------------------------------------------------------


def test_looped_counts_and_rules():
    rows = load("looped")
    common = {r["metric"]: float(r["value"]) for r in rows if r["setting"] == "all runs"}
    d, width = common["d_model"], common["MLP dim (SwiGLU)"]
    vocab = common["vocab (Llama 3 tokenizer)"]
    assert common["heads"] * common["head dim"] == d
    assert common["steps"] * common["tokens per step"] == common["total tokens"]
    assert len(computed(rows)) == 3
    for row in computed(rows):
        layers = int(row["size"][2:])
        count = vocab * d + layers * (4 * d * d + 3 * d * width + 2 * d) + d
        assert count == int(row["value"])
        assert rounds_to(count / 1e6, only(rows, where="Table 2", size=row["size"]), 1)
    rate, depth = common["base LR eta0"], common["reference depth L_ref"]
    for layers in (24, 48):  # rate and multiplier fall with the root of the depth
        by, size = math.sqrt(depth / layers), f"L={layers}"
        assert only(rows, size=size, metric="learning rate") == pytest.approx(rate * by, rel=1e-3)
        eps = only(rows, size=size, metric="branch multiplier eps")
        assert eps == pytest.approx(by, abs=5e-4)


# ---- Value residual ----------------------------------------------------------------------------


def test_value_residual_means():
    rows = load("value_residual")
    for where, count, n, places in (("v1 Table 5", 6, 7, 4), ("v1 Table 1", 4, 6, 3)):
        table = [r for r in rows if r["where"] == where]
        means = [r for r in table if f"mean of {n}" in r["setting"]]
        assert len(means) == count
        for mean in means:
            context = mean["setting"].partition(",")[0] if n == 6 else ""
            alike = [r for r in table if r is not mean and r["setting"].startswith(context)]
            parts = [float(r["value"]) for r in alike
                     if (r["size"], r["arm"]) == (mean["size"], mean["arm"])]  # fmt: skip
            assert len(parts) == n and rounds_to(fmean(parts), mean["value"], places), mean


def test_value_residual_figures():
    rows = load("value_residual")
    shape = {
        size: [
            int(only(rows, size=size, metric=m, where="v1 text/appendix"))
            for m in ("blocks L", "d_model", "MLP width")
        ]
        for size in ("2M", "82M", "180M", "468M")
    }
    vocab = int(only(rows, metric="vocabulary"))
    params = {
        s: 2 * vocab * d + L * (4 * d * d + 3 * d * f + 2 * d) + d for s, (L, d, f) in shape.items()
    }
    loss = {
        (r["size"], r["arm"]): float(r["value"])
        for r in rows
        if r["where"] == "v1 Table 5" and "mean of" in r["setting"]
    }
    assert len(computed(rows)) == 4 + 3 * 4 + 2
    for row in computed(rows):
        size, unit = row["size"], row["unit"]
        layers, d, _ = shape[size]
        removed = (layers - 1) * d * d
        if row["metric"] == "params saved at equal loss":
            smaller = {"180M": "82M", "468M": "180M"}[size]
            # params at which the line through ResFormer's two points has the Transformer's loss
            x0, x1 = math.log(params[smaller]), math.log(params[size])
            y0, y1 = loss[smaller, "ResFormer"], loss[size, "ResFormer"]
            x = x0 + (loss[size, "Transformer"] - y0) * (x1 - x0) / (y1 - y0)
            value, places = 100 * (1 - math.exp(x) / params[size]), 2
        else:
            gain = loss.get((size, "Transformer"), 0) - loss.get((size, "ResFormer"), 0)
            value, places = {
                ("params", "parameters"): (params[size], 0),
                ("gain in val_loss", "nats per token"): (gain, 4),
                ("params removed", "parameters"): (removed, 0),
                ("params removed", "%"): (100 * removed / params[size], 2),
                ("KV cache", "ratio"): ((layers + 1) / (2 * layers), 4),
            }[row["metric"], unit]
        assert rounds_to(value, row["value"], places), row
    # the three versions state three savings; the tables of the first allow its own
    saved = [r for r in rows if r["metric"] == "params saved at equal loss"]
    ours = [float(r["value"]) for r in saved if r["evidence"] == "computed"]
    first = only(saved, where="v1 text/appendix")
    assert min(ours) < first < max(ours) < only(saved, where="v4 abstract")
    assert len({r["value"] for r in saved if r["evidence"] == "primary"}) == 3


# ---- Attention Residuals -----------------------------------------------------------------------


def test_attention_residual_figures():
    rows = load("attention_residuals")
    table = [r for r in rows if r["where"] == "Table 2"]
    tokens = {r["size"]: float(r["setting"].partition("B")[0]) * 1e9 for r in table}
    size = {s: float(s[:-1]) * 1e6 for s in tokens}
    loss = {(r["size"], r["arm"]): float(r["value"]) for r in table}
    law = {
        arm: [only(rows, where="Fig. 4", arm=arm, metric=m) for m in ("A", "alpha")]
        for arm in ("baseline", "block", "full")
    }
    fitted = {arm: a * 5.6**-alpha for arm, (a, alpha) in law.items()}
    for arm in ("baseline", "block"):
        stated = only(rows, where="Sec. 5.1", arm=arm, metric="val_loss")
        assert rounds_to(fitted[arm], stated, 3)
    for row in computed(rows):
        if row["metric"] == "compute multiplier":
            a, alpha = law["baseline"]
            value, places = (a / fitted["block"]) ** (1 / alpha) / 5.6, 3
            assert rounds_to(value, only(rows, where="Sec. 5.1", metric="compute multiplier"), 1)
        elif row["metric"] == "alpha":
            x = [math.log(6 * size[s] * tokens[s]) for s in size]
            line = scipy_stats.linregress(x, [math.log(loss[s, row["arm"]]) for s in size])
            value, places = -line.slope, 4
            assert value == pytest.approx(law[row["arm"]][1], abs=0.004)
        elif row["metric"] == "tokens per parameter":
            value, places = tokens[row["size"]] / size[row["size"]], 1
        else:
            assert row["metric"] == "gain in val_loss"
            value, places = loss[row["size"], "baseline"] - loss[row["size"], row["arm"]], 3
        assert rounds_to(value, row["value"], places), row
    assert len(computed(rows)) == 15 + 1 + 3 + 5


# ---- larger sizes --------------------------------------------------------------------------------


def test_comparisons_at_larger_sizes_are_tidy_and_agree_with_the_papers_own_rows():
    """A difference is that of its losses; what stands in another file, too, is the same there."""
    rows, papers = load("at_scale"), load("attention_residuals") + load("value_residual")
    papers += load("others")
    assert len({tuple(row.values()) for row in rows}) == len(rows)
    for row in rows:
        assert row["evidence"] in MARKS and row["who"] in ("authors", "others"), row
        assert all(row[k] for k in ("source", "rule", "size", "rates", "seeds", "where")), row
        assert row["difference"] or row["note"], row
        if row["loss"]:
            gap = float(row["loss"]) - float(row["baseline_loss"])
            assert gap == pytest.approx(float(row["difference"]), abs=2e-5), row
            if row["source"] != "hyper-connection-factory":
                for loss in (row["loss"], row["baseline_loss"]):
                    same = [r for r in papers if r["paper"] == row["source"] and r["value"]
                            and float(r["value"]) == float(loss)]  # fmt: skip
                    assert same and {r["evidence"] for r in same} == {row["evidence"]}, row
