"""Which cell next, and what became of it: with processes that a test plays.

Real processes, killed, stopped and two sweeps at a time: tests/faults.
"""

import signal
import threading
from types import SimpleNamespace

import pytest
from tiny import result_of

from rr.errors import Interrupted, RRError, RunFailed
from rr.io import try_lock, write_record
from rrstudy.sweep import Hours, Runner, cells, schedule, sweep
from rrstudy.sweep.start import _room_on_disk
from rrstudy.sweep.view import View, taken


class Played:
    """A process that does what the test says when it is looked at: a script of steps.

    Each step is called with the cell's folder; the last one's value is the exit code.
    """

    def __init__(self, script, folder):
        self.script, self.folder, self.code = list(script), folder, None

    def poll(self):
        if self.code is None:
            value = self.script.pop(0)(self.folder)
            self.code = value if not self.script else None
        return self.code

    def stop(self):
        self.code = 130 if self.code is None else self.code

    kill = stop


class Stage:
    """An engine of one place, which plays for each attempt of a cell the next of its scripts."""

    threads = None

    def __init__(self, out, scripts):
        self.out, self.scripts, self.started, self.now = out, scripts, [], None

    def reap(self):
        """Nothing is kept of what has ended."""

    @property
    def free_slots(self):
        return int(self.now is None or self.now.code is not None)

    def start(self, argv, log, env):
        assert env["OMP_WAIT_POLICY"] == "PASSIVE"  # waiting actively takes the cores of others
        self.started.append(log.stem)
        folder = self.out / log.stem
        for made in (log.parent, folder):
            made.mkdir(exist_ok=True)
        self.now = Played(self.scripts[log.stem].pop(0), folder)
        return self.now


def quiet(line):
    pass


def ends(status="finished", code=0):
    def step(folder):
        write_record(folder / "result.json", {"id": folder.name, "status": status})
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
        printed, stage = [], Stage(tmp_path, scripts)
        runner, view = Runner(kind, tmp_path, {}), View(tmp_path, printed.append)
        staged = schedule.Schedule(plan, tmp_path, runner, stage, view, **more)
        settled = staged.run()
        assert not list((tmp_path / ".claims").iterdir())
        return settled, {s.cell.id: s.status for s in staged.states}, stage.started, printed

    return run


@pytest.fixture
def plan():
    return cells({"rule": ["standard", "review"], "seed": [0, 1], "steps": [10]}, print)


def all_end(plan, **others):
    """Scripts of cells that end at their first try, but for those that are given."""
    return {cell.id: [[ends()]] for cell in plan} | others


def test_each_cell_runs_once_in_the_order_of_the_plan(play, plan):
    settled, states, started, _ = play(plan, all_end(plan))
    assert settled and started == [cell.id for cell in plan]
    assert set(states.values()) == {"finished"}
    assert play(plan, {})[2] == []  # again: all is done


def test_a_crashed_cell_is_tried_again_and_a_diverged_one_is_not(play, plan):
    a, b, c, d = (cell.id for cell in plan)
    scripts = {
        a: [[crashes()], [crashes()], [ends()]],
        b: [[ends("diverged", code=3)]],
        c: [[crashes(words="rr: no luck\n")]] * 4,  # without progress it fails after three retries
        d: [[crashes(saved=step)] for step in (1, 2, 3, 4, 5, 6)] + [[ends()]],  # new tries
    }
    _, states, started, printed = play(plan, scripts)
    assert states == {a: "finished", b: "diverged", c: "failed", d: "finished"}
    assert [started.count(i) for i in (a, b, c, d)] == [3, 1, 4, 7]
    assert any("no luck" in line and "failed" in line for line in printed)
    assert any("resuming from step 6" in line for line in printed)


def test_a_full_disk_stops_the_sweep(play, plan, monkeypatch):
    first, why = plan[0].id, "rr: cannot save in runs: No space left on device\n"
    with pytest.raises(RunFailed, match=f"the disk of .* is full, at {first} .*resumes"):
        play(plan, {first: [[crashes(words=why)]]})
    free = SimpleNamespace(free=1000)
    monkeypatch.setattr("rrstudy.sweep.schedule.shutil.disk_usage", lambda path: free)
    with pytest.raises(RunFailed, match="the disk of .* is full"):  # it could not even say so
        play(plan, {first: [[crashes(words="")]]})


def test_two_runs_that_fail_alike_stop_the_sweep(play, plan):
    """As without a compiler, where 42 runs would fail one after the other."""
    a, b, *_ = (cell.id for cell in plan)
    why = "rr: {} needs 3.14 GiB\n"
    scripts = {i: [[crashes(2, words=why.format(i))]] for i in (a, b)}
    with pytest.raises(RunFailed, match="two runs failed alike, so 2 more were not tried"):
        play(plan, all_end(plan, **scripts))


def test_runs_that_fail_unlike_or_apart_stop_nothing(play, plan):
    a, b, c, d = (cell.id for cell in plan)
    same, other = [[crashes(2, words="rr: same\n")]], [[crashes(2, words="rr: other\n")]]
    _, states, started, _ = play(plan, {a: same, b: other, c: [[ends()]], d: list(same)})
    assert started == [a, b, c, d] and [states[i] for i in (a, b, d)] == ["failed"] * 3


@pytest.mark.parametrize(
    ("kind", "code", "line"),
    [("direct", 2, "rr: on another device"), ("papermill", 1, "RRError: on another device")],
)
def test_a_refusal_is_not_repeated(play, plan, kind, code, line):
    cell = plan[0].id
    script = [[crashes(code, words=f"some progress\n{line}\n")]]
    _, states, started, printed = play(plan[:1], {cell: script}, kind)
    assert started == [cell] and states[cell] == "failed"
    assert any("on another device" in line for line in printed)


def test_a_process_that_ends_well_without_this_result_is_not_tried_again(play, plan):
    """As one that trained another run, since a rule's file changed after the plan."""
    cell = plan[0].id
    _, states, started, printed = play(plan[:1], {cell: [[crashes(0)]]})
    assert started == [cell] and states[cell] == "failed"
    assert any("has changed since the sweep was planned" in line for line in printed)


@pytest.mark.parametrize("many", [1, 2])
def test_corrupt_results_are_named_and_left_alone(play, plan, tmp_path, many):
    for cell in plan[:many]:
        (tmp_path / cell.id).mkdir()
        (tmp_path / cell.id / "result.json").write_text("{")
    _, states, started, printed = play(plan, all_end(plan[many:]))
    assert list(states.values()) == ["failed"] * many + ["finished"] * (4 - many)
    assert started == [cell.id for cell in plan[many:]]
    assert sum("result.json is corrupt" in line for line in printed) == many


def test_a_writer_that_ends_between_two_looks_is_believed(play, plan, tmp_path, monkeypatch):
    """Not finished at the first look, its lock free at the second: it ended in between."""
    a = plan[0].id
    (tmp_path / a).mkdir()

    def busy(self, state):
        if state.cell.id == a:
            ends()(tmp_path / a)
        return False

    monkeypatch.setattr(schedule.Schedule, "busy", busy)
    _, states, started, _ = play(plan, all_end(plan[1:]))
    assert a not in started and states[a] == "finished"


def test_a_crash_while_another_process_writes_is_no_crash(play, plan):
    """A kernel that outlived its papermill: however often, the successor waits for it."""
    a = plan[0].id

    def leaves_an_orphan(folder):
        threading.Timer(0.03, try_lock(folder / "lock").release).start()
        return 1

    _, states, started, _ = play(plan[:1], {a: [[leaves_an_orphan]] * 5 + [[ends()]]})
    assert states[a] == "finished" and started.count(a) == 6


@pytest.fixture
def local(tmp_path, monkeypatch):
    """local(scripts): the engine of a whole sweep is a stage with these."""
    monkeypatch.setattr(schedule, "TICK", 0.001)

    def use(scripts):
        stage = Stage(tmp_path, scripts)
        stage.close = lambda: None
        monkeypatch.setattr("rrstudy.sweep.local.Local", lambda *a: stage)

    return use


def test_what_did_not_finish_is_named(plan, tmp_path, local):
    second = plan[1].id
    local(all_end(plan, **{second: [[ends("diverged")]]}))
    with pytest.raises(RunFailed, match=f"1 of 4 cells did not finish: {second} .*diverged"):
        sweep(plan, tmp_path, runner="direct", log=quiet)
    for path in tmp_path.glob("*/result.json"):
        path.unlink()
    local({cell.id: [[lambda f: signal.raise_signal(signal.SIGINT)] * 9] for cell in plan})
    with pytest.raises(Interrupted, match="0 of 4 cells done"):
        sweep(plan, tmp_path, runner="direct", log=quiet)


def test_a_corrupt_result_stops_its_own_cell_alone(plan, tmp_path, local):
    a = plan[0].id
    (tmp_path / a).mkdir()
    (tmp_path / a / "result.json").write_text("{")
    local(all_end(plan[1:]))
    with pytest.raises(RunFailed, match=f"1 of 4 .*{a} .*corrupt.*: move .*{a} away to train it"):
        sweep(plan, tmp_path, runner="direct", log=quiet)
    assert all(result_of(tmp_path / cell.id)["status"] == "finished" for cell in plan[1:])


def test_a_disk_that_is_too_small_is_refused_before_anything_starts(plan, tmp_path, monkeypatch):
    free = SimpleNamespace(free=10**6)
    monkeypatch.setattr("rrstudy.sweep.start.shutil.disk_usage", lambda path: free)
    with pytest.raises(RRError, match="4 runs need .* GB at most, 0.001 GB are free"):
        sweep(plan, tmp_path / "new", runner="direct", log=quiet)
    assert not list(tmp_path.iterdir())
    free.free = 10**9
    whole = _room_on_disk(plan, tmp_path, 1, 4)
    (tmp_path / plan[0].id).mkdir()
    (tmp_path / plan[0].id / "state.pt").write_bytes(bytes(10**7))  # from an earlier sweep
    recorded = (whole, _room_on_disk(plan, tmp_path, 1, 4))
    before, now = (float(words.split(" need ")[1].split()[0]) for words in recorded)
    assert before - now == pytest.approx(0.01, rel=0.1)


def test_progress_is_read_from_the_curve(tmp_path):
    (cell,) = cells({"budgets": [[100, 200]]}, print)
    folder = tmp_path / cell.id
    folder.mkdir()
    assert taken(cell, tmp_path) == 0
    lines = []
    # by hand: plateau to 80, branch to 100 (20 more), plateau again from 80
    for line, steps in (
        ('{"step": 50}', 50),
        ('{"step": 90, "budget": 100}', 90),
        ('{"step": 90}', 110),
        ('{"step": 200}', 220),
        ('{"st', 0),
    ):
        lines.append(line)
        (folder / "metrics.jsonl").write_text("\n".join(lines))
        assert taken(cell, tmp_path) == steps


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


def an_hour(run):
    return 3600.0


def pairs():
    return cells({"rule": ["standard", "constant"], "seed": [0, 1, 2], "steps": [10]}, print)


@pytest.mark.parametrize(
    ("hours_of", "hours", "started", "over"),
    [
        ((1, 1), 5, 4, 4),  # the second pair ends at four, the third would at six
        ((1, 2), 8.5, 4, 6),  # a rule that turned out slow: its FLOPs would have let it in
        ((1, 1), 6, 6, 6),
    ],
)
def test_what_will_not_fit_is_not_started(play, clock, hours_of, hours, started, over):
    plan, takes = pairs(), dict(zip(("standard", "constant"), hours_of, strict=True))
    scripts = {cell.id: [clock.takes(takes[cell.run.rule])] for cell in plan}
    settled, states, names, _ = play(plan, scripts, hours=Hours(hours, clock=clock))
    assert settled == (started == 6) and clock.now == over
    assert names == [cell.id for cell in plan[:started]]
    assert [states[cell.id] for cell in plan[started:]] == ["waiting"] * (6 - started)


def test_a_benchmark_decides_before_anything_is_measured(play, clock, tmp_path):
    plan = pairs()
    settled, _, started, _ = play(plan, {}, hours=Hours(1.5, an_hour, clock))
    assert not settled and started == []  # a pair takes two
    # what was seen counts for more: the second pair fits by the benchmark, and not by the first
    scripts = {cell.id: [clock.takes(2)] for cell in plan}
    settled, _, started, _ = play(plan, scripts, hours=Hours(6.5, an_hour, clock))
    assert not settled and len(started) == 2


def test_half_done_is_half_the_time(play, clock, tmp_path):
    plan = pairs()[:2]
    for cell in plan:
        (tmp_path / cell.id).mkdir()
        (tmp_path / cell.id / "metrics.jsonl").write_text('{"step": 5}\n')
    scripts = {cell.id: [clock.takes(0.5)] for cell in plan}
    hours = Hours(1.2, an_hour, clock)
    settled, _, started, _ = play(plan, scripts, hours=hours)
    assert settled and len(started) == 2
    assert [hours.seconds(cell) for cell in plan] == [3600, 3600]  # of the whole cell


def test_the_rest_of_a_cell_tells_nothing_of_a_whole_one(clock, plan):
    hours = Hours(8, lambda run: 3600.0, clock)
    hours.note(plan[0], 114, 0.02)  # its start and its evaluation, for the most part
    assert hours.seconds(plan[0]) == 3600
    hours.note(plan[0], 1000, 0.5)
    assert hours.seconds(plan[0]) == pytest.approx(2000)


def test_when_the_hours_are_over_what_runs_is_stopped(play, clock, plan):
    first = plan[0].id

    def goes_on(folder):
        clock.now += 0.6

    hours = Hours(1, clock=clock)
    settled, _, started, printed = play(plan, {first: [[goes_on] * 50]}, hours=hours)
    assert not settled and started == [first]
    assert any("hours are over: each run saves a checkpoint" in line for line in printed)


def test_several_at_a_time_share_the_hours(clock):
    """Two places: two cells of an hour beside one that has half an hour left take 1.25 h."""
    hours = Hours(1.2, an_hour, clock)
    a, b, c = pairs()[:3]
    held = [(c, 1.0, 1800.0)]
    assert hours.admit([(a, 1.0)], held, 2) and not hours.admit([(a, 1.0), (b, 1.0)], held, 2)
    assert hours.admit([(a, 1.0), (b, 1.0)], held, 3)
    assert not Hours(0.9, an_hour, clock).admit([(a, 1.0)], [], 8)  # the longest alone


def test_what_was_left_is_named_with_the_command(tmp_path, local, clock):
    plan = pairs()
    local({cell.id: [clock.takes(1)] for cell in plan})
    hours, command = Hours(5, clock=clock), "rr sweep --seed 0 1 2 --hours 5"
    with pytest.raises(Interrupted) as stopped:
        sweep(plan, tmp_path, runner="direct", log=quiet, hours=hours, resume_command=command)
    recorded = str(stopped.value)
    assert recorded.startswith("4 of 6 cells done")
    assert (
        "standard seed 2; constant seed 2" in recorded
        and "seed 1" not in recorded.partition(";")[2]
    )
    assert recorded.endswith(f"resume with: {command}")
