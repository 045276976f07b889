"""A published rung's name stands for its published size, or says which other size came out."""

import csv
import json

import pytest

import rr
from rr import cli
from rr.config import RRError
from rr.model import ladder
from rr.sweep import cells
from rrbook import reports as report

PUBLISHED = ("60M", "150M", "320M", "590M", "1B")


def one_line(capsys, words):
    """The line on stderr of a command that is refused and prints nothing."""
    assert cli.main(words) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    return err


@pytest.mark.parametrize("protocol", ["clean", "paper"])
@pytest.mark.parametrize("rung", ["60M", "1B"])
def test_without_a_text_both_ways_out_are_named(capsys, tmp_path, rung, protocol):
    words = ["--rung", rung, "--protocol", protocol, "--out", str(tmp_path / "out")]
    for verb in (["train"], ["sweep", "--dry-run"], ["sweep", "--dry-run", "--runner", "direct"]):
        if verb[0] == "sweep" and protocol == "paper":
            continue  # the study's own plan, on its own text
        err = one_line(capsys, [*verb, *words])
        assert rung in err and "--corpus tinystories" in err and "--tokenizer" in err
    with pytest.raises(RRError, match="needs a text"):
        rr.plan(rung, protocol=protocol)
    assert not (tmp_path / "out").exists()


def test_fables_has_to_be_told_the_tokens(capsys, tmp_path):
    words = ["train", "--rung", "60M", "--corpus", "fables", "--out", str(tmp_path / "out")]
    err = one_line(capsys, words)
    assert "--tokenizer gpt2" in err and "bpe:N" in err
    run = rr.plan("60M", corpus="fables", tokenizer="bpe:1024")
    assert ladder.count(run.model) == 34_263_552  # what it silently was


def test_other_text_is_read_with_gpt2s_tokens(root):
    """Then the size is the paper's, to the last parameter."""
    with open(root / "data" / "published" / "review_residuals.csv") as file:
        published = {
            row["rung"]: float(row["params_M"])
            for row in csv.DictReader(file)
            if row["arm"] == "review"
        }
    for rung in PUBLISHED:
        run = rr.plan(rung, corpus="tinystories")
        assert run.source["tokenizer"] == "gpt2" and ladder.other_size(run) is None
        assert round(ladder.count(run.model) / 1e6, 2) == published[rung]


def test_small_rungs_keep_their_text():
    for rung in ("nano", "mini", "nano:n_layer=2"):
        run = rr.plan(rung)
        assert run.source == {"corpus": "fables", "tokenizer": "bpe:1024"}
        assert ladder.other_size(run) is None
    assert rr.plan("nano").id == rr.plan("nano", corpus="fables", tokenizer="bpe:1024").id


def test_another_size_is_said_once_a_size_and_not_of_a_body_of_ones_own(tiny_corpus):
    said = []
    options = {"rung": ["60M"], "seed": [0, 1], "corpus": [tiny_corpus], "tokenizer": ["bpe:300"]}
    assert len(cells(options, said.append)) == 2
    by_hand = 59_470_848 - (50_257 - 300) * 512  # the embedding's rows, tied with the head
    assert said == [
        f"rung 60M with vocabulary 300: {by_hand:,} parameters, not the published 59,470,848"
    ]
    said.clear()
    cells({**options, "rung": ["60M:n_layer=2"]}, said.append)
    assert not said


def test_the_size_is_recorded_beside_the_name(tiny_corpus, tmp_path, monkeypatch, capsys):
    small = ladder.Rung("60M", 16, 1, 2, steps=2, batch=2, seq_len=16)
    monkeypatch.setitem(ladder.RUNGS, "60M", small)  # the name and all that hangs on it
    options = "--rung 60M --tokenizer bpe:300 --eval-batches 1 --threads 1 --corpus"
    assert cli.main(["train", *options.split(), tiny_corpus, "--out", str(tmp_path)]) == 0
    (folder,) = tmp_path.iterdir()
    params = ladder.count(ladder.arm("60M", vocab_size=300))
    published = params + (50_257 - 300) * 16
    line = f"rung 60M with vocabulary 300: {params:,} parameters, not the published {published:,}"
    assert capsys.readouterr().err.count(line) == 1
    made_by = json.loads((folder / "run.json").read_text())["provenance"]
    result = json.loads((folder / "result.json").read_text())
    for record in (made_by, result):
        assert (record["params"], record["published_params"]) == (params, published)
    assert "params" not in json.dumps(json.loads((folder / "run.json").read_text())["run"])
    assert report.read(folder).made_by["published_params"] == published


def test_a_notebooks_paper_tier_is_the_published_model():
    run = report.chosen("paper", corpus="", tokenizer="", rung="")
    assert run.source == {"corpus": "tinystories", "tokenizer": "gpt2"}
    assert ladder.count(run.model) == 59_470_848
    with pytest.raises(RRError, match="needs a text"):
        report.chosen("smoke", "60M", corpus="")
    assert report.chosen("smoke", "nano", corpus="").source["corpus"] == "fables"
