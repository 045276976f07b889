"""The benchmark's arithmetic by hand, and the whole of it once on a model of no size."""

import json
import math
import time

import pytest
import torch

from rr.errors import RRError, RunFailed
from rr.model import costs, sizes
from rr.training import memory, planning
from rr.training.backend import parse_backend
from rrstudy import cli
from rrstudy.perf import benchmark, benchmark_case, budget, gpus
from rrstudy.perf.benchmark_case import Case, run_command

TINY = "nano:d_model=16,n_layer=1,n_head=2,seq_len=8"


@pytest.mark.parametrize(("name", "tera"), [
    ("NVIDIA H100 80GB HBM3", 989), ("NVIDIA H100 PCIe", 756), ("NVIDIA GH200 480GB", 989),
    ("NVIDIA A100-SXM4-80GB", 312), ("NVIDIA A10G", 70), ("NVIDIA A10", 125), ("Tesla T4", 65),
    ("NVIDIA GeForce RTX 4090", 165.2), ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
    ("NVIDIA GeForce RTX 3090", 71), ("NVIDIA GeForce RTX 3090 Ti", None),
    ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None), ("NVIDIA RTX A1000", None), ("cpu", None),
])  # fmt: skip
def test_peaks_by_the_names_that_drivers_give(name, tera):
    gpu = gpus.find(name)
    assert (gpu and gpu.flops) == (None if tera is None else pytest.approx(tera * 1e12))


def row(path, rule, ms, peak_bytes, values="own"):
    return {"rung": "r", "rule": rule, "values": values, "path": path, "batch": 2, "micro_batch": 2,
            "failed": None, "step_ms": ms, "peak_bytes": peak_bytes}  # fmt: skip


def test_ratios_are_taken_within_a_repeat():
    """The machine slows threefold in the third repeat: ratios do not see it."""
    rows = [
        row("reference", "review", [100, 110, 300], 8),
        row("eager", "review", [50, 50, 150], 2),
        row("eager", "standard", [40, 50, 100], 1),
    ]
    (one,) = benchmark.ratios(rows, {"path": "reference"})
    assert (one["speed"], one["least"], one["most"], one["memory"]) == (2.0, 2.0, 2.2, 0.25)
    (one,) = benchmark.ratios(rows, {"rule": "standard", "values": "own"})
    assert (one["rule"], one["time"], one["least"], one["most"]) == ("review", 1.25, 1.0, 1.5)
    assert benchmark.ratios(rows, {"path": "compiled"}) == []
    rows.append(row("eager", "standard", [44, 55, 110], 1, "constant"))
    (_, mixed) = benchmark.ratios(rows, {"rule": "standard", "values": "own"})
    assert (mixed["values"], mixed["time"]) == ("constant", 1.1)


def test_a_value_rule_is_measured_and_named(monkeypatch, capsys, refuses):
    """Its case is of the rule that a run of the same words has, beside the standard network."""
    asked = []

    def measure(cases, *given, log):
        asked.extend(cases)
        known = {"params": 1, "flops_per_token": 1, "precision": "fp32", "device": "cpu",
                 "threads": 1, "loss": 1.0, "peak_bytes": 2**30}  # fmt: skip
        return [benchmark.result_row(case, known, [10.0 * (i + 1)]) for i, case in enumerate(cases)]

    monkeypatch.setattr(benchmark, "measure", measure)
    words = f"bench --rung {TINY} --rule standard --values own constant-resformer:lam=2"
    assert cli.main([*words.split(), "--backends", "eager", "--device", "cpu"]) == 0
    assert [case.values for case in asked] == ["own", "constant"]  # as a run's own record has it
    assert asked[1].config.values == "constant" and asked[1].config != asked[0].config
    out = capsys.readouterr().out
    assert "a step of standard + constant-resformer takes 2.000" in out
    assert "unknown" in refuses("bench", "--rung", TINY, "--values", "constnat", "--device", "cpu")


def test_mfu_is_counted_flops_over_the_peak(monkeypatch):
    """60M, review: 2 × 256 tokens in 1 s on a device whose peak is a tenth of what that takes."""
    case = Case("60M", "review", "eager", 2, 2)
    flops = costs.flops_per_token(case.config) * 512
    monkeypatch.setattr(gpus, "GPUS", {"Thing": gpus.GPUSpec("Thing", flops * 10, 80e9)})
    measured = {"device": "A Thing 80GB", "flops_per_token": flops / 512, "peak_bytes": 1}
    result = benchmark.result_row(case, measured, [1000.0])
    assert result["mfu"] == pytest.approx(0.1)
    assert result["tokens_per_second"] == 512
    assert benchmark.result_row(case, measured | {"device": "cpu"}, [1000.0])["mfu"] is None
    lost = benchmark.result_row(case, measured | {"loss": math.nan}, [1000.0])
    assert json.loads(json.dumps(lost, allow_nan=False))["loss"] is None


OWN = """
import os
import rr
class Hungry(rr.Rule):
    equation, source = 'h', 'here'
    def write(self, state, u):
        raise MemoryError('no more')
class Wrong(Hungry):
    def write(self, state, u):
        raise ValueError('that is wrong')
class Killed(Hungry):
    def write(self, state, u):
        os.kill(os.getpid(), 9)
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "own.py"
    path.write_text(OWN)
    return path


@pytest.fixture(scope="module")
def measured(own):
    """Two cases, each in a process of its own, of which one is killed; and their rows."""
    arms = ((f"{own}:Killed", "eager"), ("review", "reference"))
    cases = [Case(TINY, rule, path, 4, 2) for rule, path in arms]
    return benchmark.measure(cases, 1, 2, "cpu", 1)


def test_the_whole_bench_once(capsys, tmp_path, measured, monkeypatch):
    asked = []

    def measure(cases, *given, log):
        asked.append(([(case.rule, case.path) for case in cases], given))
        return [measured[1] | {"path": case.path} for case in cases]

    monkeypatch.setattr(benchmark, "measure", measure)
    monkeypatch.setattr(benchmark, "cores", lambda: 3)
    words = f"bench --rung {TINY} --rule review --backends reference eager --steps 1 --repeats 2 "
    words += "--batch 4 --micro-batch 2 --threads 1 --device cpu --json"
    assert cli.main(words.split()) == 0
    arms = [("review", "reference"), ("review", "eager")]
    assert asked == [(arms, (1, 2, "cpu", 1, 2))]  # one thread each, and there are two cores
    result = json.loads(capsys.readouterr().out)
    assert [(r["rule"], r["path"]) for r in result["rows"]] == arms
    one = result["rows"][0]
    assert one["values"] == "own"
    assert one["failed"] is None and one["mfu"] is None
    assert len(one["step_ms"]) == 2 and min(one["step_ms"]) > 0
    assert one["tokens_per_step"] == 32 and one["threads"] == 1
    assert 2**26 < one["peak_bytes"] < 2**32  # a process with torch in it
    assert one["params"] == costs.count(sizes.arm(TINY, one["rule"]))
    assert 8 < one["loss"] < 12  # near log 50257 = 10.8: random tokens
    assert [r["over"] for r in result["over_the_reference"]] == ["reference"]
    file = tmp_path / "bench.json"  # as `rr plan --measured` reads it
    file.write_text(json.dumps(result))
    assert all(row["warm_seconds"] > 0 for row in budget.read_bench(str(file)).rows)


def test_on_a_gpu_one_path_is_measured_and_its_cases_compile_side_by_side(measured, monkeypatch):
    """The path and precision of a run; a row for each rung and rule."""
    asked = []

    def measure(cases, steps, repeats, device, threads, together, log):
        asked.append((together, [(case.rule, case.path) for case in cases]))
        return [measured[1] | {"rule": case.rule, "path": case.path} for case in cases]

    for name, value in (("measure", measure), ("cores", lambda: 16)):
        monkeypatch.setattr(benchmark, name, value)
    monkeypatch.setattr(benchmark, "pick_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(benchmark, "made_by", lambda device, threads: {})
    monkeypatch.setattr(benchmark, "free", lambda device: 10**12)
    rules, path = ["standard", "review"], "compiled:attention=cudnn,precision=tf32"
    result = benchmark.bench([TINY], rules, protocol="paper")
    assert asked == [(2, [(rule, path) for rule in rules])]
    assert [(row["rule"], row["path"]) for row in result["rows"]] == asked[0][1]


def test_no_more_cases_compile_at_once_than_have_cores_and_memory(monkeypatch):
    cases = [Case(TINY, "standard", "eager", 4, 2) for _ in range(5)]
    held = memory.predict(cases[0].config, parse_backend("eager"), 2, "cpu",
                          planning.recipe(TINY, batch=4))  # fmt: skip
    stays = held["weights"] + held["gradients"] + held["moments"]
    more = benchmark.margin(parse_backend("eager"), "cpu") * held["step"] - stays
    cpu, free = torch.device("cpu"), [10**12]
    monkeypatch.setattr(benchmark, "free", lambda device: free[0])
    monkeypatch.setattr(benchmark, "cores", lambda: 8)
    counted = [benchmark.side_by_side(cases, cpu, threads) for threads in (1, 2, 4, 8, 16)]
    assert counted == [5, 4, 2, 1, 1]
    for fit in (0, 1, 3):
        free[0] = 5 * stays + (fit + 0.5) * more
        assert benchmark.side_by_side(cases, cpu, 1) == max(1, fit)


@pytest.mark.slow
def test_memory_is_the_cases_own():
    """Whole logits of 512 tokens over 50257 words are 103 MB, of the 64 of one window an eighth."""
    rung, path = "nano:n_layer=1,d_model=16,n_head=2,seq_len=64", "eager:precision=tf32,loss=whole"
    cases = [Case(rung, "standard", path, 8, micro) for micro in (8, 1)]
    together, singly = benchmark.measure(cases, 1, 1, "cpu", 1)
    assert together["failed"] is None and singly["failed"] is None
    # Logits, log-softmax and gradient are held at once; one of them is the least to see.
    logits = 8 * 64 * 50257 * 4
    assert together["peak_bytes"] - singly["peak_bytes"] > logits


def test_a_case_that_fails_says_why_and_the_others_go_on(monkeypatch, measured):
    killed, fine = measured
    assert killed["failed"] == "its process was killed"
    assert fine["failed"] is None and len(fine["step_ms"]) == 2
    result = {"rows": [killed, fine], "over_the_reference": []}
    assert "its process was killed" in benchmark.table(result)[1]
    monkeypatch.setattr(benchmark, "measure", lambda *given, **options: [killed])
    with pytest.raises(RunFailed, match="its process was killed"):
        benchmark.bench([TINY], [killed["rule"]], ["eager"], batch=2, device="cpu")


@pytest.mark.parametrize(
    ("rule", "why"),
    [("Hungry", "^out of memory$"), ("Wrong", "^ValueError: that is wrong$")],
)
def test_what_a_case_says_of_its_failure(own, rule, why, kept_threads):
    """What its process answers; here in this one."""
    with pytest.raises(RRError, match=why):
        run_command("build", Case(TINY, f"{own}:{rule}", "eager", 4, 2), "cpu", 1)
        run_command("warm")


def test_what_compiles_before_the_first_step_is_warming_up(monkeypatch, kept_threads):
    made = benchmark_case.OptimizerStep
    monkeypatch.setattr(
        benchmark_case, "OptimizerStep", lambda *given: time.sleep(0.3) or made(*given)
    )
    run_command("build", Case(TINY, "standard", "eager", 4, 2), "cpu", 1)
    assert run_command("warm")["warm_seconds"] > 0.3


@pytest.mark.parametrize(("words", "why"), [
    (["--rung", "61M"], "unknown rung"), (["--backends", "eager:loss=quick"], "unknown loss"),
    (["--backends", "triton"], "use compiled"), (["--steps", "0"], "steps must be"),
    (["--repeats", "-1"], "repeats must be"), (["--batch", "6", "--micro-batch", "4"], "divide"),
    (["--device", "tpu"], "unknown device"), (["--protocol", "papr"], "did you mean paper"),
])  # fmt: skip
def test_bad_words_are_one_line_before_anything_starts(words, why, refuses, monkeypatch):
    monkeypatch.setattr(benchmark, "ProcessPoolExecutor", None)  # nothing may be started
    assert why in refuses("bench", *words, "--device", "cpu", *words[-2:])
