"""The path of a run: chosen, said, recorded, kept on resuming, refused where it cannot be gone."""

import json
import os
import platform
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from tiny import TINY, result_of, train
from torch._dynamo.testing import CompileCounterWithBackend

from rr import cli, io
from rr.config import Interrupted, ModelConfig, RRError
from rr.data import batches
from rr.model.ladder import flops_per_token
from rr.training import backend, step, trainer
from rr.training.distributed import World

CUDA = torch.device("cuda")

pytestmark = pytest.mark.usefixtures("kept_threads")


def test_a_run_keeps_its_path(planned, tmp_path, cut_off):
    run = planned(precision="bf16")
    eager, fast = (train(run, tmp_path / name, path=name) for name in ("eager", "fast"))
    assert (
        result_of(eager)["weights_sha256"]
        == result_of(train(run, tmp_path / "default"))["weights_sha256"]
    )
    assert result_of(eager)["id"] == result_of(fast)["id"]
    assert result_of(eager)["weights_sha256"] != result_of(fast)["weights_sha256"]
    assert result_of(eager)["val_loss"] == pytest.approx(result_of(fast)["val_loss"], abs=0.01)
    with cut_off(3):
        train(run, tmp_path / "cut", save_every=1e-9, path="fast")
    said = []
    cut = trainer.train(run, tmp_path / "cut", path="eager", threads=1, log=said.append)
    assert any("keeps the backend fast" in line for line in said)
    assert result_of(cut)["weights_sha256"] == result_of(fast)["weights_sha256"]
    told, whole = (json.loads((at / "run.json").read_text())["provenance"] for at in (cut, fast))
    assert told["code_path"] == "fast"
    assert told["precision"] == whole["precision"]  # fp32 on a CPU without instructions for bf16


def test_the_device_the_precision_and_the_path_are_said(planned, tmp_path):
    said = []
    trainer.train(planned(), tmp_path, threads=1, device="cpu", log=said.append)
    (line,) = [line for line in said if "backend" in line]
    assert "fp32 on cpu" in line and "4 windows" in line and "backend eager" in line


def test_blocks_computed_again_leave_every_bit(planned, tmp_path):
    run = planned(rule="attnres", precision="bf16", steps=4)
    plain, again = (
        train(run, tmp_path / str(i), path=path, micro_batch=2)
        for i, path in enumerate(("fast", "fast:recompute=layer"))
    )
    assert result_of(plain)["weights_sha256"] == result_of(again)["weights_sha256"]


def test_freed_memory_is_kept_where_the_path_says_so(planned, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(backend, "keep_freed", lambda: asked.append(True))
    run = planned(steps=1)
    for name, kept in (
        (None, 0),
        ("eager", 0),
        ("reference", 0),
        ("fast:allocator=system", 0),
        ("fast", 1),
        ("eager:allocator=kept", 1),
    ):
        asked.clear()
        train(run, tmp_path / str(name), path=name, device="cpu")
        assert len(asked) == kept, name


FREED = """
import sys
from pathlib import Path

import torch

from rr.config import ModelConfig, Recipe
from rr.model import Model, initialise
from rr.training.backend import parse_backend
from rr.training.step import OptimizerStep
from rr.training.checkpoint import weights_sha256


def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


torch.set_num_threads(1)
config = ModelConfig(50, 2, 2, 32, 64, seq_len=16, rule="review")
batches = torch.randint(50, (5, 2, 4, 16), generator=torch.Generator().manual_seed(0))
for path in ("fast:allocator=system", "fast"):
    backend, cpu = parse_backend(path), torch.device("cpu")
    backend.set_up(cpu)
    step = OptimizerStep(initialise(Model(config), 0), Recipe(5, 4, 1e-3, 1), backend, cpu)
    losses = [step(x, y).item() for x, y in batches]
    before = resident()
    block = torch.ones(50_000_000)
    del block
    print(resident() - before, *losses, weights_sha256(step.model))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's malloc alone is told")
def test_a_freed_block_stays_or_goes_and_no_bit_changes():
    """In a process of its own: what is kept is kept for the rest of it. 200 MB, told in kB."""
    asked = subprocess.run(
        [sys.executable, "-c", FREED],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
    )
    system, kept = (line.split() for line in asked.stdout.splitlines())
    assert int(system[0]) < 20e3 and int(kept[0]) > 180e3
    assert system[1:] == kept[1:] and len(set(system[1:6])) == 5


def test_a_compiled_run_trains_in_one_graph_and_measures_without(
    planned,
    tmp_path,
    monkeypatch,
):
    """Held-out windows of other lengths and a last short batch are none of the compiler's."""
    counter = CompileCounterWithBackend("aot_eager")
    compiled = step.compile_model
    monkeypatch.setattr(step, "compile_model", lambda model, _: compiled(model, counter))
    run = planned(steps=5)
    folder = train(run, tmp_path / "compiled", path="compiled")
    assert counter.frame_count == 1
    fast = train(run, tmp_path / "fast", path="fast")
    for name in ("val_loss", "ece"):
        assert result_of(folder)[name] == pytest.approx(result_of(fast)[name], abs=1e-5)


@pytest.mark.parametrize("rule", ["review", "attnres"])  # block by block, and whole
def test_a_compiled_run_is_measured_uncompiled(planned, tmp_path, monkeypatch, rule):
    """The same bits where it was cut off before its evaluation, and has taken no step since."""
    compiled = step.compile_model
    monkeypatch.setattr(step, "compile_model", lambda model, _: compiled(model, "aot_eager"))
    run = planned(steps=5, rule=rule, precision="bf16")
    whole = result_of(train(run, tmp_path / "whole", path="compiled"))
    by_layers = result_of(train(run, tmp_path / "layers", path="fast"))
    assert whole["val_loss"] == pytest.approx(by_layers["val_loss"], abs=2e-3)
    with pytest.raises(Interrupted):
        train(run, tmp_path / "cut", path="compiled", stop_after=5)
    again = result_of(train(run, tmp_path / "cut", path="compiled"))
    assert [again[name] for name in trainer.METRICS] == [whole[name] for name in trainer.METRICS]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("fast:precision=tf32", "use --precision"),
        ("fsat", "did you mean fast"),
        ("compiled:attention=cudnn", "attention=cudnn needs a CUDA device"),
        ("fast:recompute=block", "unknown recompute 'block': expected"),
        ("fast:allocator=keep", "unknown allocator 'keep': did you mean kept"),
    ],
)
def test_a_path_that_cannot_be_gone_is_one_line(path, words, tiny_corpus, tmp_path, capsys):
    out = tmp_path / "out"
    code = cli.main(
        [
            "train",
            "--corpus",
            tiny_corpus,
            "--tokenizer",
            "bpe:300",
            "--device",
            "cpu",
            "--path",
            path,
            "--out",
            str(out),
        ]
    )
    _, errors = capsys.readouterr()
    assert code == 2 and errors.count("\n") == 1 and words in errors and not out.exists()


def test_a_run_begun_along_a_path_that_is_gone(planned, tmp_path, cut_off):
    run = planned()
    with cut_off(2):
        train(run, tmp_path, save_every=1e-9)
    (folder,) = tmp_path.iterdir()
    record = io.read_json(folder / "run.json")
    assert record["provenance"]["code_path"] == "eager"
    for path, words in (("fast:attention=cudnn", "needs a CUDA device"), ("x", "corrupt")):
        record["provenance"]["code_path"] = path
        io.write_json(folder / "run.json", record)
        with pytest.raises(RRError, match=words):
            train(run, tmp_path)


def config(rule="review", values="own"):
    return ModelConfig(50, 2, 2, 16, 32, seq_len=16, rule=rule, values=values)


def test_what_is_chosen_on_a_gpu(monkeypatch):
    """From the card's generation alone: no GPU is needed to choose."""
    fsdp, card = World(0, 2, "fsdp"), [(9, 0)]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: card[0])
    assert backend.default(torch.device("cpu"), config()) == "eager"
    assert backend.default(CUDA, config()) == "compiled:attention=cudnn"
    assert backend.default(CUDA, config("attnres"), fsdp) == "fast"
    assert backend.default(CUDA, config("review"), fsdp) == "compiled:attention=cudnn"
    card[0] = (8, 0)
    assert backend.default(CUDA, config()) == "compiled"
    card[0] = (7, 5)  # a T4: its attention kernels were not measured compiled
    assert backend.default(CUDA, config()) == "fast"


def test_a_gpu_without_a_compiler_trains_uncompiled(planned, monkeypatch):
    """One line and another backend; where compilation was asked for, one line and an end."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(backend, "compile_error", lambda kind: "no C compiler")
    said = []
    assert backend.of_run(None, CUDA, planned(), log=said.append) == "fast"
    assert said == ["compilation fails here: no C compiler; selected backend fast"]
    with pytest.raises(RRError, match="cannot be compiled here: no C compiler; use --path fast"):
        backend.of_run("compiled", CUDA, planned())


def test_a_run_that_could_not_be_compiled_goes_on_along_another_path(tiny_corpus, tmp_path):
    """Nothing is fixed before the first checkpoint: CXX that fails, then --path eager."""
    words = ["train", "--rung", TINY, "--corpus", tiny_corpus, "--tokenizer", "bpe:300"]
    words += ["--batch", "2", "--steps", "2", "--out", str(tmp_path), "--device", "cpu"]
    broken = {**os.environ, "CXX": "/bin/false", "CC": "/bin/false",
              "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}  # fmt: skip
    command = [sys.executable, "-m", "rr.cli", *words, "--path", "compiled"]
    asked = subprocess.run(command, capture_output=True, text=True, env=broken)
    assert asked.returncode == 2 and "Traceback" not in asked.stderr
    assert "rr: --path compiled cannot be compiled here" in asked.stderr.splitlines()[-1]
    assert cli.main([*words, "--path", "eager"]) == 0


def test_a_long_run_on_a_cpu_is_compiled_by_its_flops_alone(planned, monkeypatch):
    monkeypatch.setattr(backend, "compile_error", lambda kind: None)
    run, said = planned(), []
    flops = flops_per_token(run.model) * run.tokens
    monkeypatch.setattr(backend, "COMPILE_FLOPS", flops)
    chosen = backend.of_run(None, torch.device("cpu"), run, log=said.append)
    assert chosen == backend.COMPILED_CPU and len(said) == 1 and "selected backend" in said[0]
    monkeypatch.setattr(backend, "COMPILE_FLOPS", flops + 1)
    assert backend.of_run(None, torch.device("cpu"), run) == "eager"


def test_what_does_not_go_together_is_refused(planned):
    fsdp = World(0, 2, "fsdp")
    for spec, precision, shape, world, words in (
        ("compiled", "bf16", config("attnres"), fsdp, "compiles as one graph"),
        ("compiled", "bf16", config("standard", "dense"), fsdp, "compiles as one graph"),
    ):
        with pytest.raises(RRError, match=words):
            run = planned(precision=precision)
            backend.of_run(spec, CUDA, replace(run, model=shape), world)


def test_triton_is_refused_on_a_gpu_older_than_it_supports(planned, monkeypatch):
    monkeypatch.setattr(backend, "compile_error", lambda kind: None)
    run = planned(precision="fp16")
    pytest.importorskip("triton", reason="Triton is not installed (it is for Linux alone)")
    card = [(7, 5)]  # a T4
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: card[0])
    for path in ("triton", "fast:gate=triton"):
        with pytest.raises(RRError, match=r"8\.0 \(A100\) or newer, got 7\.5: use --path compiled"):
            backend.of_run(path, CUDA, run)
    assert backend.of_run("compiled", CUDA, run) == "compiled"
    card[0] = (8, 0)
    assert backend.of_run("triton", CUDA, run) == "triton"


def test_windows_gathered_beside_the_model_are_those_cut_on_the_host():
    import numpy as np

    tokens = np.random.RandomState(0).randint(0, 2**16, 500).astype(np.uint16)
    starts = np.array([0, 483, 7])
    there = torch.from_numpy(tokens.astype(np.int32))
    for one, other in zip(
        batches.gather(tokens, starts, 16), batches.gather(there, starts, 16), strict=True
    ):
        assert one.dtype == other.dtype == torch.int64 and torch.equal(one, other)
    assert batches.on_device(tokens, torch.device("cpu")) is tokens


def test_the_text_goes_to_a_gpu_that_has_room(monkeypatch):
    import numpy as np

    free = [16 * 500 - 1]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free[0], 0))
    monkeypatch.setattr(torch.Tensor, "to", lambda self, device: self)
    tokens = np.arange(500, dtype=np.uint16)
    assert batches.on_device(tokens, CUDA) is tokens
    free[0] += 1
    assert torch.equal(batches.on_device(tokens, CUDA), torch.arange(500, dtype=torch.int32))
