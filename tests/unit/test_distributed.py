"""Two processes against one: the same batches, losses and weights; cut off, and at other sizes."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import distributed as dist

import rr
from rr.config import ModelConfig, RRError
from rr.model import Model
from rr.training import trainer
from rr.training.distributed import STRATEGIES, World

TINY = "nano:n_layer=2,d_model=16,n_head=2,seq_len=16"
GIVEN = {
    "rung": TINY,
    "rule": "review",
    "tokenizer": "bpe:300",
    "batch": 4,
    "steps": 12,
    "precision": "fp32",
}
ONE_THREAD = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
PATIENCE = 1800  # seconds: ends what hangs, never what is slow


def command(corpus, out, processes, **options):
    given = GIVEN | {"corpus": corpus, "threads": 1, "out": out, "save-every": 1e-9}
    words = [f"--{key}={value}" for key, value in (given | options).items()]
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    how = torchrun if processes > 1 else []
    return [sys.executable, *how, "-m", "rr.cli", "train", *words]


def start(*given, **options):
    return subprocess.Popen(
        command(*given, **options),
        env={**os.environ, **ONE_THREAD},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def run(*given, **options):
    process = start(*given, **options)
    out, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    return folder_of(out)


def kill_after(process, out, checkpoints):
    """SIGKILL to every process that trains into `out`, once so many checkpoints are there."""
    while len([path for path in out.glob("*/checkpoint/*") if path.name.isdecimal()]) < checkpoints:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if f"--out={out}\0".encode() in path.read_bytes():
                os.kill(int(path.parent.name), signal.SIGKILL)
    process.communicate()
    assert not list(out.glob("*/result.json"))


def folder_of(out):
    lines = [line for line in out.splitlines() if line.strip()]
    assert len(lines) == 1, "one process speaks for all"
    return Path(lines[0])


def losses(folder):
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [(line["step"], line.get("loss", line.get("valid"))) for line in lines]


def norms(folder):
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line["grad_norm"] for line in lines if "loss" in line]


def result(folder):
    return json.loads((folder / "result.json").read_text())


def close(folder, other, tolerance=1e-6):
    assert [step for step, _ in losses(folder)] == [step for step, _ in losses(other)]
    for (_, a), (_, b) in zip(losses(folder), losses(other), strict=True):
        assert a == pytest.approx(b, abs=tolerance)
    for name in ("val_loss", "ece"):
        assert result(folder)[name] == pytest.approx(result(other)[name], abs=tolerance)
    assert result(folder)["eval_tokens"] == result(other)["eval_tokens"]


@pytest.fixture(scope="module")
def single(tiny_corpus, tmp_path_factory):
    """The run by one process, this one."""
    threads = torch.get_num_threads()
    run = rr.plan(**GIVEN, corpus=tiny_corpus)
    folder = trainer.train(run, tmp_path_factory.mktemp("one"), threads=1, log=lambda line: None)
    torch.set_num_threads(threads)
    return folder


IN_TURN = """
import json, sys
import rr
from torch import distributed
from rr.training import step, trainer

whole = step.compile_model
step.compile_model = lambda model, _: whole(model, "aot_eager")
given, turns = map(json.loads, sys.argv[1:])
distributed.init_process_group("gloo")
for out, options in turns:
    trainer.train(rr.plan(**given), out, threads=1, **options)
distributed.barrier()
distributed.destroy_process_group()
"""
# One graph for all blocks under DDP's and FSDP's hooks. Inductor itself, which takes two processes
# most of a minute, and the loss's compilation know nothing of processes: tested in one.
WAYS = (
    {"path": "eager"},
    {"path": "eager", "micro_batch": 1},
    {"path": "fast:recompute=layer"},
    {"path": "compiled:loss=chunked"},
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
    words = [str(place / "in_turn.py"), *map(json.dumps, (given, turns))]
    process = subprocess.run(
        [sys.executable, *torchrun, *words],
        capture_output=True,
        text=True,
        env={**os.environ, **ONE_THREAD},
        timeout=PATIENCE,
    )
    assert process.returncode == 0, process.stderr
    return {tuple(options.values()): next(Path(out).iterdir()) for out, options in turns}


@pytest.mark.parametrize(
    "options",
    [pytest.param(turn, marks=[] if turn in QUICK else pytest.mark.slow) for turn in TURNS],
    ids=lambda options: " ".join(map(str, options.values())),
)
def test_two_processes_train_as_one(pairs, single, options):
    folder = pairs[tuple(options.values())]
    assert folder.name == single.name
    close(folder, single)
    assert norms(folder) == pytest.approx(norms(single), rel=1e-4)
    told = json.loads((folder / "run.json").read_text())["provenance"]
    assert (told["processes"], told["parallel"], told["code_path"]) == (
        2,
        options["parallel"],
        options["path"],
    )
    assert told["micro_batch"] == options.get("micro_batch", 2)


@pytest.mark.slow
@pytest.mark.parametrize("how", STRATEGIES)
def test_killed_processes_go_on_bit_for_bit(tiny_corpus, tmp_path, pairs, how):
    """Both are killed in mid-training; a new pair ends with the weights of an undisturbed pair."""
    kill_after(start(tiny_corpus, tmp_path, 2, parallel=how), tmp_path, checkpoints=1)
    found = result(run(tiny_corpus, tmp_path, 2, parallel=how))
    expected = result(pairs[how, "eager"])
    for name in ("weights_sha256", "val_loss", "ece"):
        assert found[name] == expected[name]


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
        folder = trainer.train(planned, tmp_path, parallel="fsdp", log=lambda line: None)
    else:
        folder = run(tiny_corpus, tmp_path, after, parallel="fsdp")
    close(folder, single)
    assert json.loads((folder / "run.json").read_text())["provenance"]["bit_exact"] is False


def test_a_batch_that_does_not_divide_is_one_line(tiny_corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(World, "from_environment", lambda *given: World(0, 2, "ddp"))
    run = rr.plan(TINY, corpus=tiny_corpus, tokenizer="bpe:300", batch=5, steps=12)
    with pytest.raises(RRError, match="a batch of 5 windows does not divide among 2 processes"):
        trainer.train(run, tmp_path)
    assert not list(tmp_path.iterdir())


def test_one_process_distributes_everything_to_itself():
    alone = World()
    assert list(alone.distribute("abc")) == [("a", True), ("b", True), ("c", True)]
    assert alone.slice([1, 2, 3]) == [1, 2, 3] and alone.any(True, False) == (True, False)


def test_every_process_is_given_equally_many():
    given = [list(World(rank, 3, "ddp").distribute("abcd")) for rank in range(3)]
    assert given == [
        [("a", True), ("d", True)],
        [("b", True), ("d", False)],
        [("c", True), ("d", False)],
    ]
    assert [World(rank, 2, "ddp").slice([1, 2, 3, 4]) for rank in range(2)] == [[1, 2], [3, 4]]


def test_rules_of_their_own_in_each_pass_are_not_sharded():
    config = ModelConfig(50, 2, 2, 16, 32, seq_len=8, rule="review:per_pass=1", n_loops=2)
    with pytest.raises(RRError, match="per_pass=1 cannot be sharded"):
        World(0, 2, "fsdp").wrap(Model(config))


def test_an_unknown_strategy_is_refused(monkeypatch):
    with pytest.raises(RRError, match="did you mean fsdp"):
        World.from_environment("fsdp2")


def test_a_process_takes_its_own_gpu_before_it_joins_the_others(monkeypatch):
    """Else every rank talks through GPU 0. Recorders stand for torch.cuda and the process group."""
    calls = []
    for name, value in {"WORLD_SIZE": 2, "RANK": 1, "LOCAL_RANK": 1, "MASTER_ADDR": "here",
                        "MASTER_PORT": 1}.items():  # fmt: skip
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: calls.append(("device", device)))
    for name in ("init_process_group", "barrier", "destroy_process_group"):
        monkeypatch.setattr(
            dist, name, lambda *given, _=name, **more: calls.append((_, *given, more))
        )
    world = World.from_environment("ddp", torch.device("cuda"))
    with world.joined():
        calls.append("inside")
    own = torch.device("cuda", 1)
    assert world.device == own
    assert calls == [
        ("device", own),
        ("init_process_group", "nccl", {"device_id": own}),
        "inside",
        ("barrier", {}),
        ("destroy_process_group", {}),
    ]


def test_tokens_are_read_before_the_others_wait(planned, tmp_path, monkeypatch):
    """NCCL gives up after ten minutes, and a large text takes longer to tokenise."""
    calls = []
    read, joined = trainer.tokens_of, World.joined
    monkeypatch.setattr(trainer, "tokens_of", lambda *given: calls.append("tokens") or read(*given))
    monkeypatch.setattr(
        World, "joined", lambda self, log: calls.append("joined") or joined(self, log)
    )
    trainer.train(planned(), tmp_path, threads=1, log=lambda line: None)
    assert calls == ["tokens", "joined"]


def test_a_stale_world_size_is_one_line(planned, tmp_path, monkeypatch):
    """Variables left over in a shell: in part, one line at once; all of them, one line soon."""
    left = {"WORLD_SIZE": "2", "RANK": "0"}
    for name, value in left.items():
        monkeypatch.setenv(name, value)
    for name in ("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RRError) as refused:
        trainer.train(planned(), tmp_path, device="cpu")
    assert str(refused.value) == (
        "WORLD_SIZE is 2, but LOCAL_RANK, MASTER_ADDR, MASTER_PORT is not set: start several "
        "processes with torchrun, or unset WORLD_SIZE"
    )
    code = (
        "import sys, rr; from rr.training import distributed, trainer\n"
        "distributed.PATIENCE = 0.5\n"
        "run = rr.plan('nano:n_layer=1,d_model=16,n_head=1,seq_len=16', steps=1, batch=2)\n"
        "try: trainer.train(run, sys.argv[1], device='cpu')\n"
        "except rr.RRError as error: sys.exit(f'rr: {error}')\n"
    )
    more = {"LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
    environment = {**os.environ, **left, **more, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, "nowhere"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        line = next(line for line in process.stderr if "waiting" in line)
        process.kill()
    assert "waiting for 2 processes (WORLD_SIZE=2, RANK=0)" in line and "unset WORLD_SIZE" in line
