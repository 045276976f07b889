"""Runs on a CPU compile where that saves more time than it takes."""

import shutil

import pytest
import torch

import rr
from rr.training import compile_choice, step
from rr.training.backend import parse_backend

TINY = "nano:n_layer=1,d_model=16,n_head=1,d_ff=32,seq_len=16"
LONG = {"steps": 10**9}


@pytest.fixture
def choose(tmp_path):
    """The backend chosen for a run, and what was logged."""

    def of(run):
        said = []
        return compile_choice.choose(run, "eager", tmp_path, said.append), said

    return of


needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("g++", "clang++"))), reason="no C++ compiler"
)


def test_a_short_run_stays_eager_without_a_word(choose):
    assert choose(rr.plan(TINY, steps=1)) == ("eager", [])


@needs_compiler
def test_a_long_run_compiles_and_says_what_was_assumed(choose):
    backend, said = choose(rr.plan(TINY, **LONG))
    assert backend == compile_choice.COMPILED and parse_backend(backend).compile == "layer"
    assert len(said) == 1 and "45 s to compile (assumed)" in said[0]


@needs_compiler
def test_measured_seconds_replace_the_assumption(choose, tmp_path):
    long, short = rr.plan(TINY, **LONG), rr.plan(TINY, steps=50)
    compile_choice.remember(long, 1e12, tmp_path)
    assert choose(long)[0] == "eager"
    assert choose(short)[0] == "eager"  # the same model: known to take too long
    compile_choice.remember(short, 0.0, tmp_path)
    backend, said = choose(short)
    assert backend == compile_choice.COMPILED and "0 s to compile (measured here)" in said[0]
    other = rr.plan(TINY.replace("d_ff=32", "d_ff=64"), steps=50)
    assert choose(other)[0] == "eager"  # another model was never compiled here


def test_without_a_compiler_a_run_stays_eager(choose, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert choose(rr.plan(TINY, **LONG))[0] == "eager"


def test_a_run_records_the_seconds_that_compiling_took(
    planned, tmp_path, kept_threads, monkeypatch
):
    """Whatever compiled: Inductor itself would take most of a minute here."""
    whole, path = step.compile_model, f"{compile_choice.COMPILED},loss=chunked"
    monkeypatch.setattr(step, "compile_model", lambda model, _: whole(model, "aot_eager"))
    rr.train(planned(steps=3), tmp_path, path=path, cache=tmp_path, log=lambda line: None)
    known = list((tmp_path / "compile-seconds").glob("*.json"))
    assert len(known) == 1 and torch.__version__ in known[0].read_text()
