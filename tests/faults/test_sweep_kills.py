"""SIGKILL to the runs of a sweep, to the sweep, and two sweeps on one folder: nothing is lost."""

import os
import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from nursery import PHASES, SEEDS, outcome

from rr.io import try_lock

STEPS = 60  # of a cell
LONG = 120  # of a cell that is killed some twenty-five times on its way


@pytest.fixture
def seed() -> int:
    return int(os.environ.get("RR_FAULT_SEED", time.time_ns() % 2**32))


def compare(out: Path, told: dict, counts: Counter) -> None:
    """Every cell is there, ended, with the bits of a run that nobody touched; nothing else is."""
    for run, expected in told.items():
        assert (out / run / "result.json").is_file(), f"{run} is lost"
        assert outcome(out / run) == expected, run
        assert len(list((out / run / "checkpoint").iterdir())) <= 3  # two and the weights
        counts["runs identical"] += 1
    assert {p.name for p in out.iterdir()} == {*told, ".claims", ".logs"}
    for left in (out / ".claims").iterdir():  # of a killed sweep: a file that nobody holds
        assert try_lock(left), left
    stray = [p for run in told for p in (out / run).rglob(".*")]
    assert [p for p in stray if p.name != ".metrics.jsonl.aside"] == []


def tally(counts: Counter, died: Counter, whose: str, seed: int) -> None:
    print(f"\n{died.total()} kills of {whose}: {dict(died)} (RR_FAULT_SEED={seed})")
    for phase, n in died.items():
        counts[f"SIGKILLs of {whose} in {phase}"] += n


def some(told: dict, seeds: int) -> dict:
    """The cells of the first `seeds` seeds."""
    return {run: told[run] for run in told if told[run][0]["seed"] < seeds}


# wanted, steps of a cell, seconds within which an attempt's moment lies
@pytest.mark.parametrize(
    ("wanted", "steps", "span"),
    [(20, STEPS, 0.3), pytest.param(200, LONG, 0.8, marks=pytest.mark.slow)],
)
def test_random_kills_of_a_sweeps_runs(
    nursery, sweeping, alone, tmp_path, seed, counts, wanted, steps, span
):
    """Sweeps of eight cells, one after another, until `wanted` kills have been counted."""
    died, sweeps, again, told = Counter(), 0, 0, alone(steps)
    while died.total() < wanted:
        sweeps += 1
        here, code, rounds = tmp_path / str(sweeps), None, 0
        while code != 0:
            end = nursery.sweep(
                *sweeping(here, steps),
                kills=wanted - died.total(),
                span=span,
                ration=wanted // 9,
                seed=seed + sweeps + again,
            )
            died += Counter(end["kills"])
            code, rounds = end["code"], rounds + 1
            # 3: a cell was killed too often before it could save; the same command goes on
            assert code in (0, 3) and rounds < 10, end["err"]
        again += rounds - 1
        compare(here, told, counts)
    tally(counts, died, "a sweep's runs", seed)
    assert died.total() == wanted
    assert wanted < 200 or all(died[phase] for phase in PHASES)


@pytest.mark.parametrize(("seeds", "wanted"), [(2, 2), pytest.param(4, 30, marks=pytest.mark.slow)])
def test_a_killed_sweep_goes_on(nursery, sweeping, alone, tmp_path, seed, counts, seeds, wanted):
    """The sweep itself is killed and started again; its runs, orphaned, stop by themselves."""
    rng, died, rounds = random.Random(seed), Counter(), 0
    told = some(alone(STEPS), seeds)
    while died.total() < wanted:
        rounds += 1
        here, code = tmp_path / str(rounds), None
        while code != 0:
            kills = int(died.total() < wanted)
            words = sweeping(here, STEPS, range(seeds))
            end = nursery.sweep(*words, own=True, kills=kills, seed=rng.random(), span=0.5)
            died += Counter(end["kills"])
            code = end["code"]
            assert code in (0, -9), end["err"]
        compare(here, told, counts)
    tally(counts, died, "the sweep itself", seed)


def both(first, second, words: list[str], **asked: object) -> list[dict]:
    """Two sweeps at once, each from its own process; `asked` is of the first."""
    with ThreadPoolExecutor() as threads:
        ends = [threads.submit(first.sweep, *words, **asked), threads.submit(second.sweep, *words)]
    return [end.result() for end in ends]


@pytest.mark.parametrize(
    ("seeds", "rounds"), [((0, 1), 1), pytest.param(SEEDS, 6, marks=pytest.mark.slow)]
)
def test_two_sweeps_at_once_share_the_work(
    nursery, second, sweeping, alone, tmp_path, seeds, rounds, counts
):
    told = some(alone(STEPS), len(seeds))
    for i in range(rounds):
        out = tmp_path / str(i)
        ends = both(nursery, second, sweeping(out, STEPS, seeds))
        assert [end["code"] for end in ends] == [0, 0], [end["err"] for end in ends]
        starts = Counter(ends[0]["starts"]) + Counter(ends[1]["starts"])
        assert starts == dict.fromkeys(told, 1), "each cell was started once"
        compare(out, told, counts)


@pytest.mark.slow
def test_of_two_sweeps_one_is_killed(nursery, second, sweeping, alone, tmp_path, seed, counts):
    told, died = alone(STEPS), Counter()
    for i in range(5):
        out = tmp_path / str(i)
        first, other = both(
            nursery, second, sweeping(out, STEPS), own=True, kills=1, seed=seed + i, span=0.5
        )
        assert first["code"] in (0, -9) and other["code"] == 0, first["err"] + other["err"]
        died += Counter(first["kills"])
        starts = Counter(first["starts"]) + Counter(other["starts"])
        assert max(starts.values()) <= 2 and sum(starts.values()) <= len(told) + 2
        compare(out, told, counts)
    tally(counts, died, "one of two sweeps", seed)


def test_a_clock_that_jumps_and_what_a_dead_sweep_left_stop_nothing(
    nursery, sweeping, alone, tmp_path, counts
):
    """The clock by an hour; a dead sweep left its claims, on a machine that is gone."""
    told = some(alone(STEPS), 1)
    (tmp_path / ".claims").mkdir()
    for run in told:
        (tmp_path / ".claims" / run).write_text("a machine that is gone")
    end = nursery.sweep(*sweeping(tmp_path, STEPS, [0]), clock=True)
    assert end["code"] == 0, end["err"]
    assert end["starts"] == dict.fromkeys(told, 1)
    compare(tmp_path, told, counts)
