"""A compiled path is trusted only where its gradients are those of the same blocks uncompiled."""

import pytest
import torch
from tiny import TINY, result_of, train
from torch._dynamo.testing import CompileCounterWithBackend

import rr
from rr import io
from rr.errors import CompiledWrong, RRError
from rr.model import Model, initialise
from rr.model import compile as compile_module
from rr.residual import RULES
from rr.residual.base import REGISTRY
from rr.specs import ModelConfig, Recipe
from rr.training import backend, compile_check
from rr.training.backend import parse_backend
from rr.training.distributed import World
from rr.training.step import OptimizerStep
from rrstudy.perf.benchmark_case import Case, run_command
from rrstudy.perf.doctor import examine

CPU = torch.device("cpu")
SHAPE = {"n_layer": 2, "n_head": 2, "d_model": 16, "d_ff": 32, "seq_len": 8}
EACH = [(rule, "own") for rule in RULES]
EACH += [("standard", values) for values in REGISTRY["values"] if values != "own"]


class Lossy(torch.autograd.Function):
    """The identity, whose backward pass loses the gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return torch.zeros_like(grad)


def wrong_compiler(graph, inputs):
    """A backend of torch.compile that loses the gradient of each graph's first output."""
    from torch._dynamo.backends.debugging import aot_eager

    output = next(node for node in graph.graph.nodes if node.op == "output")
    first = output.args[0][0]
    with graph.graph.inserting_before(output):
        lossy = graph.graph.call_function(Lossy.apply, (first,))
    output.args = ((lossy, *output.args[0][1:]),)
    graph.recompile()
    return aot_eager(graph, inputs)


def step_of(
    rule="review", values="own", compiler="aot_eager", path="compiled", device=CPU, **options
):
    torch.compiler.reset()
    model = initialise(Model(ModelConfig(40, rule=rule, values=values, **SHAPE)), 0).to(device)
    return OptimizerStep(
        model, Recipe(4, 2, 1e-3, 1), parse_backend(path), device, compiler=compiler, **options
    )


def gradients(step):
    ids = torch.arange(2 * SHAPE["seq_len"], device=step.device).view(2, -1)
    step.gradients(ids, ids + 1)
    named = step.model.named_parameters()
    return {name: p.grad.double().cpu() for name, p in named if p.grad is not None}


@pytest.mark.parametrize(("rule", "values"), EACH)
def test_gradients_of_every_rule_compiled_uncompiled_and_in_float64(rule, values, device):
    """torch 2.11.0 lost those below the last write of four rules, whose backward was by hand."""
    full = "precision=fp32,loss=whole"
    compiled = gradients(step_of(rule, values, path=f"compiled:{full}", device=device))
    plain = gradients(step_of(rule, values, path=f"reference:{full}", device=device))
    exact = step_of(rule, values, path=f"reference:{full}")
    exact.model.double()
    exact = gradients(exact)
    assert compiled.keys() == plain.keys() == exact.keys()
    typical = torch.stack([g.square().mean().sqrt() for g in exact.values()]).median()
    for name, g in exact.items():
        size = max(g.square().mean().sqrt(), typical / 100)
        for other in (compiled, plain):
            apart = (other[name] - g).square().mean().sqrt()
            assert apart <= 1e-4 * size, (name, apart / size)


# A write with a backward pass by hand, as this project's once was. torch 2.11.0 compiles it without
# a gradient, for its last line: a `to` that changes nothing.
BY_HAND = """
import torch
import rr

class Write(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h, u):
        return (h + 0.5 * u).to(h.dtype)

    @staticmethod
    def backward(ctx, grad):
        return grad, 0.5 * grad

@rr.register("by-hand")
class ByHand(rr.Rule):
    equation, source = "h + u/2", "a test"

    def write(self, state, u):
        return Write.apply(state, u)
"""


def test_what_torch_2_11_loses_is_found_there_and_right_elsewhere(tmp_path, monkeypatch):
    path = tmp_path / "by_hand.py"
    path.write_text(BY_HAND)
    rule = f"{path}:ByHand"
    rr.allow_rule(rule)
    monkeypatch.setitem(REGISTRY, "residual", dict(REGISTRY["residual"]))  # as it was, afterwards
    if torch.__version__.startswith("2.11.0"):
        with pytest.raises(CompiledWrong, match="2.11.0.* by 100 %"):
            step_of(rule)
        return
    compiled, plain = gradients(step_of(rule)), gradients(step_of("constant", path="eager"))
    for name, g in plain.items():
        torch.testing.assert_close(compiled[name], g, rtol=0.1, atol=1e-4)


def test_a_wrong_backward_pass_is_found_and_weights_stay():
    with pytest.raises(CompiledWrong, match=r"torch .* compiles this model wrongly: .* by 100 %"):
        step_of(compiler=wrong_compiler)
    checked, plain = step_of().model, step_of(path="reference").model
    for one, other in zip(checked.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_tensor_without_a_number_is_wrong():
    given, plain = {"a": torch.tensor([float("nan")])}, {"a": torch.ones(1)}
    assert compile_check.differences(given, plain) == {"a": float("inf")}
    assert compile_check.differences(plain, plain) == {"a": 0.0}


def test_a_sum_that_cancels_is_measured_on_the_others():
    plain = {"a": torch.ones(4), "b": torch.ones(2), "sum": torch.tensor([1e-6])}
    other = plain | {"sum": torch.tensor([3e-6])}
    assert compile_check.differences(other, plain)["sum"] == pytest.approx(2e-6)


def test_what_is_wrong_in_one_process_is_refused_in_all():
    class Two(World):
        """Two processes, of which the other one is wrong."""

        def any(self, *flags):
            return (True,) * len(flags)

    with pytest.raises(CompiledWrong, match="another process"):
        step_of(world=Two())


def test_nothing_is_compiled_twice():
    """A block is compiled for the check; the steps use what was compiled there."""
    counter = CompileCounterWithBackend("aot_eager")
    step = step_of(compiler=counter)
    before = counter.frame_count
    gradients(step)
    assert 0 < before == counter.frame_count


def test_a_halved_micro_batch_is_checked_again(monkeypatch):
    """Its shapes are compiled anew, by a compiler that may be wrong for these alone."""

    def wrong_where_small(graph, inputs):
        if any(x.shape[:1] == (1,) for x in inputs):
            return wrong_compiler(graph, inputs)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    step = step_of(compiler=wrong_where_small, on_shrink=lambda micro: None)
    whole = step.gradients

    def full(x, y):
        if step.micro == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return whole(x, y)

    monkeypatch.setattr(step, "gradients", full)
    ids = torch.arange(2 * SHAPE["seq_len"]).view(2, -1)
    with pytest.raises(CompiledWrong, match="wrongly"):
        step(ids, ids + 1)
    assert step.micro == 1


@pytest.fixture
def wrong(monkeypatch):
    """Whatever a run compiles is wrong, and the default compiles."""
    compiling = compile_module.compile_model
    monkeypatch.setattr(
        compile_module, "compile_model", lambda model, _: compiling(model, wrong_compiler)
    )
    monkeypatch.setattr(backend, "compile_error", lambda kind: None)
    monkeypatch.setattr(backend, "default", lambda *given: "compiled")


def test_a_default_falls_back_and_says_so(wrong, planned, tmp_path):
    run, said = planned(steps=3, eval_batches=1), []
    folder = rr.train(run, tmp_path / "default", rr.Request(threads=1), log=said.append)
    result = result_of(folder)
    assert result["code_path"] == "eager"
    (line,) = [line for line in said if "wrongly" in line]
    assert torch.__version__ in line and line.endswith("selected backend eager")
    assert line.startswith(result["code_path_reason"])
    plain = result_of(train(run, tmp_path / "named", backend="eager"))
    assert plain["code_path_reason"] == "asked for"
    assert plain["weights_sha256"] == result["weights_sha256"]
    made_by = io.read_sealed(folder / "run.json")["provenance"]
    assert made_by["code_path"] == "eager" and "wrongly" in made_by["code_path_reason"]


def test_a_later_block_of_another_shape_is_compared_too():
    """From `start` on the stream is two lanes, whose block is a graph of its own."""
    config = ModelConfig(40, rule="lanes:start=3", **SHAPE | {"n_layer": 5})
    blocks = compile_check._compared(model := Model(config))
    assert [list(model.layers).index(block) for block in blocks] == [0, 1, 2]
    plain = Model(ModelConfig(40, rule="review", **SHAPE | {"n_layer": 5}))
    assert compile_check._compared(plain) == list(plain.layers[:2])


def test_a_named_path_is_refused(wrong, planned, tmp_path):
    with pytest.raises(RRError, match="^--backend compiled: torch .* wrongly.*--backend eager$"):
        train(planned(), tmp_path, backend="compiled")


def test_a_run_that_was_compiled_is_not_resumed_otherwise(monkeypatch, request, planned, tmp_path):
    run, compiling = planned(steps=4, eval_batches=1), compile_module.compile_model
    with monkeypatch.context() as patched:
        patched.setattr(compile_module, "compile_model", lambda model, _: compiling(model, "eager"))
        with pytest.raises(rr.errors.Interrupted):
            train(run, tmp_path, backend="compiled", stop_after=2)
    file = tmp_path / run.id / "run.json"
    record = io.read_sealed(file)
    record["provenance"]["packages"]["torch"] = "2.0.0"  # which stays there for the reader to find
    io.write_record(file, record)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    request.getfixturevalue("wrong")
    with pytest.raises(RRError, match="resume it with the version of torch in its run.json"):
        train(run, tmp_path)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_a_benchmark_and_the_doctor_say_so(wrong, planned, tmp_path):
    case = Case(TINY, "review", "compiled:precision=fp32", 2, 2)
    with pytest.raises(RRError, match="compiles this model wrongly"):
        run_command("build", case, "cpu", 1)
    (steps,) = [c for c in examine([planned()], tmp_path, "cpu") if c.name == "two steps"]
    assert steps.good is False and "backend eager" in steps.found and "wrongly" in steps.todo
