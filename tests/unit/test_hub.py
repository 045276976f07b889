"""A trained run shared as a folder, and loaded from it."""

import json
import shlex
from dataclasses import replace

import pytest
import torch
import yaml

import rr
from rr import cli
from rr.config import RRError
from rr.training import hub, run_folder, trainer

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


def front(shared) -> dict:
    return yaml.safe_load((shared / "README.md").read_text().split("---\n")[1])


def test_the_card_s_front_matter_is_what_the_hub_reads(run, shared, tmp_path):
    told = front(shared)
    assert told["library_name"] == "review-residuals"
    assert told["license"] == "unknown"  # of somebody's text, nobody else knows it
    assert "residual-connections" in told["tags"] and "datasets" not in told
    again = rr.save_pretrained(run, shared, license="cc-by-4.0")
    assert front(again)["license"] == "cc-by-4.0"  # the card of before does not stay


@pytest.mark.parametrize(
    ("corpus", "license", "datasets"),
    [
        ("tinystories", "unknown", ["roneneldan/TinyStories"]),
        ("some/texts@v2", "unknown", ["some/texts"]),
        ("fables", "apache-2.0", None),
    ],
)
def test_a_card_names_the_data_set_of_the_hub(
    run, tmp_path, monkeypatch, corpus, license, datasets
):
    """As if the text had come from there."""
    model, specification, vocabulary = run_folder.load(run)
    specification = replace(specification, source={"corpus": corpus})
    monkeypatch.setattr(hub, "load", lambda *_, **__: (model, specification, vocabulary))
    told = front(rr.save_pretrained(run, tmp_path / "shared"))
    assert (told["license"], told.get("datasets")) == (license, datasets)


def test_the_card_s_command_trains_the_same_run(run, shared, tiny_corpus, tmp_path):
    card = (shared / "README.md").read_text()
    (line,) = (line for line in card.splitlines() if line.startswith("rr train"))
    assert str(run.parent) not in card and tiny_corpus.removeprefix("file:") not in card
    words = shlex.split(line.replace("file:PATH", tiny_corpus))
    words[words.index("--out") + 1] = str(tmp_path)
    assert cli.main([*words[1:], "--threads", "1"]) in (0, None)
    assert (tmp_path / run.name / "result.json").exists()


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
