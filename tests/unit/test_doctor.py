"""`rr doctor` finds what a sweep would fail at, says what to do, and leaves nothing."""

import json
from types import SimpleNamespace

import pytest
import torch

import rr
from rr.errors import RRError
from rrstudy import cli
from rrstudy.perf import doctor
from rrstudy.sweep import cells, start, sweep

TINY = "nano:n_layer=1,d_model=16,n_head=1,seq_len=16"


@pytest.fixture
def runs(tiny_corpus):
    options = {"corpus": tiny_corpus, "tokenizer": "bpe:300", "batch": 2, "steps": 4}
    return [rr.plan(TINY, **options)]


def by_name(checks):
    return {check.name: check for check in checks}


def test_a_machine_that_is_ready_takes_two_steps_and_keeps_nothing(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "compile_error", lambda kind: None)  # test_run_paths.py compiles
    checks = by_name(doctor.examine(runs, tmp_path / "new" / "runs", "cpu"))
    assert list(checks) == [
        "software", "GPU", "compiler", "disk", "RAM", "cores", "text", "two steps",
    ]  # fmt: skip
    assert checks["two steps"].good and not any(check.stops for check in checks.values())
    assert checks["GPU"].good is None and "not checked" in checks["GPU"].found
    assert not list(tmp_path.iterdir())


def test_each_fault_says_what_to_do(runs, tmp_path, monkeypatch):
    small = SimpleNamespace(free=10)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: small)
    monkeypatch.setattr(doctor, "compile_error", lambda kind: "no C compiler")
    monkeypatch.setattr(doctor, "has_compiler", lambda: False)
    missing = rr.plan(TINY, corpus=runs[0].source["corpus"], tokenizer="bpe:300")
    missing.source["corpus"] = "file:/nowhere.txt"
    checks = by_name(doctor.examine([*runs, missing], tmp_path, "cpu"))
    assert checks["disk"].stops and "make space" in checks["disk"].todo
    assert checks["text"].stops and "file:/nowhere.txt is missing" in checks["text"].found
    assert checks["compiler"].good is None and "apt install gcc" in checks["compiler"].todo
    assert "two steps" not in checks, "nothing is tried where a run would fail for another reason"


def test_what_lies_there_already_need_not_be_free(runs, tmp_path, monkeypatch):
    need = doctor.disk_of(runs, stay=0)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: SimpleNamespace(free=need - 100))
    assert doctor._disk(runs, tmp_path, 0).stops
    (tmp_path / runs[0].id / "checkpoint").mkdir(parents=True)
    (tmp_path / runs[0].id / "checkpoint" / "state.pt").write_bytes(bytes(100))
    assert not doctor._disk(runs, tmp_path, 0).stops


def test_a_step_that_fails_stops_a_sweep(runs, tmp_path, monkeypatch):
    def out_of_memory(self, stop_after=None):
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate")

    monkeypatch.setattr(doctor.Training, "go", out_of_memory)
    check = by_name(doctor.examine(runs, tmp_path, "cpu"))["two steps"]
    assert check.stops and "CUDA out of memory. Tried" in check.found
    assert not list(tmp_path.iterdir())


def test_heads_that_only_the_slow_kernel_takes_are_named(runs, monkeypatch):
    asked = []
    monkeypatch.setattr(
        doctor, "_kernel", lambda shape, precision: asked.append(precision) or "math"
    )
    monkeypatch.setattr(doctor, "resolve_precision", lambda device, asked: "fp16")  # as on a T4
    (check,) = doctor._kernels(runs, torch.device("cuda"))
    assert check.good is False and not check.stops and "heads of 16, fp16" in check.found
    assert {*asked} == {"fp16"}


def test_the_verb_prints_a_line_for_each_check(tiny_corpus, tmp_path, capsys):
    words = ["--rung", TINY, "--corpus", tiny_corpus, "--tokenizer", "bpe:300", "--batch", "2"]
    words += ["--out", str(tmp_path / "out"), "--device", "cpu"]
    assert cli.main(["doctor", *words, "--quick"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("✓ software: Python") and "– GPU: none" in out and "two steps" not in out
    assert cli.main(["doctor", *words, "--quick", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"name", "good", "found", "todo", "stops"} == set(found[0])


def test_a_sweep_on_a_gpu_asks_first(tiny_corpus, tmp_path, monkeypatch):
    plan = cells({"rung": [TINY], "corpus": [tiny_corpus], "tokenizer": ["bpe:300"]}, print)
    monkeypatch.setattr(start, "pick_device", lambda name: torch.device("cuda"))
    wrong = doctor.Check("two steps", False, "out of memory", "mend this first", stops=True)
    monkeypatch.setattr(start.doctor, "examine", lambda *args, **more: [wrong])
    said = []
    with pytest.raises(RRError, match="nothing was started, because of: two steps"):
        sweep(plan, tmp_path / "out", runner="direct", log=said.append)
    assert "✗ two steps: out of memory: mend this first" in said
    assert not (tmp_path / "out").exists()
