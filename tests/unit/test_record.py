"""A record holds what a run measured, and nothing of the machine that it ran on."""

import json
import sys
from pathlib import Path

import pytest

import rr
from rr import stats
from rr.config import Run, RunFailed
from rr.io import read_json, write_record

sys.path.insert(0, str(Path(__file__).parents[2] / "book" / "tools"))
import record


@pytest.fixture(scope="module")
def folder(tiny_corpus, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    run = rr.plan(
        "nano:n_layer=1,d_model=16,n_head=1,seq_len=16",
        corpus=tiny_corpus,
        tokenizer="bpe:300",
        steps=8,
        batch=2,
        eval_batches=2,
    )
    cache = tmp_path_factory.mktemp("cache")
    return rr.train(run, out, threads=1, cache=cache, log=lambda line: None)


def test_a_record_is_the_run_without_its_paths(folder, tiny_corpus, tmp_path):
    assert tiny_corpus in (folder / "run.json").read_text()  # the run itself does name the path
    home = record.record(folder, tmp_path)
    assert sorted(p.name for p in home.iterdir()) == ["metrics.jsonl", "result.json", "run.json"]
    kept = "".join(path.read_text() for path in home.iterdir())
    for place in (tiny_corpus.removeprefix("file:"), str(folder), str(Path.home())):
        assert place not in kept
    told = json.loads((home / "run.json").read_text())
    before = json.loads((folder / "run.json").read_text())
    assert told["source"] == {"corpus": "tiny.txt", "tokenizer": "bpe:300"}
    assert told["run"] == before["run"] and told["provenance"] == before["provenance"]
    assert Run.from_spec(told["run"]).id == home.name == folder.name
    assert (home / "metrics.jsonl").read_bytes() == (folder / "metrics.jsonl").read_bytes()
    assert json.loads((home / "result.json").read_text()) == json.loads(
        (folder / "result.json").read_text()
    )
    assert [row["id"] for row in stats.read_results(tmp_path)] == [folder.name]


def test_the_command_records_a_folder_of_runs(folder, tmp_path, capsys):
    assert record.main([str(folder.parent), "--to", str(tmp_path)]) == 0
    assert (tmp_path / folder.name / "result.json").is_file()
    assert folder.name in capsys.readouterr().out


def copied(folder: Path, to: Path) -> Path:
    """The run's files without its checkpoints, to be damaged."""
    copy = to / folder.name
    copy.mkdir()
    for name in ("run.json", "result.json", "metrics.jsonl"):
        (copy / name).write_bytes((folder / name).read_bytes())
    return copy


def test_an_unfinished_run_is_refused_and_nothing_is_written(folder, tmp_path, capsys):
    run, to = copied(folder, tmp_path), tmp_path / "records"
    (run / "result.json").unlink()
    assert record.main([str(run), "--to", str(to)]) == 2
    assert "no result.json" in capsys.readouterr().err
    assert not to.exists()


def test_another_runs_specification_is_refused(folder, tmp_path):
    run = copied(folder, tmp_path)
    told = read_json(run / "run.json")
    told["run"]["seed"] += 1
    write_record(run / "run.json", told)
    with pytest.raises(record.RRError, match="is not run"):
        record.record(run, tmp_path / "records")
    (run / "result.json").write_text("{}")
    with pytest.raises(RunFailed, match="corrupt"):
        record.record(run, tmp_path / "records")


@pytest.mark.parametrize("place", ["/home/ada/rr", "built in ~/rr", "file:../text", "C:\\rr"])
def test_a_path_that_slipped_in_is_refused(folder, tmp_path, place):
    run = copied(folder, tmp_path)
    told = read_json(run / "run.json")
    told["provenance"]["device"] = place
    write_record(run / "run.json", told)
    with pytest.raises(record.RRError, match="only names are accepted"):
        record.record(run, tmp_path / "records")
    assert not (tmp_path / "records").exists()


def test_thinning_keeps_held_out_losses_and_the_last_line():
    lines = [
        json.dumps({"step": i, "valid" if i % 100 == 50 else "loss": 1 / i}) for i in range(1, 1001)
    ]
    kept = record.thin(lines)
    assert 150 < len(kept) <= 200
    assert kept == [line for line in lines if line in set(kept)]  # in order, unchanged
    steps = [json.loads(line)["step"] for line in kept]
    assert {50, 150, 950, 1000} <= set(steps)
    gaps = [b - a for a, b in zip(steps, steps[1:], strict=False)]
    assert max(gaps) <= 6  # spread over the whole run
    assert record.thin(lines[:200]) == lines[:200]
    assert record.thin([]) == []
