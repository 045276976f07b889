"""SIGKILL to the runs of a sweep, to the sweep, and two sweeps on one folder: nothing is lost."""

import os
import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from workers import PHASES, SEEDS, outcome

from rr.io import try_lock

STEPS = 60  # of a cell
LONG = 120  # of a cell that is killed some twenty-five times on its way


@pytest.fixture
def seed() -> int:
    return int(os.environ.get("RR_FAULT_SEED", time.time_ns() % 2**32))


def compare(out: Path, cells: dict, counts: Counter) -> None:
    """Every cell is there, ended, with the bits of a run that nobody touched; nothing else is."""
    for run, expected in cells.items():
        assert (out / run / "result.json").is_file(), f"{run} is lost"
        assert outcome(out / run) == expected, run
        assert len(list((out / run / "checkpoint").iterdir())) <= 3  # two and the weights
        counts["runs identical"] += 1
    assert {p.name for p in out.iterdir()} == {*cells, ".claims", ".logs"}
    for left in (out / ".claims").iterdir():  # of a killed sweep: a file that nobody holds
        assert try_lock(left), left
    stray = [p for run in cells for p in (out / run).rglob(".*")]
    assert [p for p in stray if p.name != ".metrics.jsonl.aside"] == []


def tally(counts: Counter, killed: Counter, whose: str, seed: int) -> None:
    print(f"\n{killed.total()} kills of {whose}: {dict(killed)} (RR_FAULT_SEED={seed})")
    for phase, n in killed.items():
        counts[f"SIGKILLs of {whose} in {phase}"] += n


def some(expected: dict, seeds: int) -> dict:
    """The cells of the first `seeds` seeds."""
    return {run: expected[run] for run in expected if expected[run][0]["seed"] < seeds}


# wanted, steps of a cell, seconds within which an attempt's moment lies
@pytest.mark.parametrize(
    ("wanted", "steps", "span"),
    [(20, STEPS, 0.3), pytest.param(200, LONG, 0.8, marks=pytest.mark.slow)],
)
def test_random_kills_of_a_sweeps_runs(
    workers, sweeping, alone, tmp_path, seed, counts, wanted, steps, span
):
    """Sweeps of eight cells, one after another, until `wanted` kills have been counted."""
    killed, sweeps, again, expected = Counter(), 0, 0, alone(steps)
    while killed.total() < wanted:
        sweeps += 1
        out, code, rounds = tmp_path / str(sweeps), None, 0
        while code != 0:
            end = workers.sweep(
                *sweeping(out, steps),
                kills=wanted - killed.total(),
                span=span,
                seed=seed + sweeps + again,
            )
            killed += Counter(end["kills"])
            code, rounds = end["code"], rounds + 1
            # 3: a cell was killed too often before it could save; the same command goes on
            assert code in (0, 3) and rounds < 10, end["err"]
        again += rounds - 1
        compare(out, expected, counts)
    tally(counts, killed, "a sweep's runs", seed)
    assert killed.total() == wanted
    assert wanted < 200 or all(killed[phase] for phase in PHASES)


@pytest.mark.parametrize(("seeds", "wanted"), [(2, 2), pytest.param(4, 30, marks=pytest.mark.slow)])
def test_a_killed_sweep_goes_on(workers, sweeping, alone, tmp_path, seed, counts, seeds, wanted):
    """The sweep itself is killed and started again; its runs, orphaned, stop by themselves."""
    rng, killed, rounds = random.Random(seed), Counter(), 0
    expected = some(alone(STEPS), seeds)
    while killed.total() < wanted:
        rounds += 1
        out, code = tmp_path / str(rounds), None
        while code != 0:
            kills = int(killed.total() < wanted)
            words = sweeping(out, STEPS, range(seeds))
            end = workers.sweep(*words, own=True, kills=kills, seed=rng.random(), span=0.5)
            killed += Counter(end["kills"])
            code = end["code"]
            assert code in (0, -9), end["err"]
        compare(out, expected, counts)
    tally(counts, killed, "the sweep itself", seed)


def both(first, second, words: list[str], **options: object) -> list[dict]:
    """Two sweeps at once, each from its own process; `options` are of the first."""
    with ThreadPoolExecutor() as threads:
        ends = [
            threads.submit(first.sweep, *words, **options),
            threads.submit(second.sweep, *words),
        ]
    return [end.result() for end in ends]


@pytest.mark.parametrize(
    ("seeds", "rounds"), [((0, 1), 1), pytest.param(SEEDS, 6, marks=pytest.mark.slow)]
)
def test_two_sweeps_at_once_share_the_work(
    workers, second, sweeping, alone, tmp_path, seeds, rounds, counts
):
    expected = some(alone(STEPS), len(seeds))
    for i in range(rounds):
        out = tmp_path / str(i)
        ends = both(workers, second, sweeping(out, STEPS, seeds))
        assert [end["code"] for end in ends] == [0, 0], [end["err"] for end in ends]
        starts = Counter(ends[0]["starts"]) + Counter(ends[1]["starts"])
        assert starts == dict.fromkeys(expected, 1), "each cell was started once"
        compare(out, expected, counts)


@pytest.mark.slow
def test_of_two_sweeps_one_is_killed(workers, second, sweeping, alone, tmp_path, seed, counts):
    expected, killed = alone(STEPS), Counter()
    for i in range(5):
        out = tmp_path / str(i)
        first, other = both(
            workers, second, sweeping(out, STEPS), own=True, kills=1, seed=seed + i, span=0.5
        )
        assert first["code"] in (0, -9) and other["code"] == 0, first["err"] + other["err"]
        killed += Counter(first["kills"])
        starts = Counter(first["starts"]) + Counter(other["starts"])
        assert max(starts.values()) <= 2 and sum(starts.values()) <= len(expected) + 2
        compare(out, expected, counts)
    tally(counts, killed, "one of two sweeps", seed)
    assert killed


def test_a_clock_that_jumps_and_what_a_dead_sweep_left_stop_nothing(
    workers, sweeping, alone, tmp_path, counts
):
    """The clock by an hour; a dead sweep left its claims, on a machine that is gone."""
    expected = some(alone(STEPS), 1)
    (tmp_path / ".claims").mkdir()
    for run in expected:
        (tmp_path / ".claims" / run).write_text("a machine that is gone")
    end = workers.sweep(*sweeping(tmp_path, STEPS, [0]), clock=True)
    assert end["code"] == 0, end["err"]
    assert end["starts"] == dict.fromkeys(expected, 1)
    compare(tmp_path, expected, counts)
