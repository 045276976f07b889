"""Every kind of damage to every file of a run: recovered or refused, by name, and never believed.

A damage is *recovered* where the run ends with the bits of an undisturbed one and the damaged file
was named, *refused* where one line names it and nothing is made of it, *harmless* where the file
says what it said (a blank that became another) or its lines are written again in any case, and
*believed* otherwise. None may be.
"""

import json
import os
import pickle
import random
import shutil
import signal
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from workers import ROOT, only, outcome

HALFWAY = ("run.json", "metrics.jsonl", "state.pt", "meta.json", "vocab.json", "merges.txt")
ENDED = ("run.json", "result.json", "metrics.jsonl", "state.pt", "vocab.json", "merges.txt")
FLIPS = 5  # bits, at random places
# in `make test`; `make faults` does every damage to every file
QUICK = {
    "run.json": ("truncated", "missing", "threads"),
    "metrics.jsonl": ("truncated",),
    "state.pt": ("truncated", "bit 0"),
    "result.json": ("truncated", "foreign"),
}
quick_or_all = pytest.mark.parametrize("quick", [True, pytest.param(False, marks=pytest.mark.slow)])


def checkpoints(folder: Path) -> list[Path]:
    """Those that were finished, oldest first; a killed writer leaves another aside."""
    return sorted(p for p in (folder / "checkpoint").iterdir() if p.name.isdecimal())


def place(folder: Path, name: str) -> Path:
    """Where a file of a run stands; of the checkpoints, the newest, or what an ended run keeps."""
    if name in ("state.pt", "meta.json"):
        return [folder / "checkpoint" / "weights", *checkpoints(folder)][-1] / name
    return folder / ("tokenizer" if name in ("vocab.json", "merges.txt") else "") / name


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "below").write_text("in its place")


def flip(at: float, bit: int):
    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[int(at * len(data))] ^= 1 << bit
        path.write_bytes(bytes(data))

    return damage


def edit(old: str, new: str):
    """Damage that leaves a file readable, and wrong."""

    def damage(path: Path) -> None:
        text = path.read_text()
        path.write_text(text.replace(old, new) if old else new)

    return damage


EDITS = {
    "run.json": {
        "threads": edit('"threads": 1', '"threads": 2'),
        "list": edit("", "[]"),
        "steps": edit('"steps": 40', '"steps": 41'),
        "negative": edit('"threads": 1', '"threads": -1'),
        "key": edit('"provenance"', '"prowenance"'),
        "source": edit('"source"', '"sauce"'),
    },
    "result.json": {"foreign": edit("", '{"id": "0"}')},
}


def damages(name: str) -> dict:
    """Name -> damage(path) of the file of that name."""
    rng = random.Random(5)
    flips = {f"bit {i}": flip(rng.random(), rng.randrange(8)) for i in range(FLIPS)}
    return {
        "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
        "a byte short": lambda path: os.truncate(path, path.stat().st_size - 2),
        "empty": lambda path: path.write_bytes(b""),
        "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
        "zeroed at its end": lambda path: path.write_bytes(
            path.read_bytes()[: -path.stat().st_size // 3].ljust(path.stat().st_size, b"\0")
        ),
        "missing": Path.unlink,
        "directory": directory,
        **flips,
        **EDITS.get(name, {}),
    }


def made(workers, command, tmp_path_factory, **options) -> dict[int, Path]:
    """Runs of two seeds: finished, or killed where `options` say."""
    runs = {}
    for seed in (0, 1):
        runs[seed] = tmp_path_factory.mktemp("made")
        end = workers.rr(*command(runs[seed], seed=seed), **options)
        assert end.code == (-signal.SIGKILL if options else 0)
    return runs


@pytest.fixture(scope="module")
def halfway(workers, command, undisturbed, tmp_path_factory) -> dict[int, Path]:
    """Killed in the middle with two checkpoints each."""
    runs = made(workers, command, tmp_path_factory, at=("save", 4, 0.0))
    assert [len(checkpoints(only(out))) for out in runs.values()] == [2, 2]
    return runs


@pytest.fixture(scope="module")
def ended(workers, command, undisturbed, tmp_path_factory) -> dict[int, Path]:
    return made(workers, command, tmp_path_factory)


def says(data: bytes) -> object:
    """What a JSON file says, for telling a changed blank from a changed word; else its bytes."""
    try:
        return json.loads(data)
    except ValueError:
        return data


def goes_on(workers, command, out: Path, name: str, expected, whole: bytes) -> str:
    """The fate of a damage to a run that was cut off, when it is resumed."""
    folder = only(out)
    path = place(folder, name)
    same = path.is_file() and says(path.read_bytes()) == says(whole)
    end = workers.rr(*command(out))
    assert "Traceback" not in end.err, end.err
    if end.code == 0 and outcome(folder) == expected:
        named = path.name in end.err or path.parent.name in end.err
        if name == "metrics.jsonl" and not named:  # lines after the checkpoint: written again
            return "harmless"
        return "harmless" if same and not named else "recovered" if named else "believed"
    lines = [line for line in end.err.splitlines() if line.startswith("rr: ")]
    refused = end.code in (2, 3) and len(lines) == 1 and not (folder / "result.json").exists()
    return "refused" if refused and name in lines[0] else "believed"


def damaged(runs: dict[int, Path], names: tuple, quick: bool, tmp_path: Path):
    """(file, damage, folder, bytes before) for each damage, done to a copy of run 0."""
    for name in names:
        cases = damages(name)
        if name not in ("vocab.json", "merges.txt"):  # there it is the same tokenizer
            other = place(only(runs[1]), name)
            cases["of another run"] = partial(shutil.copy, other)
        for word in QUICK.get(name, ()) if quick else cases:
            out = tmp_path / f"{name}-{word}".replace(" ", "-")
            shutil.copytree(runs[0], out)
            path = place(only(out), name)
            whole = path.read_bytes()
            cases[word](path)
            assert not path.is_file() or path.read_bytes() != whole
            yield name, word, out, whole
            shutil.rmtree(out)


def table_of(fates: dict, counts: Counter) -> None:
    for (name, damage), fate in fates.items():
        counts[f"damages {fate}"] += 1
        print(f"{name:14s} {damage:18s} {fate}")
    assert [case for case, fate in fates.items() if fate == "believed"] == []


@quick_or_all
def test_every_damage_to_a_run_that_goes_on(
    workers, command, undisturbed, halfway, tmp_path, counts, quick
):
    fates, expected = {}, undisturbed["clean"][0]
    for name, word, out, whole in damaged(halfway, HALFWAY, quick, tmp_path):
        fates[name, word] = goes_on(workers, command, out, name, expected, whole)
    table_of(fates, counts)


def ask(folder: Path, name: str) -> object:
    """What the readers of an ended run say of the file: the thing itself, or RRError."""
    from rr.io import read_sealed
    from rr.training import loading, run_folder
    from rr.training.checkpoint import weights_sha256
    from rrbook import reports as report
    from rrstudy import stats

    if name == "result.json":
        runs = stats.scan(folder.parent)
        result = run_folder.finished(folder)
        assert list(runs.id) == [result["id"]]
        return result
    if name in ("run.json", "metrics.jsonl"):
        ended = report.read(folder)
        return ended.history if name == "metrics.jsonl" else read_sealed(folder / name)
    model, run, vocabulary = loading.load(folder)
    return weights_sha256(model), run.id, vocabulary.encode("Ada sees the sea 7 times.")


def fate_of_reading(folder: Path, name: str, expected: object) -> str:
    from rr.errors import RRError

    try:
        content = ask(folder, name)
    except RRError as error:
        home = {"vocab.json": "tokenizer", "merges.txt": "tokenizer", "state.pt": "checkpoint"}
        return "refused" if home.get(name, name) in str(error) else "believed"
    return "harmless" if content == expected else "believed"


def test_any_flipped_bit_of_a_result_is_seen(ended, counts):
    from rrstudy import stats

    folder, rng = only(ended[0]), random.Random(0)
    path, expected = folder / "result.json", ask(only(ended[0]), "result.json")
    whole, fates = path.read_bytes(), {}
    for at in range(0, len(whole), 3):
        bit = rng.randrange(8)
        flip((at + 0.5) / len(whole), bit)(path)
        fates["result.json", f"byte {at} bit {bit}"] = fate = fate_of_reading(
            folder, "result.json", expected
        )
        if fate == "refused":
            assert stats.scan(folder.parent).empty
        path.write_bytes(whole)
    # blanks, last digits beyond a float's precision, and the name of the seal
    assert Counter(fates.values())["harmless"] < 0.1 * len(fates), table_of(fates, counts)
    table_of(fates, counts)


@quick_or_all
def test_every_damage_to_a_run_that_has_ended(
    workers, command, undisturbed, ended, tmp_path, counts, quick
):
    fates, contents = {}, {name: ask(only(ended[0]), name) for name in ENDED}
    for name, word, out, _ in damaged(ended, ENDED, quick, tmp_path):
        if (name, word) == ("result.json", "missing"):  # it is made again from the checkpoint
            end, expected = workers.rr(*command(out)), undisturbed["clean"][0]
            good = end.code == 0 and outcome(only(out)) == expected
            fate = "recovered" if good else "believed"
        else:
            fate = fate_of_reading(only(out), name, contents[name])
        if name == "result.json" and fate == "refused":  # and named, never overwritten
            path = only(out) / name
            left = path.is_file() and path.read_bytes()
            end = workers.rr(*command(out))
            assert end.code == 3 and "result.json" in end.err, end.err
            assert left == (path.is_file() and path.read_bytes())
        fates[name, word] = fate
    table_of(fates, counts)


class Evil:
    """Unpickled, it runs a command."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self):
        return os.system, (f"touch {self.proof}",)


def forge(checkpoint: Path) -> None:
    """Make a checkpoint's label fit what it holds, as whoever can write the folder can."""
    from rr.training.checkpoint import Checkpoints

    meta = json.loads((checkpoint / "meta.json").read_text())
    meta["sha256"] = Checkpoints.digest_of(meta, checkpoint)
    (checkpoint / "meta.json").write_text(json.dumps(meta))


@pytest.mark.parametrize("form", ["pickle", "beside the weights"])
def test_a_checkpoint_cannot_run_code(
    workers, command, undisturbed, halfway, tmp_path, form, counts
):
    import torch

    out, proof = tmp_path / "out", tmp_path / "proof"
    shutil.copytree(halfway[0], out)
    newest = checkpoints(only(out))[-1]
    state = newest / "state.pt"
    if form == "pickle":
        state.write_bytes(pickle.dumps(Evil(proof)))
        pickle.loads(state.read_bytes())
    else:
        torch.save(torch.load(state, weights_only=True) | {"evil": Evil(proof)}, state)
        torch.load(state, weights_only=False)
    assert proof.exists()  # the trap is set: another loader falls into it
    proof.unlink()
    forge(newest)
    end = workers.rr(*command(out))
    assert end.code == 0 and "is corrupt" in end.err and "Traceback" not in end.err, end.err
    assert not proof.exists()
    assert outcome(only(out)) == undisturbed["clean"][0]
    counts["damages recovered"] += 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": 1}, "has checkpoints of format 1, this version of rr reads format"),
        ({"format": None}, "has checkpoints of format None"),
        ({"loss_sum": None}, "is corrupt"),
    ],
)
def test_a_checkpoint_of_another_layout_is_refused(
    change, words, workers, command, undisturbed, halfway, tmp_path, counts
):
    import torch

    out = shutil.copytree(halfway[0], tmp_path / "out")
    for checkpoint in checkpoints(only(out)):
        state = torch.load(checkpoint / "state.pt", weights_only=True)
        torch.save(state | change, checkpoint / "state.pt")
        forge(checkpoint)
    end = workers.rr(*command(out))
    assert end.code == 3 and words in end.err and "Traceback" not in end.err, end.err
    assert not (only(out) / "result.json").exists()
    counts["damages refused"] += 1


def test_nothing_of_ours_unpickles_what_it_reads():
    # the only reader of pickled files is torch's, which takes here tensors and plain values alone
    for path in (ROOT / "rr").rglob("*.py"):
        text = path.read_text()
        for call in ("pickle.load", "np.load(", "allow_pickle=True", "weights_only=False"):
            assert call not in text, f"{path}: {call}"
        assert text.count("torch.load(") == text.count("weights_only=True"), path
