"""Files that rot, disks that fill, folders that refuse: one line, and nothing good is lost."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from workers import only, outcome, started


@pytest.fixture(scope="module")
def halfway(workers, command, undisturbed, tmp_path_factory):
    """A run of protocol `clean` that was killed in the middle, with two checkpoints."""
    out = tmp_path_factory.mktemp("halfway")
    child = workers.rr(*command(out), at=("save", 4, 0.0))
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


def flip_middle(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


# every kind of damage to every file: test_bytes.py
def test_damage_found_late_does_not_stay_beside_good_checkpoints(workers, command, cut_off):
    _, newest = steps(cut_off)
    flip_middle(newest / "state.pt")
    child = workers.rr(*command(cut_off), at=("save", 1, 0.0))
    assert child.code == -signal.SIGKILL
    assert newest not in steps(cut_off)


def test_a_damaged_last_checkpoint_is_made_again(workers, command, undisturbed, tmp_path):
    words = command(tmp_path)
    assert workers.rr(*words, at=("result", 1, 0.0)).code == -signal.SIGKILL
    newest = steps(tmp_path)[-1]
    flip_middle(newest / "state.pt")
    child = workers.rr(*words)
    assert child.code == 0 and "resuming from step" in child.err
    assert outcome(only(tmp_path)) == undisturbed["clean"][0]
    assert workers.rr("sample", only(tmp_path)).err == ""  # the newest is whole again


def test_without_a_whole_checkpoint_the_run_stops(workers, command, cut_off):
    for checkpoint in steps(cut_off):
        flip_middle(checkpoint / "state.pt")
    before = snapshot(only(cut_off))
    refused(workers.rr(*command(cut_off)), 3, "every checkpoint", "is corrupt", "to start again")
    assert snapshot(only(cut_off)) == before
    refused(workers.rr("sample", only(cut_off)), 3, "every checkpoint")


def test_a_checkpoint_of_another_specification_is_refused(workers, command, cut_off, tmp_path):
    other = tmp_path / "other"
    assert workers.rr(*command(other, seed=1), at=("save", 4, 0.0)).code == -signal.SIGKILL
    shutil.copytree(steps(other)[-1], only(cut_off) / "checkpoint" / "00000039")
    before = snapshot(only(cut_off))
    refused(workers.rr(*command(cut_off)), 2, "belongs to run", only(other).name)
    assert snapshot(only(cut_off)) == before


# -- folders that refuse ------------------------------------------------------------------------


def test_a_folder_that_cannot_be_written(workers, command, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    file = tmp_path / "file"
    for out in (file, file / "below", Path("/proc/rr"), Path("/dev/null")):
        refused(workers.rr(*command(out)), 2, "cannot write to", "choose a writable ")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_another_user_cannot_write(workers, command, corpus, home, tmp_path):
    stranger = 65_534
    text = Path(corpus.removeprefix("file:")).parent
    for folder in (text, tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and str(folder).startswith("/tmp/"):
            folder.chmod(0o755)
    assert workers.rr(*command(tmp_path / "first")).code == 0  # the cache has the tokens from here
    for folder in (home, *(path for path in home.rglob("*") if path.is_dir())):
        folder.chmod(0o777)
    out = tmp_path / "mine"
    out.mkdir()
    child = workers.rr(*command(out), uid=stranger)
    refused(child, 2, f"cannot write to {out}", "ermission denied")
    assert list(out.iterdir()) == []


# -- a disk that is full ------------------------------------------------------------------------


def test_a_full_disk_while_saving(workers, command, undisturbed, cut_off):
    kept = {p.name: snapshot(p) for p in steps(cut_off)}
    size = (steps(cut_off)[0] / "state.pt").stat().st_size
    child = workers.rr(*command(cut_off), file_limit=size - 10_000)
    refused(child, 3, "cannot save in")
    assert {p.name: snapshot(p) for p in steps(cut_off)} == kept
    assert not list((only(cut_off) / "checkpoint").glob(".*"))
    assert workers.rr(*command(cut_off)).code == 0
    assert outcome(only(cut_off)) == undisturbed["clean"][0]


def test_a_full_disk_in_the_curve(workers, command, undisturbed, tmp_path):
    out = tmp_path / "out"
    refused(workers.rr(*command(out), file_limit=1000), 3, "cannot")
    assert not list(tmp_path.rglob(".*"))
    assert workers.rr(*command(out)).code == 0
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
    workers, command, undisturbed, tmp_path, number, protocol, moment
):
    words = command(tmp_path, protocol)
    child = workers.rr(*words, at=moment, number=number)
    refused(child, 130, "stopped")
    saved = int(steps(tmp_path)[-1].name)
    begun = sum(phase == "step" for phase, _ in child.phases) - sum(
        phase in ("save", "evaluation") for phase, _ in child.phases
    )  # a step is announced again after what interrupts it
    if "result" not in dict(child.phases):
        assert saved == begun, "the step that had begun was finished, and no more"
    end = workers.rr(*words)
    assert end.code == 0 and f"resuming from step {saved}" in end.err
    assert outcome(only(tmp_path)) == undisturbed[protocol][0]


def test_one_writer_at_a_time(workers, command, tmp_path_factory, tmp_path):
    words = command(tmp_path, steps=100_000)
    pipes = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL}
    cache = tmp_path_factory.mktemp("other-cache")
    with started(["-m", "rrstudy.cli", *words], cache, **pipes) as holder:
        try:
            for line in holder.stderr:
                if "step 1/" in line:
                    break
            second = workers.rr(*words)
            refused(second, 3, "another process")
            assert len(second.err.splitlines()) == 1
        finally:
            holder.kill()
    third = workers.rr(*words, at=("step", 3, 0.0), number=signal.SIGTERM)
    assert third.code == 130, "the lock of a killed process is free"
