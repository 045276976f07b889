"""Paired statistics against SciPy, a hand computation and the published runs; tables of runs."""

import json
import math
import subprocess
import sys

import pytest
import scipy.stats as scipy_stats

from rr.config import RRError
from rr.stats import interval, paired, read_results, render, table

# val_loss of the 42 published runs, seeds 0, 1, 2 (arXiv 2606.31859, data/scaling_v8.csv):
# (review, highway, standard) by size
PUBLISHED = {
    "60M": ([1.7016, 1.6866, 1.6791], [1.698, 1.6938, 1.6852], [1.6911, 1.6772, 1.6731]),
    "150M": ([1.5642, 1.5576, 1.551], [1.5713, 1.5614, 1.5549], [1.5621, 1.5529, 1.5493]),
    "320M": ([1.5065, 1.4937], [1.509, 1.4993], [1.5102, 1.4972]),
    "590M": ([1.4812, 1.4753, 1.4819], [1.4903, 1.485, 1.4914], [1.4894, 1.487, 1.4938]),
    "1B": ([1.4787, 1.496, 1.488], [1.4951, 1.5106, 1.5035], [1.4953, 1.512, 1.5047]),
}
# baseline − review, paired t, df, two-sided p: computed elsewhere from the same file
RECOMPUTED = [
    ("60M", "highway", 0.0032, 0.94, 2, 0.4455),
    ("60M", "standard", -0.0086, -6.37, 2, 0.0237),
    ("150M", "highway", 0.0049, 4.55, 2, 0.045),
    ("150M", "standard", -0.0028, -3.01, 2, 0.095),
    ("320M", "highway", 0.0040, 2.61, 1, 0.23),
    ("320M", "standard", 0.0036, 36.0, 1, 0.018),
    ("590M", "highway", 0.0094, 53.5, 2, 0.0003),
    ("590M", "standard", 0.0106, 8.82, 2, 0.013),
    ("1B", "highway", 0.0155, 29.8, 2, 0.0011),
    ("1B", "standard", 0.0164, 75.2, 2, 0.0002),
]


@pytest.mark.parametrize("size, arm, gap, t, df, p", RECOMPUTED)
def test_published_runs(size, arm, gap, t, df, p):
    review, highway, standard = PUBLISHED[size]
    result = paired({"highway": highway, "standard": standard}[arm], review)
    assert result.mean == pytest.approx(gap, abs=6e-5)
    assert result.t == pytest.approx(t, abs=0.051)
    assert result.df == df and result.n == df + 1
    assert result.p == pytest.approx(p, abs=0.0051 if p > 0.1 else 6e-4)


def test_hand_computation():
    # differences 1, 2, 3: mean 2, sd 1, t = 2√3
    result = paired([2, 4, 6], [1, 2, 3])
    assert (result.n, result.df, result.mean, result.sd) == (3, 2, 2.0, 1.0)
    assert result.t == pytest.approx(2 * math.sqrt(3), rel=1e-12)
    # with 2 df, P(|T| ≥ t) = 1 − t/√(2 + t²)
    assert result.p == pytest.approx(1 - result.t / math.sqrt(2 + result.t**2), rel=1e-10)
    # so the 95 % point solves t²/(2 + t²) = 0.95²
    half = math.sqrt(2 * 0.95**2 / (1 - 0.95**2)) / math.sqrt(3)
    assert (result.lo, result.hi) == pytest.approx((2 - half, 2 + half), rel=1e-10)


def test_against_scipy():
    a = [3.11, 3.05, 3.2, 3.16, 2.99, 3.4]
    b = [3.2, 3.0, 3.3, 3.1, 3.05, 3.51]
    ours, theirs = paired(a, b, level=0.9), scipy_stats.ttest_rel(a, b)
    low, high = theirs.confidence_interval(0.9)
    assert (ours.t, ours.p, ours.df) == pytest.approx((theirs.statistic, theirs.pvalue, theirs.df))
    assert (ours.lo, ours.hi) == pytest.approx((low, high), rel=1e-10)
    mean = scipy_stats.t.interval(0.95, 5, loc=sum(a) / 6, scale=scipy_stats.sem(a))
    assert (interval(a).lo, interval(a).hi) == pytest.approx(mean, rel=1e-12)


def test_equal_differences():
    same = paired([2.0, 3.0], [1.0, 2.0])
    assert math.isinf(same.t) and same.p == 0 and same.lo == same.hi == 1
    zero = paired([1.0, 2.0], [1.0, 2.0])
    assert math.isnan(zero.t) and math.isnan(zero.p)


@pytest.mark.parametrize(
    "a, b, words",
    [
        ([1.0], [2.0], "at least two pairs"),
        ([], [], "at least two pairs"),
        ([1, 2, 3], [1, 2], "3 values against 2"),
        ([1.0, math.nan], [1.0, 2.0], "1 of 2 values in a are not finite"),
        ([1.0, 2.0], [math.inf, 2.0], "not finite"),
    ],
)
def test_bad_input_is_one_clear_line(a, b, words):
    with pytest.raises(RRError, match=words) as caught:
        paired(a, b)
    assert "\n" not in str(caught.value)


# ---- tables ------------------------------------------------------------------------------------


def run(rule, seed, loss, **other):
    fields = {
        "id": f"{rule}-{seed}-{len(other)}-{other.get('lr', 1)}", "rule": rule, "seed": seed,
        "val_loss": loss, "values": "own", "lr": 1e-3, "rung": "nano", "protocol": "clean",
        "corpus": "fables", "tokenizer": "bpe:1024", "loops": 1, "steps": 300, "flavour": "gpt2",
        "precision": "fp32", "batch": 8, "eval_shortened": False,
        "status": "diverged" if loss is None else "finished",
    }  # fmt: skip
    return fields | other


RUNS = [
    *(run("standard", seed, loss) for seed, loss in enumerate([3.0, 3.2, 3.4])),
    *(run("review", seed, loss) for seed, loss in enumerate([2.9, 3.0, 3.1])),
    run("highway", 0, 3.1),
    run("highway", 1, None),
    run("highway", 2, 3.3),
    run("constant:c=0.5", 0, 3.05),
]


def by_arm(rows):
    return {row["arm"]: row for row in rows}


def test_table_pairs_by_seed_and_drops_nothing():
    rows = table(RUNS[::-1], baseline="standard")
    assert [row["arm"] for row in rows] == ["standard", "constant:c=0.5", "highway", "review"]
    arms = by_arm(rows)
    expected = paired([2.9, 3.0, 3.1], [3.0, 3.2, 3.4])
    review = arms["review"]
    assert (review["n"], review["pairs"], review["missing"]) == (3, [0, 1, 2], [])
    assert [review[k] for k in ("difference", "lo", "hi", "t", "df", "p")] == [
        expected.mean, expected.lo, expected.hi, expected.t, expected.df, expected.p,
    ]  # fmt: skip
    assert review["mean"] == pytest.approx(3.0) and arms["standard"]["mean"] == pytest.approx(3.2)
    highway = arms["highway"]
    assert (highway["n"], highway["diverged"], highway["pairs"]) == (2, [1], [0, 2])
    assert highway["missing"] == []  # it was run at every seed; one of them diverged
    assert highway["difference"] == pytest.approx(0.0)
    constant = arms["constant:c=0.5"]
    assert constant["missing"] == [1, 2] and constant["difference"] is None
    assert "fewer than two pairs" in constant["notes"][0]
    # each of the nine runs is in the table once, finished or diverged
    assert sum(row["n"] + len(row["diverged"]) for row in rows) == len(RUNS)
    json.dumps(rows, allow_nan=False)


def test_groups_are_never_mixed():
    longer = [run(rule, s, 2.0, steps=600) for rule in ("standard", "review") for s in (0, 1)]
    rows = table(RUNS + longer + longer, baseline="standard")  # a run read twice counts once
    assert {(row["steps"], row["arm"], row["n"]) for row in rows if row["arm"] == "review"} == {
        (300, "review", 3),
        (600, "review", 2),
    }


def test_runs_scored_on_less_text_are_a_group_of_their_own():
    short = [
        run(rule, s, 2.0, eval_shortened=True) for rule in ("standard", "review") for s in (0, 1)
    ]
    rows = table(RUNS + short)
    assert {(r["eval_shortened"], r["n"]) for r in rows if r["arm"] == "review"} == {
        (False, 3),
        (True, 2),
    }
    assert render(rows).count("shortened evaluation") == 1


def test_without_scipy_one_clear_line():
    script = (
        "import sys; sys.modules['scipy'] = None\nfrom rr.config import RRError\n"
        "try: import rr.stats\nexcept RRError as error: print(error)"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.stdout == "tables and tests need SciPy, which is not here: pip install scipy\n"


def test_several_learning_rates_are_separate_arms():
    fast = [run(rule, s, 2.5, lr=3e-3) for rule in ("standard", "review") for s in (0, 1)]
    arms = by_arm(table(RUNS + fast, baseline="standard"))
    assert arms["review (lr 0.003)"]["baseline"] == "standard (lr 0.003)"
    assert arms["review (lr 0.001)"]["baseline"] == "standard (lr 0.001)"
    assert arms["review (lr 0.001)"]["n"] == 3
    # highway has one rate, 0.001: it is compared at that one
    assert arms["highway"]["baseline"] == "standard (lr 0.001)"


def test_one_seed_run_twice_is_not_paired():
    again = run("review", 1, 2.0, values="own", warmup=3)
    review = by_arm(table([*RUNS, again], baseline="standard"))["review"]
    assert review["pairs"] == [0, 2] and review["n"] == 4
    assert "seed 1 was run more than once" in review["notes"][0]


def test_group_without_baseline_says_so_and_unknown_baseline_fails():
    alone = run("review", 0, 1.0, rung="mini")
    rows = [row for row in table([*RUNS, alone]) if row["rung"] == "mini"]
    assert rows[0]["difference"] is None and rows[0]["notes"] == ["no baseline to compare with"]
    with pytest.raises(RRError, match="did you mean standard"):
        table(RUNS, baseline="standart")


def test_render_marks_diverged_and_shows_numbers():
    text = render(table(RUNS))
    line = next(line for line in text.splitlines() if line.startswith("highway"))
    assert "2 ✗1" in line and "diverged: seed 1" in line
    review = next(line for line in text.splitlines() if line.startswith("review"))
    assert "3.0000" in review and "−0.2000" in review and "[−0.4484, +0.0484]" in review
    assert text.startswith("nano · clean · fables · bpe:1024 · 300 steps")


def test_read_results_names_damaged_files(tmp_path, capsys):
    def put(name, text):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
        if text is not None:
            (tmp_path / name / "result.json").write_text(text)

    for i, row in enumerate(RUNS):
        put(f"good{i}", json.dumps(row))
    put("truncated", json.dumps(RUNS[0])[:40])
    put("nan", json.dumps(RUNS[0] | {"val_loss": math.nan}))
    put("lossless", json.dumps(RUNS[0] | {"val_loss": None}))
    put("list", "[]")
    put("fieldless", json.dumps({k: v for k, v in RUNS[0].items() if k != "seed"}))
    put("waiting", None)
    rows = read_results(tmp_path)
    assert sorted(r["id"] for r in rows) == sorted(r["id"] for r in RUNS)
    said = capsys.readouterr().err
    for name in ("truncated", "nan", "lossless", "list", "fieldless"):
        assert f"{name}/result.json" in said
    assert "5 damaged of 15" in said and "1 of 16 runs have no result yet" in said
    assert "good" not in said


def test_read_results_without_results(tmp_path):
    with pytest.raises(RRError, match="no readable result.json"):
        read_results(tmp_path)
    with pytest.raises(RRError, match="no folder"):
        read_results(tmp_path / "absent")
