"""Plans by hand: hours from FLOPs and a rate, what a budget takes in, and what it must refuse."""

import json

import pytest

from rr import cli, ladder, planning
from rr.bench import BANDWIDTH, MEMORY, PEAKS
from rr.config import RRError

NAMES = {"corpus": "a text", "tokenizer": "its tokens", "vocab_size": 500}


def runs(rung="nano", rules=("review", "standard"), seeds=(0, 1), **more):
    return [ladder.specify(rung, rule, seed=seed, **NAMES, **more)
            for seed in seeds for rule in rules]  # fmt: skip


def test_hours_by_hand(tmp_path):
    """tokens · FLOPs a token over peak · MFU; scoring costs a third of training."""
    card = planning.Gpu("a card", 1e14, 1e11)
    (row,) = planning.what_fits(runs(rules=["review"], seeds=[0], eval_batches=2), card,
                                mfu=(0.1, 0.4), price=3.0, records=tmp_path)  # fmt: skip
    each = ladder.flops_per_token(ladder.arm("nano", "review", 500))
    window = 8 * 256
    assert row["tokens"] == 150 * window
    assert row["scored_tokens"] == 4 * 2 * window  # at the end and three times on the way
    flops = each * (150 + 8 / 3) * window
    assert row["hours"] == pytest.approx((flops / 4e13 / 3600, flops / 1e13 / 3600))
    assert row["cost"] == pytest.approx([3 * h for h in row["hours"]])
    assert row["measured"] is None
    assert row["params"] == ladder.count(ladder.arm("nano", "review", 500))


def test_branches_are_trained_and_paid_for():
    """2,000 to 4,000 steps: the longer budget, and the shorter's last fifth again."""
    card = planning.Gpu("a card", 1e14, 1e11)
    (row,) = planning.what_fits(runs(rules=["review"], seeds=[0], budgets=[2000, 4000]), card)
    assert row["tokens"] == (4000 + 400) * 8 * 256


def test_pairs_are_complete_and_small_rungs_first(tmp_path):
    card = planning.Gpu("a card", 1e12, 1e11)
    plan = runs("mini") + runs("nano")
    whole = planning.what_fits(plan, card, mfu=(0.5, 0.5), records=tmp_path)
    order = [(row["rung"], row["seed"], row["rule"]) for row in whole]
    assert order == [(rung, seed, rule) for rung in ("nano", "mini") for seed in (0, 1)
                     for rule in ("standard", "review")]  # fmt: skip
    until = whole[2]["until"][1]  # in the midst of the second pair
    short = planning.what_fits(plan, card, until, (0.5, 0.5), records=tmp_path)
    assert [row["fits"] for row in short] == ["yes"] * 2 + ["no"] * 6
    range_ = planning.what_fits(plan, card, until, (0.5, 1.0), records=tmp_path)
    assert [row["fits"] for row in range_][:4] == ["yes"] * 2 + ["perhaps"] * 2


def test_the_studys_arms_are_a_pair_though_they_are_of_other_widths(tmp_path):
    """Protocol paper widens the standard arm; TF32 has half of the 16-bit peak."""
    card = planning.Gpu("a card", 1e12, 1e11)
    plan = runs("nano:n_layer=1", protocol="paper") + runs("nano", protocol="paper")
    assert plan[-1].model.d_model > plan[-2].model.d_model
    rows = planning.what_fits(plan, card, mfu=(0.5, 0.5), records=tmp_path)
    assert [(row["rung"], row["seed"], row["rule"]) for row in rows[4:]] == [
        ("nano", seed, rule) for seed in (0, 1) for rule in ("standard", "review")]  # fmt: skip
    half = planning.what_fits(plan, card, mfu=(0.25, 0.25), records=tmp_path)
    assert half[0]["hours"][0] == pytest.approx(2 * rows[0]["hours"][0])
    flops = ladder.flops_per_token(plan[-1].model) * 64 * 256 * (150 + 80 / 3)
    assert rows[-2]["hours"][0] == pytest.approx(flops / 2.5e11 / 3600)
    assert "tf32 has half" in " ".join(planning.told(rows, card, None, (0.5, 0.5)))


def test_what_does_not_fit_the_memory_is_said_to_and_takes_no_hours(tmp_path):
    card = planning.Gpu("a small card", 1e12, 6e8)  # less than a driver takes
    rows = planning.what_fits(runs(seeds=[0], batch=1), card, records=tmp_path)
    assert {row["fits"] for row in rows} == {"memory"}
    assert all(row["micro_batch"] is None and row["until"] is None for row in rows)


def test_a_record_of_that_card_is_used_with_its_spread(tmp_path):
    """Steps of 1, 2 and 4 seconds: the rate is the record's, not an assumption."""
    run = runs(rules=["review"], seeds=[0])[0]
    each = ladder.flops_per_token(run.model)
    row = {"rung": "nano", "rule": "review", "peer": None, "path": "compiled", "failed": None,
           "precision": "bf16", "tokens_per_step": 2048, "flops_per_token": each,
           "step_ms": [1000, 2000, 4000], "tokens_per_second": 1024}  # fmt: skip
    told = {"made_by": {"device": "NVIDIA L4"}, "rows": [row]}
    (tmp_path / "gpu").mkdir()
    (tmp_path / "gpu" / "nano.json").write_text(json.dumps(told))
    (found,) = planning.what_fits([run], planning.gpu("L4"), records=tmp_path)
    steps = 150 + found["scored_tokens"] / 2048 / 3
    assert found["hours"] == pytest.approx((steps / 3600, 4 * steps / 3600))
    assert found["measured"] == "gpu/nano.json"
    (other,) = planning.what_fits([run], planning.gpu("T4"), records=tmp_path)
    assert other["measured"] is None and other["precision"] == "fp16"


def test_every_known_card_has_its_memory():
    assert set(MEMORY) == set(PEAKS) == set(BANDWIDTH)
    assert planning.gpu("h100").memory == 80e9 and planning.gpu("A100", memory_gb=80).memory == 8e10


def test_the_verb(capsys):
    words = ["plan", "--gpu", "T4", "--rung", "nano", "--rule", "review", "standard"]
    assert cli.main([*words, "--dollars", "6", "--price", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["hours"] == 2 and len(found["rows"]) == 2
    assert cli.main([*words, "--hours", "1"]) == 0
    out = capsys.readouterr().out
    assert "not measured" in out and "assumed MFU of 0.2–0.45" in out and "dollars" not in out


@pytest.mark.parametrize(("words", "why"), [
    (["--gpu", "H101"], "unknown GPU"), (["--gpu", "Mine", "--tflops", "5"], "unknown GPU"),
    (["--gpu", "T4", "--hours", "-1"], "hours is -1"), (["--gpu", "T4", "--hours", "nan"], "hours"),
    (["--gpu", "T4", "--dollars", "60"], "without a price"),
    (["--gpu", "T4", "--dollars", "6", "--price", "1", "--hours", "2"], "both hours"),
    (["--gpu", "T4", "--price", "0"], "price is 0"), (["--gpu", "T4", "--mfu", "30"], "mfu"),
    (["--gpu", "T4", "--mfu", "0.5-0.3"], "mfu"), (["--gpu", "T4", "--memory", "0"], "memory is 0"),
    (["--gpu", "T4", "--rung", "61M"], "unknown rung"), ([], "--gpu"),
])  # fmt: skip
def test_bad_words_are_one_line(words, why, capsys):
    assert cli.main(["plan", *words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and why in err


def test_budgets():
    assert planning.budget(None, 60, 2.5) == 24
    assert planning.mfu_range("0.3-0.5") == (0.3, 0.5) and planning.mfu_range("0.4") == (0.4, 0.4)
    with pytest.raises(RRError):
        planning.budget(float("inf"), None, None)
