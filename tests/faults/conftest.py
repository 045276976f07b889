"""What the fault tests share: a small text, processes to fork children from, finished runs, counts.

The counts stand at the end of what pytest prints.
"""

import contextlib
import os
from collections import Counter
from pathlib import Path

import pytest
from workers import PROTOCOLS, RULES, SEEDS, Workers, only, outcome

SHAPE = "nano:n_layer=2,d_model=32,n_head=2,seq_len=32"
COUNTED = pytest.StashKey[Counter]()


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> str:
    names = "Ada Ben Cleo Dov Eve Fay Gus Hal Ida Jon".split()
    lines = [f"{name} sees the sea {i % 13} times." for i in range(40) for name in names]
    path = tmp_path_factory.mktemp("text") / "small.txt"
    path.write_text("\n<|endoftext|>\n".join(lines))
    return f"file:{path}"


@pytest.fixture(scope="session")
def home(tmp_path_factory) -> Path:
    """The cache of tokens that all children share."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def workers(home) -> Workers:
    with contextlib.closing(Workers(home)) as process:
        yield process


@pytest.fixture(scope="session")
def second(home, workers) -> Workers:
    """Another one, for two sweeps at once."""
    with contextlib.closing(Workers(home)) as process:
        yield process


@pytest.fixture(scope="session")
def command(corpus):
    """command(out, protocol="clean", steps=40) -> the words of a run that takes about a second."""

    def words(out: Path, protocol: str = "clean", steps: int = 40, **options: object) -> list[str]:
        given = {
            "rung": SHAPE,
            "corpus": corpus,
            "tokenizer": "bpe:300",
            "batch": 2,
            "steps": steps,
            "threads": 1,
            "save-every": 0.05,
            "protocol": protocol,
            "out": out,
        } | options
        if protocol == "paper":
            given.setdefault("eval-batches", 6)
        return ["train", *(str(w) for key, value in given.items() for w in (f"--{key}", value))]

    return words


@pytest.fixture(scope="session")
def undisturbed(workers, command, tmp_path_factory):
    """protocol -> (outcome, longest stay in each phase in s), of a run that was left alone."""
    runs = {}
    for protocol in PROTOCOLS:
        for again in ("first", "second"):  # the first one also makes the cache
            out = tmp_path_factory.mktemp("undisturbed") / again
            run = workers.rr(*command(out, protocol))
            assert run.code == 0, run.err
            expected = outcome(only(out))
            assert runs.setdefault(protocol, (expected, run.durations()))[0] == expected
        runs[protocol] = expected, run.durations()
    return runs


@pytest.fixture(scope="session")
def sweeping(command):
    """sweeping(out, steps=60, seeds=SEEDS) -> the words of a sweep, RULES by seeds, two at once."""

    def words(out: Path, steps: int = 60, seeds=SEEDS, **options: object) -> list[str]:
        given = {"runner": "direct", "jobs": 2, "save-every": 0.02, "precision": "fp32"} | options
        rest = command(out, steps=steps, **given)[1:]
        return ["sweep", *rest, "--rule", *RULES, "--seed", *map(str, seeds)]

    return words


@pytest.fixture(scope="session")
def alone(workers, command, undisturbed, tmp_path_factory):
    """alone(steps) -> outcome of each cell of that sweep, by id: trained by itself, undisturbed."""
    known: dict[int, dict] = {}

    def cells(steps: int = 60) -> dict:
        if steps not in known:
            out = tmp_path_factory.mktemp("alone")
            for rule in RULES:
                for seed in SEEDS:
                    words = command(out, steps=steps, rule=rule, seed=seed, precision="fp32")
                    run = workers.rr(*words)
                    assert run.code == 0, run.err
            known[steps] = {folder.name: outcome(folder) for folder in out.iterdir()}
            assert len(known[steps]) == len(RULES) * len(SEEDS)
        return known[steps]

    return cells


@pytest.fixture
def disk(tmp_path):
    """disk(size) -> the folder of a small file system of its own; skipped where none can be made.

    `disk.remount(options)` changes it.
    """
    place = tmp_path / "disk"

    class Disk:
        def __call__(self, size: str) -> Path:
            if os.geteuid() != 0:
                pytest.skip("mounting needs root")
            place.mkdir()
            if os.system(f"mount -t tmpfs -o size={size} tmpfs {place} 2>/dev/null"):
                pytest.skip("mounting is not permitted here")
            return place

        def remount(self, options: str) -> None:
            assert os.system(f"mount -o remount,{options} {place}") == 0

    yield Disk()
    if os.path.ismount(place):
        os.system(f"umount {place}")


# -- counts ---------------------------------------------------------------------------------------


@pytest.fixture
def counts(pytestconfig) -> Counter:
    """What was done to how many, and what became of them; tallied over all tests."""
    return pytestconfig.stash.setdefault(COUNTED, Counter())


def pytest_terminal_summary(terminalreporter, config) -> None:
    """Print them."""
    if counted := config.stash.get(COUNTED, None):
        terminalreporter.section("faults")
        for what, n in sorted(counted.items()):
            terminalreporter.write_line(f"{n:5d} {what}")
