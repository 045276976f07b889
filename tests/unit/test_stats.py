"""Each statistic against a second way to it: enumeration and closed forms.

Rows of tables are held to SciPy in test_tables.
"""

import csv
import itertools
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from tiny import TINY

from rr.errors import RRError
from rrstudy import stats

RUNS = Path(__file__).parents[2] / "data" / "published" / "review_residuals.csv"


def published():
    rows = csv.DictReader(RUNS.read_text().splitlines())
    return [r | {"seed": int(r["seed"]), "val_loss": float(r["val_loss"])} for r in rows]


def family(rows, bases, **options):
    """review against each of these, in each rung."""
    pairs = [("review", base) for base in bases]
    return stats.as_rows(stats.compare(rows, pairs=pairs, by="rung", **options))


def test_the_published_family_of_ten():
    """What survives; the numbers of a row are held to SciPy in test_tables."""
    rows = family(published(), ["highway", "standard"])
    assert not any(row["notes"] or row["diverged"] or row["missing"] for row in rows)

    def survive(key):
        return {(r["rung"], r["baseline"]) for r in rows if r[key] <= 0.05}

    three = {("590M", "highway"), ("1B", "highway"), ("1B", "standard")}
    assert len(rows) == 10 and survive("paired_holm") == survive("paired_bonferroni") == three
    assert survive("welch_p") == {("590M", "highway"), ("590M", "standard")}
    assert survive("welch_holm") == survive("welch_bonferroni") == set()
    # three seeds cannot reach 0.05 by signs, whatever they say
    assert survive("sign_p") == set()
    assert all(row["p_min"] == (0.5 if row["rung"] == "320M" else 0.25) for row in rows)


def undecided(test):
    return all(math.isnan(getattr(test, name)) for name in ("t", "p", "lo", "hi"))


def test_equal_differences_and_equal_values():
    # 1.7 − 1.6 and 0.3 − 0.2 differ in float64; as measurements they do not
    same = stats.paired([1.7, 0.3, 2.1], [1.6, 0.2, 2.0])
    assert same.mean == pytest.approx(0.1) and same.sd == 0 and undecided(same)
    assert undecided(stats.paired([1.0, 2.0], [1.0, 2.0]))
    assert undecided(stats.paired([3.0, 4.0], [2.0, 3.0 + 1e-10]))  # a spread of rounding
    assert not undecided(stats.paired([3.0, 4.0], [2.0, 3.0 + 1e-7]))
    tiny = stats.differences([3e-305, 5e-305], [1e-305, 1e-305])
    assert tiny == pytest.approx([2e-305, 4e-305])
    flat = stats.welch([2.0, 2.0], [1.0, 1.0, 1.0])
    assert flat.mean == 1 and undecided(flat) and math.isnan(flat.df)
    assert undecided(stats.welch([1, 1], [1, 1]))
    assert math.isnan(stats.interval([2.0, 2.0]).lo) and stats.interval([2.0, 2.0]).sd == 0


def test_intervals_keep_to_the_level_asked_for():
    a, b = [3.11, 3.05, 3.2, 3.16], [3.2, 3.0, 3.3, 3.1]
    for ours, theirs in (
        (stats.paired(a, b, level=0.9), scipy.stats.ttest_rel(a, b)),
        (stats.welch(a, b[:3], level=0.9), scipy.stats.ttest_ind(a, b[:3], equal_var=False)),
    ):
        assert (ours.lo, ours.hi) == pytest.approx(tuple(theirs.confidence_interval(0.9)))


@pytest.mark.parametrize("d", [[1, 2, 3], [0.5, -1.5, 2.5, 3.5, 4.5], [2, 0, 1, -1, 4, 0]])
def test_signs_against_every_sign_pattern(d):
    moved = [x for x in d if x]
    n, ups = len(moved), sum(x > 0 for x in moved)
    patterns = list(itertools.product((False, True), repeat=n))
    far = sum(abs(sum(signs) - n / 2) >= abs(ups - n / 2) for signs in patterns)
    sign = stats.sign_test(d, [0.0] * len(d))
    assert sign.p == pytest.approx(far / len(patterns)) and sign.statistic == ups
    assert (sign.n, sign.zeros, sign.p_min) == (n, len(d) - n, 2 / len(patterns))


def test_how_many_pairs_signs_need():
    reach = {n: stats.sign_test(range(1, n + 1), [0] * n) for n in range(2, 9)}
    assert [n for n, test in reach.items() if test.p_min <= 0.05] == [6, 7, 8]
    assert all(test.p == test.p_min for test in reach.values())
    assert stats.sign_test([1, 2], [1, 2]).p == 1.0


def test_bootstrap_against_every_resample():
    x = [0.1, 0.43, 0.22, 0.97, 0.51]
    means = np.sort([np.mean(drawn) for drawn in itertools.product(x, repeat=5)])
    drawn = stats.bootstrap(x, level=0.8, resamples=20_000)
    assert (drawn.lo, drawn.hi) == pytest.approx(np.quantile(means, [0.1, 0.9]), abs=0.008)
    few = [stats.bootstrap(x, level=0.8, resamples=100, seed=seed) for seed in (0, 0, 1)]
    assert few[0] == few[1] != few[2]
    flat = stats.bootstrap([2.0, 2.0, 2.0])
    assert flat.mean == 2.0 and math.isnan(flat.lo) and math.isnan(flat.hi)


# a run sets denormal numbers to zero, for its whole process
CHANCES = st.lists(st.floats(0, 1, allow_subnormal=False), max_size=7)


@given(CHANCES)
def test_holm_is_the_closure_of_bonferroni(p):
    """Adjusted p of i: the largest of |S|·min p over every set S of hypotheses that i is in."""
    sets = [s for n in range(1, len(p) + 1) for s in itertools.combinations(range(len(p)), n)]
    local = {s: min(1.0, len(s) * min(p[j] for j in s)) for s in sets}
    expected = [max(chance for s, chance in local.items() if i in s) for i in range(len(p))]
    assert stats.holm(p) == expected
    assert stats.bonferroni(p) == [min(1.0, len(p) * one) for one in p]
    assert all(one <= q <= b for one, q, b in zip(p, expected, stats.bonferroni(p), strict=True))


BAD = [
    (lambda: stats.paired([], []), "at least two pairs"),
    (lambda: stats.paired([1, 2, 3], [1, 2]), "3 values against 2"),
    (lambda: stats.paired([1.0, math.nan], [1.0, 2.0]), "1 of 2 values in a are not finite"),
    (lambda: stats.paired([1.0, 2.0], [1.0, None]), "1 of 2 values in b are not finite"),
    (lambda: stats.paired([1.0, "x"], [1.0, 2.0]), "a must be numbers"),
    (lambda: stats.sign_test([1], [1]), "at least two pairs"),
    (lambda: stats.welch([1.0], [1.0, 2.0]), "at least two values per arm, got 1 and 2"),
    (lambda: stats.interval([1.0, 2.0], level=95), "level must be between 0 and 1"),
    (lambda: stats.bootstrap([1.0, 2.0], resamples=10), "resamples must be"),
    (lambda: stats.holm([0.1, math.nan]), "nan at place 2 of 2"),
    (lambda: family(published(), ["standart"]), "did you mean standard"),
    (lambda: family(published(), ["review"]), "give each pair once"),
    (lambda: family(published() * 2, ["standard"]), "two runs of seed 0"),
    (lambda: family(published(), ["standard"], value="ecce"), "a run without 'ecce'"),
    (lambda: stats.compare(published()), "either a baseline or pairs"),
]


@pytest.mark.parametrize("call, words", BAD, ids=[words for _, words in BAD])
def test_bad_input_is_one_clear_line(call, words):
    with pytest.raises(RRError, match=words):
        call()


def test_a_family_counts_what_it_cannot_compare():
    def runs(rung, arm, *losses):
        return [
            {"rung": rung, "arm": arm, "seed": seed, "val_loss": loss}
            for seed, loss in enumerate(losses)
        ]

    rows = [
        *runs("a", "review", 2.0, 2.1, 2.21),
        *runs("a", "standard", 2.2, 2.3, 2.4),
        *runs("b", "review", 2.0, math.nan),
        *runs("b", "standard", 2.1, 2.2),
        *runs("c", "review", 2.0, 2.1),
    ]
    a, b, c = family(rows, ["standard"])
    assert a["notes"] == [] and a["pairs"] == [0, 1, 2]
    assert b["diverged"] == [1] and b["pairs"] == [0] and b["paired_p"] is b["welch_p"] is None
    assert "no runs of standard" in c["notes"] and c["difference"] is None
    # three comparisons were planned, so three are corrected for
    expected = pytest.approx(min(1, 3 * a["paired_p"]))
    assert a["paired_bonferroni"] == expected == a["paired_holm"]


WITHOUT = """
import sys
for name in ("pandas", "scipy", "tabulate", "pyarrow", "matplotlib", "papermill", "IPython"):
    sys.modules[name] = None
from pathlib import Path
from rrstudy.cli import main
from rrstudy.stats import read_record
words = sys.argv[1:]
assert main(["train", *words]) == 0
(folder,) = Path("runs").glob("*/result.json")
assert read_record(folder.parent).object("result.json")["steps"] == 2
assert main(["sweep", *words, "--seed", "2", "--runner", "direct"]) == 0
assert len(list(Path("runs").glob("*/result.json"))) == 2
sys.exit(main(["table", "absent.csv", "--paired"]))
"""


def test_training_needs_no_package_of_the_extra_and_statistics_name_it(tmp_path, tiny_corpus):
    """torch, numpy and tokenizers train, sweep and read what they trained."""
    words = f"--rung {TINY} --corpus {tiny_corpus} --tokenizer bpe:300 --steps 2 --out runs"
    command = [sys.executable, "-c", WITHOUT, *words.split(), "--device", "cpu", "--batch", "1"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    line = result.stderr.splitlines()[-1]
    assert line.startswith(
        "rr: rrstudy.stats needs the package pandas, which is missing: pip install"
    )
    assert line.endswith("-e '.[stats]' in the checkout of rr")
