"""The predicted peak against what torch's own allocator was asked for in a real step."""

from dataclasses import replace

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from rr.errors import RRError
from rr.model import Model, initialise
from rr.ops.cross_entropy import row_bytes, softmax_in_rows
from rr.residual import REGISTRY
from rr.specs import ModelConfig
from rr.training import memory, planning
from rr.training.backend import parse_backend
from rr.training.step import OptimizerStep

CPU = torch.device("cpu")
SHAPE = ModelConfig(vocab_size=500, n_layer=3, n_head=2, d_model=64, d_ff=256, seq_len=64)


def allocated(config, path, micro, batch):
    """Bytes held before a real step, and the most above that within it, as the allocator saw it."""
    model = initialise(Model(config), 0)
    recipe = planning.recipe("nano", batch=batch)
    step = OptimizerStep(model, recipe, parse_backend(path), CPU, micro)
    x = torch.randint(config.vocab_size, (batch, config.seq_len))
    step(x, x)
    step.optimizer.zero_grad(set_to_none=True)  # as the step to come begins
    held = sum(p.nbytes for p in model.parameters()) + sum(b.nbytes for b in model.buffers())
    held += sum(t.nbytes for s in step.optimizer.state.values() for t in s.values())
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step(x, x)
    return held, most_of(seen)


def most_of(seen):
    """The most bytes held at once, of those taken while a profiler watched."""
    now = most = 0
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


WIDE = {"vocab_size": 20000, "n_layer": 1, "d_model": 16, "d_ff": 64}  # the peak is in the head


@pytest.mark.parametrize(
    ("shape", "path", "micro"),
    [
        ({"rule": "review"}, "reference", 4),
        ({"rule": "standard", "n_layer": 8}, "eager:recompute=layer", 8),
        ({"rule": "review:rank=8", "values": "identity"}, "eager", 4),
        ({"rule": "attnres"}, "eager:precision=fp32", 8),
        (WIDE, "eager", 4),
        (WIDE, "reference", 4),
        (WIDE, "eager:loss=fused", 4),
    ],
)
def test_the_peak_is_the_allocators(shape, path, micro):
    """Within 3 %: a kernel's own temporaries are all that the count cannot see."""
    config, recipe = replace(SHAPE, **shape), planning.recipe("nano", batch=8)
    held, most = allocated(config, path, micro, 8)
    result = memory.predict(config, parse_backend(path), micro, recipe=recipe)
    assert result["step"] - result["tokens"] == pytest.approx(held + most, rel=0.03)


@pytest.mark.parametrize("threads", [1, 2])
def test_what_the_fused_softmax_holds_in_its_rows_is_the_allocators(threads, kept_threads):
    torch.set_num_threads(threads)
    given = torch.randn(600, 2000, dtype=torch.bfloat16), torch.zeros(600, 1, dtype=torch.int64)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        softmax_in_rows(*given, 2000, 600)
    assert row_bytes(*given, 2000, 600) == pytest.approx(most_of(seen), rel=0.03)


def test_parts_by_hand():
    """fp32 weights, gradients and two moments: 16 bytes a parameter; the sum is the step."""
    path, recipe = parse_backend("eager:recompute=layer"), planning.recipe("nano", batch=8)
    result = memory.predict(SHAPE, path, 4, recipe=recipe)
    sizes = [p.numel() for p in Model(SHAPE).parameters()]
    assert result["weights"] == result["gradients"] == 4 * sum(sizes)
    assert result["moments"] == 8 * sum(sizes) + 4 * len(sizes)  # AdamW counts each tensor's steps
    assert result["step"] == sum(result[name] for name in memory.PARTS)
    assert result["total"] == max(result["step"], result["evaluation"])
    assert result["tokens"] == 2 * 8 * 8 * 64  # ids and targets, int64


def test_unfused_adamw_on_a_gpu_works_on_a_whole_group_at_once():
    """The roots of all second moments of the group that decays: 12·d² floats a block.

    (On a CPU it goes tensor by tensor.)
    """
    recipe = planning.recipe("nano", batch=1)
    config = replace(SHAPE, seq_len=4, rule="standard")  # the optimiser's is the peak
    paths = (parse_backend(f"eager:precision=fp32,optimizer={name}") for name in ("plain", "fused"))
    plain, fused = (memory.predict(config, path, 1, "cuda", recipe) for path in paths)
    matrices = config.n_layer * 12 * config.d_model**2 * 4
    assert plain["transient"] == matrices and fused["step"] < plain["step"]
    assert plain["context"] == memory.CONTEXT["cuda"]


@pytest.mark.parametrize("rule", [pytest.param(rule, marks=[] if rule == "review" else
                                  pytest.mark.slow) for rule in REGISTRY["residual"]])  # fmt: skip
def test_a_deep_models_memory_is_counted_on_three_blocks(rule):
    """To the byte what all of its blocks come to, wherever the peak is."""
    config, recipe = replace(SHAPE, n_layer=4, rule=rule), planning.recipe("nano", batch=8)
    for path, micro, device in (
        ("reference", 8, "cuda"),
        ("eager", 2, "cuda"),
        ("eager:recompute=layer", 1, "cpu"),
        ("eager:recompute=layer,precision=fp32", 1, "cpu"),
    ):
        given = config, parse_backend(path), micro, device, recipe
        assert memory.stacked(*given) == memory.predict(*given)["total"], path


def test_a_cpu_that_emulates_bf16_is_counted_in_float32_and_a_gpu_by_its_own(monkeypatch):
    def total(path, where):
        recipe = planning.recipe("nano", batch=2)
        return memory.predict(SHAPE, parse_backend(path), 2, where, recipe)["total"]

    gpu = total("eager:precision=bf16", "cuda")
    monkeypatch.setattr("rr.training.device._has_bf16", lambda: False)
    memory._counted.cache_clear()
    assert total("eager:precision=bf16", "cpu") == total("eager:precision=fp32", "cpu")
    assert total("eager:precision=bf16", "cuda") == gpu != total("eager:precision=fp32", "cuda")


def test_blocks_that_are_not_alike_are_all_counted():
    recipe = planning.recipe("nano", batch=4)
    for changes in ({"values": "svformer"}, {"values": "dense"}, {"n_loops": 2}):
        given = replace(SHAPE, **changes), parse_backend("eager"), 4, "cuda", recipe
        assert memory.stacked(*given) == memory.predict(*given)["total"], changes


def test_bad_input_is_refused():
    with pytest.raises(RRError, match="recipe"):
        memory.predict(SHAPE, parse_backend("eager"), 4)
    recipe = planning.recipe("nano")
    with pytest.raises(RRError, match="micro-batch must be"):
        memory.predict(SHAPE, parse_backend("eager"), 0, recipe=recipe)
    with pytest.raises(RRError, match="unknown device 'tpu'"):
        memory.predict(SHAPE, parse_backend("eager"), 1, "tpu", recipe)
