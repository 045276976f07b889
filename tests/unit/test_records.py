"""Records in tables are the files that runs wrote, and nothing of the machine that they ran on."""

import hashlib
import json
import math
import re
import shutil
import sys
from pathlib import Path

import datasets
import pandas as pd
import pyarrow
import pyarrow.parquet as parquet
import pytest
import yaml
from tiny import train

import rr
from rr.errors import RRError, RunFailed
from rr.io import locked, read_sealed, sealed, unsealed, write_record
from rr.specs import Run
from rr.training import finished
from rrbook.stats import read_curves
from rrstudy import cli, stats
from rrstudy.stats import recording
from rrstudy.stats.records import (
    CURVES,
    RUNS,
    read_record,
    read_records,
    read_table,
    write_table,
)

MEASURED = rr.DATA / "measured"
CAMPAIGNS = sorted(path.parent for path in MEASURED.glob("*/runs.parquet"))
NAMES = ("run.json", "result.json", "metrics.jsonl")


# -- the campaigns ---------------------------------------------------------------------------------


def test_every_record_is_byte_for_byte_what_its_folder_was(tmp_path, monkeypatch):
    """records.sha256 was written from the folders, before there were tables.

    The first 500 got seals, and the hash of their curve, later; without these they are the same.
    """
    monkeypatch.setattr("os.fsync", lambda handle: None)  # of 1,506 files: no power cut is tested
    was = {}
    for line in (Path(__file__).parents[1] / "records.sha256").read_text().splitlines():
        if not line.startswith("#"):
            campaign, name, *digests = line.split()
            was[campaign, name] = digests
    assert len(was) == 502
    got, later = {}, 0
    for campaign in CAMPAIGNS:
        for home in recording.export(campaign, tmp_path / campaign.name):
            key = campaign.name, home.name
            got[key] = [digest_of((home / name).read_bytes()) for name in NAMES]
            if key in was and got[key] != was[key]:
                at_first = [without_seal(home / name, was[key]) for name in NAMES[:2]]
                got[key] = [*at_first, got[key][2]]
                later += 1
    assert {key: got[key] for key in was} == was and later == 500


def test_every_record_has_the_id_of_its_specification():
    """An option that came later is not hashed at its default: a recorded run is the same run."""
    checked = 0
    for campaign in CAMPAIGNS:
        for record in read_records(campaign):
            recorded = record.object("run.json")
            again = Run.from_spec(recorded["run"]).id
            assert again == recorded["id"], f"{record.place}: a new option that LATER lacks?"
            checked += 1
    assert checked > 1400


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def without_seal(path: Path, was: list[str]) -> str:
    """The digest of a file without what it got later; of mini_arms the seal was there before."""
    content = json.loads(path.read_text())
    digests = []
    for names in (("seal",), ("curve_sha256", "seal"), ("curve_sha256",)):
        rest = {name: value for name, value in content.items() if name not in names}
        if "seal" not in names:
            rest = sealed({name: value for name, value in rest.items() if name != "seal"})
        digests.append(digest_of((json.dumps(rest, indent=1) + "\n").encode()))
    digests.append(digest_of(path.read_bytes()))
    return next((digest for digest in digests if digest in was), digests[-1])


@pytest.mark.parametrize("campaign", CAMPAIGNS, ids=lambda path: path.name)
def test_columns_say_what_the_texts_say(campaign):
    """pandas and json alone: no function of rr reads the tables."""
    runs = pd.read_parquet(campaign / "runs.parquet")
    curves = pd.read_parquet(campaign / "curves.parquet")
    assert list(runs.id) == sorted(set(runs.id)) and set(curves.id) == set(runs.id)
    for row in runs.to_dict("records"):
        result, run = json.loads(row["result"]), json.loads(row["run"])
        assert row["id"] == result["id"] == run["id"]
        for name in RUNS:
            recorded, cell = result.get(name), row[name]
            assert cell == recorded or (recorded is None and pd.isna(cell)), (row["id"], name)
        for kind, recorded in (("result_seal", result), ("run_seal", run)):
            assert row[kind] == recorded["seal"]
            unsealed(recorded)
        curve = curves[curves.id == row["id"]]
        assert list(curve.line) == list(range(len(curve)))
        for _, part in curve.groupby("budget", dropna=False):  # the run itself, and each branch
            assert part.step.is_monotonic_increasing
        assert result["curve_sha256"] == row["curve_sha256"]
        assert math.isfinite(row["val_loss"]) == (row["status"] == "finished")


def test_a_campaign_is_a_data_set():
    for campaign in CAMPAIGNS:
        front = yaml.safe_load((campaign / "README.md").read_text().split("---\n")[1])
        files = {one["config_name"]: one["data_files"] for one in front["configs"]}
        assert {"runs", "curves"} <= set(files)
        assert files == {table.stem: table.name for table in campaign.glob("*.parquet")}
        assert front["license"] == "apache-2.0"


def test_a_folder_of_folders_says_the_same(tmp_path):
    """Tables and curves, in their order, from one form and from the other."""
    recording.export(MEASURED / "02_gate_equation", tmp_path)
    assert stats.read_results(tmp_path).equals(stats.read_results(MEASURED / "02_gate_equation"))
    assert read_curves(tmp_path) == read_curves(MEASURED / "02_gate_equation")


# -- into a table ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(planned, tmp_path_factory) -> Path:
    return train(planned(steps=8, eval_batches=2), tmp_path_factory.mktemp("runs"))


def copied(folder: Path, to: Path) -> Path:
    """The run's files without its checkpoints, to be damaged."""
    copy = to / folder.name
    copy.mkdir(parents=True)
    for name in NAMES:
        (copy / name).write_bytes((folder / name).read_bytes())
    return copy


def test_a_record_is_the_run_without_its_paths(folder, tiny_corpus, tmp_path):
    assert tiny_corpus in (folder / "run.json").read_text()  # the run itself does name the path
    new, refused = recording.import_runs([folder.parent], tmp_path / "to")
    assert [one.place.name for one in new] == [folder.name] and refused == []
    (home,) = recording.export(tmp_path / "to", tmp_path / "out")
    assert sorted(path.name for path in home.iterdir()) == sorted(NAMES)
    kept = "".join((home / name).read_text() for name in NAMES)
    for place in (tiny_corpus.removeprefix("file:"), str(folder), str(Path.home())):
        assert place not in kept
    recorded, before = (read_sealed(path / "run.json") for path in (home, folder))
    assert recorded["source"] == {"corpus": "tiny.txt", "tokenizer": "bpe:300"}
    assert recorded["run"] == before["run"] and recorded["provenance"] == before["provenance"]
    assert Run.from_spec(recorded["run"]).id == home.name
    for name in ("result.json", "metrics.jsonl"):
        assert (home / name).read_bytes() == (folder / name).read_bytes()
    assert list(stats.read_results(tmp_path / "to").id) == [folder.name]
    loaded = datasets.load_dataset(str(tmp_path / "to"), "runs", cache_dir=str(tmp_path / "cache"))
    assert loaded["train"]["id"] == [folder.name]


def test_the_command_and_again(folder, tmp_path, monkeypatch, capsys):
    to, out = tmp_path / "to", tmp_path / "out"
    assert cli.main(["records", "import", str(folder.parent), "--to", str(to)]) == 0
    assert folder.name in capsys.readouterr().out
    before = {path.name: path.read_bytes() for path in to.iterdir()}
    assert cli.main(["records", "export", str(to), folder.name, "--out", str(out)]) == 0
    assert cli.main(["records", "import", str(out), "--to", str(to)]) == 0
    assert {path.name: path.read_bytes() for path in to.iterdir()} == before
    assert cli.main(["records", "export", str(to), "0" * 12, "--out", str(out)]) == 2
    # a run by "." is that run, and one import at a time writes
    monkeypatch.chdir(folder)
    assert cli.main(["records", "import", ".", "--to", str(to)]) == 0
    with locked(to):
        assert cli.main(["records", "import", ".", "--to", str(to)]) == 3
        assert "being written by another process" in capsys.readouterr().err
    (to / "lock").unlink()
    # through a link of any name, beside the run or instead of it
    for name in ("best", "zz", folder.name):
        beside = tmp_path / f"beside {name}"
        beside.mkdir()
        (beside / name).symlink_to(folder)
        if name != folder.name:
            shutil.copytree(folder, beside / folder.name)
        assert cli.main(["records", "import", str(beside), "--to", str(beside / "to")]) == 0
    moved = shutil.copytree(folder, tmp_path / "elsewhere" / "another name")
    (link := tmp_path / "elsewhere" / folder.name).symlink_to(moved)
    (link.parent / "runs").mkdir()
    (link.parent / "runs" / folder.name).symlink_to(moved)
    for place in (link, link.parent / "runs"):
        assert cli.main(["records", "import", str(place), "--to", str(to)]) == 0
    assert finished(link)["id"] == folder.name
    # another run of the same id is refused, and the first stays
    copy = copied(folder, tmp_path)
    write_record(copy / "result.json", read_sealed(copy / "result.json") | {"seconds": 1.5})
    new, (line,) = recording.import_runs([copy], to)
    assert new == [] and folder.name in line and "other content (result.json)" in line
    assert {path.name: path.read_bytes() for path in to.iterdir()} == before


@pytest.mark.parametrize(
    ("file", "part", "fields", "says"),
    [
        ("result.json", None, None, "result.json is corrupt"),
        ("metrics.jsonl", None, None, "metrics.jsonl is corrupt"),
        ("run.json", "run", {"seed": 9}, "is not run"),
        ("run.json", "provenance", {"device": "/home/ada/rr"}, "would record the path"),
        ("run.json", "provenance", {"device": "built in ~/rr"}, "would record the path"),
        ("run.json", "provenance", {"device": "C:\\rr"}, "would record the path"),
    ],
)
def test_a_run_that_is_refused_is_named_and_nothing_is_written(
    file, part, fields, says, folder, tmp_path
):
    run, to = copied(folder, tmp_path), tmp_path / "to"
    if part:  # a sealed file of other fields
        recorded = read_sealed(run / file)
        write_record(run / file, recorded | {part: recorded[part] | fields})
    else:  # other bytes
        (run / file).write_bytes((run / file).read_bytes().replace(b"1", b"2", 1))
    new, (line,) = recording.import_runs([run], to)
    assert new == [] and run.name in line and says in line and "\n" not in line
    assert not to.exists()
    assert cli.main(["records", "import", str(run), "--to", str(to)]) == 2


@pytest.mark.parametrize(("column", "value"), [("id", ".."), ("id", None), ("result", None)])
def test_a_table_that_names_another_place_or_nothing_is_corrupt(column, value, folder, tmp_path):
    recording.import_runs([folder], tmp_path / "to")
    path = tmp_path / "to" / "runs.parquet"
    table = parquet.read_table(path)
    at = table.schema.get_field_index(column)
    parquet.write_table(table.set_column(at, column, [[value]]), path)
    with pytest.raises(RunFailed, match="is corrupt: line 1 lacks an id or a text"):
        read_table(tmp_path / "to")
    words = ["records", "export", str(tmp_path / "to"), "--out", str(tmp_path / "deep" / "out")]
    assert cli.main(words) == 3
    assert not (tmp_path / "deep").exists()


def test_lines_that_columns_cannot_hold_come_back(folder, tmp_path):
    """A decay branch, its end, a divergence: whatever a run writes."""
    run = copied(folder, tmp_path)
    lines = [
        '{"step": 1, "tokens": 32, "seconds": 0.1, "budget": 2, "loss": 5.5, "lr": 1e-05}',
        '{"step": 2, "tokens": 64, "seconds": 2, "loss": 5, "lr": 0.001}',
        '{"step": 2, "tokens": 64, "seconds": 0.2, "budget": 2, "budget_ended": 2, "val_loss": 4}',
        '{"step": 3, "tokens": 96, "seconds": 0.3, "valid": 5.25, "norm": {"a": [1]}}',
        '{"step": 4, "tokens": 128, "seconds": 0.4, "loss": null, "status": "diverged"}',
    ]
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    result = read_sealed(run / "result.json")
    drawn = hashlib.sha256((run / "metrics.jsonl").read_bytes()).hexdigest()
    write_record(run / "result.json", result | {"curve_sha256": drawn})
    recording.import_runs([run], tmp_path / "to")
    (record,) = read_table(tmp_path / "to")
    assert record.read("metrics.jsonl") == (run / "metrics.jsonl").read_bytes()
    assert record.curve() == [json.loads(line) for line in lines]
    table = parquet.read_table(tmp_path / "to" / "curves.parquet").to_pydict()
    assert table["text"] == [None, *lines[1:]]  # the rest is in columns alone
    assert table["budget"] == [2, None, 2, None, None] and table["valid"][3] == 5.25
    assert set(CURVES) < set(table)


def test_thinning_keeps_held_out_losses_and_the_last_line():
    lines = [
        json.dumps({"step": i, "valid" if i % 100 == 50 else "loss": 1 / i}) for i in range(1, 1001)
    ]
    kept = recording.thin(lines)
    assert 150 < len(kept) <= 200
    assert kept == [line for line in lines if line in set(kept)]  # in order, unchanged
    steps = [json.loads(line)["step"] for line in kept]
    assert {50, 150, 950, 1000} <= set(steps)
    gaps = [b - a for a, b in zip(steps, steps[1:], strict=False)]
    assert max(gaps) <= 6  # spread over the whole run
    assert recording.thin(lines[:200]) == lines[:200]
    assert recording.thin([]) == []


# -- out of a table that is damaged ----------------------------------------------------------------


def test_a_damaged_table_is_refused(folder, tmp_path):
    recording.import_runs([folder], tmp_path)
    for name in ("runs.parquet", "curves.parquet"):
        whole = (tmp_path / name).read_bytes()
        for at in range(0, len(whole), 997):
            (tmp_path / name).write_bytes(whole[:at] + bytes([whole[at] ^ 16]) + whole[at + 1 :])
            try:
                (record,) = read_records(tmp_path)
                recorded = [record.parsed(file) for file in NAMES]
            except RunFailed as error:
                assert name in str(error) or "metrics.jsonl" in str(error)
            else:  # a byte that says nothing of the content
                assert recorded[2] == (folder / "metrics.jsonl").read_bytes()
                assert recorded[1] == (folder / "result.json").read_bytes()
        (tmp_path / name).write_bytes(whole[:-9])
        with pytest.raises(RunFailed, match="is corrupt"):
            read_records(tmp_path)[0].curve()
        (tmp_path / name).write_bytes(whole)
    (tmp_path / "curves.parquet").unlink()
    with pytest.raises(RunFailed, match="metrics.jsonl is corrupt: No such file"):
        read_records(tmp_path)[0].curve()


def test_curves_of_another_table_are_not_written_again(folder, tmp_path):
    recording.import_runs([folder], tmp_path)
    before = read_table(tmp_path)
    write_table(tmp_path, [])
    (tmp_path / "runs.parquet").unlink()
    with pytest.raises(RunFailed, match="metrics.jsonl is corrupt: it is not the curve of this"):
        write_table(tmp_path, before)


def test_no_damaged_count_hides_a_run(folder, tmp_path):
    """Parquet's checksums cover pages, not the footer, where the numbers of rows are."""
    recording.import_runs([folder], tmp_path)
    path = tmp_path / "runs.parquet"
    table = parquet.read_table(path)
    parquet.write_table(pyarrow.concat_tables([table] * 301), path)
    whole, refused = path.read_bytes(), 0
    for count in re.finditer(b"\xda\x04", whole):  # 301, as Thrift writes it
        path.write_bytes(whole[: count.start()] + b"\xd8" + whole[count.start() + 1 :])  # 300
        try:
            assert len(read_records(tmp_path)) == 301
        except RunFailed:
            refused += 1
    assert refused


def test_columns_of_other_types_give_the_same_record_or_are_refused(folder, tmp_path):
    recording.import_runs([folder], tmp_path)
    path = tmp_path / "runs.parquet"
    table = parquet.read_table(path)
    kinds = {"string": pyarrow.binary()}
    schema = [(field.name, kinds.get(str(field.type), field.type)) for field in table.schema]
    parquet.write_table(table.cast(pyarrow.schema(schema)), path)
    (record,) = read_records(tmp_path)
    assert record.read("result.json") == (folder / "result.json").read_bytes()
    parquet.write_table(table.set_column(0, "id", [[b"\xff"]]), path)
    with pytest.raises(RunFailed, match="runs.parquet is corrupt: Invalid UTF8"):
        read_records(tmp_path)


def test_a_text_that_was_changed_within_a_table_does_not_count(folder, tmp_path, capsys):
    recording.import_runs([folder], tmp_path)
    runs = pd.read_parquet(tmp_path / "runs.parquet")
    runs["result"] = runs.result.str.replace('"val_loss": ', '"val_loss": 1')
    runs.to_parquet(tmp_path / "runs.parquet")
    with pytest.raises(RRError, match="no readable result"):
        stats.read_results(tmp_path)
    assert f"runs.parquet/{folder.name}/result.json: checksum mismatch" in capsys.readouterr().err


def test_without_pyarrow_folders_are_read_and_tables_named(folder, tmp_path, monkeypatch):
    recording.import_runs([folder], tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(RRError, match=r"runs.parquet needs pyarrow: .*\[stats\]"):
        stats.read_results(tmp_path)
    assert len(stats.read_results(folder.parent)) == 1
    assert read_record(folder).object("result.json")["id"] == folder.name
