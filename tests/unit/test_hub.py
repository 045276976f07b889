"""A trained run shared as a folder, and loaded from it."""

import json

import pytest
import torch

import rr
from rr.config import RRError
from rr.training import run_folder, trainer

pytest.importorskip("huggingface_hub")
pytest.importorskip("safetensors")
TINY = "nano:n_layer=2,d_model=16,n_head=2,seq_len=16"


@pytest.fixture(scope="module")
def run(tiny_corpus, tmp_path_factory):
    plan = run_folder.plan(
        TINY,
        "review:rank=4",
        corpus=tiny_corpus,
        tokenizer="bpe:300",
        batch=4,
        steps=3,
        values="learnable",
        flavour="llama",
    )
    return trainer.train(plan, tmp_path_factory.mktemp("runs"), threads=1, log=lambda line: None)


@pytest.fixture
def shared(run, tmp_path):
    return rr.save_pretrained(run, tmp_path / "shared")


def test_a_shared_model_is_the_run_s(run, shared):
    model, (original, _, vocabulary) = rr.from_pretrained(shared), run_folder.load(run)
    assert model.config == original.config
    ids = torch.tensor([model.vocabulary.encode("Ada sees bread.")])
    assert ids.tolist() == [vocabulary.encode("Ada sees bread.")]
    with torch.no_grad():
        assert torch.equal(model(ids), original(ids))
    assert not model.training


def test_a_shared_folder_holds_no_code_and_says_what_it_is(run, shared):
    names = {path.name for path in shared.iterdir()}
    assert names == {"config.json", "model.safetensors", "vocab.json", "merges.txt", "README.md"}
    card = (shared / "README.md").read_text()
    result = json.loads((run / "result.json").read_text())
    for fact in (result["id"], "review:rank=4", str(result["val_loss"]), f"{result['params']:,}"):
        assert fact in card
    assert "library_name: review-residuals" in card


@pytest.mark.parametrize("damage", ["weights", "config", "shape", "rule", "tokenizer"])
def test_a_damaged_shared_model_is_one_line(shared, damage):
    config = json.loads((shared / "config.json").read_text())
    if damage == "weights":
        data = (shared / "model.safetensors").read_bytes()
        (shared / "model.safetensors").write_bytes(data[: len(data) // 2])
    elif damage == "config":
        (shared / "config.json").write_text("{")
    elif damage == "shape":
        (shared / "config.json").write_text(json.dumps({**config, "d_ff": 128}))
    elif damage == "rule":
        (shared / "config.json").write_text(json.dumps({**config, "rule": "revue"}))
    else:
        (shared / "merges.txt").unlink()
    with pytest.raises(RRError) as refused:
        rr.from_pretrained(shared)
    assert "\n" not in str(refused.value)


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(RRError, match="no model"):
        rr.from_pretrained(tmp_path / "nothing here")
    with pytest.raises(RRError, match="is no run"):
        rr.save_pretrained(tmp_path, tmp_path / "shared")
