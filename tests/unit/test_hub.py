"""A trained run shared as a folder, and loaded from it."""

import json
import shlex
import shutil
import sys
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
import yaml
from tiny import train

import rrstudy
from rr.errors import RRError
from rr.training import loading
from rrstudy import cli, hub


@pytest.fixture(scope="module")
def run(planned, tmp_path_factory):
    plan = planned(rule="review:rank=4", steps=3, values="learnable", flavour="llama")
    return train(plan, tmp_path_factory.mktemp("runs"))


@pytest.fixture
def shared(run, tmp_path):
    return rrstudy.save_pretrained(run, tmp_path / "shared")


def test_a_shared_model_is_the_run_s(run, shared):
    model, (original, _, vocabulary) = rrstudy.from_pretrained(shared), loading.load(run)
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


def test_a_folder_that_cannot_be_made_is_one_line(run, tmp_path):
    (tmp_path / "a_file").touch()
    with pytest.raises(RRError, match="cannot write to .*a_file.*: name another folder"):
        rrstudy.save_pretrained(run, tmp_path / "a_file")


def test_a_run_that_is_no_trained_model_is_not_shared(run, tmp_path, monkeypatch):
    monkeypatch.setattr(hub, "finished", lambda folder: None)
    with pytest.raises(RRError, match="has not ended"):
        rrstudy.save_pretrained(run, tmp_path / "shared")
    monkeypatch.setattr(hub, "finished", lambda folder: {"status": "diverged"})
    with pytest.raises(RRError, match="diverged: its weights are not a trained model"):
        rrstudy.save_pretrained(run, tmp_path / "shared")
    assert not (tmp_path / "shared").exists()


def test_a_run_is_shared_from_within_its_folder(run, tmp_path, monkeypatch):
    monkeypatch.chdir(run)
    assert (rrstudy.save_pretrained(".", tmp_path / "shared") / "config.json").exists()


def test_a_model_written_in_part_is_none(run, shared, monkeypatch):
    """A disk that is full leaves neither the old configuration with the new weights nor a model."""

    def full(*_):
        raise hub.SafetensorError("No space left on device")

    monkeypatch.setattr(hub, "save_file", full)
    with pytest.raises(RRError, match="cannot write to .*No space left on device"):
        rrstudy.save_pretrained(run, shared)
    with pytest.raises(RRError, match="no model"):
        rrstudy.from_pretrained(shared)


def test_the_card_s_front_matter_is_what_the_hub_reads(run, shared, tmp_path):
    recorded = front(shared)
    assert recorded["library_name"] == "review-residuals"
    assert recorded["license"] == "unknown"  # of somebody's text, nobody else knows it
    assert "residual-connections" in recorded["tags"] and "datasets" not in recorded
    again = rrstudy.save_pretrained(run, shared, license="cc-by-4.0")
    assert front(again)["license"] == "cc-by-4.0"  # the card of before does not stay


def test_a_card_names_the_data_set_of_the_hub(run, tmp_path, monkeypatch):
    """As if the text had come from there."""
    model, specification, vocabulary = loading.load(run)
    for corpus, license, datasets in (
        ("tinystories", "unknown", ["roneneldan/TinyStories"]),
        ("some/texts@v2", "unknown", ["some/texts"]),
        ("fables", "apache-2.0", None),
    ):
        loaded = model, replace(specification, source={"corpus": corpus}), vocabulary
        monkeypatch.setattr(hub, "load", lambda *_, loaded=loaded, **__: loaded)
        recorded = front(rrstudy.save_pretrained(run, tmp_path / "shared"))
        assert (recorded["license"], recorded.get("datasets")) == (license, datasets)


def test_a_card_has_no_command_that_trains_another_run(run, tmp_path, monkeypatch):
    model, specification, vocabulary = loading.load(run)
    other = replace(specification, recipe=replace(specification.recipe, weight_decay=0.5))
    monkeypatch.setattr(hub, "load", lambda *_, **__: (model, other, vocabulary))
    card = (rrstudy.save_pretrained(run, tmp_path / "shared") / "README.md").read_text()
    assert "rr train --" not in card and "settings that no option of `rr train` gives" in card


def test_the_card_s_command_trains_the_same_run(run, shared, tiny_corpus, tmp_path):
    card = (shared / "README.md").read_text()
    (line,) = (line for line in card.splitlines() if line.startswith("rr train"))
    assert str(run.parent) not in card and tiny_corpus.removeprefix("file:") not in card
    words = shlex.split(line.replace("file:PATH", tiny_corpus))
    words[words.index("--out") + 1] = str(tmp_path)
    assert cli.main([*words[1:], "--threads", "1"]) in (0, None)
    assert (tmp_path / run.name / "result.json").exists()


@pytest.mark.parametrize(("name", "damage"), [
    ("model.safetensors", lambda data: data[: len(data) // 2]),
    ("config.json", lambda data: b"{"),
    ("config.json", lambda data: data.replace(b'"d_ff": ', b'"d_ff": 1')),
    ("config.json", lambda data: data.replace(b"review:rank=4", b"revue")),
    ("merges.txt", None),
])  # fmt: skip
def test_a_damaged_shared_model_is_one_line(shared, name, damage):
    before = (shared / name).read_bytes()
    (shared / name).unlink()
    if damage:
        assert damage(before) != before
        (shared / name).write_bytes(damage(before))
    with pytest.raises(RRError):
        rrstudy.from_pretrained(shared)


@pytest.fixture
def api(monkeypatch, tmp_path):
    """Stands in for `HfApi`: what would be sent to a repository is in tmp_path / "sent"."""

    def upload_folder(*, repo_id, folder_path, commit_message):
        shutil.copytree(folder_path, tmp_path / "sent" / repo_id)
        return SimpleNamespace(commit_url=f"https://hub/{repo_id}/commit/1")

    api = Mock()
    api.upload_folder.side_effect = upload_folder
    monkeypatch.setattr(hub, "HfApi", lambda: api)
    monkeypatch.setattr(hub, "get_token", lambda: "a token")
    return api


def test_what_is_pushed_is_the_shared_folder(run, shared, api, tmp_path):
    assert not api.mock_calls  # to save is not to send
    assert (
        rrstudy.push_to_hub(run, "ada/tiny", license="cc-by-4.0") == "https://hub/ada/tiny/commit/1"
    )
    api.create_repo.assert_called_once_with("ada/tiny", private=True, exist_ok=True)
    sent = tmp_path / "sent" / "ada" / "tiny"
    assert {path.name for path in sent.iterdir()} == {path.name for path in shared.iterdir()}
    assert (sent / "model.safetensors").read_bytes() == (shared / "model.safetensors").read_bytes()
    card = (sent / "README.md").read_text()
    assert 'rrstudy.from_pretrained("ada/tiny")' in card and "license: cc-by-4.0" in card
    assert rrstudy.from_pretrained(sent).config == rrstudy.from_pretrained(shared).config


@pytest.mark.parametrize("refusal", [
    hub.errors.HFValidationError("Repo id must be\nof two parts"), OSError("no route to host"),
    hub.REFUSED[-1]("no network"),
])  # fmt: skip
def test_a_hub_that_refuses_is_one_line(run, api, refusal):
    api.create_repo.side_effect = refusal
    with pytest.raises(RRError, match="did not take 'ada/tiny': (Repo id|no)"):
        rrstudy.push_to_hub(run, "ada/tiny")
    assert not api.upload_folder.called


def test_without_a_token_nothing_is_sent(run, api, monkeypatch):
    monkeypatch.setattr(hub, "get_token", lambda: None)
    with pytest.raises(RRError, match="hf auth login"):
        rrstudy.push_to_hub(run, "ada/tiny")
    with pytest.raises(RRError, match="is no run"):
        rrstudy.push_to_hub(run.parent, "ada/tiny")
    assert not api.mock_calls


def test_without_the_extra_it_is_named(monkeypatch):
    monkeypatch.delitem(sys.modules, "rrstudy.hub")
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(RRError, match=r"needs safetensors: pip install -e '\.\[hub\]'"):
        rrstudy.push_to_hub("runs/x", "ada/tiny")


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(RRError, match="no model"):
        rrstudy.from_pretrained(tmp_path / "nothing here")
    with pytest.raises(RRError, match="is no run"):
        rrstudy.save_pretrained(tmp_path, tmp_path / "shared")
