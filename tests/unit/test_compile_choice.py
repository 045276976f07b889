"""Runs on a CPU compile where that saves more time than it takes."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import torch

import rr
from rr.model.ladder import flops_per_token
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


@needs_compiler
def test_runs_of_one_shape_share_the_time_to_compile(choose, monkeypatch, tmp_path):
    """One compiles, the others load its graphs: (cold + (n − 1) · warm) / n seconds for each."""
    run = rr.plan(TINY, steps=1000)
    flops = flops_per_token(run.model) * 1000 * run.recipe.batch * 16
    # a machine on which the run takes 100 s, of which compilation saves 25
    monkeypatch.setattr(compile_choice, "SHARE", {"bf16": 0.5, "fp32": 0.5})
    monkeypatch.setattr(compile_choice, "GAIN", 0.25)
    monkeypatch.setattr(compile_choice, "product_rate", lambda *given, **options: flops / 50)
    assert choose(run) == ("eager", [])  # 45 s
    monkeypatch.setenv(compile_choice.RUNS, "2")
    assert choose(run) == ("eager", [])  # (45 + 8) / 2 = 26.5 s
    monkeypatch.setenv(compile_choice.RUNS, "3")
    backend, said = choose(run)  # (45 + 2 · 8) / 3 = 20.3 s
    assert backend == compile_choice.COMPILED
    assert "about 100 s without compilation, 20 s to compile" in said[0]
    assert "mean of the 3 runs of this shape" in said[0]
    compile_choice.remember(run, 65.0, tmp_path)
    assert choose(run) == ("eager", [])  # (65 + 16) / 3 = 27 s
    compile_choice.remember(run, 2.0, tmp_path)
    assert "2 s to compile (measured here" in choose(run)[1][0]  # never more than was measured


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


@pytest.mark.slow
@needs_compiler
def test_a_second_process_loads_the_graphs_of_the_first(tmp_path):
    """The runs of a sweep are processes: with another seed, the same graphs."""
    code = f"""
import json, sys
import rr
from torch._dynamo.utils import counters
run = rr.plan({TINY!r}, batch=2, steps=1, eval_batches=1, seed=int(sys.argv[1]))
rr.train(run, {str(tmp_path)!r}, path={compile_choice.COMPILED!r}, log=lambda line: None)
found = counters["inductor"]
print(json.dumps([found["fxgraph_cache_miss"], found["fxgraph_cache_hit"]]))
"""
    env = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "graphs")}
    seen = []
    for seed in ("0", "1"):
        words = [sys.executable, "-c", code, seed]
        done = subprocess.run(words, capture_output=True, text=True, env=env)
        assert done.returncode == 0, done.stderr
        seen.append(json.loads(done.stdout))
    (missed, _), (again, hit) = seen
    assert missed > 0 and (again, hit) == (0, missed)
