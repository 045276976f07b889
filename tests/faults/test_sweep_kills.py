"""SIGKILL to the runs of a sweep, to the sweep, and two sweeps on one folder: nothing is lost."""

import os
import random
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from brood import OWN
from nursery import PHASES, SEEDS, outcome

from rr.io import try_lock

STEPS = 60  # of a cell
LONG = 120  # of a cell that is killed some twenty-five times on its way


@pytest.fixture
def seed() -> int:
    return int(os.environ.get("RR_FAULT_SEED", time.time_ns() % 2**32))


def compare(out: Path, told: dict, counts: dict[str, Counter]) -> None:
    """Every cell is there, ended, with the bits of a run that nobody touched; nothing else is."""
    for run, expected in told.items():
        if not (out / run / "result.json").is_file():
            counts["runs"]["lost"] += 1
        elif outcome(out / run) == expected:
            counts["runs"]["identical"] += 1
        else:
            counts["runs"]["different"] += 1
        assert len(list((out / run / "checkpoint").iterdir())) <= 3  # two and the weights
    assert counts["runs"]["lost"] == counts["runs"]["different"] == 0
    assert {p.name for p in out.iterdir()} == {*told, ".claims", ".logs"}
    for left in (out / ".claims").iterdir():  # of a killed sweep: a file that nobody holds
        assert try_lock(left), left
    stray = [p for run in told for p in (out / run).rglob(".*")]
    assert [p for p in stray if p.name != ".metrics.jsonl.aside"] == []


def some(told: dict, seeds: int) -> dict:
    """The cells of the first `seeds` seeds."""
    return {run: told[run] for run in told if told[run][0]["seed"] < seeds}


def cells_killed(
    nursery, sweeping, told, out: Path, wanted: int, steps: int, span: float, seed: int, counts
):
    """Sweeps of eight cells, one after another, until `wanted` kills have been counted.

    span: seconds within which an attempt's moment lies.
    """
    died, sweeps, again = Counter(), 0, 0
    while died.total() < wanted:
        sweeps += 1
        here, code, rounds = out / str(sweeps), None, 0
        while code != 0:
            left = wanted - died.total()
            end = nursery.sweep(
                *sweeping(here, steps),
                kills=left,
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
    for phase in PHASES:
        counts["kills"]["a sweep's runs", phase] += died[phase]
    print(
        f"\n{died.total()} kills, {sweeps} sweeps, {again} of them started again: {dict(died)} "
        f"(RR_FAULT_SEED={seed})"
    )
    return died


def test_random_kills_of_a_sweeps_runs(nursery, sweeping, alone, tmp_path, seed, counts):
    died = cells_killed(nursery, sweeping, alone(STEPS), tmp_path, 20, STEPS, 0.3, seed, counts)
    assert died.total() == 20


@pytest.mark.slow
def test_two_hundred_kills_of_a_sweeps_runs(nursery, sweeping, alone, tmp_path, seed, counts):
    died = cells_killed(nursery, sweeping, alone(LONG), tmp_path, 200, LONG, 0.8, seed, counts)
    assert died.total() == 200 and all(died[phase] for phase in PHASES)


def sweep_killed(nursery, sweeping, told, out: Path, wanted: int, seed: int, counts) -> None:
    """Kill the sweep itself and start it again; its runs, orphaned, stop by themselves."""
    rng, died, rounds = random.Random(seed), Counter(), 0
    seeds = {told[run][0]["seed"] for run in told}
    while died.total() < wanted:
        rounds += 1
        here, code = out / str(rounds), None
        while code != 0:
            kills = int(died.total() < wanted)
            end = nursery.sweep(
                *sweeping(here, STEPS, seeds), own=True, kills=kills, seed=rng.random(), span=0.5
            )
            died += Counter(end["kills"])
            code = end["code"]
            assert code in (0, -9), end["err"]
        compare(here, told, counts)
    for phase in OWN:
        counts["kills"]["the sweep itself", phase] += died[phase]
    print(f"\n{died.total()} kills of the sweep: {dict(died)} (RR_FAULT_SEED={seed})")


def test_a_killed_sweep_goes_on(nursery, sweeping, alone, tmp_path, seed, counts):
    sweep_killed(nursery, sweeping, some(alone(STEPS), 2), tmp_path, 2, seed, counts)


@pytest.mark.slow
def test_a_sweep_killed_thirty_times_goes_on(nursery, sweeping, alone, tmp_path, seed, counts):
    sweep_killed(nursery, sweeping, alone(STEPS), tmp_path, 30, seed, counts)


def both(first, second, words: list[str], **asked: object) -> list[dict]:
    """Two sweeps at once, each from its own process; `asked` is of the first."""
    ends: dict[int, dict] = {}

    def go(i: int, nursery, more: dict) -> None:
        ends[i] = nursery.sweep(*words, **more)

    threads = [
        threading.Thread(target=go, args=given) for given in ((0, first, asked), (1, second, {}))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [ends[0], ends[1]]


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
    for phase in OWN:
        counts["kills"]["one of two sweeps", phase] += died[phase]


def test_a_clock_that_jumps_an_hour(nursery, sweeping, alone, tmp_path, counts):
    told = some(alone(STEPS), 1)
    end = nursery.sweep(*sweeping(tmp_path, STEPS, [0]), clock=True)
    assert end["code"] == 0, end["err"]
    assert end["starts"] == dict.fromkeys(told, 1)
    compare(tmp_path, told, counts)


def test_what_a_dead_sweep_left_claims_nothing(nursery, sweeping, alone, tmp_path, counts):
    told = some(alone(STEPS), 1)
    (tmp_path / ".claims").mkdir()
    for run in told:
        (tmp_path / ".claims" / run).write_text("a machine that is gone")
    end = nursery.sweep(*sweeping(tmp_path, STEPS, [0]))
    assert end["code"] == 0, end["err"]
    assert end["starts"] == dict.fromkeys(told, 1)
    compare(tmp_path, told, counts)
