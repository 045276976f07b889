"""A report speaks of the runs that it is given: data turned round turn its sentences round."""

from dataclasses import replace

import pytest
from tiny import train

import rr
from rrbook import reports as report
from rrbook.reports import folder
from rrstudy.stats import as_rows, compare

HERE = report.survey("02_gate_equation")


def survey(results, baseline="standard", **more):
    """The survey of the record with other results."""
    rows = []
    notes = []
    try:
        rows = as_rows(compare(results, baseline)) if results else []
    except rr.RRError as error:
        notes.append(str(error))
    return replace(HERE, results=results, rows=rows, notes=notes, **more)


def arms(*names, **changes):
    """Rows of these arms, with changes."""
    rows = (row for row in HERE.results if row["lr"] == 3e-3 and row["seed"] < 5)
    return sorted(
        (dict(row) | changes for row in rows if row["rule"] in names),
        key=lambda row: (row["rule"], row["seed"]),
    )


PAIR = arms("standard", "review")


def exchanged():
    """The two arms with each other's losses."""
    losses = {(row["rule"], row["seed"]): row["val_loss"] for row in PAIR}
    other = {"standard": "review", "review": "standard"}
    return [row | {"val_loss": losses[other[row["rule"]], row["seed"]]} for row in PAIR]


def test_exchanged_losses_exchange_the_sentence():
    one = report.folder_summary(survey(PAIR), "standard")
    other = report.folder_summary(survey(exchanged()), "standard")
    assert "`review` finishes" in one and "`review` finishes" in other
    assert (" below `standard`" in one) != (" below `standard`" in other)
    assert " nats above `standard`" in (other if "below" in one else one)


def test_the_correction_is_that_of_the_table():
    summary = report.folder_summary(survey(arms("standard", "constant", "review")), "standard")
    assert summary.count("95 % interval") == 2 and "Holm's correction for 2 comparisons" in summary


def test_one_arm_one_seed_and_a_missing_baseline_are_said():
    alone = report.folder_summary(survey(arms("review")), "standard")
    assert "no run of it has ended here (the arms are review)" in alone
    lone = survey(arms("standard"))
    assert "it is the only arm" in report.folder_summary(lone, "standard")
    one = [row for row in PAIR if row["seed"] == 0]
    assert "**One seed.**" in report.folder_warnings(survey(one))
    assert "95 %" not in report.folder_summary(survey(one), "standard")
    assert report.folder_summary(survey([]), "standard") == "- No run has ended yet."


def test_means_are_of_comparable_runs_and_seeds_are_counted_once():
    """Where the baseline is missing: one line for each text, rate and length, never a mixture."""
    text = {"corpus": "file:b.txt", "corpus_id": "b"}
    longer = {"steps": PAIR[0]["steps"] + 1}
    rows = [
        row | change | {"id": f"{row['id']}{i}", "val_loss": row["val_loss"] + i}
        for i, change in enumerate(({}, text, longer, {"lr": 1e-3}))
        for row in arms("review")
    ]
    shown = report.shown(survey(rows, "highway"))
    assert [row["seeds"] for row in shown] == [len(arms("review"))] * 4
    mean = sum(row["val_loss"] for row in arms("review")) / len(arms("review"))
    assert sorted(row["val_loss"] for row in shown) == [f"{mean + i:.4f}" for i in range(4)]
    assert len({(row["runs"], row["lr"]) for row in shown}) == 4


def test_the_correction_counts_what_has_no_p():
    lost = [row | {"status": "diverged", "val_loss": None} if row["rule"] == "constant" else row
            for row in arms("standard", "constant", "review", "highway")]  # fmt: skip
    assert "Holm's correction for 3 comparisons" in report.folder_summary(survey(lost), "standard")


def test_a_value_rule_has_the_name_that_is_written_and_equal_is_said():
    rows = [row | {"values": "constant:lam=2"} if row["rule"] == "review" else row for row in PAIR]
    rows = [row | {"rule": "standard"} for row in rows]
    assert "`standard + constant-resformer:lam=2` finishes" in report.folder_summary(
        survey(rows), "standard"
    )
    losses = {row["seed"]: row["val_loss"] for row in PAIR if row["rule"] == "standard"}
    same = [row | {"val_loss": losses[row["seed"]]} for row in PAIR]
    assert "`review` and `standard` finish alike" in report.folder_summary(survey(same), "standard")


def test_what_is_lost_in_progress_or_corrupt_is_named():
    lost = [row | {"status": "diverged", "val_loss": None} if row["rule"] == "review" else row
            for row in PAIR]  # fmt: skip
    assert "**Diverged:** `review` seed 0" in report.folder_warnings(survey(lost))
    words = report.folder_warnings(survey(PAIR, begun=["a: begun"], damaged=["b: corrupt"]))
    assert "Diverged" not in words and "**In progress or cut off:** 1 run." in words
    assert "**Corrupt and left out:** 1 run" in words


def test_two_texts_in_one_folder_are_told_apart():
    """In each sentence, in the figure's rows, and in the series of sizes."""
    text = {"corpus": "file:b.txt", "corpus_id": "b"}
    other = [row | text | {"id": f"b{i}"} for i, row in enumerate(exchanged())]
    here = survey(PAIR + other)
    one, two = report.folder_summary(here, "standard").splitlines()[1:3]
    assert {"tinystories" in one, "tinystories" in two} == {True, False}
    assert {"file:b.txt" in one, "file:b.txt" in two} == {True, False}
    assert ("above" in one) != ("above" in two)
    drawn, _ = report.points(here)
    assert len({point["series"] for point in drawn}) == 2
    gap = {"rung": PAIR[0]["rung"], "arm": "review", "seeds": [5], "like": other[-1]}
    (line,) = report.lacking(replace(here, missing=[gap]))
    assert "file:b.txt" in line and line.endswith(", review: lacks seed 5")
    alone = report.folder_summary(survey(PAIR), "standard")
    assert PAIR[0]["corpus"] not in alone


def test_two_diverged_rates_of_one_seed_are_two():
    lost = [row | {"status": "diverged", "val_loss": None, "lr": lr}
            for row in PAIR[:1] for lr in (0.1, 0.3)]  # fmt: skip
    words = report.folder_warnings(survey(PAIR + lost))
    assert "rate 0.1 and" in words and "rate 0.3." in words


def test_a_folder_is_held_against_counting_as_its_runs_are():
    text = folder.text_of(PAIR[0])
    low, high = ({text: (line, "")} for line in (1.0, 99.0))
    assert f"All {len(PAIR)} results" in report.folder_warnings(survey(PAIR, bigrams=low))
    assert report.folder_warnings(survey(PAIR, bigrams=high)) == report.folder_warnings(
        survey(PAIR)
    )
    unknown = report.folder_warnings(survey(PAIR, bigrams={text: (None, "no such file")}))
    assert "**Not held against counting.**" in unknown and "no such file" in unknown


def test_a_rate_at_the_edge_is_named():
    rows = [row | {"lr": lr, "val_loss": row["val_loss"] + add}
            for row in PAIR for lr, add in ((1e-3, 0.2), (2e-3, 0.1), (4e-3, 0.0))]  # fmt: skip
    words = report.folder_warnings(survey(rows))
    assert "`review` at nano does best at 0.004, the end of the rates" in words
    inside = [row | {"val_loss": row["val_loss"] - (row["lr"] == 2e-3)} for row in rows]
    assert "Rate at the edge" not in report.folder_warnings(survey(inside))
    lost = [row | {"val_loss": None, "status": "diverged", "lr": 8e-3} for row in PAIR]
    assert "Rate at the edge" not in report.folder_warnings(survey([*rows, *lost]))  # it was tried
    # seeds differ more than rates: one that only some rates have is left out
    alone = [row | {"lr": 2e-3, "seed": 99, "val_loss": 99.0} for row in PAIR]
    assert "Rate at the edge" not in report.folder_warnings(survey([*inside, *alone]))
    other = [row | {"lr": 8e-3, "steps": row["steps"] + 1} for row in PAIR]
    assert report.folder_warnings(survey([*inside, *other])).count("Rate at the edge") == 0


# ---- one run -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ended(planned, tmp_path_factory):
    return report.read(train(planned(eval_batches=2), tmp_path_factory.mktemp("runs")))


def test_a_run_is_held_against_counting(ended):
    look = report.look(ended)
    loss = ended.result["val_loss"]
    worse = report.run_summary(ended, loss - 1, look)
    better = report.run_summary(ended, loss + 1, look)
    assert "not yet learned what counting pairs gives" in worse
    assert "learned more than which token follows which" in better
    assert "**Barely trained.**" in report.run_warnings(ended, loss - 1)
    assert "Barely trained" not in report.run_warnings(ended, loss + 1)
    assert "stopped twice" not in worse


def test_calibration_follows_the_numbers(ended):
    look = report.look(ended)
    bins = look.bins.copy()
    bins[:, 1] = bins[:, 0]  # certain of everything
    assert "too sure" in report.run_summary(ended, 1.0, replace(look, bins=bins))
    bins[:, 1], bins[:, 2] = 0, bins[:, 0]
    assert "not sure enough" in report.run_summary(ended, 1.0, replace(look, bins=bins))


def test_weights_that_are_no_numbers_write_no_text(ended, monkeypatch):
    """As a checkpoint has them before the trainer sees a loss that is not finite."""
    model, *rest = rr.load(ended.folder, "cpu")
    model.token.weight.data.fill_(float("inf"))
    monkeypatch.setattr("rrbook.reports.run.load", lambda *_: (model, *rest))
    assert report.text(ended.folder) == "nothing: it diverged"


def test_a_model_that_ends_its_text_at_once_did_not_diverge(ended, monkeypatch):
    monkeypatch.setattr("rrbook.reports.run.sample", lambda *_, **__: "")
    assert report.text(ended.folder) == "nothing but white space, or the end at once"


def test_a_run_that_diverged(ended):
    lost = replace(ended, result=ended.result | {"status": "diverged", "val_loss": None})
    assert "DIVERGED" in report.run_summary(lost, 2.0, report.look(lost))
    assert "**Diverged.**" in report.run_warnings(lost, 2.0)
