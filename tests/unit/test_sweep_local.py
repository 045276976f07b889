"""Cells on this machine: what their processes import, and the memory that each may take."""

import os
import sys

import pytest
import torch

from rr.training import device, memory_fit
from rrstudy.sweep.local import Local
from rrstudy.sweep.process import GRACE, Process

GIB = 2**30


def output(process, log) -> str:
    assert process.process.wait(60) == 0, log.read_text()
    return log.read_text()


def test_a_cell_imports_nothing_from_the_working_folder(tmp_path, monkeypatch):
    """Someone's argparse.py lies there; a checkout that is not installed is found all the same."""
    (tmp_path / "argparse.py").write_text("raise SystemExit('somebody else was imported')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    log = tmp_path / "log"
    said = output(Process(["-m", "rr.cli", "--help"], log, {}), log)
    assert said.startswith("usage: rr")
    # nor do the processes that it starts in turn, as torchrun and papermill do
    code = f"import subprocess; subprocess.run([{sys.executable!r}, '-m', 'rr.cli', '--help'])"
    log = tmp_path / "log of a child"
    assert output(Process(["-c", code], log, {}), log) == said


@pytest.mark.parametrize(("jobs", "share"), [(3, str(3 * GIB)), (1, "None")])
def test_jobs_share_the_memory_and_one_may_take_all(tmp_path, monkeypatch, jobs, share):
    monkeypatch.setattr(memory_fit, "free_ram", lambda: 9 * GIB)
    code = f"import os; print(os.environ.get({memory_fit.RAM_LIMIT!r}))"
    log = tmp_path / "log"
    assert output(Local(jobs, 1, 1, "cpu").start(["-c", code], log, {}), log) == f"{share}\n"
    assert memory_fit.RAM_LIMIT not in os.environ


def test_torchrun_gives_its_processes_as_long_to_save_as_the_sweep_gives_it(tmp_path):
    """From 2.12 on it reads the variable."""
    code, log = "import os; print(os.environ['TORCH_ELASTIC_SHUTDOWN_TIMEOUT'])", tmp_path / "log"
    told = output(Local(1, 1, 1, "cpu").start(["-c", code], log, {}), log)
    assert 30 < int(told) < GRACE


@pytest.mark.parametrize("jobs, gpus, share", [(4, 2, 0.5), (5, 2, 1 / 3), (None, 2, 1)])
def test_jobs_share_a_gpu(tmp_path, monkeypatch, jobs, gpus, share):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(gpus))))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    log = tmp_path / "log"
    code = f"import os; print(os.environ.get({device.GPU_SHARE!r}, 1))"
    told = output(Local(jobs, 1, None, None).start(["-c", code], log, {}), log)
    assert float(told) == pytest.approx(share)
    monkeypatch.setenv(device.GPU_SHARE, told.strip())
    known = {"mem_get_info": (70, 90), "memory_reserved": 0, "memory_allocated": 0}
    for name, value in known.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    assert memory_fit.free(torch.device("cuda")) == min(70, int(90 * share))
    for name in ("memory_reserved", "memory_allocated"):  # the share is of all that it holds
        monkeypatch.setattr(torch.cuda, name, lambda device: 20)
    assert memory_fit.free(torch.device("cuda")) == min(70, int(90 * share) - 20)
