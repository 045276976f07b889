"""Two processes against one: the same batches, losses and weights; cut off, and at other sizes."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from time import sleep

import pytest
import torch
from tiny import TINY, result_of, train
from torch import distributed as dist

import rr
from rr.data import batches
from rr.errors import RRError
from rr.model import Model
from rr.specs import ModelConfig
from rr.training import memory_fit, trainer
from rr.training.distributed import STRATEGIES, World

GIVEN = {"rung": TINY, "rule": "review", "tokenizer": "bpe:300", "batch": 4, "steps": 12,
         "precision": "fp32"}  # fmt: skip
ONE_THREAD = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
PATIENCE = 1800  # seconds: ends what hangs, never what is slow


def command(corpus, out, processes, **options):
    given = GIVEN | {"corpus": corpus, "threads": 1, "out": out, "save-every": 1e-9}
    words = [f"--{key}={value}" for key, value in (given | options).items()]
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    how = torchrun if processes > 1 else []
    return [sys.executable, *how, "-m", "rr.cli", "train", *words]


def start(*given, **options):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command(*given, **options), env={**os.environ, **ONE_THREAD}, **pipes)


def run(*given, **options):
    process = start(*given, **options)
    out, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    (folder,) = out.split()  # one process speaks for all
    return Path(folder)


def kill_after(process, out, checkpoints):
    """SIGKILL to every process that trains into `out`, once so many checkpoints are there."""
    mine, saved = set(), 0
    while saved < checkpoints:
        assert process.poll() is None, process.communicate()[1]
        for path in Path("/proc").glob("[0-9]*/cmdline") if saved == 0 else ():
            with contextlib.suppress(OSError):  # found before they save: the kill itself is quick
                if f"--out={out}\0".encode() in path.read_bytes():
                    mine.add(int(path.parent.name))
        sleep(0.002)
        saved = sum(path.name.isdecimal() for path in out.glob("*/checkpoint/*"))
    for pid in mine:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.communicate()
    assert not list(out.glob("*/result.json"))


def curve(folder, *names):
    """The first of these numbers that a line has, of all lines that have one."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    result = ((line["step"], [line[name] for name in names if name in line]) for line in lines)
    return {step: there[0] for step, there in result if there}


def close(folder, other, tolerance=1e-6):
    losses = curve(other, "loss", "valid")
    assert curve(folder, "loss", "valid") == pytest.approx(losses, abs=tolerance)
    result, expected = result_of(folder), result_of(other)
    for name in ("val_loss", "ece", "eval_tokens"):
        assert result[name] == pytest.approx(expected[name], abs=tolerance)


@pytest.fixture(scope="module")
def single(tiny_corpus, tmp_path_factory):
    """The run by one process, this one."""
    threads = torch.get_num_threads()
    folder = train(rr.plan(**GIVEN, corpus=tiny_corpus), tmp_path_factory.mktemp("one"))
    torch.set_num_threads(threads)
    return folder


IN_TURN = """
import json, sys
import rr
import torch
from torch import distributed
from torch.utils._pytree import tree_leaves
from rr.model import compile as compiling
from rr.training import OptimizerStep, parse_backend, trainer
from rr.training.distributed import World

whole = compiling.compile_model
compiling.compile_model = lambda model, _: whole(model, "aot_eager")
place, given, turns = sys.argv[1], *map(json.loads, sys.argv[2:])
distributed.init_process_group("gloo")
for out, options in turns:
    trainer.train(rr.plan(**given), out, rr.Request(threads=1, **options))

# what each process holds of a sharded model's save
shape = rr.ModelConfig(64, n_layer=2, n_head=2, d_model=16, d_ff=32)
world = World.from_environment("fsdp")
model = rr.model.initialise(rr.Model(shape), seed=0)
names = {name: p.numel() for name, p in model.named_parameters()}
recipe = rr.Recipe(steps=3, batch=2, lr=0.01, warmup=1)
step = OptimizerStep(model, recipe, parse_backend("eager"), world.device, world=world)
ids = torch.arange(8)[None]
step(ids, ids + 1)
kept = [x.numel() for x in tree_leaves(step.state()) if isinstance(x, torch.Tensor) and x.dim()]
weights = {name: None if x is None else x.numel() for name, x in step.weights().items()}
with open(f"{place}/{world.rank}.json", "w") as file:
    json.dump([sum(kept), weights, names], file)
distributed.barrier()
distributed.destroy_process_group()
"""
# One graph for all blocks under DDP's and FSDP's hooks. Inductor itself, which takes two processes
# most of a minute, and the loss's compilation know nothing of processes: tested in one.
WAYS = (
    {"backend": "eager"},
    {"backend": "eager", "micro_batch": 1},
    {"backend": "eager:recompute=layer"},
    {"backend": "compiled:loss=chunked"},
)
TURNS = [{"parallel": how, **way} for way in WAYS for how in STRATEGIES]
QUICK = [*TURNS[:2], TURNS[2], TURNS[5], TURNS[7]]  # both strategies, and every way once


@pytest.fixture(scope="module")
def pairs(tiny_corpus, tmp_path_factory, request):
    """The single run by two undisturbed processes, in each way that the tests ask for.

    One pair, which joins once.
    """
    items = [item for item in request.session.items if hasattr(item, "callspec")]
    asked = [item.callspec.params.get("options") for item in items]
    place = tmp_path_factory.mktemp("pairs")
    (place / "in_turn.py").write_text(IN_TURN)
    given = GIVEN | {"corpus": tiny_corpus}
    turns = [
        (str(place / str(i)), options)
        for i, options in enumerate(TURNS)
        if options in asked or options in QUICK[:2]
    ]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    words = [sys.executable, *torchrun, str(place / "in_turn.py"), str(place)]
    words += map(json.dumps, (given, turns))
    how = {"capture_output": True, "text": True, "env": {**os.environ, **ONE_THREAD}}
    process = subprocess.run(words, **how, timeout=PATIENCE)
    assert process.returncode == 0, process.stderr
    runs = {tuple(options.values()): next(Path(out).iterdir()) for out, options in turns}
    return runs | {"place": place}


@pytest.mark.parametrize(
    "options",
    [pytest.param(turn, marks=[] if turn in QUICK else pytest.mark.slow) for turn in TURNS],
    ids=lambda options: " ".join(map(str, options.values())),
)
def test_two_processes_train_as_one(pairs, single, options):
    folder = pairs[tuple(options.values())]
    assert folder.name == single.name
    close(folder, single)
    norms = curve(single, "grad_norm")
    assert curve(folder, "grad_norm") == pytest.approx(norms, rel=1e-4)
    recorded = json.loads((folder / "run.json").read_text())["provenance"]
    assert (recorded["processes"], recorded["parallel"]) == (2, options["parallel"])
    assert recorded["code_path"] == options["backend"]
    assert recorded["micro_batch"] == options.get("micro_batch", 2)


@pytest.mark.slow
@pytest.mark.parametrize("how", STRATEGIES)
def test_killed_processes_go_on_bit_for_bit(tiny_corpus, tmp_path, pairs, how):
    """Both are killed in mid-training; a new pair ends with the weights of an undisturbed pair."""
    kill_after(start(tiny_corpus, tmp_path, 2, parallel=how), tmp_path, checkpoints=1)
    result = result_of(run(tiny_corpus, tmp_path, 2, parallel=how))
    expected = result_of(pairs[how, "eager"])
    for name in ("weights_sha256", "val_loss", "ece"):
        assert result[name] == expected[name]


# A sharded checkpoint that one process reads is saved and loaded, too; `make faults` has the rest.
@pytest.mark.parametrize(
    ("before", "after"),
    [((2, "fsdp"), 1), pytest.param((1, "ddp"), 2, marks=pytest.mark.slow)],
)
def test_a_run_goes_on_in_another_world(tiny_corpus, tmp_path, single, kept_threads, before, after):
    """Checkpoints load at any world size; the batches stay, and the record says what changed."""
    size, how = before
    process = start(tiny_corpus, tmp_path, size, parallel=how, steps=12)
    kill_after(process, tmp_path, checkpoints=2)
    if after == 1:  # this process
        planned = rr.plan(**GIVEN, corpus=tiny_corpus)
        folder = trainer.train(
            planned, tmp_path, rr.Request(parallel="fsdp"), log=lambda line: None
        )
    else:
        folder = run(tiny_corpus, tmp_path, after, parallel="fsdp")
    close(folder, single)
    assert json.loads((folder / "run.json").read_text())["provenance"]["bit_exact"] is False


def test_a_save_of_shards_is_whole_in_one_process_alone(pairs):
    """Weights and AdamW's two moments; the others hold their shards and nothing else."""
    (first, weights, names), (other, none, _) = (
        json.loads((pairs["place"] / f"{rank}.json").read_text()) for rank in (0, 1)
    )
    assert weights == names and first == 3 * sum(names.values())
    assert set(none) == set(names) and set(none.values()) == {None} and other == 0


def test_every_process_is_given_equally_many():
    alone = World()
    assert list(alone.distribute("abc")) == [("a", True), ("b", True), ("c", True)]
    assert alone.slice([1, 2, 3]) == [1, 2, 3] and alone.any(True, False) == (True, False)
    for rank, own in enumerate([[("a", True), ("d", True)], [("b", True), ("d", False)],
                                [("c", True), ("d", False)]]):  # fmt: skip
        assert list(World(rank, 3, "ddp").distribute("abcd")) == own
    assert [World(rank, 2, "ddp").slice([1, 2, 3, 4]) for rank in range(2)] == [[1, 2], [3, 4]]


def test_what_cannot_be_distributed_is_one_line(planned, tmp_path, monkeypatch):
    config = ModelConfig(50, 2, 2, 16, 32, seq_len=8, rule="review:per_pass=1", n_loops=2)
    with pytest.raises(RRError, match="per_pass=1 cannot be sharded"):
        World(0, 2, "fsdp").wrap(Model(config))
    with pytest.raises(RRError, match="did you mean fsdp"):
        World.from_environment("fsdp2")
    monkeypatch.setattr(World, "from_environment", lambda *given: World(0, 2, "ddp"))
    with pytest.raises(RRError, match="a batch of 5 windows does not divide among 2 processes"):
        train(planned(batch=5), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_process_takes_its_own_gpu_before_it_joins_the_others(monkeypatch):
    """Else every rank talks through GPU 0. Recorders stand for torch.cuda and the process group."""
    calls = []
    for name, value in {"WORLD_SIZE": 2, "RANK": 1, "LOCAL_RANK": 1, "MASTER_ADDR": "here",
                        "MASTER_PORT": 1}.items():  # fmt: skip
        monkeypatch.setenv(name, str(value))

    def record(where, name):
        monkeypatch.setattr(where, name, lambda *given, **more: calls.append((name, *given, more)))

    record(torch.cuda, "set_device")
    for name in ("init_process_group", "barrier", "destroy_process_group"):
        record(dist, name)
    world, own = World.from_environment("ddp", torch.device("cuda")), torch.device("cuda", 1)
    with world.joined():
        calls.append("inside")
    assert world.device == own
    assert calls == [
        ("set_device", own, {}),
        ("init_process_group", "cpu:gloo,cuda:nccl", {"device_id": own}),
        "inside",
        ("barrier", {}),
        ("destroy_process_group", {}),
    ]


def test_the_order_in_which_a_run_begins(planned, tmp_path, monkeypatch):
    """NCCL gives up after ten minutes, and a large text takes longer to tokenise.

    The text lies on the GPU before memory is looked at: what it takes is not promised to a step.
    """
    calls = []

    def note(place, name):
        does = getattr(place, name)

        def noted(*given):
            calls.append(name)
            return does(*given)

        monkeypatch.setattr(place, name, noted)

    note(trainer, "tokens_of")
    note(World, "joined")
    note(batches, "on_device")
    note(memory_fit, "choose")
    train(planned(), tmp_path)
    assert calls == ["tokens_of", "joined", "on_device", "choose"]


WAITS = """
import sys, rr
from rr.training.distributed import World
from rr.training import distributed
distributed.PATIENCE = 0.5
with World.from_environment("ddp").joined(lambda line: print(line, flush=True)):
    pass
"""


def test_a_stale_world_size_is_one_line(planned, tmp_path, monkeypatch):
    """Variables left over in a shell: in part, one line at once; all of them, one line soon."""
    monkeypatch.setenv("WORLD_SIZE", "")
    with pytest.raises(RRError, match="WORLD_SIZE must be a number, got ''"):
        train(planned(), tmp_path, device="cpu")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    more = {"LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name in more:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(RRError, match=f"{', '.join(more)} is not set: .*torchrun"):
        train(planned(), tmp_path, device="cpu")
    command, env = [sys.executable, "-c", WAITS], {**os.environ, **more, **ONE_THREAD}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        line = process.stdout.readline()
        process.kill()
    assert "waiting for 2 processes (WORLD_SIZE=2, RANK=0)" in line and "unset WORLD_SIZE" in line


def test_single_numbers_cannot_be_sharded():
    model = Model(ModelConfig(64, n_layer=2, n_head=2, d_model=8, d_ff=16, rule="unet"))
    with pytest.raises(RRError, match="single numbers cannot be sharded: use --parallel ddp"):
        World(strategy="fsdp").wrap(model)
