"""Files that are whole or absent, locks that hold, hashes that see all; what a person sees."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from io import StringIO
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from rr import io
from rr.errors import Interrupted, RRError, RunFailed
from rr.training import checkpoint, device, progress, provenance

STATE = {"step": 3, "weights": torch.arange(1000.0), "text": "x"}


# -- files --------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_aside(tmp_path, monkeypatch, call):
    path = tmp_path / "a.json"
    io.write_json(path, {"old": 1})

    def fails(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fails)
        with pytest.raises(OSError):
            io.write_json(path, {"new": 2})
    assert io.read_json(path) == {"old": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_nan_is_refused(tmp_path):
    with pytest.raises(ValueError):
        io.write_json(tmp_path / "a.json", {"loss": float("nan")})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b"null", b"\xff\xfe", b'{"a": 1}x'])
def test_damaged_json_is_named(tmp_path, data):
    path = tmp_path / "a.json"
    path.write_bytes(data)
    with pytest.raises(RunFailed, match="a.json is corrupt"):
        io.read_json(path)


def test_the_hash_of_weights_by_hand_and_what_it_sees():
    model = nn.Linear(2, 3)
    expected = hashlib.sha256()
    for name in ("bias", "weight"):  # by name, not in the order of definition
        tensor = getattr(model, name).detach().numpy()
        expected.update(f"{name}:torch.float32:{tensor.shape}".encode())
        expected.update(tensor.astype("<f4").tobytes())
    before = checkpoint.weights_sha256(model)
    assert before == expected.hexdigest()
    with torch.no_grad():
        model.weight[0, 0] = torch.nextafter(model.weight[0, 0], torch.tensor(9.0))
    assert checkpoint.weights_sha256(model) != before  # one unit in the last place
    assert checkpoint.weights_sha256(nn.Linear(2, 3).bfloat16()) != before


# -- checkpoints --------------------------------------------------------------------------------


def test_the_last_two_checkpoints_stay(tmp_path):
    saved = checkpoint.Checkpoints(tmp_path, "abc")
    assert saved.newest(print) is None and saved.steps() == []
    for step in (1, 2, 10, 100):
        saved.save(step, STATE | {"step": step})
    assert saved.steps() == [10, 100]
    state = saved.newest(print)
    assert state["step"] == 100 and torch.equal(state["weights"], STATE["weights"])
    os.rename(saved.path(100), saved.path(7))  # under another step's name it is not believed
    assert saved.newest(print)["step"] == 10


def test_a_folder_whose_name_is_no_text_holds_checkpoints(tmp_path):
    """As under LC_ALL=C, where every letter beyond ASCII is a byte that Python cannot decode."""
    folder = tmp_path / os.fsdecode(b"r\xfcns")
    folder.mkdir()
    saved = checkpoint.Checkpoints(folder, "abc")
    saved.save(1, STATE | {"step": 1})
    assert torch.equal(saved.newest(print)["weights"], STATE["weights"])


def test_any_flipped_bit_is_seen_and_the_one_before_is_taken(tmp_path):
    saved, rng = checkpoint.Checkpoints(tmp_path, "abc"), np.random.RandomState(0)
    saved.save(1, STATE | {"step": 1})
    saved.save(2, STATE | {"step": 2})
    for name in ("state.pt", "meta.json"):
        path = saved.path(2) / name
        whole = path.read_bytes()
        for at in rng.randint(0, len(whole), 40):
            data = bytearray(whole)
            data[at] ^= 1 << rng.randint(8)
            path.write_bytes(bytes(data))
            try:
                same = json.loads(bytes(data)) == json.loads(whole)  # a blank for a blank
            except ValueError:
                same = False
            printed = []
            assert saved.newest(printed.append)["step"] == (2 if same else 1), (name, at)
            assert same or "is corrupt" in printed[0]
        path.write_bytes(whole)
    assert saved.newest(print)["step"] == 2


# -- the lock -----------------------------------------------------------------------------------


def test_the_lock_excludes_and_is_freed(tmp_path):
    folder = tmp_path / "run"
    with io.locked(folder):
        (folder / "something").touch()
        with pytest.raises(RunFailed, match="another process"), io.locked(folder):
            raise AssertionError("two writers")
    with pytest.raises(ZeroDivisionError), io.locked(folder):
        raise ZeroDivisionError
    with io.locked(folder):
        pass
    assert sorted(p.name for p in folder.iterdir()) == ["lock", "something"]


def test_a_lock_leaves_no_folder_that_was_not_there(tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    for out in (kept, tmp_path / "new" / "deep"):
        with pytest.raises(RRError), io.locked(out / "run"):
            raise RRError("bad input")
    assert list(tmp_path.iterdir()) == [kept] and list(kept.iterdir()) == []
    with pytest.raises(RRError), io.locked(tmp_path / "new" / "one"):
        with io.locked(tmp_path / "new" / "two"):
            (tmp_path / "new" / "two" / "file").touch()
        raise RRError("bad input")
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["two"]


# -- the machine --------------------------------------------------------------------------------


def test_threads(monkeypatch, kept_threads):
    every = 5
    monkeypatch.setattr(device, "cores", lambda: every)
    for printed, count in (("3", 3), ("3,1", 3), ("", every), ("0", every), ("many", every)):
        monkeypatch.setenv("OMP_NUM_THREADS", printed)
        assert device.set_threads(None) == count == torch.get_num_threads()
    assert device.set_threads(2) == 2 == torch.get_num_threads()
    with pytest.raises(RRError, match="threads must be"):
        device.set_threads(0)


def test_precisions():
    cpu, a = torch.device("cpu"), torch.ones(2, 2)
    kinds = {}
    for precision in ("bf16", "tf32", "fp32"):
        with device.autocast(cpu, precision):
            kinds[precision] = (a @ a).dtype, torch.get_float32_matmul_precision()
    assert kinds == {
        "bf16": (torch.bfloat16, "highest"),
        "tf32": (torch.float32, "high"),
        "fp32": (torch.float32, "highest"),
    }


def test_what_counts_as_out_of_memory():
    assert device.out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert device.out_of_memory(MemoryError())
    assert not device.out_of_memory(RuntimeError("shape mismatch"))
    assert not device.out_of_memory(ValueError("can't allocate memory"))
    with pytest.raises(RuntimeError) as caught:  # what torch really raises on the CPU
        torch.empty(1 << 60, dtype=torch.uint8)
    assert device.out_of_memory(caught.value)


def test_provenance_names_the_machine_and_no_path():
    recorded = provenance.provenance(torch.device("cpu"))
    assert recorded["device"] == "cpu" and recorded["packages"]["torch"] in torch.__version__
    text = json.dumps(recorded)
    assert os.getcwd() not in text and os.path.expanduser("~") not in text


def test_a_change_in_any_part_of_the_package_marks_the_commit(tmp_path, monkeypatch):
    def git(*words):
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True)

    folders = [tmp_path / "rr" / part for part in ("residual", "training")]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "base.py").write_text("one = 1\n")
    git("init", "-q")
    git("add", "-A")
    git("commit", "-q", "-m", "first")
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "rr/training/provenance.py"))
    clean = provenance.git_state()
    assert clean and len(clean) == 40
    (tmp_path / "notes.md").write_text("outside of the package")
    assert provenance.git_state() == clean
    (folders[0] / "base.py").write_text("one = 2\n")
    assert provenance.git_state() == f"{clean}+"


# -- what a person sees, and how a person stops it ------------------------------------------------


def test_signals_ask_and_handlers_come_back(monkeypatch):
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    for number in before:
        with progress.Stop() as stop:
            assert not stop.requested
            os.kill(os.getpid(), number)
            assert stop.requested
            os.kill(os.getpid(), number)  # asking twice breaks nothing
            stop.at_once = True
            with pytest.raises(Interrupted):
                os.kill(os.getpid(), number)
                time.sleep(1)
    assert {n: signal.getsignal(n) for n in before} == before


def test_a_closed_terminal_stops_no_run_that_was_started_to_outlive_it(monkeypatch):
    """As by nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with progress.Stop() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.requested
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_what_is_said_to_a_terminal_that_has_gone_is_lost_alone(monkeypatch):
    class Gone(StringIO):
        def isatty(self):
            return True

        def write(self, text):
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Gone())
    shown = progress.Progress(None)
    shown.move("half")
    shown.say("a line")
    shown.move("whole", last=True)
    shown.close()


RUN = SimpleNamespace(rung="nano", rule="review", seed=0, model=SimpleNamespace(seq_len=256),
                      recipe=SimpleNamespace(steps=100, batch=8))  # fmt: skip


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_line_every_few_seconds_where_there_is_no_terminal(clock, capsys):
    shown = progress.Progress(None)
    for step in range(1, 101):
        clock[0] += 1.0
        shown.step(RUN, step, RUN.recipe.steps, 2.5)
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == "" and len(lines) == 21  # the first step, one every five seconds, the last
    assert "\r" not in err and lines[0].startswith("nano review seed 0  step 1/100  loss 2.500")
    assert lines[0].endswith("loss 2.500")  # nothing is known of the steps to come
    assert lines[1].endswith("step 6/100  loss 2.500  2,048 tokens/s  1:34 left")
    assert "step 100/100" in lines[-1] and "0:00 left" in lines[-1]


def test_the_speed_is_that_of_the_last_seconds(clock, capsys):
    """The first step compiles for a minute; then a step takes a tenth of a second, later one."""
    shown = progress.Progress(None)
    for step in range(1, 501):
        clock[0] += 60.0 if step == 1 else 0.1 if step <= 300 else 1.0
        shown.step(RUN, step, 500, 2.5)
    first, second, *_, last = capsys.readouterr().err.splitlines()
    assert "tokens/s" not in first and "20,480 tokens/s  0:44 left" in second
    assert "2,048 tokens/s" in last


def test_one_moving_line_on_a_terminal(clock, monkeypatch, capsys):
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True)
    shown = progress.Progress(None)
    for step in (1, 50, 99, 100):
        clock[0] += 1.0
        shown.step(RUN, step, RUN.recipe.steps, None if step == 1 else 2.5)
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and err.endswith("\n") and err.count("\r") == 4
    widths = [len(part) for part in err.rstrip("\n").split("\r")[1:]]
    assert widths == sorted(widths)  # a shorter line covers the longer one before it


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "50000 100000"}, 1),  # half a core: one thread
        ({"cpu.max": "400000 100000"}, 4),
        ({"cpu.max": "max 100000"}, 8),
        ({"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, 2),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ({}, 8),
    ],
)
def test_a_container_has_the_cores_of_its_quota(tmp_path, monkeypatch, files, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    for name, words in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{words}\n")
    assert device.cores(tmp_path) == expected
