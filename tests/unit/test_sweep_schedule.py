"""Which cell next, and what became of it: with processes that a test plays."""

import json
import signal
import threading
from types import SimpleNamespace

import pytest

from rr.config import Interrupted, RRError, RunFailed
from rr.io import try_lock, write_json
from rr.sweep import Hours, Runner, cells, schedule, sweep
from rr.sweep.start import _room_on_disk
from rr.sweep.view import View, taken


class Played:
    """A process that does what the test says when it is looked at: a script of steps.

    Each step is called with the cell's folder; the last one's value is the exit code.
    """

    def __init__(self, script, folder):
        self.script, self.folder, self.code, self.stopped = list(script), folder, None, False

    def poll(self):
        if self.stopped and self.code is None:
            self.code = 130
        if self.code is None:
            value = self.script.pop(0)(self.folder)
            self.code = value if not self.script else None
        return self.code

    def stop(self):
        self.stopped = True

    kill = stop


class Stage:
    """An engine of one place, which plays for each attempt of a cell the next of its scripts."""

    threads = None

    def __init__(self, out, scripts, places=1):
        self.out, self.scripts, self.places = out, scripts, places
        self.started, self.now = [], []
        self.told = {}  # cell -> the variables of its process

    @property
    def room(self):
        self.now = [p for p in self.now if p.code is None]
        return self.places - len(self.now)

    def start(self, argv, log, env):
        cell = log.stem
        self.started.append(cell)
        self.told[cell] = env
        log.parent.mkdir(exist_ok=True)
        folder = self.out / cell
        folder.mkdir(exist_ok=True)
        played = Played(self.scripts[cell].pop(0), folder)
        self.now.append(played)
        return played


def ends(status="finished", code=0):
    def step(folder):
        write_json(folder / "result.json", {"id": folder.name, "status": status})
        return code

    return step


def crashes(code=-9, saved=None, words=""):
    def step(folder):
        if saved is not None:
            (folder / "checkpoint" / f"{saved:08d}").mkdir(parents=True)
        with open(folder.parent / ".logs" / f"{folder.name}.log", "a") as log:
            log.write(words)
        return code

    return step


@pytest.fixture
def play(tmp_path, monkeypatch):
    """play(scripts by cell) -> (settled?, statuses, cells in the order they were started, said)."""
    monkeypatch.setattr(schedule, "TICK", 0.001)
    monkeypatch.setattr(schedule, "LOOK", 0.001)

    def run(plan, scripts, kind="direct", **more):
        said = []
        stage = Stage(tmp_path, scripts)
        runner = Runner(kind, tmp_path, {})
        staged = schedule.Schedule(
            plan, tmp_path, runner, stage, View(tmp_path, said.append), **more
        )
        settled = staged.run()
        assert not [p for p in (tmp_path / ".claims").iterdir()]
        return settled, {s.cell.id: s.status for s in staged.states}, stage.started, said

    return run


@pytest.fixture
def plan():
    return cells({"rule": ["standard", "review"], "seed": [0, 1], "steps": [10]}, print)


def test_each_cell_runs_once_in_the_order_of_the_plan(play, plan):
    ids = [cell.id for cell in plan]
    settled, states, started, _ = play(plan, {i: [[ends()]] for i in ids})
    assert settled and started == ids and set(states.values()) == {"finished"}
    # again: all is done
    assert play(plan, {})[2] == []


def test_the_threads_of_a_cell_do_not_spin(plan, tmp_path, monkeypatch):
    """Threads that wait actively take the cores of the cells beside them."""
    monkeypatch.setattr(schedule, "TICK", 0.001)
    stage = Stage(tmp_path, {cell.id: [[ends()]] for cell in plan})
    view = View(tmp_path, lambda line: None)
    schedule.Schedule(plan, tmp_path, Runner("direct", tmp_path, {}), stage, view).run()
    assert {env["OMP_WAIT_POLICY"] for env in stage.told.values()} == {"PASSIVE"}


def test_a_crashed_cell_is_tried_again_and_a_diverged_one_is_not(play, plan):
    a, b, c, d = (cell.id for cell in plan)
    settled, states, started, said = play(
        plan,
        {
            a: [[crashes()], [crashes()], [ends()]],
            b: [[ends("diverged", code=3)]],
            c: [[ends()]],
            d: [[ends()]],
        },
    )
    assert states == {a: "finished", b: "diverged", c: "finished", d: "finished"}
    assert sorted(started) == sorted([a, a, a, b, c, d])


def test_without_progress_a_cell_fails_after_three_retries(play, plan):
    (a, *others) = (cell.id for cell in plan)
    scripts = {i: [[ends()]] for i in others} | {a: [[crashes(words="rr: no luck\n")]] * 4}
    _, states, started, said = play(plan, scripts)
    assert started.count(a) == 4 and states[a] == "failed"
    assert any("no luck" in line and "failed" in line for line in said)


def test_a_full_disk_stops_the_sweep(play, plan, monkeypatch):
    why = "rr: cannot save in runs: No space left on device"
    with pytest.raises(RunFailed, match=f"the disk of .* is full, at {plan[0].id} .*resumes"):
        play(plan, {plan[0].id: [[crashes(words=f"{why}\n")]]})
    monkeypatch.setattr(
        "rr.sweep.schedule.shutil.disk_usage", lambda path: SimpleNamespace(free=1000)
    )
    with pytest.raises(RunFailed, match="the disk of .* is full"):  # it could not even say so
        play(plan, {plan[0].id: [[crashes(words="")]]})


def test_two_runs_that_fail_alike_stop_the_sweep(play, plan):
    """As without a compiler, where 42 runs would fail one after the other."""
    a, b, *others = (cell.id for cell in plan)
    why = "rr: {} needs 3.14 GiB\n"
    scripts = {i: [[crashes(2, words=why.format(i))]] for i in (a, b)}
    with pytest.raises(RunFailed, match="two runs failed alike, so 2 more were not tried"):
        play(plan, scripts | {i: [[ends()]] for i in others})


def test_runs_that_fail_unlike_or_apart_stop_nothing(play, plan):
    a, b, c, d = (cell.id for cell in plan)
    same, other = [[crashes(2, words="rr: same\n")]], [[crashes(2, words="rr: other\n")]]
    _, states, started, _ = play(plan, {a: same, b: other, c: [[ends()]], d: list(same)})
    assert started == [a, b, c, d] and [states[i] for i in (a, b, d)] == ["failed"] * 3


def test_progress_earns_new_tries(play, plan):
    (a, *others) = (cell.id for cell in plan)
    script = [[crashes(saved=step)] for step in (1, 2, 3, 4, 5, 6)] + [[ends()]]
    _, states, started, said = play(plan, {i: [[ends()]] for i in others} | {a: script})
    assert started.count(a) == 7 and states[a] == "finished"
    assert any("resuming from step 6" in line for line in said)


@pytest.mark.parametrize(
    ("kind", "code", "line"),
    [("direct", 2, "rr: on another device"), ("papermill", 1, "RRError: on another device")],
)
def test_a_refusal_is_not_repeated(play, plan, kind, code, line):
    cell = plan[0].id
    script = [[crashes(code, words=f"some progress\n{line}\n")]]
    _, states, started, said = play(plan[:1], {cell: script}, kind)
    assert started == [cell] and states[cell] == "failed"
    assert any("on another device" in line for line in said)


def test_a_corrupt_result_is_named_and_left_alone(play, plan, tmp_path):
    (a, *others) = (cell.id for cell in plan)
    (tmp_path / a).mkdir()
    (tmp_path / a / "result.json").write_text("{")
    _, states, started, said = play(plan, {i: [[ends()]] for i in others})
    assert states[a] == "failed" and a not in started
    assert any("result.json is corrupt" in line for line in said)


def test_a_run_that_another_process_writes_is_waited_for(play, plan, tmp_path):
    """An orphan holds the lock: its cell is not started, and is done when the orphan ends it."""
    (a, *others) = (cell.id for cell in plan)
    (tmp_path / a).mkdir()
    lock = try_lock(tmp_path / a / "lock")

    def orphan_ends():
        ends()(tmp_path / a)
        lock.release()

    timer = threading.Timer(0.3, orphan_ends)
    timer.start()
    _, states, started, _ = play(plan, {i: [[ends()]] for i in others})
    timer.join()
    assert a not in started and states[a] == "finished"


def test_a_writer_that_ends_between_two_looks_is_believed(play, plan, tmp_path, monkeypatch):
    """Not finished at the first look, its lock free at the second: it ended in between."""
    (a, *others) = (cell.id for cell in plan)
    (tmp_path / a).mkdir()

    def busy(self, state):
        if state.cell.id == a:
            ends()(tmp_path / a)
        return False

    monkeypatch.setattr(schedule.Schedule, "busy", busy)
    _, states, started, _ = play(plan, {i: [[ends()]] for i in others})
    assert a not in started and states[a] == "finished"


def test_a_crash_while_another_process_writes_is_no_crash(play, plan, tmp_path):
    """A kernel that outlived its papermill: however often, the successor waits for it."""
    (a, *others) = (cell.id for cell in plan)
    locks = []

    def leaves_an_orphan(folder):
        lock = try_lock(folder / "lock")
        locks.append(lock)
        threading.Timer(0.05, lock.release).start()
        return 1

    script = [[leaves_an_orphan]] * 6 + [[ends()]]
    _, states, started, _ = play(plan, {i: [[ends()]] for i in others} | {a: script})
    assert states[a] == "finished" and started.count(a) == 7


def test_told_to_stop_it_stops_its_cells_and_releases_its_claims(play, plan):
    ids = [cell.id for cell in plan]

    def told(folder):
        signal.raise_signal(signal.SIGTERM)

    settled, states, started, said = play(plan, {ids[0]: [[told, lambda folder: None] * 50]})
    assert not settled and started == ids[:1]
    assert said[-1].startswith("stopping") or any(s.startswith("stopping") for s in said)


def test_two_sweeps_share_a_folder(plan, tmp_path, monkeypatch):
    """Each cell is started by one of the two, and both end when all are done."""
    monkeypatch.setattr(schedule, "TICK", 0.001)
    monkeypatch.setattr(schedule, "LOOK", 0.002)
    more = cells({"rule": ["standard"], "seed": list(range(30)), "steps": [10]}, print)
    slow = [[lambda folder: None] * 5 + [ends()]]
    stages, results = [], []

    def one():
        stage = Stage(tmp_path, {c.id: [list(s) for s in slow] for c in more}, places=2)
        stages.append(stage)
        staged = schedule.Schedule(
            more, tmp_path, Runner("direct", tmp_path, {}), stage, View(tmp_path, lambda line: None)
        )
        results.append(staged.run())

    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    both = stages[0].started + stages[1].started
    assert results == [True, True]
    assert sorted(both) == sorted(cell.id for cell in more)  # no cell twice, none lost
    assert stages[0].started and stages[1].started


def test_what_did_not_finish_is_named(plan, tmp_path, monkeypatch):
    monkeypatch.setattr(schedule, "TICK", 0.001)
    ids = [cell.id for cell in plan]
    scripts = {i: [[ends("diverged" if i == ids[1] else "finished")]] for i in ids}
    monkeypatch.setattr("rr.sweep.local.Local", lambda *a: stage)
    stage = Stage(tmp_path, scripts)
    stage.close = lambda: None
    with pytest.raises(RunFailed, match=f"1 of 4 cells did not finish: {ids[1]} .*diverged"):
        sweep(plan, tmp_path, runner="direct", log=lambda line: None)
    stage.scripts = {i: [[lambda f: signal.raise_signal(signal.SIGINT)] * 9] for i in ids}
    for path in tmp_path.glob("*/result.json"):
        path.unlink()
    with pytest.raises(Interrupted, match="0 of 4 cells done"):
        sweep(plan, tmp_path, runner="direct", log=lambda line: None)


def test_a_disk_that_is_too_small_is_refused_before_anything_starts(plan, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "rr.sweep.start.shutil.disk_usage", lambda path: SimpleNamespace(free=10**6)
    )
    with pytest.raises(RRError, match="4 runs need .* GB at most, 0.001 GB are free"):
        sweep(plan, tmp_path / "new", runner="direct", log=lambda line: None)
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(
        "rr.sweep.start.shutil.disk_usage", lambda path: SimpleNamespace(free=10**9)
    )
    whole = _room_on_disk(plan, tmp_path, 1)
    (tmp_path / plan[0].id).mkdir()
    (tmp_path / plan[0].id / "state.pt").write_bytes(bytes(10**7))  # from an earlier sweep
    before, now = (float(words.split(" need ")[1].split()[0]) for words in
                   (whole, _room_on_disk(plan, tmp_path, 1)))  # fmt: skip
    assert before - now == pytest.approx(0.01, rel=0.1)


def test_progress_is_read_from_the_curve(tmp_path):
    (cell,) = cells({"budgets": [[100, 200]]}, print)
    folder = tmp_path / cell.id
    folder.mkdir()
    assert taken(cell, tmp_path) == 0
    # by hand: plateau to 80, branch to 100 (20 more), plateau again from 80
    for line, steps in (
        ({"step": 50}, 50),
        ({"step": 90, "budget": 100}, 90),
        ({"step": 90}, 110),
        ({"step": 200}, 220),
    ):
        with open(folder / "metrics.jsonl", "a") as file:
            file.write(json.dumps(line) + "\n")
        assert taken(cell, tmp_path) == steps
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"st')
    assert taken(cell, tmp_path) == 0


# -- hours --------------------------------------------------------------------------------------


class Clock:
    """A clock that only the test moves, in hours."""

    now = 0.0

    def __call__(self):
        return 3600 * self.now

    def takes(self, hours):
        """A script: a cell that ends after so many hours."""

        def step(folder):
            self.now += hours
            return ends()(folder)

        return [step]


@pytest.fixture
def clock():
    return Clock()


def pairs():
    """Two arms of equal FLOPs by three seeds."""
    return cells({"rule": ["standard", "constant"], "seed": [0, 1, 2], "steps": [10]}, print)


def test_what_will_not_fit_is_not_started(play, clock):
    """Pairs of two hours in five: the second pair ends at four, the third would at six."""
    plan = pairs()
    scripts = {cell.id: [clock.takes(1)] for cell in plan}
    settled, states, started, _ = play(plan, scripts, hours=Hours(5, clock=clock))
    assert not settled and started == [cell.id for cell in plan[:4]] and clock.now == 4
    assert [states[cell.id] for cell in plan[4:]] == ["waiting"] * 2
    # with the hours of a third pair it goes on, and ends
    settled, states, started, _ = play(plan, scripts, hours=Hours(2, clock=clock))
    assert settled and started == [cell.id for cell in plan[4:]]


def test_the_rate_that_was_measured_decides(play, clock):
    """A rule that turned out slow is left; its FLOPs alone would have let it in."""
    plan = pairs()
    slow = {"standard": 1, "constant": 2}
    scripts = {cell.id: [clock.takes(slow[cell.run.rule])] for cell in plan}
    settled, _, started, _ = play(plan, scripts, hours=Hours(8.5, clock=clock))
    assert not settled and len(started) == 4 and clock.now == 6


def test_a_benchmark_decides_before_anything_is_measured(play, clock, tmp_path):
    plan = pairs()
    expected = lambda run: 3600.0  # noqa: E731
    settled, _, started, _ = play(plan, {}, hours=Hours(1.5, expected, clock))
    assert not settled and started == []  # a pair takes two
    # what was seen counts for more: the second pair fits by the benchmark, and not by the first
    scripts = {cell.id: [clock.takes(2)] for cell in plan}
    settled, _, started, _ = play(plan, scripts, hours=Hours(6.5, expected, clock))
    assert not settled and len(started) == 2


def test_half_done_is_half_the_time(play, clock, tmp_path):
    plan = pairs()[:2]
    for cell in plan:
        (tmp_path / cell.id).mkdir()
        (tmp_path / cell.id / "metrics.jsonl").write_text('{"step": 5}\n')
    scripts = {cell.id: [clock.takes(0.5)] for cell in plan}
    hours = Hours(1.2, lambda run: 3600.0, clock)
    settled, _, started, _ = play(plan, scripts, hours=hours)
    assert settled and len(started) == 2
    assert [hours.seconds(cell) for cell in plan] == [3600, 3600]  # of the whole cell


def test_when_the_hours_are_over_what_runs_is_stopped(play, clock, plan):
    ids = [cell.id for cell in plan]

    def goes_on(folder):
        clock.now += 0.6

    settled, states, started, said = play(
        plan, {ids[0]: [[goes_on] * 50]}, hours=Hours(1, clock=clock)
    )
    assert not settled and started == ids[:1]
    assert any("hours are over: each run saves a checkpoint" in line for line in said)


def test_several_at_a_time_share_the_hours(clock):
    """Two places: two cells of an hour beside one that has half an hour left take 1.25 h."""
    hours = Hours(1.2, lambda run: 3600.0, clock)
    a, b, c = pairs()[:3]
    held = [(c, 1.0, 1800.0)]
    assert hours.admit([(a, 1.0)], held, 2) and not hours.admit([(a, 1.0), (b, 1.0)], held, 2)
    assert hours.admit([(a, 1.0), (b, 1.0)], held, 3)
    assert not Hours(0.9, lambda run: 3600.0, clock).admit([(a, 1.0)], [], 8)  # the longest alone


def test_what_was_left_is_named_with_the_command(tmp_path, monkeypatch, clock):
    monkeypatch.setattr(schedule, "TICK", 0.001)
    monkeypatch.setattr("rr.sweep.local.Local", lambda *a: stage)
    plan = pairs()
    stage = Stage(tmp_path, {cell.id: [clock.takes(1)] for cell in plan})
    stage.close = lambda: None
    with pytest.raises(Interrupted) as stopped:
        sweep(
            plan,
            tmp_path,
            runner="direct",
            log=lambda line: None,
            hours=Hours(5, clock=clock),
            resume_command="rr sweep --seed 0 1 2 --hours 5",
        )
    told = str(stopped.value)
    assert told.startswith("4 of 6 cells done")
    assert "standard seed 2; constant seed 2" in told and "seed 1" not in told.partition(";")[2]
    assert told.endswith("resume with: rr sweep --seed 0 1 2 --hours 5")
