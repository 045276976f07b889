"""Files that rot, disks that fill, folders that refuse: one line, and nothing good is lost."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from nursery import ROOT, only, outcome


@pytest.fixture(scope="module")
def halfway(nursery, command, undisturbed, tmp_path_factory):
    """A run of protocol `clean` that was killed in the middle, with two checkpoints."""
    out = tmp_path_factory.mktemp("halfway")
    child = nursery.rr(*command(out), at=("save", 4, 0.0))
    assert child.code == -signal.SIGKILL
    assert len(steps(out)) == 2
    return out


@pytest.fixture
def cut_off(halfway, tmp_path) -> Path:
    """A copy of that run's --out folder, to damage."""
    return shutil.copytree(halfway, tmp_path / "out")


def steps(out: Path) -> list[Path]:
    """The checkpoints of the one run in `out`, oldest first."""
    return sorted(p for p in (only(out) / "checkpoint").iterdir() if not p.name.startswith("."))


def flip(path: Path, at: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(bytes(data))


def snapshot(folder: Path) -> dict:
    return {
        str(p.relative_to(folder)): (p.stat().st_mtime_ns, p.stat().st_size)
        for p in folder.rglob("*")
    }


def refused(child, code: int, *words: str) -> None:
    """One line of error (after lines of progress), no traceback, and what it must say."""
    assert child.code == code, child.err
    assert "Traceback" not in child.err
    assert child.out == ""
    errors = [line for line in child.err.splitlines() if line.startswith("rr: ")]
    assert len(errors) == 1 and child.err.splitlines()[-1] == errors[0], child.err
    for word in words:
        assert word in errors[0]


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip_middle(path: Path) -> None:
    flip(path, path.stat().st_size // 2)


def full(value: object, id: str | None = None):
    """A case of the long suite (`make faults`) alone."""
    return pytest.param(value, marks=pytest.mark.slow, id=id)


# `make faults` damages every file in every way: test_bytes.py
@pytest.mark.parametrize("damage", [truncate, flip_middle])
def test_a_damaged_checkpoint_is_passed_over(nursery, command, undisturbed, cut_off, damage):
    before, newest = steps(cut_off)
    damage(newest / "state.pt")
    child = nursery.rr(*command(cut_off))
    assert child.code == 0, child.err
    assert f"{newest.name}" in child.err and "is corrupt" in child.err
    assert f"resuming from step {int(before.name)}" in child.err
    assert outcome(only(cut_off)) == undisturbed["clean"][0]


def test_damage_found_late_does_not_stay_beside_good_checkpoints(nursery, command, cut_off):
    _, newest = steps(cut_off)
    flip_middle(newest / "state.pt")
    child = nursery.rr(*command(cut_off), at=("save", 1, 0.0))
    assert child.code == -signal.SIGKILL
    assert newest not in steps(cut_off)


def test_a_damaged_last_checkpoint_is_made_again(nursery, command, undisturbed, tmp_path):
    words = command(tmp_path)
    assert nursery.rr(*words, at=("result", 1, 0.0)).code == -signal.SIGKILL
    newest = steps(tmp_path)[-1]
    flip_middle(newest / "state.pt")
    child = nursery.rr(*words)
    assert child.code == 0 and "resuming from step" in child.err
    assert outcome(only(tmp_path)) == undisturbed["clean"][0]
    assert nursery.rr("sample", only(tmp_path)).err == ""  # the newest is whole again


def test_without_a_whole_checkpoint_the_run_stops(nursery, command, cut_off):
    for checkpoint in steps(cut_off):
        flip_middle(checkpoint / "state.pt")
    before = snapshot(only(cut_off))
    refused(nursery.rr(*command(cut_off)), 3, "every checkpoint", "is corrupt", "to start again")
    assert snapshot(only(cut_off)) == before
    refused(nursery.rr("sample", only(cut_off)), 3, "every checkpoint")


def test_a_checkpoint_of_another_specification_is_refused(nursery, command, cut_off, tmp_path):
    other = tmp_path / "other"
    assert nursery.rr(*command(other, seed=1), at=("save", 4, 0.0)).code == -signal.SIGKILL
    shutil.copytree(steps(other)[-1], only(cut_off) / "checkpoint" / "00000039")
    before = snapshot(only(cut_off))
    refused(nursery.rr(*command(cut_off)), 2, "belongs to run", only(other).name)
    assert snapshot(only(cut_off)) == before


def edit(old: str, new: str):
    """Damage that leaves a run.json readable, and wrong."""
    return lambda path: path.write_text(path.read_text().replace(old, new))


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(truncate, id="truncated"),
        pytest.param(Path.unlink, id="missing"),
        pytest.param(edit('"threads": 1', '"threads": 2'), id="threads"),
        full(lambda path: path.write_text("[]"), "list"),
        full(edit('"steps": 40', '"steps": 41'), "steps"),
        full(edit('"threads": 1', '"threads": -1'), "negative"),
        full(edit('"provenance"', '"prowenance"'), "key"),
        full(edit('"source"', '"sauce"'), "source"),
    ],
)
def test_a_damaged_run_json_is_not_believed(nursery, command, cut_off, damage):
    path = only(cut_off) / "run.json"
    whole = path.read_bytes()
    damage(path)
    assert not path.exists() or path.read_bytes() != whole
    refused(nursery.rr(*command(cut_off)), 3)
    assert not (only(cut_off) / "result.json").exists()


def test_a_run_json_of_another_run_is_refused(nursery, command, cut_off, tmp_path):
    other = tmp_path / "other"
    assert nursery.rr(*command(other, seed=1), at=("save", 1, 0.0)).code == -signal.SIGKILL
    shutil.copy(only(other) / "run.json", only(cut_off) / "run.json")
    refused(nursery.rr(*command(cut_off)), 2, "another run")


@pytest.mark.parametrize(
    "damage",
    [
        truncate,
        flip_middle,
        full(lambda path: path.write_text('{"id": "0"}'), "foreign"),
    ],
)
def test_a_damaged_result_is_named_not_overwritten(nursery, command, tmp_path, damage):
    words = command(tmp_path, steps=4)
    assert nursery.rr(*words).code == 0
    path = only(tmp_path) / "result.json"
    if damage is flip_middle:  # in the middle of a name or a sign, so that it is seen
        flip(path, path.read_bytes().index(b'"status"') + 2)
    else:
        damage(path)
    left = path.read_bytes()
    refused(nursery.rr(*words), 3, "result.json", "is corrupt")
    assert path.read_bytes() == left
    table = nursery.rr("table", tmp_path)
    assert table.code == 2 and "Traceback" not in table.err and str(path) in table.err


def test_metrics_are_rebuilt_from_the_checkpoint(nursery, command, undisturbed, cut_off):
    truncate(only(cut_off) / "metrics.jsonl")
    child = nursery.rr(*command(cut_off))
    assert child.code == 0, child.err
    assert outcome(only(cut_off)) == undisturbed["clean"][0]


# -- folders that refuse ------------------------------------------------------------------------


def test_a_folder_that_cannot_be_written(nursery, command, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    file = tmp_path / "file"
    for out in (file, file / "below", Path("/proc/rr"), Path("/dev/null")):
        refused(nursery.rr(*command(out)), 2, "cannot write to", "writable --out")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_another_user_cannot_write(nursery, command, tmp_path):
    stranger = 65_534
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and str(folder).startswith("/tmp/"):
            folder.chmod(0o755)
    out = tmp_path / "mine"
    out.mkdir()
    child = nursery.rr(*command(out), uid=stranger)
    refused(child, 2, "ermission denied")
    assert list(out.iterdir()) == []


# -- a disk that is full ------------------------------------------------------------------------


def test_a_full_disk_while_saving(nursery, command, undisturbed, cut_off):
    kept = {p.name: snapshot(p) for p in steps(cut_off)}
    size = (steps(cut_off)[0] / "state.pt").stat().st_size
    child = nursery.rr(*command(cut_off), file_limit=size - 10_000)
    refused(child, 3, "cannot save in")
    assert {p.name: snapshot(p) for p in steps(cut_off)} == kept
    assert not list((only(cut_off) / "checkpoint").glob(".*"))
    assert nursery.rr(*command(cut_off)).code == 0
    assert outcome(only(cut_off)) == undisturbed["clean"][0]


@pytest.mark.parametrize("limit", [full(0), full(100), 1000, full(3000)])
def test_a_full_disk_at_the_start_or_in_the_curve(nursery, command, undisturbed, tmp_path, limit):
    out = tmp_path / "out"
    refused(nursery.rr(*command(out), file_limit=limit), 3, "cannot")
    asides = [p for p in tmp_path.rglob(".*")]
    assert not asides
    assert nursery.rr(*command(out)).code == 0
    assert outcome(only(out)) == undisturbed["clean"][0]


# -- stopping, and standing in each other's way -------------------------------------------------


@pytest.mark.parametrize(
    ("number", "protocol", "moment"),
    [
        pytest.param(
            number,
            protocol,
            (phase, n, 0.001),
            id=f"{number.name}-{protocol}-{phase}",
            marks=[] if (protocol, phase) == ("clean", "step") else [pytest.mark.slow],
        )
        for number in (signal.SIGTERM, signal.SIGINT)
        for protocol in ("clean", "paper")
        for phase, n in (("step", 7), ("save", 1), ("evaluation", 1))
    ],
)
def test_a_signal_ends_the_step_saves_and_goes_on(
    nursery, command, undisturbed, tmp_path, number, protocol, moment
):
    words = command(tmp_path, protocol)
    child = nursery.rr(*words, at=moment, number=number)
    refused(child, 130, "stopped")
    saved = int(steps(tmp_path)[-1].name)
    begun = sum(phase == "step" for phase, _ in child.phases) - sum(
        phase in ("save", "evaluation") for phase, _ in child.phases
    )  # a step is announced again after what interrupts it
    if "result" not in dict(child.phases):
        assert saved == begun, "the step that had begun was finished, and no more"
    end = nursery.rr(*words)
    assert end.code == 0 and f"resuming from step {saved}" in end.err
    assert outcome(only(tmp_path)) == undisturbed[protocol][0]


def test_a_finished_run_is_left_as_it_is(nursery, command, tmp_path):
    words = command(tmp_path)
    first = nursery.rr(*words)
    before = snapshot(tmp_path)
    second = nursery.rr(*words)
    assert first.code == second.code == 0
    assert first.out == second.out == f"{only(tmp_path)}\n"
    assert snapshot(tmp_path) == before


def test_one_writer_at_a_time(nursery, command, corpus, tmp_path_factory, tmp_path):
    cache = tmp_path_factory.mktemp("other-cache")
    words = command(tmp_path, steps=100_000)
    env = {**os.environ, "RR_CACHE": str(cache), "PYTHONPATH": str(ROOT)}
    holder = subprocess.Popen(
        [sys.executable, "-m", "rr.cli", *words],
        env=env,
        cwd=ROOT,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    try:
        for line in holder.stderr:
            if "step 1/" in line:
                break
        second = nursery.rr(*words)
        refused(second, 3, "another process")
        assert len(second.err.splitlines()) == 1
    finally:
        holder.kill()
        holder.wait()
        holder.stderr.close()
    third = nursery.rr(*words, at=("step", 3, 0.0), number=signal.SIGTERM)
    assert third.code == 130, "the lock of a killed process is free"
