"""Tables of runs: what is paired with what, what is marked, and what is said of damaged files."""

import json
import math

import pytest

from rr.config import RRError
from rr.stats import paired, read_results, render, table


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


def test_two_corpora_of_one_name_are_never_pooled():
    def told(which, seed):
        return [run(rule, seed, 2.0 + seed, corpus="t", corpus_id=f"sha256 {which}",
                    id=f"{rule}{which}{seed}") for rule in ("standard", "review")]

    rows = table([*told("a" * 64, 0), *told("b" * 64, 1)])
    assert sorted(row["n"] for row in rows) == [1, 1, 1, 1]
    assert all(len(row["pairs"]) < 2 for row in rows)
    assert "aaaaaaaaaaaa" in render(rows) and "bbbbbbbbbbbb" in render(rows)
