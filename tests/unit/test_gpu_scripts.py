"""The two scripts that wait for a GPU: their arithmetic, and each in rehearsal on this machine."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import scipy.stats as st

import rr
from rrstudy import stats

SCRIPTS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(SCRIPTS))
import gpu_check  # noqa: E402
import gpu_pairs  # noqa: E402


def test_intervals_and_corrections_are_scipys():
    for df in (1, 2, 3, 7, 30):
        for t in (-3.0, 0.0, 0.4, 2.5, 60.0):
            assert gpu_pairs.t_cdf(t, df) == pytest.approx(st.t.cdf(t, df), abs=1e-9)
        assert gpu_pairs.t_quantile(0.975, df) == pytest.approx(st.t.ppf(0.975, df), rel=1e-6)
    gaps = [-0.05, -0.031, -0.07, -0.04]
    test, found = st.ttest_1samp(gaps, 0), gpu_pairs.paired(gaps)
    assert (found["lo"], found["hi"]) == pytest.approx(tuple(test.confidence_interval(0.95)))
    assert found["p"] == pytest.approx(test.pvalue) and found["mean"] == pytest.approx(-0.04775)
    for p in ([0.03, 0.02], [0.5, 0.9], [0.01, 0.04, 0.03]):
        assert gpu_pairs.holm(p) == pytest.approx(stats.holm(p))


def test_what_runs_is_what_was_planned():
    """Each number of the script against the text that was committed before the first run."""
    text = gpu_pairs.plan_text()
    words = " ".join(text.split()).replace("−", "-")
    rates = "seeds 20 and 22 at 6e-4, 21 and 23 at 1.2e-3"
    numbers = [float(x) for x in re.findall(r"\d[\de.-]*\d", rates)]
    assert rates in words and numbers == [20, 22, 6e-4, 21, 23, 1.2e-3]
    assert gpu_pairs.RATES == {20: 6e-4, 22: 6e-4, 21: 1.2e-3, 23: 1.2e-3}
    for said in ("60M, three arms: standard, ½, state-gate, each widened to Review's count",
                 "1,800 steps of 64 × 256", "warm-up 90", "450 and 900 steps",
                 "Holm family of two", "state-gate - ½ and state-gate - standard",
                 "both intervals lie below -0.02", "both lie within ±0.015"):  # fmt: skip
        assert said in words, said
    shape = gpu_pairs.SHAPE
    assert (shape["budgets"], shape["warmup"], shape["batch"]) == ([450, 900, 1800], 90, 64)
    assert gpu_pairs.ARMS == ("standard", "constant", "state-gate")
    assert (gpu_pairs.BELOW, gpu_pairs.WITHIN) == (-0.02, 0.015)
    run = rr.plan(rule="constant", corpus="tinystories", **shape)
    assert (run.recipe.precision, run.recipe.steps) == ("bf16", 1800)


def rows_of(gaps):
    """Runs whose state gate is `gaps` below both others, block by block; the last one lacks one."""
    rows = []
    for seed, gap in zip(gpu_pairs.RATES, gaps, strict=False):
        for rule, loss in (("standard", 4.0), ("constant", 4.0), ("state-gate", 4.0 + gap)):
            rows.append({"seed": seed, "rule": rule, "losses": {900: loss, 1800: loss}})
    return rows


@pytest.mark.parametrize(
    ("gaps", "words"),
    [
        ((-0.05, -0.06, -0.05, -0.06), "five more"),
        ((0.001, -0.001, 0.002, -0.002), "dropped"),
        ((-0.05, -0.01, -0.05, 0.01), "unknown"),
        ((-0.021, -0.019, -0.021, -0.019), "unknown"),
        ((-0.05, -0.06, -0.05), "3 of 4 blocks"),
        ((), "0 of 4 blocks"),
    ],
)
def test_the_rule_is_applied_to_four_whole_blocks(gaps, words):
    found = gpu_pairs.analysed(rows_of(gaps))
    assert words in found["verdict"]
    less = gpu_pairs.analysed(rows_of(gaps)[:-1])  # a block that lacks an arm counts nowhere
    assert len(less["blocks"]) == max(0, len(gaps) - 1)
    assert all(test["n"] == max(0, len(gaps) - 1) for test in less["tests"])


def called(script, *words):
    command = [sys.executable, script.__file__, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


@pytest.fixture
def again(monkeypatch, capsys, kept_threads):
    """again(script, *words) -> what it prints when it is called once more, in this process."""

    def call(script, *words):
        monkeypatch.setattr(sys, "argv", [script.__file__, *map(str, words)])
        monkeypatch.setattr(script, "BEGAN", time.monotonic())
        assert script.main() == 0
        return capsys.readouterr().out

    return call


def test_the_pairs_in_rehearsal(tmp_path, again, capsys):
    """From a file of uint16 tokens to records; a second call finds nothing to do."""
    tokens = rr.open_corpus("fables", "bpe:300", log=lambda line: None)
    text = tmp_path / "tokens.bin"
    np.asarray(tokens.train[:20_000]).astype(np.uint16).tofile(text)
    words = ["--out", tmp_path / "out", "--text", text, "--device", "cpu", "--rehearse"]
    words += ["--tokenizer", tokens.vocabulary.folder, "--jobs", 2]
    printed = called(gpu_pairs, *words)
    assert "1 of 4 blocks are whole: the rule is not applied" in printed
    found = json.loads((tmp_path / "out" / "pairs.json").read_text())
    assert [row["seed"] for row in found["rows"]] == [20] * 3 and found["blocks"] == [20]
    assert {row["rule"] for row in found["rows"]} == set(gpu_pairs.ARMS)
    assert found["plan"].startswith("On a GPU: is the lead of small networks")
    sizes = [row["params"] for row in found["rows"]]
    assert max(sizes) / min(sizes) < 1.02  # widened to Review's count
    by = {row["rule"]: row["losses"] for row in found["rows"]}
    for test in found["tests"]:
        at = str(test["steps"])
        assert test["mean"] == pytest.approx(by[test["arm"]][at] - by[test["baseline"]][at])
    results = stats.as_rows(stats.read_results(tmp_path / "out" / "records"))
    assert len(results) == 9  # three budgets of three runs
    assert not list((tmp_path / "out" / "runs").glob("*/checkpoint"))  # no weights stay
    assert "begins" not in again(gpu_pairs, *words)
    np.asarray(tokens.train[1:20_001]).astype(np.uint16).tofile(text)
    assert gpu_pairs.main() == 2  # the records are of another text
    assert "is no run of this plan on this text" in capsys.readouterr().err


def test_the_check_in_rehearsal(tmp_path, again):
    stages = ["gradients", "steps", "resume", "study"]
    words = ["--out", tmp_path, "--device", "cpu", "--rehearse", "--minutes", 30]
    called(gpu_check, *words, "--stages", *stages)
    found = {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in stages}
    assert all(part["complete"] for part in found.values())
    assert all(row["right"] for row in found["gradients"]["rows"])
    assert max(row["compiled"] for row in found["gradients"]["rows"]) < gpu_check.TOLERANCE
    assert {row["rule"] for row in found["steps"]["rows"]} == {"standard", "review"}
    assert all(row["failed"] is None for row in found["steps"]["rows"])
    assert found["resume"]["same_bits"] and found["resume"]["agree"]
    assert found["resume"]["killed"] == -signal.SIGKILL and found["resume"]["killed_after"]
    assert found["resume"]["codes"] == [0, 0]
    assert "resuming from step" in (tmp_path / "resume" / "torn" / "log").read_text()
    assert [row["case"] for row in found["study"]["rows"]] == [
        "script tf32",
        "script bf16",
        "eager",
    ]
    assert again(gpu_check, *words, "--stages", *stages).count("done already") == len(stages)


def test_a_lost_gradient_is_not_right(monkeypatch):
    """By the check's own comparison: one rule's first gradient is zero where it is compiled."""
    real = gpu_check.gradients_of

    def lossy(rule, values, path, *given, **options):
        grads = real(rule, values, path, *given, **options)
        if path.startswith("compiled"):
            grads[next(iter(grads))].zero_()
        return grads

    monkeypatch.setattr(gpu_check, "gradients_of", lossy)
    row = gpu_check.compared("standard", "own", "cpu", "aot_eager")
    assert not row["right"] and row["compiled"] == pytest.approx(1, abs=0.01)
    assert row["uncompiled"] < gpu_check.TOLERANCE
