"""A run is held against the memory that is free: what is read, what is chosen, what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny import result_of, train

import rr
from rr import io
from rr.errors import Interrupted, RRError
from rr.model import costs
from rr.model import sizes as rungs
from rr.residual import REGISTRY
from rr.training import memory, memory_fit, planning, trainer
from rr.training.backend import parse_backend
from rr.training.checkpoint import Checkpoints
from rr.training.distributed import ALONE, World

CPU = torch.device("cpu")
BODY = "nano:n_layer=4,d_model=32,n_head=2,seq_len=32"
GIB = 2**30

pytestmark = pytest.mark.usefixtures("kept_threads")


@pytest.fixture
def run(tiny_corpus):
    given = {"batch": 16, "steps": 2, "eval_batches": 1, "precision": "fp32"}
    return rr.plan(BODY, corpus=tiny_corpus, tokenizer="bpe:300", **given)


@pytest.fixture
def only(monkeypatch):
    """only(n): n bytes are free on every device."""
    return lambda n: monkeypatch.setattr(memory_fit, "free", lambda device: int(n))


def predicted(run, micro, spec):
    """Bytes of the peak, by the predictor alone, three tenths more, and 300 MiB of libraries."""
    path = replace(parse_backend(spec), precision="fp32")
    return 1.3 * memory.predict(run, path, micro)["total"] + 300 * 2**20


# -- what is free -------------------------------------------------------------------------------


def machine(tmp_path, available, groups, name):
    """A /proc and a /sys/fs/cgroup: GiB available, files of each group, this process's line."""
    proc, place = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable: {available * 2**20} kB\n")
    (proc / "self" / "cgroup").write_text(f"3:cpu:/x\n{name}\n")
    for folder, files in groups.items():
        (place / folder).mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            (place / folder / file).write_text(f"{text}\n")
    return proc, place


def v1(limit, used, cache=0):
    stat = f"total_inactive_file {cache * GIB}\ntotal_active_file 0"
    sizes = {"memory.limit_in_bytes": limit * GIB, "memory.usage_in_bytes": used * GIB}
    return {**sizes, "memory.stat": stat}


def v2(limit, used, cache=0):
    limit = limit if limit == "max" else limit * GIB
    stat = f"anon 5\nactive_file 0\ninactive_file {cache * GIB}"
    return {"memory.max": limit, "memory.current": used * GIB, "memory.stat": stat}


@pytest.mark.parametrize(
    ("available", "groups", "name", "gib"),
    [
        (20, {}, "0::/", 20),  # no group has a limit
        (20, {"a/b": v2(8, 3)}, "0::/a/b", 5),
        (20, {"a/b": v2("max", 3), "a": v2(6, 5, 2)}, "0::/a/b", 3),  # a parent's; cache is free
        (20, {".": v2(4, 1)}, "0::/../outside/name", 3),  # a container's own is the root it sees
        (20, {"memory": v1(10, 6, 1)}, "4:memory:/docker/123", 5),
        (1, {"memory/job": v1(8, 6)}, "4:memory:/job", 1),  # the machine has less
        (20, {"memory/job": v1(8, 9)}, "4:memory:/job", 0),
        (20, {"a": v2(8, 3)}, "0::/b", 20),  # somebody else's
    ],
)
def test_free_memory_is_the_machines_or_the_groups(tmp_path, available, groups, name, gib):
    assert memory_fit.free_ram(*machine(tmp_path, available, groups, name)) == gib * GIB


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="no /proc/meminfo")
def test_this_machines_memory_is_between_nothing_and_all(monkeypatch):
    total = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    assert 0 < memory_fit.free(CPU) <= total
    monkeypatch.setenv(memory_fit.RAM_LIMIT, "1000")  # what a sweep's job may take
    assert memory_fit.free(CPU) == 1000


def test_where_nothing_tells_nothing_is_refused(tmp_path, monkeypatch, run):
    monkeypatch.setattr("os.sysconf_names", {})
    assert memory_fit.free_ram(tmp_path, tmp_path) is None
    monkeypatch.setattr(memory_fit, "free_ram", lambda: None)
    assert memory_fit.choose(run, CPU, None, None, "eager", ALONE, print) == (16, "eager")


# -- what is needed -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "depth"), [*((r, 4) for r in REGISTRY["residual"]), ("attnres", 12)]
)
def test_no_rule_needs_more_than_the_estimate(rule, depth):
    """Held against the predictor, along the path that holds the most.

    Not even attnres when it is deep, whose blocks read all blocks before.
    """
    shape = f"nano:n_layer={depth},d_model=32,n_head=2,seq_len=32"
    config, recipe = rungs.arm(shape, rule, 300), planning.recipe(shape, batch=16)
    held = memory.predict(config, parse_backend("reference"), 16, recipe=recipe)["total"]
    assert held < memory_fit.estimate(config, 16)


def test_the_margin_covers_what_was_measured(root):
    """Peaks of real processes, the C library's allocator as it comes."""
    record = root / "data" / "measured" / "08_make_it_fast" / "memory.json"
    rows = [row for row in json.loads(record.read_text())["rows"] if row["malloc"] == "default"]
    assert len(rows) > 5
    for row in rows:
        path = parse_backend(row["path"].replace("fast", "eager"))  # as rr called it
        assert row["predicted_bytes"] * memory_fit.margin(path, "cpu") > row["measured_bytes"], row
    one = json.loads((record.parent / "one_billion.json").read_text())
    most = one["predicted"]["total"] * memory_fit.margin(
        parse_backend(one["path"].replace("fast", "eager")), "cpu"
    )
    assert most > one["peak_bytes"] - one["baseline_bytes"]
    assert most < 22 * GIB  # and a machine of 24 GiB still takes it


def test_processes_of_one_machine_share_its_memory(run, monkeypatch):
    alone = memory_fit.needs(run, 4, "eager", CPU, ALONE)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    two = memory_fit.needs(run, 4, "eager", CPU, World(0, 2, "ddp"))
    buckets = 4 * costs.count(run.model)  # DDP's, in float32
    assert two == pytest.approx(2 * (alone + buckets), rel=1e-6)


# -- what is chosen -----------------------------------------------------------------------------


def test_fewer_windows_then_recomputation(run, only):
    """Each time one byte less than a way needs: the next that fits is taken, and said."""
    again, printed = "eager:recompute=layer", []
    sizes = (16, 8, 4, 2, 1)
    ways = [(size, "eager") for size in sizes] + [(size, again) for size in sizes]
    need = {way: predicted(run, *way) for way in ways}

    def chosen():
        return memory_fit.choose(run, CPU, None, None, "eager", ALONE, printed.append)

    only(need[ways[0]] + 1)
    assert chosen() == (16, "eager")  # what fits is left as it was
    assert not any("selected" in line for line in printed)
    taken = []
    for way in ways[:3]:
        only(need[way] - 1)
        result = chosen()
        assert result == next(other for other in ways if need[other] <= int(need[way] - 1))
        assert f"selected {result[0]} windows at once with backend {result[1]}," in printed[-1]
        assert "16 windows at once with backend eager may need" in printed[-1]
        taken.append(result)
    assert taken == [(8, "eager"), (4, "eager"), (2, "eager")]
    only(1000)
    with pytest.raises(RRError, match="windows at once .* 0.0 GiB are free.*free that much"):
        chosen()
    only(need[1, "eager"] - 1)  # where no number of windows fits
    assert chosen()[1] == again


def test_what_was_asked_for_is_refused_and_not_altered(run, only):
    only(predicted(run, 8, "eager") + 1)

    def chosen(micro, path):
        return memory_fit.choose(run, CPU, micro, path, path or "eager", ALONE, lambda line: None)

    with pytest.raises(RRError, match="or leave --micro-batch and --backend to rr$"):
        chosen(16, "eager")
    assert chosen(8, "eager") == (8, "eager")
    assert chosen(None, "eager") == (8, "eager")  # the windows were not asked for
    assert chosen(16, None) == (16, "eager:recompute=layer")  # the path was not
    only(predicted(run, 16, "eager:recompute=layer") - 1)
    with pytest.raises(RRError, match="16 windows at once with backend eager may need"):
        chosen(16, None)


def test_nothing_is_predicted_where_there_is_plenty(run, only, monkeypatch):
    monkeypatch.setattr(memory, "predict", lambda *a: 1 / 0)
    only(4 * GIB)
    for one in (run, rr.plan("nano")):
        usual = one.recipe.batch, "eager"
        assert memory_fit.choose(one, CPU, None, None, "eager", ALONE, print) == usual
    # a billion parameters, twenty bytes each at the very least: 64 windows took 22.9 GiB
    run = rr.plan("1B", corpus="tinystories")
    assert memory_fit.estimate(run.model, 64) > 20 * costs.count(run.model) > 18 * GIB
    only(24 * GIB)
    with pytest.raises(ZeroDivisionError):
        memory_fit.choose(run, CPU, 64, "eager", "eager", ALONE, print)


# -- whole runs ---------------------------------------------------------------------------------


def test_a_run_in_little_memory_is_the_same_run(run, only, tmp_path):
    results = []
    for size, room in ((16, 4 * GIB), (4, predicted(run, 4, "eager") + 1)):
        only(room)
        folder = train(run, tmp_path / str(size))
        recorded = io.read_sealed(folder / "run.json")["provenance"]
        assert (recorded["micro_batch"], recorded["code_path"]) == (size, "eager")
        results.append(result_of(folder))
    usual, little = results
    assert little["id"] == usual["id"]
    assert little["val_loss"] == pytest.approx(usual["val_loss"], rel=1e-5)


@pytest.mark.parametrize("asked", [{}, {"micro_batch": 16, "backend": "eager"}])
def test_a_run_that_cannot_fit_ends_before_anything_is_made(run, only, tmp_path, asked):
    only(1e6)
    with pytest.raises(RRError, match="^rung nano.* GiB are free"):
        train(run, tmp_path / "out", **asked)
    assert not (tmp_path / "out").exists()


def test_a_run_stops_after_so_many_steps_however_often_it_is_asked(run, tmp_path):
    for wrong in (0, -1, "3"):
        with pytest.raises(RRError, match="stop_after must be an integer ≥ 1"):
            train(run, tmp_path / "never", stop_after=wrong)
    assert not (tmp_path / "never").exists()
    for _ in range(2):
        with pytest.raises(Interrupted):
            train(run, tmp_path, stop_after=1)
        assert Checkpoints(tmp_path / run.id, run.id).steps() == [1]
    assert (train(run, tmp_path) / "result.json").exists()


def test_a_run_that_goes_on_keeps_its_choices(run, only, tmp_path):
    printed = []

    def go(stop_after=None):
        return trainer.train(
            run, tmp_path, rr.Request(threads=1), log=printed.append, stop_after=stop_after
        )

    with pytest.raises(Interrupted):
        go(stop_after=1)
    only(predicted(run, 16, "eager") - 1)  # a new run would choose otherwise
    folder = go()
    made_by = io.read_sealed(folder / "run.json")["provenance"]
    assert (made_by["micro_batch"], made_by["code_path"]) == (16, "eager")
    printed.clear()
    only(1)
    assert go() == folder and not printed  # finished: nothing is needed
