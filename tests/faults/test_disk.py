"""A disk that is full when a file is written, and one that cannot be written at all."""

import signal
from pathlib import Path

import pytest
from workers import fill_up, only, outcome

# Every file that a run writes, and at which of its writes the disk is full.
WRITES = [("vocab.json", 1), ("merges.txt", 1), ("run.json", 1), ("metrics.jsonl", 1),
          ("metrics.jsonl", 12), ("state.pt", 1), ("state.pt", 3), ("meta.json", 1),
          ("meta.json", 3), ("result.json", 1)]  # fmt: skip
QUICK = {("run.json", 1), ("state.pt", 3), ("result.json", 1)}
SIZE = "12m"


def full(*case):
    return pytest.param(*case, marks=[] if case in QUICK else pytest.mark.slow)


def whole(folder: Path) -> list[str]:
    """The checkpoints that stand, each believed."""
    from rr.training.checkpoint import Checkpoints

    checkpoints = Checkpoints(folder, folder.name)
    return [str(checkpoints.read(step)["steps_taken"]) for step in checkpoints.steps()]


@pytest.mark.parametrize(("name", "n"), [full(*case) for case in WRITES])
def test_the_disk_is_full_at_a_write(workers, command, undisturbed, disk, name, n, counts):
    place = disk(SIZE)
    out = place / "runs"
    out.mkdir()
    end = workers.rr(*command(out), fill=(place, name, n))
    lines = [line for line in end.err.splitlines() if line.startswith("rr: ")]
    assert end.code in (2, 3) and len(lines) == 1 and "o space left" in lines[0], end.err
    assert "Traceback" not in end.err and end.out == ""
    assert (place / "filler").exists(), f"{name} was not written {n} times"
    folders = list(out.iterdir())
    stood = whole(folders[0]) if folders else []
    if (name, n) in {("state.pt", 3), ("meta.json", 3), ("result.json", 1)}:
        assert len(stood) == 2, "the checkpoints before stand, whole"
    assert not list(out.glob("*/result.json"))
    again = workers.rr(*command(out))  # still full
    assert again.code in (2, 3) and "Traceback" not in again.err
    assert "o space left" in again.err or "GB for checkpoints" in again.err
    (place / "filler").unlink()
    end = workers.rr(*command(out))
    assert end.code == 0, end.err
    assert ("resuming from step" in end.err) == bool(stood)
    assert outcome(only(out)) == undisturbed["clean"][0]
    counts[f"disks full at {name}"] += 1
    counts["runs identical"] += 1


@pytest.mark.slow
def test_the_disk_of_a_sweep_is_full(workers, sweeping, alone, disk, counts):
    expected = alone(60)
    place = disk(SIZE)
    out = place / "runs"
    out.mkdir()
    fill_up(place)
    end = workers.sweep(*sweeping(out))  # at its first claim
    assert end["code"] == 2 and "Traceback" not in end["err"], end["err"]
    assert len([line for line in end["err"].splitlines() if line.startswith("rr: ")]) == 1
    (place / "filler").unlink()
    killed = workers.sweep(*sweeping(out), own=True, kills=1, span=0.3, seed=1)
    assert killed["code"] in (0, -signal.SIGKILL)
    fill_up(place)  # in the middle of its runs
    end = workers.sweep(*sweeping(out))
    assert end["code"] in (0, 2, 3) and "Traceback" not in end["err"], end["err"]
    (place / "filler").unlink()
    end = workers.sweep(*sweeping(out))
    assert end["code"] == 0, end["err"]
    assert {run: outcome(out / run) for run in expected} == expected
    counts["disks full under a sweep"] += 2
    counts["runs identical"] += len(expected)


def test_a_read_only_folder(workers, command, sweeping, undisturbed, disk, counts):
    place = disk(SIZE)
    out = place / "runs"
    assert workers.rr(*command(out), at=("save", 3, 0.0)).code == -signal.SIGKILL
    disk_is = {p.relative_to(place): p.stat().st_mtime_ns for p in place.rglob("*")}
    disk.remount("ro")
    for words in (command(out), command(place / "new"), sweeping(out), sweeping(place / "new")):
        end = workers.sweep(*words) if words[0] == "sweep" else vars(workers.rr(*words))
        assert end["code"] == 2 and end["out"] == "", end["err"]
        (line,) = end["err"].splitlines()
        assert line.startswith("rr: ") and "ead-only file system" in line
    assert {p.relative_to(place): p.stat().st_mtime_ns for p in place.rglob("*")} == disk_is
    disk.remount("rw")
    assert workers.rr(*command(out)).code == 0
    assert outcome(only(out)) == undisturbed["clean"][0]
    counts["disks read-only"] += 1
    counts["runs identical"] += 1


def test_a_finished_run_on_a_read_only_disk_is_left_as_it_is(workers, command, disk, counts):
    place = disk(SIZE)
    assert workers.rr(*command(place / "runs")).code == 0
    disk.remount("ro")
    end = workers.rr(*command(place / "runs"))
    assert end.code == 0 and end.out == f"{only(place / 'runs')}\n", end.err
    counts["disks read-only"] += 1
