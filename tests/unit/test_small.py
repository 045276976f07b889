"""The one-file edition beside `rr`: the same losses and weights, bit for bit, on a CPU."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from tiny import train

from rr import small
from rr.data import open_corpus
from rr.specs import Recipe
from rr.training import loading

pytestmark = pytest.mark.usefixtures("kept_threads")


@pytest.fixture
def norms(monkeypatch):
    """The norms of the gradients that the optimiser's steps find, in order."""
    seen, clip = [], torch.nn.utils.clip_grad_norm_

    def clipped(parameters, most):
        seen.append(clip(parameters, most))
        return seen[-1]

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", clipped)
    return seen


def assert_same(run, folder, norms):
    """`rr.train` and the one file: losses, norms of gradients and weights, to the last bit.

    Returns the losses and the one file's model.
    """
    split = "tokens" if run.protocol == "paper" else "documents"
    tokens = open_corpus(run.source["corpus"], run.source["tokenizer"], split=split)
    trained, _, _ = loading.load(train(run, folder, backend="reference"))
    lines = (folder / run.id / "metrics.jsonl").read_text().splitlines()
    lines = [line for line in map(json.loads, lines) if "loss" in line]
    c, r = run.model, run.recipe
    shape = small.Config(c.vocab_size, c.n_layer, c.n_head, c.d_model, c.d_ff, c.seq_len, c.rule)
    model = small.Model(shape, run.seed)
    norms.clear()
    losses = small.train(model, tokens.train, r.steps, r.batch, r.lr, run.seed)
    assert losses == [line["loss"] for line in lines]
    assert [float(norm) for norm in norms] == [line["grad_norm"] for line in lines]
    ours, theirs = model.state_dict(), trained.state_dict()
    assert list(ours) == list(theirs)
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []
    return losses, model


@pytest.mark.parametrize("rule", small.RULES)
def test_the_one_file_trains_what_rr_trains_bit_for_bit(planned, tmp_path, norms, rule):
    # a vocabulary that is a multiple of 64 needs no padding rows, which the one file lacks
    run = planned(rule=rule, tokenizer="bpe:320", steps=30, seed=3)
    assert run.model.padded_vocab == run.model.vocab_size and run.model.rule == rule
    losses, model = assert_same(run, tmp_path, norms)
    assert len(losses) == 30 and losses[-1] < losses[0] - 0.3
    if rule == "review":  # the gates have moved: what is compared is more than a half
        weights = [p for name, p in model.named_parameters() if name.endswith("rule.weight")]
        assert len(weights) == 4 and all(p.abs().max() > 0.01 for p in weights)


def test_under_the_studys_protocol_four_functions_differ(planned, tmp_path, norms, monkeypatch):
    """One stream of batches, one of weights, a cosine, and decay of everything."""
    run = planned(protocol="paper", precision="fp32", steps=8, seed=3)
    weights = torch.Generator().manual_seed(run.seed)
    batches, build, r = np.random.RandomState(run.seed), small.adamw, run.recipe

    def adamw(model, lr):
        optimizer = build(model, lr)
        for group in optimizer.param_groups:
            group["weight_decay"] = 0.1
        return optimizer

    monkeypatch.setattr(small, "keyed", lambda seed, name: weights)
    monkeypatch.setattr(small, "starts", lambda s, step, n, last: batches.randint(0, last, n))
    # held to its formula in test_recipe.py
    monkeypatch.setattr(small, "rate_at", lambda step, steps, lr: r.lr_at(step))
    monkeypatch.setattr(small, "adamw", adamw)
    assert_same(run, tmp_path, norms)


@pytest.mark.parametrize("steps", [1, 3, 40, 10_000, 20_000])
def test_the_rate_is_that_of_the_recipe(steps):
    warmup = max(1, min(500, steps // 20))
    recipe = Recipe(steps, 1, 0.003, warmup=warmup)
    assert [small.rate_at(s, steps, 0.003) for s in range(steps)] == list(
        map(recipe.lr_at, range(steps))
    )


def test_it_writes_what_rr_writes(planned):
    import rr

    run = planned(tokenizer="bpe:320")
    theirs = rr.model.initialise(rr.Model(run.model), 5)
    c = run.model
    shape = small.Config(c.vocab_size, c.n_layer, c.n_head, c.d_model, c.d_ff, c.seq_len, c.rule)
    ours, ids = small.Model(shape, 5), torch.tensor([[7, 8, 9]])
    mine = small.sample(ours, ids, 12, temperature=0.8, seed=2)
    source = torch.Generator().manual_seed(2)
    assert mine.tolist() == theirs.generate(ids, 12, 0.8, None, source, cached=False).tolist()
    assert small.sample(ours, ids, 20).shape == (1, 23)  # beyond its window of 16


def test_it_runs_alone_on_a_text(tmp_path, root):
    """Without the rest of `rr`: it is copied out of the package."""
    alone, text = tmp_path / "small.py", tmp_path / "text.txt"
    alone.write_text((root / "rr" / "small.py").read_text(encoding="utf-8"), encoding="utf-8")
    text.write_text("the sea, the town and the woodcutter's daughter; " * 80)
    command = [sys.executable, "-I", str(alone), str(text), "--steps", "2", "--rule", "constant"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "step     2  loss" in done.stdout and "held-out loss" in done.stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["short.txt"], "expected"),
        (["none.txt"], "expected"),
        (["short.txt", "--rule", "reveiw"], "invalid choice"),
    ],
)
def test_wrong_words_end_it(tmp_path, monkeypatch, capsys, words, told):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short.txt").write_text("short")
    monkeypatch.setattr(sys, "argv", ["small.py", *words])
    with pytest.raises(SystemExit) as ended:
        small.main()
    assert told in f"{ended.value.code} {capsys.readouterr().err}" and ended.value.code


def test_it_is_short_and_imports_nothing_else(root):
    lines = (root / "rr" / "small.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 300
    imported = {
        line.split()[1].partition(".")[0] for line in lines if line.startswith(("import", "from"))
    }
    assert imported - set(sys.stdlib_module_names) == {"numpy", "torch"}
