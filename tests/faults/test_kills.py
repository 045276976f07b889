"""SIGKILL at any moment, and start again: the same bits as a run that nobody touched."""

import os
import random
import shutil
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from workers import PHASES, PROTOCOLS, moment, only, outcome


def kill(workers, command, undisturbed, out: Path, wanted: int, seed: int) -> Counter:
    """Kill `wanted` times at random moments, start again each time; count the kills by phase.

    Every run that ends in between, and the last, must equal the undisturbed one.
    """
    rng, counted, runs, aims = random.Random(seed), Counter(), 0, []
    while counted.total() < wanted:
        runs += 1
        protocol = PROTOCOLS[runs % 2]
        expected, longest = undisturbed[protocol]
        words, runs_folder = command(out / str(runs), protocol), out / str(runs)
        deaths = 0
        while not list(runs_folder.glob("*/result.json")):
            if deaths == 8 or counted.total() >= wanted:
                end = workers.rr(*words)
                assert end.code == 0, end.err
                break
            if not aims:
                aims = rng.sample(PHASES, len(PHASES))
            child = workers.rr(*words, at=moment(rng, aims.pop(), longest))
            assert child.code in (0, -signal.SIGKILL), child.err
            if child.code:
                counted[child.phase] += 1
                deaths += 1
        end = workers.rr(*words)  # a finished run is left as it is
        assert (end.code, end.phases[1:]) == (0, []), end.err
        folder = only(runs_folder)
        assert outcome(folder) == expected, f"seed {seed}, run {runs}, kills {dict(counted)}"
        # two checkpoints, and the weights of a run that was killed once its result was written
        assert len(list((folder / "checkpoint").iterdir())) <= 3
        assert not [p for p in folder.rglob(".*") if p.name != ".metrics.jsonl.aside"]
    return counted


def tally(counts: Counter, counted: Counter, whose: str, seed: int = 0) -> None:
    print(f"\nkills by phase: {dict(counted)} (RR_FAULT_SEED={seed})")
    for phase in PHASES:
        counts[f"SIGKILLs of {whose} in {phase}"] += counted[phase]


@pytest.fixture
def seed() -> int:
    return int(os.environ.get("RR_FAULT_SEED", time.time_ns() % 2**32))


@pytest.mark.parametrize("wanted", [20, pytest.param(100, marks=pytest.mark.slow)])
def test_random_kills(workers, command, undisturbed, tmp_path, seed, counts, wanted):
    counted = kill(workers, command, undisturbed, tmp_path, wanted, seed)
    tally(counts, counted, "single runs", seed)
    assert counted.total() >= wanted
    assert wanted < 100 or all(counted[phase] >= 3 for phase in PHASES), counted


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_crash_before_every_single_change_of_the_disk(
    workers, command, undisturbed, tmp_path, protocol, counts
):
    # Random times miss the instant between two system calls; this visits each of them.
    n, crashed = 0, Counter()
    while True:
        n += 1
        out = tmp_path / str(n)
        words = command(out, protocol, **{"save-every": 0.15})
        child = workers.rr(*words, crash_at=n)
        if child.code == 0:
            break
        assert child.code == -signal.SIGKILL, child.err
        crashed[child.phase] += 1
        end = workers.rr(*words)
        assert end.code == 0, end.err
        assert outcome(only(out)) == undisturbed[protocol][0], f"crash {n} in {child.phase}"
        shutil.rmtree(out)
    tally(counts, crashed, "single runs, before each change of the disk,")
    assert n > 20
    assert all(crashed[phase] for phase in ("start-up", "save", "result"))
