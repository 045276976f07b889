"""What chapter 5 shows: its explorable against rr's own rules, its lab, its figures."""

import json

import looks
import numpy as np
import pytest
import torch
from tiny import train
from torch.nn import functional as F

import rr
from rr.model import site_of
from rr.residual.values import make_values
from rr.specs import ModelConfig
from rrbook import attention, figures
from rrbook.explorables.values import RULES

TOKENS = 16  # of the toy


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("lam", "even", "blocks"), [(2.0, 1.0, 6), (0.5, 0.3, 3)])
def test_the_toy_is_rrs_own_rules(script, rule, lam, even, blocks):
    """The same stream with rr's value rules between the toy's attention and tokens."""
    spec = f"{rule}:lam={lam}" if rule in ("constant-resformer", "neutreno") else rule
    config = ModelConfig(64, blocks, 1, TOKENS, 64, values=spec)
    past = torch.ones(TOKENS, TOKENS).double().tril()
    a = even * past / past.sum(1, keepdim=True) + (1 - even) * torch.eye(TOKENS)
    h, vstate = torch.eye(TOKENS).double(), None
    for block in range(1, blocks + 1):
        one = make_values(spec, site_of(config, "attn", 2 * block - 1), config)
        own = F.normalize(h, dim=-1)[None, None] if one.has_own_v(block) else None
        v, vstate = one.values(own, vstate)
        h = h + one.after(a @ v, v, vstate)[0, 0]
    [found] = script("values", "valueNumbers", [rule, lam, even, blocks])
    assert found["similarity"][-1] == pytest.approx(attention.similarity(h[None]).item())
    kept = F.cosine_similarity(h, torch.eye(TOKENS).double()).mean().item()
    assert found["kept"][-1] == pytest.approx(kept) and len(found["kept"]) == blocks + 1


def test_tokens_that_look_at_themselves_alone_stay_apart(script):
    for found in script("values", "valueNumbers", *([rule, 2.0, 0.0, 5] for rule in RULES)):
        assert found["similarity"] == pytest.approx([0] * 6)
        assert found["kept"] == pytest.approx([1] * 6)


def test_lab_measures_gradients_and_caches_of_a_real_model():
    pytest.importorskip("ipywidgets")
    from rrbook.explore import lab_values
    from rrbook.labs.values import cache_bytes, value_model

    made = lab_values()
    assert "0.563 of what own values" in made.picture.value  # (8 + 1)/16
    for control, value in (("values", "constant"), ("lam", 5.0), ("queries", 2)):
        before = made.picture.value
        made.controls[control].value = value
        assert made.picture.value != before
    assert "0.5 of what own values" in made.picture.value
    made.controls["values"].value = "neutreno"
    assert "1 query head per value head" in made.picture.value
    ids = torch.arange(8)[None]
    held = cache_bytes(value_model("svformer", 4, 1), ids)
    assert held == [(256.0, 256.0)] + [(256.0, 0)] * 3  # 64 channels of 4 bytes


def test_figures_by_block_leave_gaps_and_draw_the_null():
    _, ax = figures.canvas()
    series = {"own": [[3.0, 2.0, 1.0], [3.2, 2.2, 1.4]], "svformer": [1.0, None, None]}
    figures.by_block(ax, series, "nats", null=(3.5, "even attention"))
    mean, alone, level = ax.get_lines()
    assert list(mean.get_ydata()) == pytest.approx([3.1, 2.1, 1.2])
    assert alone.get_ydata()[0] == 1 and str(alone.get_ydata()[1]) == "nan"
    assert list(level.get_ydata()) == [3.5, 3.5]
    assert "even attention" in {text.get_text() for text in ax.texts}


def test_looks_of_finished_runs(planned, tiny_corpus, tmp_path, monkeypatch):
    """Of each reported run; by a second way, attention laid bare on one window at a time."""
    for seed in (0, 100):  # the second chose a rate
        run = planned(values="svformer", steps=2, eval_batches=1, flavour="llama", seed=seed)
        train(run, tmp_path / "runs")
    monkeypatch.setattr(looks, "READ", 64)
    monkeypatch.setattr("sys.argv", ["looks.py", str(tmp_path / "runs"), "--to", str(tmp_path)])
    assert looks.main() == 0
    (row,) = json.loads((tmp_path / "looks.json").read_text())
    model, run, _ = rr.load(tmp_path / "runs" / row["id"], device="cpu")
    assert run.seed == 0 and row["window"] == 16 and row["value_gradient"][1] is None
    text = rr.open_corpus(tiny_corpus, "bpe:300", log=lambda line: None)
    ids = torch.as_tensor(text.valid[:64].astype(int))
    found = []
    for window in ids.view(4, 1, 16):
        for weights, _ in attention.trace_attention(model, window):
            p = weights.mean(1).sum(1)[0] / 16
            found.append(-(p * p.log()).sum().item())
    assert row["entropy"] == pytest.approx([np.mean(found[::2]), np.mean(found[1::2])], rel=1e-4)
    # a campaign read in parts: another folder's lines stay, and a line read again is replaced
    other = row | {"id": "000000000000"}
    (tmp_path / "looks.json").write_text(json.dumps([other, row | {"seed": 7}]))
    assert looks.main() == 0
    assert json.loads((tmp_path / "looks.json").read_text()) == [other, row]
    monkeypatch.setattr("sys.argv", ["looks.py", str(tmp_path / "none"), "--to", str(tmp_path)])
    assert looks.main() == 2
