"""The training loop against second computations: schedule, batches, optimiser, evaluation, runs."""

import json
import math
from collections import namedtuple
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny import result_of, train
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

import rr
from rr import io
from rr.data import fables, open_corpus
from rr.errors import Interrupted, RRError, RunFailed
from rr.model import Model, costs, initialise
from rr.specs import ModelConfig, Recipe
from rr.training import checkpoint, context, evaluate, loading, parse_backend, trainer
from rr.training.device import _has_bf16, resolve_precision
from rr.training.step import OptimizerStep
from rrstudy import stats

DiskUsage = namedtuple("DiskUsage", "total used free")
HELD_OUT = np.random.RandomState(3).randint(0, 50, 200)  # a stand-in for held-out tokens

pytestmark = pytest.mark.usefixtures("kept_threads")


def curve(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def model_of(vocab=50, seq_len=16, seed=0, rule="review"):
    config = ModelConfig(
        vocab, n_layer=2, n_head=2, d_model=16, d_ff=32, seq_len=seq_len, rule=rule
    )
    return initialise(Model(config), seed)


# -- schedule -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "budgets",
    [None, (2, 400), (5, 7, 24), (2, 3, 4), (100, 200, 400), (399, 400)],
)
def test_the_segments_lead_to_every_budget(budgets):
    """Plateaus so far and a branch are the steps of its budget, at the budget's own rates."""
    plan = Recipe((budgets or [50])[-1], 1, 1.0, warmup=1, budgets=budgets)
    parts, ends = plan.segments, []
    for i, part in enumerate(parts):
        assert part.taken_before == (parts[i - 1].end if i else 0) and part.end > part.taken_before
        if part.budget is None:
            continue
        ends.append(part.budget)
        way = [p for p in parts[:i] if p.budget is None] + [part]
        taken = [(step, plan.lr_at(step, p.budget)) for p in way for step in range(p.start, p.stop)]
        assert taken == [(step, plan.lr_at(step, part.budget)) for step in range(part.budget)]
    assert ends == list(plan.budgets or (plan.steps,))


@pytest.mark.parametrize("budgets", [(1, 10), (10, 11, 20)])
def test_budgets_without_a_plateau_of_their_own_are_refused(budgets):
    """The later ones would go on from weights that have decayed."""
    with pytest.raises(
        RRError, match="two decays begin at one step, or one at the first: give budgets"
    ):
        Recipe(budgets[-1], 1, 1.0, warmup=1, budgets=budgets)


# -- whole runs; their losses and weights are held to the one file's in test_small.py --------------


@pytest.mark.parametrize("protocol", ["clean", "paper"])
def test_the_lines_and_the_evaluation_of_a_run(planned, tmp_path, protocol):
    run = planned(protocol=protocol, steps=8, seed=3, eval_batches=5)
    folder = train(run, tmp_path)
    lines = curve(folder)
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 9))
    assert all(line["tokens"] == line["step"] * 4 * 16 for line in lines)
    if protocol == "clean":
        assert [line["step"] for line in lines if "valid" in line] == [2, 4, 6]
        return
    # The evaluation goes on in the very same stream, right after the training batches.
    trained, _, _ = loading.load(folder)
    tokens = open_corpus(run.source["corpus"], run.source["tokenizer"], split="tokens")
    t, losses, stream = run.model.seq_len, [], np.random.RandomState(run.seed)
    for _ in range(8):
        stream.randint(0, len(tokens.train) - t - 1, 4)
    for _ in range(5):
        starts = stream.randint(0, len(tokens.valid) - t - 1, 4)
        rows = np.stack([tokens.valid[s : s + t + 1] for s in starts]).astype(np.int64)
        rows = torch.from_numpy(rows)
        with torch.no_grad():
            logits = trained(rows[:, :-1]).flatten(0, 1).double()
        losses.append(F.cross_entropy(logits, rows[:, 1:].flatten()).item())
    assert result_of(folder)["val_loss"] == pytest.approx(np.mean(losses), rel=1e-6)


def test_weight_decay_groups(planned, tmp_path, cut_off, steppers):
    decayed = []
    for protocol in ("clean", "paper"):
        with cut_off(0):
            train(planned(protocol=protocol), tmp_path)
        names = {p: name for name, p in steppers[-1].model.named_parameters()}
        groups = steppers[-1].optimizer.param_groups
        decays = [(names[p], g["weight_decay"]) for g in groups for p in g["params"]]
        assert sorted(name for name, _ in decays) == sorted(names.values())
        assert {decay for _, decay in decays} <= {0.0, 0.1}
        decayed.append({name for name, decay in decays if decay})
    clean, paper = decayed
    spared = {n for n in paper if n.endswith(("bias", "gain")) or n.startswith(("token", "pos"))}
    assert paper == set(names.values()) and paper - clean == spared


def test_every_option_that_changes_numbers_changes_the_id(planned):
    changes = ({}, {"seed": 1}, {"rule": "standard"}, {"lr": 1.0}, {"batch": 5}, {"steps": 7},
               {"precision": "bf16"}, {"eval_batches": 3}, {"protocol": "paper"}, {"loops": 2},
               {"optimizer": "muon"}, {"depth_lr": True},
               {"steps": None, "budgets": [4, 6]})  # fmt: skip
    assert len({planned(**change).id for change in changes}) == len(changes)
    for same in ({"steps": None, "budgets": [6]}, {"optimizer": "adamw"}, {"depth_lr": False}):
        assert planned(**same).id == planned().id


# -- evaluation ---------------------------------------------------------------------------------


def direct(model, tokens, span):
    """−log p of tokens[a+1 … b], each window [a, b) read alone, in float64: (b − a,)."""
    a, b = span
    with torch.no_grad():
        logits = model(torch.as_tensor(tokens[a:b], dtype=torch.long)[None])[0].double()
    targets = torch.as_tensor(tokens[a + 1 : b + 1], dtype=torch.long)
    return -logits.log_softmax(-1)[torch.arange(b - a), targets], logits, targets


@pytest.mark.parametrize("n", [193, 194, 18, 10])
def test_ordered_counts_each_target_once(n):
    model, tokens = model_of().double(), HELD_OUT[:n]
    score = evaluate.ordered(model, tokens, batch=3)
    assert score.eval_tokens == n - 1
    spans = [(a, min(a + 16, n - 1)) for a in range(0, n - 1, 16)]
    losses = torch.cat([direct(model, tokens, span)[0] for span in spans])
    assert len(losses) == n - 1
    assert score.val_loss == pytest.approx(losses.mean().item(), rel=1e-12)
    again = evaluate.ordered(model, tokens, batch=7)
    assert again.val_loss == pytest.approx(score.val_loss, rel=1e-12)
    if n > 100:  # shortened: the first windows
        first = evaluate.ordered(model, tokens, batch=3, batches=2)
        assert first.eval_tokens == 96
        assert first.val_loss == pytest.approx(losses[:96].mean().item(), rel=1e-12)


def test_calibration_error_by_its_definition():
    """On a text that proves the model right and wrong in bins by turns, so that no error hides."""
    model, text = model_of(seed=5), HELD_OUT.copy()
    with torch.no_grad():
        rows = model.token.weight
        rows.mul_(torch.linspace(1, 30, len(rows))[:, None])  # confidences in nearly every bin
        for i in range(199):
            window = torch.as_tensor(text[i - i % 16 : i + 1])[None]
            confidence, best = model(window)[0, -1].double().softmax(-1).max(-1)
            if int(confidence * 15) % 2 and i % 3:
                text[i + 1] = best
            elif text[i + 1] == best:
                text[i + 1] = (best + 1) % 50
    apart, bins = [], []
    for start in range(0, 199, 16):
        _, logits, targets = direct(model, text, (start, min(start + 16, 199)))
        confidence, best = logits.softmax(-1).max(-1)
        apart.append((best == targets).double() - confidence)
        bins.append((15 * confidence).ceil().long())  # (low, high]
    sums = torch.bincount(torch.cat(bins), torch.cat(apart))
    assert (sums > 0).sum() > 2 and (sums < 0).sum() > 2  # bins on both sides
    error = sums.abs().sum().item() / 199
    assert evaluate.ordered(model, text, batch=3).ece == pytest.approx(error, abs=1e-6)


def test_documents_are_read_one_by_one():
    eot, model = 0, model_of().double()
    lengths, rng = [3, 15, 1, 9, 9, 14], np.random.RandomState(0)
    stories = [rng.randint(1, 50, n) for n in lengths]
    stream = np.concatenate([np.append(story, eot) for story in stories])
    score = evaluate.by_document(model, stream, eot, batch=4)
    losses = []
    for story in stories:  # alone, after one end-of-text; its own end is predicted too
        row = np.concatenate([[eot], story, [eot]])
        losses.append(direct(model, row, (0, len(row) - 1))[0])
    losses = torch.cat(losses)
    assert score.eval_tokens == len(stream) == len(losses)
    assert score.val_loss == pytest.approx(losses.mean().item(), rel=1e-12)
    first = evaluate.by_document(model, stream, eot, batch=4, documents=3)
    assert first.eval_tokens == 3 + 15 + 1 + 3  # three stories and their ends
    assert first.val_loss == pytest.approx(losses[: 3 + 15 + 1 + 3].mean().item(), rel=1e-12)
    with pytest.raises(ValueError, match="exceeds"):
        evaluate.by_document(model, np.append(rng.randint(1, 50, 16), eot), eot)


def test_the_entropy_floor_lies_below_the_loss_on_the_same_stories(tmp_path, monkeypatch):
    monkeypatch.setattr(fables, "STORIES", {"train": 500, "valid": 40})
    monkeypatch.setattr(fables, "IDENTITY", "fables, a few")
    given = {"batch": 4, "tokenizer": "bpe:1024", "precision": "fp32", "eval_batches": 2}
    shape = "nano:n_layer=1,d_model=32,n_head=2,seq_len="
    result = result_of(train(rr.plan(shape + "256", steps=10, **given), tmp_path))
    tokens = open_corpus("fables", "bpe:1024")  # of a shortened evaluation: 2 x 4 stories
    assert (result["floor"], result["floor_error"]) == fables.entropy_floor(tokens, 8)
    assert result["stories"] == 8 and result["floor"] != fables.entropy_floor(tokens, 40)[0]
    assert 0.2 < result["floor"] < result["story_loss"] < math.log(1024)
    result = result_of(train(rr.plan(shape + "16", steps=2, **given), tmp_path))
    assert result["story_loss"] is None  # no story fits: no number is made up
    assert result["floor"] > 0.2


# -- out of memory ------------------------------------------------------------------------------


def test_out_of_memory_halves_the_micro_batch_and_nothing_else(planned, tmp_path, monkeypatch):
    """Which errors count as that: test_runtime.py."""
    plain = result_of(train(planned(), tmp_path / "plain"))
    forward, sizes, printed, most = Model.forward, [], [], 1

    def fails_above(self, idx, targets=None):
        if targets is not None:
            sizes.append(len(idx))
            if len(idx) > most:
                raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(self, idx, targets)

    monkeypatch.setattr(Model, "forward", fails_above)
    run = planned()
    folder = trainer.train(run, tmp_path / "small", rr.Request(threads=1), log=printed.append)
    assert sizes == [4, 2] + [1] * 4 * run.recipe.steps
    assert [line for line in printed if "micro-batch 2" in line or "micro-batch 1" in line]
    record = json.loads((folder / "run.json").read_text())
    assert record["provenance"]["micro_batch"] == 1 and record["run"]["recipe"]["batch"] == 4
    result = result_of(folder)
    assert result["id"] == plain["id"]
    assert result["val_loss"] == pytest.approx(plain["val_loss"], rel=1e-5)
    with pytest.raises(RunFailed, match="micro-batch of one window"):
        most = 0
        train(run, tmp_path / "none")


def test_a_resumed_run_takes_a_smaller_micro_batch_and_says_so(planned, tmp_path, monkeypatch):
    """Where its first one no longer fits; a larger one may be what did not fit."""
    run, sizes, forward = planned(), [], Model.forward
    whole = result_of(train(run, tmp_path / "whole"))
    monkeypatch.setattr(
        Model, "forward", lambda self, x, *rest: sizes.append(len(x)) or forward(self, x, *rest)
    )

    def resumed(micro_batch, **stop):
        said, folder = [], tmp_path / "cut"
        sizes.clear()
        request = rr.Request(threads=1, micro_batch=micro_batch)
        try:
            trainer.train(run, folder, request, log=said.append, **stop)
        except Interrupted:
            pass
        record = io.read_sealed(folder / run.id / "run.json")["provenance"]
        return record, " ".join(said), set(sizes[: run.recipe.batch // micro_batch])

    record, _, used = resumed(4, stop_after=2)
    assert record["micro_batch"] == 4 and used == {4}
    record, said, used = resumed(2, stop_after=3)
    assert (record["micro_batch"], record["bit_exact"], used) == (2, False, {2})
    assert "with a micro-batch of 4 and resumes with one of 2" in said
    record, said, _ = resumed(4)
    assert record["micro_batch"] == 2 and "the run keeps its micro-batch of 2" in said
    result = result_of(tmp_path / "cut" / run.id)
    assert result["val_loss"] == pytest.approx(whole["val_loss"], rel=1e-5)


def test_out_of_memory_elsewhere_is_one_line_and_the_weights_stay(planned, tmp_path, monkeypatch):
    def fails(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 1 GiB")

    with monkeypatch.context() as patch:
        patch.setattr(evaluate, "result", fails)
        with pytest.raises(RunFailed, match="^out of memory; checkpoints saved in .* remain"):
            train(planned(), tmp_path)
    (folder,) = tmp_path.iterdir()
    assert checkpoint.Checkpoints(folder, folder.name).steps()[-1] == 6
    assert result_of(train(planned(), tmp_path))["status"] == "finished"


# -- runs ---------------------------------------------------------------------------------------


def test_divergence_ends_a_run_where_it_is_seen_and_stays_seen(planned, tmp_path, monkeypatch):
    gradients, losses = OptimizerStep.gradients, []

    def breaks(self, x, y):
        losses.append(gradients(self, x, y))
        return losses[-1] * math.nan if len(losses) == 3 else losses[-1]

    run = planned(steps=12)
    with monkeypatch.context() as patch:
        patch.setattr(OptimizerStep, "gradients", breaks)
        patch.setattr(evaluate, "result", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):  # cut off between the last save and the result
            train(run, tmp_path)
        assert len(losses) == 3
    result = result_of(train(run, tmp_path))  # goes on: not a step more
    assert (result["status"], result["val_loss"], result["ece"]) == ("diverged", None, None)
    (folder,) = tmp_path.iterdir()
    rows = curve(folder)
    assert rows[-1]["status"] == "diverged" and rows[-1]["step"] == 3 and rows[-1]["loss"] is None


def test_the_recorded_loss_is_the_mean_since_the_last_line(planned, tmp_path, monkeypatch):
    rung = "nano:n_layer=1,d_model=8,n_head=1,seq_len=8"
    run = planned(rung=rung, steps=401, batch=1)  # a line every two steps
    gradients, losses = OptimizerStep.gradients, []

    def keep(self, x, y):
        losses.append(gradients(self, x, y).item())
        return torch.tensor(losses[-1], dtype=torch.float64)

    monkeypatch.setattr(OptimizerStep, "gradients", keep)
    folder = train(run, tmp_path)
    rows = curve(folder)
    rows = [row for row in rows if "loss" in row]
    assert [row["step"] for row in rows] == [*range(2, 401, 2), 401]
    assert rows[5]["loss"] == pytest.approx((losses[10] + losses[11]) / 2, rel=1e-12)
    assert rows[-1]["loss"] == pytest.approx(losses[-1], rel=1e-12)


@pytest.mark.parametrize(
    ("here", "path", "asked"),
    [("cpu", "compiled:attention=cudnn", {"device": "cpu"}), ("NVIDIA H100", "eager", {})],
)
def test_a_run_knows_its_own_device_and_tokens(
    planned, tmp_path, cut_off, monkeypatch, here, path, asked
):
    """On a named device, or a GPU of another name, it goes on: not bit for bit, which is recorded.

    A CPU stands for that GPU.
    """
    run, printed = planned(precision="bf16"), []
    with cut_off(3):
        train(run, tmp_path, save_every=1e-9)
    file = tmp_path / run.id / "run.json"
    record = io.read_sealed(file)
    own = record["provenance"]
    assert own["device"] == "cpu" and own["threads"] == 1
    for change, words in (
        ({"corpus_sha256": {"train": "0", "valid": "0"}}, "started on other tokens"),
        ({"device": "NVIDIA H200", "code_path": path}, "started on NVIDIA H200, not on cpu"),
    ):
        io.write_record(file, record | {"provenance": own | change})
        with pytest.raises(RRError, match=words):
            train(run, tmp_path)
    if here != "cpu":
        monkeypatch.setattr(context, "device_name", lambda device: here)
        monkeypatch.setattr(context, "_device_type", lambda name: "cpu")
    folder = trainer.train(run, tmp_path, rr.Request(**asked), log=printed.append)
    assert any(f"started on NVIDIA H200 and resumes on {here}" in line for line in printed)
    made_by = io.read_sealed(file)["provenance"]
    assert made_by["device"] == here and made_by["code_path"] == "eager"
    assert made_by["bit_exact"] is False and made_by["threads"] == 1
    assert result_of(folder)["status"] == "finished"


def test_a_run_resumed_where_its_precision_is_missing_takes_what_a_new_run_would(
    planned, tmp_path, cut_off, monkeypatch
):
    """From an A100 to a T4, here on a CPU: the checkpoint of bf16 knows no scale of a loss."""
    monkeypatch.setattr(context, "resolve_precision", lambda device, wanted: wanted)
    run, printed = planned(precision="bf16"), []
    with cut_off(3):
        train(run, tmp_path, save_every=1e-9)
    monkeypatch.setattr(context, "resolve_precision", lambda device, wanted: "fp16")
    folder = trainer.train(run, tmp_path, log=printed.append)
    assert any("cpu has no bf16: using fp16 with loss scaling" in line for line in printed)
    assert any("started in bf16 and resumes in fp16" in line for line in printed)
    made_by = io.read_sealed(folder / "run.json")["provenance"]
    assert (made_by["precision"], made_by["bit_exact"]) == ("fp16", False)
    assert result_of(folder)["status"] == "finished"


@pytest.mark.parametrize("name", ["processor", "cpu_kernels", "rr", "torch"])
def test_a_run_resumed_on_another_cpu_or_version_says_that_its_bits_may_differ(
    planned, tmp_path, cut_off, name
):
    run, printed = planned(), []
    with cut_off(3):
        train(run, tmp_path, save_every=1e-9)
    file = tmp_path / run.id / "run.json"
    record = io.read_sealed(file)
    own = record["provenance"]
    assert "bit_exact" not in own
    changed = {"packages": own["packages"] | {name: "another"}} if name == "torch" else {}
    io.write_record(file, record | {"provenance": own | (changed or {name: "another"})})
    trainer.train(run, tmp_path, log=printed.append)
    here = (own | own["packages"])[name]
    assert sum(f"with {name} another and resumes with {here}:" in line for line in printed) == 1
    made_by = io.read_sealed(file)["provenance"]
    assert made_by["bit_exact"] is False and made_by == own | {"bit_exact": False}


def test_a_full_disk_ends_a_run_before_its_first_step(planned, tmp_path, monkeypatch):
    run = planned()
    need = 3 * 12 * costs.count(run.model)
    monkeypatch.setattr(context.shutil, "disk_usage", lambda folder: DiskUsage(0, 0, need - 1))
    with pytest.raises(RRError, match="GB for checkpoints, .* GB are free"):
        train(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(context.shutil, "disk_usage", lambda folder: DiskUsage(0, 0, need))
    train(run, tmp_path / "out")


def test_when_a_run_has_ended_its_weights_alone_stay(planned, tmp_path):
    run = planned()
    small, whole = (
        train(run, tmp_path / str(kept), keep_checkpoints=kept, save_every=1e-9)
        for kept in (False, True)
    )
    assert [p.name for p in (small / "checkpoint").iterdir()] == ["weights"]
    assert len(list((whole / "checkpoint").iterdir())) == 2
    size = (small / "checkpoint" / "weights" / "state.pt").stat().st_size
    assert size < 4 * costs.count(run.model) + 50_000
    model, *_ = loading.load(small)
    assert checkpoint.weights_sha256(model) == result_of(whole)["weights_sha256"]
    (small / "result.json").unlink()  # then it is trained again, from the start
    again = train(run, tmp_path / "False")
    assert result_of(again)["weights_sha256"] == result_of(whole)["weights_sha256"]


def test_a_corpus_that_changed_after_the_plan_is_refused(planned, tmp_path):
    run = planned()
    changed = replace(run, corpus="file text 0")
    with pytest.raises(RRError, match="has changed since the run was planned"):
        train(changed, tmp_path)
    assert not any(tmp_path.iterdir())


# -- decay branches -------------------------------------------------------------------------------


BUDGETS = (8, 16, 24)


@pytest.fixture
def branched(planned):
    return planned(steps=None, budgets=list(BUDGETS), warmup=2)


@pytest.fixture(scope="module")
def alone(planned, tmp_path_factory):
    """Each of BUDGETS trained by itself: budget -> its result."""
    out = tmp_path_factory.mktemp("alone")
    return {n: result_of(train(planned(steps=n, warmup=2), out)) for n in BUDGETS}


def same_as_alone(result, alone):
    assert [ended["steps"] for ended in result["budgets"]] == list(BUDGETS)
    for ended in result["budgets"]:
        for name in ("weights_sha256", "val_loss", "ece", "eval_tokens", "tokens", "status"):
            assert ended[name] == alone[ended["steps"]][name], (ended["steps"], name)


def test_each_branch_is_the_budget_trained_alone(branched, alone, tmp_path):
    folder = train(branched, tmp_path, save_every=1e-9)
    result = result_of(folder)
    same_as_alone(result, alone)
    for name in ("steps", "val_loss", "weights_sha256"):
        assert result[name] == alone[24][name]
    assert [path.name for path in (folder / "checkpoint").iterdir()] == ["weights"]
    rows = stats.as_rows(stats.read_results(tmp_path))  # a table has a row for each
    got = {row["steps"]: row["val_loss"] for row in rows}
    assert got == {steps: alone[steps]["val_loss"] for steps in BUDGETS}


@pytest.mark.parametrize("stop_after", [6, 7, 8, 19])
def test_a_branching_run_goes_on_from_anywhere(branched, alone, tmp_path, cut_off, stop_after):
    """Cut off after so many of its 30 steps: on the plateau, on a branch, at its end, after it."""
    with cut_off(stop_after):
        train(branched, tmp_path, save_every=1e-9)
    lines = []
    folder = trainer.train(branched, tmp_path, rr.Request(threads=1), log=lines.append)
    assert any("resuming from step" in line for line in lines)
    same_as_alone(result_of(folder), alone)
    assert "bit_exact" not in io.read_sealed(folder / "run.json")["provenance"]  # on its own CPU


def test_a_run_stopped_again_and_again_is_the_uninterrupted_one(branched, alone, tmp_path):
    for step in (3, 8, 9, 29):
        with pytest.raises(Interrupted):
            train(branched, tmp_path, stop_after=step)
    same_as_alone(result_of(train(branched, tmp_path)), alone)


def test_the_checkpoint_that_a_branch_left_from_is_kept_until_it_ends(tmp_path):
    saved = checkpoint.Checkpoints(tmp_path, "abc", branches=[(6, 8)])
    for step in (5, 6, 7, 8):
        saved.save(step, {"step": step})
    assert saved.steps() == [6, 7, 8]
    saved.save(9, {"step": 9})
    assert saved.steps() == [6, 8, 9]  # damage to 9 would still lead to 8, and so back to 6
    saved.save(10, {"step": 10})
    assert saved.steps() == [9, 10]


def test_a_branch_that_diverges_is_marked_and_the_plateau_goes_on(
    branched, alone, tmp_path, monkeypatch
):
    gradients, taken = OptimizerStep.gradients, []
    (branch,) = [segment for segment in branched.recipe.segments if segment.budget == 8]

    def explode(self, x, y):
        taken.append(gradients(self, x, y))
        return taken[-1] * math.nan if len(taken) == branch.taken_before + 1 else taken[-1]

    monkeypatch.setattr(OptimizerStep, "gradients", explode)
    folder = train(branched, tmp_path)
    first, *others = result_of(folder)["budgets"]
    assert (first["status"], first["val_loss"]) == ("diverged", None)
    assert first["tokens"] == 7 * 4 * 16  # the step that it diverged at, not the budget's 8
    for ended in others:
        assert ended["weights_sha256"] == alone[ended["steps"]]["weights_sha256"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"budgets": [8, 4]}, "increasing"),
        ({"budgets": [0, 4]}, "integer ≥ 1"),
        ({"budgets": []}, "budgets must be a list of numbers of steps"),
        ({"budgets": [4, 8], "steps": 8}, "beside budgets"),
        ({"budgets": [4, 8], "protocol": "paper"}, "plateau"),
        ({"warmup": 0, "steps": 8}, "warmup"),
    ],
)
def test_wrong_budgets_are_refused(planned, changes, words):
    with pytest.raises(RRError, match=words):
        planned(**({"steps": None} | changes))


# -- float16 --------------------------------------------------------------------------------------


def test_float16_scales_its_loss_and_resumes_exactly(planned, tmp_path, cut_off):
    run = planned(precision="fp16", steps=8)
    whole = result_of(train(run, tmp_path / "whole"))
    near = result_of(train(planned(precision="fp32", steps=8), tmp_path / "fp32"))
    assert whole["precision"] == "fp16" and whole["status"] == "finished"
    # float16 keeps 11 bits: after 8 steps the losses of this tiny model agree to 1e-3.
    assert whole["val_loss"] == pytest.approx(near["val_loss"], abs=1e-3)
    with cut_off(5):
        train(run, tmp_path / "cut", save_every=1e-9)
    state = torch.load(next((tmp_path / "cut").glob("*/checkpoint/*5/state.pt")))
    assert state["scaler"]["scale"] == 65536.0
    printed = []
    cut = result_of(trainer.train(run, tmp_path / "cut", rr.Request(threads=2), log=printed.append))
    assert cut["weights_sha256"] == whole["weights_sha256"]
    assert cut["threads"] == 1 and any("keeps the 1 threads" in line for line in printed)


def test_a_gpu_without_bfloat16_gets_float16(monkeypatch):
    device = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    assert resolve_precision(device, "bf16") == "fp16"
    assert resolve_precision(device, "fp32") == "fp32"
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    assert resolve_precision(device, "bf16") == "bf16"


@pytest.mark.parametrize(
    ("flags", "limit", "has"),
    [
        ("fma avx512f avx512_bf16 amx_tile", None, True),
        ("fma avx512f avx512_bf16", "ONEDNN_MAX_CPU_ISA=avx512_core_bf16", True),
        ("fma avx512f avx512_bf16", "ONEDNN_MAX_CPU_ISA=AVX2", False),
        ("fma avx512f avx512_bf16", "DNNL_MAX_CPU_ISA=AVX2", False),
        ("fma avx512f avx512_bf16", "ONEDNN_MAX_CPU_ISA=all", True),
        ("fma avx512f avx512_bf16", "ONEDNN_MAX_CPU_ISA=", True),
        ("fma avx512f avx512_bf16", "ATEN_CPU_CAPABILITY=AVX2", False),
        ("asimd bf16", "ATEN_CPU_CAPABILITY=DEFAULT", True),
        ("fma avx512f", None, False),
        (None, None, False),
    ],
)
def test_a_cpus_bfloat16_is_read_off_its_flags(tmp_path, flags, limit, has, monkeypatch):
    if flags:
        (tmp_path / "cpuinfo").write_text(f"flags\t\t: {flags}\n")
    for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"):
        monkeypatch.delenv(name, raising=False)
    name, _, value = (limit or "").partition("=")
    if name and name != "ATEN_CPU_CAPABILITY":
        monkeypatch.setenv(name, value)
    torch_has = value if name == "ATEN_CPU_CAPABILITY" else "AVX512"  # torch reads it at import
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: torch_has)
    assert _has_bf16(tmp_path / "cpuinfo") == has


def test_a_cpu_without_bfloat16_gets_float32(monkeypatch):
    monkeypatch.setattr("rr.training.device._has_bf16", lambda: False)
    cpu = torch.device("cpu")
    given = [resolve_precision(cpu, name) for name in ("bf16", "fp32", "tf32")]
    assert given == ["fp32", "fp32", "tf32"]


# -- what nothing reported ------------------------------------------------------------------------


def test_a_disk_that_is_full_at_the_last_weights_is_one_line(planned, tmp_path, monkeypatch):
    real = torch.save

    def full(state, file):
        if set(state) == {"model"}:
            raise RuntimeError("unexpected pos 768 vs 662")
        real(state, file)

    monkeypatch.setattr(checkpoint.torch, "save", full)
    with pytest.raises(RunFailed, match="cannot save in .*; the last checkpoint remains"):
        train(planned(), tmp_path)
    monkeypatch.undo()
    assert result_of(train(planned(), tmp_path))["status"] == "finished"


def step_of(recipe: Recipe, **more) -> OptimizerStep:
    config = ModelConfig(50, n_layer=2, n_head=2, d_model=16, d_ff=32, seq_len=16, **more)
    model = initialise(Model(config), 0)
    return OptimizerStep(model, recipe, parse_backend("eager"), torch.device("cpu"))


def test_the_first_step_has_its_groups_rates():
    step = step_of(Recipe(4, 2, 0.01, warmup=1, depth_lr=True), rule="review:rate=10")
    rates = {(group["factor"], group["lr"]) for group in step.optimizer.param_groups}
    assert len(rates) > 2 and all(lr == pytest.approx(0.01 * factor) for factor, lr in rates)


def test_a_resumed_optimiser_does_not_use_the_file_that_it_was_read_from(tmp_path):
    step, ids = step_of(Recipe(4, 2, 0.01, warmup=1)), torch.arange(34).reshape(2, 17)
    step(ids[:, :-1], ids[:, 1:])
    torch.save(step.state(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", mmap=True, weights_only=True)
    step.load(state)
    mapped = {part.data_ptr() for part in tree_leaves(state) if isinstance(part, torch.Tensor)}
    for kept in step.optimizer.state.values():
        assert not mapped & {kept["exp_avg"].data_ptr(), kept["exp_avg_sq"].data_ptr()}


def test_initial_weights_are_drawn_in_float32_whatever_the_default_is():
    config = ModelConfig(50, n_layer=2, n_head=2, d_model=16, d_ff=32, rule="review:rank=4")
    expected = initialise(Model(config), 0).state_dict()
    torch.set_default_dtype(torch.float64)
    try:
        made = initialise(Model(config), 0).state_dict()
    finally:
        torch.set_default_dtype(torch.float32)
    for name, value in expected.items():
        torch.testing.assert_close(made[name].float(), value, rtol=1e-6, atol=0, msg=name)


def test_options_that_are_none_are_the_defaults():
    names = ("values", "loops", "flavour", "protocol", "seed", "lr")
    with pytest.raises(RRError, match="stepz"):
        rr.plan("nano", stepz=None)
    assert rr.plan("nano", **dict.fromkeys(names)).id == rr.plan("nano").id


def test_several_processes_that_are_not_there_are_said(planned, tmp_path):
    printed = []
    trainer.train(planned(), tmp_path, rr.Request(parallel="fsdp"), log=printed.append)
    assert "--parallel fsdp needs several processes, and this run has one" in printed
