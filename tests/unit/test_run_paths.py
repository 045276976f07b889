"""The path of a run: chosen, said, recorded, kept on resuming, refused where it cannot be gone."""

import os
import platform
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny import TINY, result_of, train
from torch._dynamo.testing import CompileCounterWithBackend

import rr
from rr import io
from rr.data import batches
from rr.errors import Interrupted, RRError
from rr.model import compile as compiling
from rr.model.costs import flops_per_token
from rr.specs import ModelConfig
from rr.training import backend, trainer
from rr.training.distributed import World
from rrstudy import cli

CUDA = torch.device("cuda")
WHOLE = "eager:loss=whole,optimizer=plain"

pytestmark = pytest.mark.usefixtures("kept_threads")


def test_a_run_keeps_its_path(planned, tmp_path, cut_off, monkeypatch):
    run, printed, freed = planned(precision="bf16"), [], []
    monkeypatch.setattr(backend, "keep_freed", lambda: freed.append("kept"))
    eager, whole, kept, again, default = (
        result_of(train(run, tmp_path / str(name), backend=name))
        for name in ("eager", WHOLE, "eager:allocator=kept", "eager:recompute=layer", None)
    )
    assert len(freed) == 1  # along the one that says so
    assert eager["weights_sha256"] == default["weights_sha256"] != whole["weights_sha256"]
    for other in (kept, again):  # memory kept, blocks computed again: every bit
        assert other["weights_sha256"] == eager["weights_sha256"]
    assert eager["id"] == whole["id"]
    assert eager["val_loss"] == pytest.approx(whole["val_loss"], abs=0.01)
    with cut_off(3):
        train(run, tmp_path / "cut", save_every=1e-9, backend=WHOLE)
    cut = trainer.train(
        run, tmp_path / "cut", rr.Request(backend="eager", threads=1), log=printed.append
    )
    assert any(f"keeps the backend {WHOLE}" in line for line in printed)
    assert result_of(cut)["weights_sha256"] == whole["weights_sha256"]
    assert io.read_sealed(cut / "run.json")["provenance"]["code_path"] == WHOLE
    printed.clear()
    trainer.train(planned(steps=1), tmp_path / "new", rr.Request(device="cpu"), log=printed.append)
    assert any("fp32 on cpu" in line and "backend eager" in line for line in printed)


FREED = """
from pathlib import Path
import torch
from rr.training.backend import parse_backend


def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


for path in ("eager", "eager:allocator=kept"):
    parse_backend(path).set_up(torch.device("cpu"))
    before = resident()
    block = torch.ones(50_000_000)
    del block
    print(resident() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's malloc alone is told")
def test_a_freed_block_stays_or_goes():
    """In a process of its own: what is kept is kept for the rest of it. 200 MB, told in kB."""
    plain = {name: value for name, value in os.environ.items()
             if name != "LD_PRELOAD" and not name.startswith("MALLOC_")}  # fmt: skip
    system, kept = subprocess.check_output([sys.executable, "-c", FREED], env=plain).split()
    assert int(system) < 20e3 and int(kept) > 180e3


@pytest.mark.parametrize("rule", ["review", "attnres"])  # block by block, and whole
def test_a_compiled_run_trains_in_one_graph_and_is_measured_without(
    planned, tmp_path, monkeypatch, rule
):
    """Held-out windows of other lengths and a last short batch are none of the compiler's.

    The same bits where it was cut off before its evaluation, and has taken no step since.
    """
    torch._dynamo.reset()
    counter, compiled = CompileCounterWithBackend("aot_eager"), compiling.compile_model
    monkeypatch.setattr(compiling, "compile_model", lambda model, _: compiled(model, counter))
    run = planned(steps=5, rule=rule, precision="bf16")
    whole = result_of(train(run, tmp_path / "whole", backend="compiled"))
    assert counter.frame_count == 1
    by_layers = result_of(train(run, tmp_path / "layers", backend="eager"))
    assert whole["val_loss"] == pytest.approx(by_layers["val_loss"], abs=2e-3)
    with pytest.raises(Interrupted):
        train(run, tmp_path / "cut", backend="compiled", stop_after=5)
    again = result_of(train(run, tmp_path / "cut", backend="compiled"))
    assert [again[name] for name in trainer.METRICS] == [whole[name] for name in trainer.METRICS]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("eager:precision=tf32", "use --precision"),
        ("egaer", "did you mean eager"),
        ("compiled:attention=cudnn", "attention=cudnn needs a CUDA device"),
        ("eager:allocator=keep", "unknown allocator 'keep': did you mean kept"),
    ],
)
def test_a_path_that_cannot_be_gone_is_one_line(path, words, planned, tmp_path):
    with pytest.raises(RRError, match=words):
        train(planned(), tmp_path / "out", backend=path, device="cpu")
    assert not (tmp_path / "out").exists()


def test_a_run_begun_along_a_path_that_is_gone(planned, tmp_path, cut_off):
    run = planned()
    with cut_off(2):
        train(run, tmp_path, save_every=1e-9)
    (folder,) = tmp_path.iterdir()
    record = io.read_sealed(folder / "run.json")
    assert record["provenance"]["code_path"] == "eager"
    for path, words in (
        ("eager:attention=cudnn", "needs a CUDA device"),
        ("fast", "another version .*use eager:allocator=kept, or that version to resume"),
        ("x", "corrupt"),
    ):
        record["provenance"]["code_path"] = path
        io.write_record(folder / "run.json", record)
        with pytest.raises(RRError, match=words):
            train(run, tmp_path)


def config(rule="review", values="own"):
    return ModelConfig(50, 2, 2, 16, 32, seq_len=16, rule=rule, values=values)


def test_what_is_chosen_on_a_gpu(planned, monkeypatch):
    """From the card's generation alone: no GPU is needed to choose."""
    fsdp, card, why = World(0, 2, "fsdp"), [(9, 0)], ["no C compiler"]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: card[0])
    monkeypatch.setattr(backend, "compile_error", lambda kind: why[0])
    assert backend.default(torch.device("cpu"), config()) == "eager"
    assert backend.default(CUDA, config()) == "compiled:attention=cudnn"
    assert backend.default(CUDA, config("attnres"), fsdp) == "eager"
    assert backend.default(CUDA, config("review"), fsdp) == "compiled:attention=cudnn"
    # without a compiler another backend; where compilation was asked for, an end
    run, printed = planned(precision="fp16"), []
    assert backend.of_run(None, CUDA, run, log=printed.append)[0] == "eager"
    assert printed == ["compilation fails here: no C compiler; selected backend eager"]
    with pytest.raises(
        RRError, match="cannot be compiled here: no C compiler; use --backend eager"
    ):
        backend.of_run("compiled", CUDA, run)
    why[0], card[0] = None, (8, 0)
    assert backend.default(CUDA, config()) == "compiled"
    card[0] = (7, 5)  # a T4: its attention kernels were not measured compiled
    assert backend.default(CUDA, config()) == "eager"


def test_a_run_that_could_not_be_compiled_goes_on_along_another_path(tiny_corpus, tmp_path):
    """Nothing is fixed before the first checkpoint: CXX that fails, then --backend eager."""
    words = f"train --rung {TINY} --corpus {tiny_corpus} --tokenizer bpe:300 --batch 2 --steps 2"
    words = [*words.split(), "--out", str(tmp_path), "--device", "cpu"]
    broken = {**os.environ, "CXX": "/bin/false", "CC": "/bin/false",
              "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}  # fmt: skip
    command = [sys.executable, "-m", "rrstudy.cli", *words, "--backend", "compiled"]
    asked = subprocess.run(command, capture_output=True, text=True, env=broken)
    assert asked.returncode == 2 and "Traceback" not in asked.stderr
    assert "rr: --backend compiled cannot be compiled here" in asked.stderr.splitlines()[-1]
    assert cli.main([*words, "--backend", "eager"]) == 0


def test_a_long_run_on_a_cpu_is_compiled_by_its_flops_alone(planned, monkeypatch):
    monkeypatch.setattr(backend, "compile_error", lambda kind: None)
    run, printed = planned(), []
    flops = flops_per_token(run.model) * run.tokens
    monkeypatch.setattr(backend, "COMPILE_FLOPS", flops)
    chosen, reason = backend.of_run(None, torch.device("cpu"), run, log=printed.append)
    assert chosen == backend.COMPILED_CPU and len(printed) == 1 and "selected backend" in printed[0]
    monkeypatch.setattr(backend, "COMPILE_FLOPS", flops + 1)
    assert backend.of_run(None, torch.device("cpu"), run) == ("eager", "the default here")


def test_what_does_not_go_together_is_refused(planned):
    for shape in (config("attnres"), config("standard", "dense")):
        run = replace(planned(precision="bf16"), model=shape)
        with pytest.raises(RRError, match="compiles as one graph"):
            backend.of_run("compiled", CUDA, run, World(0, 2, "fsdp"))


def test_windows_gathered_beside_the_model_are_those_cut_on_the_host(monkeypatch):
    tokens = np.random.RandomState(0).randint(0, 2**16, 500).astype(np.uint16)
    starts, there = np.array([0, 483, 7]), torch.from_numpy(tokens.astype(np.int32))
    ways = (batches.gather(of, starts, 16) for of in (tokens, there))
    for one, other in zip(*ways, strict=True):
        assert one.dtype == other.dtype == torch.int64 and torch.equal(one, other)
    # the text goes to a GPU that has room
    free = [16 * 500 - 1]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free[0], 0))
    monkeypatch.setattr(torch.Tensor, "to", lambda self, device: self)
    assert batches.on_device(tokens, torch.device("cpu")) is tokens
    assert batches.on_device(tokens, CUDA) is tokens
    free[0] += 1
    assert torch.equal(batches.on_device(tokens, CUDA), there)
