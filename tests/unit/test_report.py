"""The reports: the run that parameters name, what a folder lacks, and the command that fills it."""

import csv
import hashlib
import importlib.util
import json
import math
import shlex
import shutil
from dataclasses import replace

import IPython
import nbformat
import numpy as np
import pytest
import scipy.stats
import torch

import rr
from rr import io
from rr.data import baselines
from rr.errors import Interrupted, RRError
from rr.model import initialise
from rr.specs import RUN_OPTIONS
from rrbook import figures
from rrbook import reports as report
from rrbook.reports.run import LEVELS
from rrstudy import cli, command_line, stats
from rrstudy.sweep import cells, notebook
from rrstudy.sweep.grid import AXES

BODY = "nano:d_model=16,n_head=1,n_layer=1,seq_len=16"


# ---- The run that parameters name ----------------------------------------------------------------


def test_no_choice_names_the_run_that_rr_train_would():
    stored = notebook.parameters(notebook.find(None))
    nothing = {name: type(stored[name])() for name in RUN_OPTIONS if name in stored}
    nothing |= {"loops": 1, "corpus": "fables", "protocol": "clean"}
    del nothing["rung"], nothing["rule"]
    for tier in report.TIERS:  # the tier says nothing of a rung that is named
        assert report.chosen(tier, "nano", "", **nothing).id == rr.plan("nano", "review").id
    chosen = report.chosen("smoke", "nano", "highway", **nothing | {"seed": 3, "steps": 9})
    assert chosen.id == rr.plan("nano", "highway", seed=3, steps=9).id


@pytest.mark.parametrize(
    ("tier", "options", "recorded"),
    [
        ("smok", {}, "did you mean smoke"),
        ("smoke", {"budgets": "50,100"}, r"budgets must be .*\[2000, 4000\]"),
        ("smoke", {"lr": -1.0}, "lr must be"),
    ],
)
def test_wrong_parameters_are_refused_in_one_line(tier, options, recorded):
    with pytest.raises(RRError, match=recorded):
        report.chosen(tier, "nano", **options)


@pytest.mark.parametrize(
    "given",
    [
        {"rung": BODY, "rule": "highway", "steps": 7, "lr": 0.01, "warmup": 2, "batch": 3,
         "seed": 4},
        {"rung": "mini", "rule": "scaled", "loops": 2, "depth_lr": True, "precision": "fp32",
         "optimizer": "muon"},
        {"rung": "60M", "values": "identity", "protocol": "paper", "corpus": "tinystories"},
        {"rung": "nano", "rule": "constant:c=0.25", "budgets": [20, 40], "eval_batches": 2},
    ],
)  # fmt: skip
def test_the_command_of_a_run_names_the_same_run(given):
    """The words go through the command line's own parser."""
    run = rr.plan(**given)
    whole = command_line.words(command_line.options(run), "train", "runs")
    lines = command_line.wrapped(whole)
    assert shlex.split(lines.replace("\\\n", "")) == shlex.split(whole)
    assert all(len(line) <= 80 for line in lines.splitlines())
    args = vars(cli.parser().parse_args(shlex.split(whole)[1:]))
    assert rr.plan(**{name: args[name] for name in RUN_OPTIONS}).id == run.id


# ---- A run that has ended ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tiny_corpus, tmp_path_factory):
    """Four short runs in one folder: two arms, two seeds."""
    out, cache, made = tmp_path_factory.mktemp("runs"), str(tmp_path_factory.mktemp("cache")), {}
    given = {"corpus": tiny_corpus, "tokenizer": "bpe:300", "batch": 2, "eval_batches": 2}
    how = {"threads": 1, "cache": cache, "backend": "", "micro_batch": 0, "log": lambda line: None}
    for rule in ("standard", "review"):
        for seed in (0, 1):
            run = rr.plan(BODY, rule, **given, steps=6, seed=seed)
            made[rule, seed] = report.train(run, str(out), **how)
    return out, cache, made


def test_a_report_of_a_run(trained, tiny_corpus):
    _, cache, made = trained
    ended = report.read(made["review", 0])
    lines = [json.loads(x) for x in (ended.folder / "metrics.jsonl").read_text().splitlines()]
    (curve,) = ended.curves
    assert curve["loss"] == [line["loss"] for line in lines if "loss" in line]
    assert ended.held_out[-1] == (6, ended.result["val_loss"])
    (norms,) = ended.norms
    assert norms["loss"] == [line["grad_norm"] for line in lines if "loss" in line]
    assert min(norms["loss"]) > 0 and norms["steps"] == curve["steps"]
    looked = report.look(ended, cache, "cpu")
    # the second computation, from the saved weights, of what the run itself measured
    assert looked.again and looked.score.eval_tokens == ended.result["eval_tokens"]
    assert looked.score.val_loss == pytest.approx(ended.result["val_loss"], abs=1e-3)
    assert looked.score.ece == pytest.approx(ended.result["ece"], abs=1e-3)
    assert [row["name"] for row in looked.gates] == ["1 attn", "2 mlp"]
    for row in looked.gates:
        assert sorted(row["r"]) == row["r"] and len(row["r"]) == len(LEVELS)
        assert row["r"][0] <= row["mean"] <= row["r"][-1]
    recorded = dict(report.cost(ended))
    assert recorded["tokens trained on"] == f"{6 * 2 * 16}"
    flops = int(recorded["matmul FLOPs per token"].replace(",", ""))
    assert float(recorded["matmul FLOPs in total"]) == pytest.approx(flops * 6 * 2 * 16, rel=1e-3)
    assert dict(report.provenance(ended))["run"] == ended.folder.name
    assert "finished 6 steps" in report.outcome(ended)
    # what `rr prepare` prints of the corpus, see test_cli
    tokens = rr.open_corpus(tiny_corpus, "bpe:300", cache=cache, log=lambda line: None)
    assert report.bigram(ended.run, cache) == baselines(tokens)["bigram_nats"]


def test_a_run_that_stops_to_write_ends_with_the_same_weights(trained, tmp_path, capsys):
    _, cache, made = trained
    ended = report.read(made["review", 0])
    how = {"words": 5, "threads": 1, "cache": cache, "log": lambda line: None}
    folder, texts = report.train_in_parts(ended.run, str(tmp_path), "paper", [2, 4], **how)
    assert [step for step, _ in texts] == [2, 4, 6] and all(text for _, text in texts)
    assert folder == tmp_path / ended.run.id
    result = io.read_sealed(folder / "result.json")
    assert result["weights_sha256"] == ended.result["weights_sha256"]
    capsys.readouterr()
    assert cli.main(["sample", str(folder), "--tokens", "5"]) == 0
    assert capsys.readouterr().out.strip() == texts[-1][1] == report.text(folder, 5)
    again = report.train_in_parts(ended.run, str(tmp_path), "paper", [2, 4], **how)
    assert again == (folder, texts[-1:])  # a finished run has only its end to show


def test_a_person_who_stops_a_run_in_parts_stops_it(trained, tmp_path, monkeypatch):
    def stopped(run, out, request, **how):
        raise Interrupted("stopped at step 1")

    monkeypatch.setattr("rr.training.trainer.train", stopped)
    with pytest.raises(Interrupted):
        report.train_in_parts(report.read(trained[2]["review", 0]).run, str(tmp_path), "paper", [2])


def test_what_a_sublayer_writes():
    ids = torch.arange(32).view(2, 16)
    for rule, expected in (("standard", 1.0), ("constant:c=0.5", 0.5), ("layerscale", 0.1)):
        rows, why = report.gates(initialise(rr.Model(rr.plan(BODY, rule).model), 0), ids)
        assert why == "" and len(rows) == 2
        for row in rows:
            assert row["coefficient"] == pytest.approx(expected, rel=1e-4) and row["r"] is None
    rows, _ = report.gates(initialise(rr.Model(rr.plan(BODY, "review").model), 0), ids)
    assert [row["r"] for row in rows] == [[0.5] * 5] * 2  # its gates begin at one half, all of them
    trained = initialise(rr.Model(rr.plan(BODY, "layerscale").model), 0)
    with torch.no_grad():  # its channels have come apart
        for rule in trained.rules:
            rule.scale.add_(torch.randn_like(rule.scale))
    rows, why = report.gates(trained, ids)
    assert why == "" and [row["name"] for row in rows] == ["1 attn, mean", "2 mlp, mean"]
    # a gate inside the rule: no number on the update says what it writes
    rows, why = report.gates(initialise(rr.Model(rr.plan(BODY, "gtrxl").model), 0), ids)
    assert rows == [] and "no multiple of the update" in why
    rows, why = report.gates(rr.Model(rr.plan(BODY, "denseformer").model), ids)
    assert rows == [] and "keeps a list of tensors" in why


def test_a_diverged_run_is_shown_as_one(trained, tmp_path):
    _, cache, made = trained
    home = shutil.copytree(made["review", 1], tmp_path / made["review", 1].name)
    lines = (home / "metrics.jsonl").read_text().splitlines()
    end = {**json.loads(lines[-1]), "loss": None, "status": "diverged"}
    (home / "metrics.jsonl").write_text("\n".join([*lines[:-1], json.dumps(end)]) + "\n")
    result = io.read_sealed(home / "result.json")
    digest = hashlib.sha256((home / "metrics.jsonl").read_bytes()).hexdigest()
    lost = {"status": "diverged", "val_loss": None, "ece": None, "curve_sha256": digest}
    io.write_record(home / "result.json", result | lost)
    ended = report.read(home)
    assert report.outcome(ended).startswith("DIVERGED at step 6")
    assert math.isnan(ended.curves[0]["loss"][-1])
    looked = report.look(ended, cache)
    assert looked.gates == [] and "diverged" in looked.why and looked.bins is None
    _, ax = figures.canvas()
    figures.run_curve(ax, ended.curves, ended.held_out)
    assert any(line.get_marker() == "x" for line in ax.lines)  # the cross at its end
    _, ax = figures.canvas()
    figures.gates_by_sublayer(ax, [], "review", looked.why)
    assert looked.why in [text.get_text() for text in ax.texts]


# ---- `rr report` ---------------------------------------------------------------------------------


def test_a_finished_run_and_a_folder_of_runs_become_pages(
    trained, tmp_path, capsys, refuses, monkeypatch
):
    """The second call of a run reads the report that the first one left.

    What lies in the working folder under the name of a package is not run.
    """
    out, _, made = trained
    (tmp_path / "here").mkdir()
    names = ["papermill", "nbformat"]
    if IPython.version_info >= (9, 7):  # whose kernels keep the working folder out, too
        names.append("pandas")
    for name in names:
        mark = f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r})\n"
        (tmp_path / "here" / f"{name}.py").write_text(mark)
    monkeypatch.chdir(tmp_path / "here")
    shutil.copytree(out, tmp_path / "runs")
    folder = tmp_path / "runs" / made["review", 0].name
    assert "OUT must end in .ipynb or .html" in refuses("report", folder, "--html", "a.txt")

    def page(of, html):
        assert cli.main(["report", str(of), "--html", str(tmp_path / html)]) == 0
        assert capsys.readouterr().out == f"{tmp_path / html}\n"
        return (tmp_path / html).read_text()

    assert "finished 6 steps" in page(folder, "a.html")
    saved = (folder / "report.ipynb").read_bytes()
    assert nbformat.reads(saved, 4).metadata["papermill"]["end_time"]
    assert folder.name in page(folder, "b.html")
    assert (folder / "report.ipynb").read_bytes() == saved
    other = tmp_path / "runs" / made["standard", 1].name
    shutil.copy(folder / "report.ipynb", other)  # which is no report of this run
    assert other.name in page(other, "d.html") and folder.name not in page(other, "d.html")
    assert "standard" in page(folder.parent, "c.html")
    assert not (tmp_path / "ran").exists()
    (folder / "result.json").write_text("{")  # the old report is not handed out as if it were whole
    assert cli.main(["report", str(folder)]) == 3
    assert "result.json is corrupt" in capsys.readouterr().err


def test_a_corrupt_file_of_each_kind_is_named_with_what_to_do(trained, tmp_path):
    """And a run whose run.json is corrupt is in no comparison, nor missing for another reason."""
    out, _, made = trained
    shutil.copytree(out, tmp_path / "runs")
    first, second = made["review", 0].name, made["standard", 1].name
    (tmp_path / "runs" / first / "run.json").write_text("{")
    (tmp_path / "runs" / second / "result.json").write_text("{")
    here = report.survey(tmp_path / "runs")
    said = sorted(line.partition(":")[0] for line in here.damaged)
    assert said == sorted([f"{first}/run.json", f"{second}/result.json"])
    assert any("restore it, or remove its folder" in line for line in here.damaged)
    assert any("remove this file, and the command below" in line for line in here.damaged)
    assert {row["id"] for row in here.results}.isdisjoint({first, second})
    assert all(row["difference"] is None for row in here.rows)  # no pair is left


def test_a_report_is_never_of_another_text(trained, tmp_path, refuses):
    """With another text the same options name another run, which the report would train."""
    cache, text = trained[1], tmp_path / "own.txt"
    text.write_text("One.\n<|endoftext|>\nTwo apples.\n" * 300)
    given = {"corpus": f"file:{text}", "tokenizer": "bpe:260", "batch": 2, "eval_batches": 2}
    run = rr.plan(BODY, "standard", **given, steps=2)
    folder = rr.train(run, tmp_path / "runs", cache=cache, log=lambda line: None)
    text.write_text(text.read_text() + "Three.\n")
    assert "was trained with corpus" in refuses("report", folder)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [folder.name]
    assert not (folder / "report.ipynb").exists()


def test_a_report_never_trains_another_run(trained, tmp_path, refuses, tiny_corpus):
    """Parameters of the notebook would name one where a setting is no option of `rr train`."""
    run = rr.plan(BODY, "standard", corpus=tiny_corpus, tokenizer="bpe:300", batch=2, steps=2)
    run = replace(run, recipe=replace(run.recipe, weight_decay=0.2, eval_batches=2))
    folder = rr.train(run, tmp_path / "runs", cache=trained[1], log=lambda line: None)
    assert "a setting that neither an option of rr train nor" in refuses("report", folder)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [folder.name]


def test_a_folder_without_a_result_has_a_report_and_an_empty_one_none(trained, tmp_path, refuses):
    (tmp_path / "empty").mkdir()
    assert "no run below" in refuses("report", tmp_path / "empty")
    assert not any((tmp_path / "empty").iterdir())
    (tmp_path / "runs" / "x").mkdir(parents=True)
    (tmp_path / "runs" / "x" / "result.json").write_text("{}")
    assert cli.main(["report", str(tmp_path / "runs")]) == 0
    (saved,) = (path for path in (tmp_path / "runs").iterdir() if path.name != "x")
    assert saved.name == "report.ipynb" and "No run has finished." in saved.read_text()
    assert "corrupt, left out" in saved.read_text()


def test_an_option_of_the_other_kind_of_report_is_refused(trained, refuses):
    out, _, made = trained
    run = made["review", 0]
    assert "--baseline is for a folder" in refuses("report", run, "--baseline", "constant")
    assert "--rule is for one run" in refuses("report", out, "--rule", "mine.py:Mine")


def test_what_has_no_report_is_one_line(trained, tmp_path, refuses, monkeypatch):
    folder = tmp_path / trained[2]["review", 0].name
    assert "no folder" in refuses("report", folder)
    shutil.copytree(trained[2]["review", 0], folder)
    with monkeypatch.context() as bare:
        bare.setattr(importlib.util, "find_spec", lambda name: None)
        assert "pip install -e '.[notebooks]' -e book" in refuses("report", folder)
    (folder / "result.json").unlink()
    assert "has not ended" in refuses("report", folder)
    assert not (folder / "report.ipynb").exists()


# ---- A folder ------------------------------------------------------------------------------------


def test_a_whole_folder(trained):
    out, _, made = trained
    here = report.survey(out)
    losses = {
        key: json.loads((path / "result.json").read_text())["val_loss"]
        for key, path in made.items()
    }
    gaps = [losses["review", seed] - losses["standard", seed] for seed in (0, 1)]
    (point,), without = report.points(here)
    assert point["gap"] == pytest.approx(np.mean(gaps)) and without == []
    half = scipy.stats.t.ppf(0.975, 1) * np.std(gaps, ddof=1) / math.sqrt(2)
    assert point["hi"] - point["gap"] == pytest.approx(half)
    assert here.missing == here.damaged == here.begun == [] == report.command(here)
    rows = report.cost_by_arm(here)
    assert [row["runs"] for row in rows] == [2, 2, 4]
    assert rows[-1]["tokens"] == 4 * 6 * 2 * 16
    # decay branches are trained, too: as the report of one run counts
    (one, *_), ended = here.results, report.read(next(iter(made.values())))
    recipe = replace(ended.run.recipe, steps=6, budgets=(3, 6))
    branched = replace(ended.run, recipe=recipe)
    record = {"run": branched.spec(), "source": branched.source}
    alone = replace(here, results=[one], runs={one["id"]: record})
    assert report.cost_by_arm(alone)[0]["tokens"] == branched.tokens > 6 * 2 * 16


def test_a_folder_with_holes(trained, tmp_path):
    out, _, made = trained
    folder = shutil.copytree(out, tmp_path / "runs")
    (folder / made["review", 0].name / "result.json").unlink()
    (folder / made["standard", 1].name / "result.json").write_text('{"id":')
    here = report.survey(folder)
    assert len(here.results) == 2 and len(here.damaged) == len(here.begun) == 1
    assert made["review", 0].name in here.begun[0] and "step 6 of 6" in here.begun[0]
    assert made["standard", 1].name in here.damaged[0]
    assert {(gap["arm"], *gap["seeds"]) for gap in here.missing} == {("review", 0), ("standard", 1)}
    points, without = report.points(here)
    assert points == [] and "fewer than two pairs" in without[0]
    # the command, read back, plans the very runs that are missing
    (line,) = report.command(here)
    args = vars(cli.parser().parse_args(shlex.split(line)[1:]))
    planned = {cell.id for cell in cells({key: args[key] for key in AXES}, lambda line: None)}
    assert planned == {path.name for path in made.values()} and args["out"] == str(folder)


def test_a_plan_is_a_frame(trained):
    here = report.survey(trained[0], seeds=[1, 2], rules=["standard", "constant:c=0.5"])
    assert len(here.results) == 1 and len(here.outside) == 3
    assert any("seed 0 is not in the plan" in line for line in here.outside)
    assert any("rule review is not in the plan" in line for line in here.outside)
    got = {(gap["arm"], *gap["seeds"]) for gap in here.missing}
    assert got == {("standard", 2), ("constant", 1, 2)}
    with pytest.raises(RRError, match="unknown"):
        report.survey(trained[0], rungs=["nanoo"])
    for place, recorded in (("no", "no folder"), ("", "folder")):
        with pytest.raises(RRError, match=recorded):
            report.survey(place)


def test_the_published_study_is_read_as_the_folder_of_its_own_sweep():
    with report.STUDY.open() as file:
        stated = {(r["rung"], r["arm"], int(r["seed"])): r for r in csv.DictReader(file)}
    here = report.survey("review_residuals", seeds=[0, 1, 2])
    assert len(here.results) == 42 and not (here.notes or here.damaged or here.begun)
    for row in here.results:
        recorded = stated.pop((row["rung"], row["rule"], row["seed"]))
        assert (row["val_loss"], row["steps"]) == (
            float(recorded["val_loss"]),
            int(recorded["steps"]),
        )
    assert not stated
    assert list(dict.fromkeys(row["rung"] for row in here.rows)) == [
        "60M", "150M", "320M", "590M", "1B"]  # fmt: skip
    points, without = report.points(here)  # every arm is one series over the five sizes
    assert {p["series"] for p in points} == {"review", "highway"} and without == []
    # what the study lacks is named, and the command trains these very runs
    assert {(g["rung"], *g["seeds"]) for g in here.missing} == {("320M", 2)}
    (line,) = report.command(here)
    args = vars(cli.parser().parse_args(shlex.split(line)[1:]))
    planned = cells({key: args[key] for key in AXES}, lambda line: None)
    assert {(c.run.rung, c.run.rule, c.run.seed) for c in planned} == {
        ("320M", rule, 2) for rule in ("standard", "highway", "review")}  # fmt: skip
    known = {cell.id for cell in cells({"protocol": ["paper"]}, lambda line: None)}
    assert {row["id"] for row in here.results} == known and len(known) == 42


def test_a_record_is_found_by_its_name():
    here = report.survey("02_gate_equation", seeds=range(5))
    runs = stats.read_results(here.folder).query("seed < 5")
    assert here.rows == stats.as_rows(stats.compare(runs, "standard"))
    assert here.shown == "RUNS" and len(here.outside) == 12
    assert [row["arm"] for row in report.shown(here)] == [row["arm"] for row in here.rows]
