"""What only a GPU reaches, held to account where there is none: padding and copies."""

import gc
import json
import sys
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny import train
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

import rr
from rr import io
from rr.data.batches import gather
from rr.model import Model, initialise
from rr.model.transformer import turns
from rr.ops import attention, linear_cross_entropy
from rr.ops.attention import padded_attention
from rr.ops.cross_entropy import padded_rows
from rr.training import OptimizerStep, device, evaluate, parse_backend, predict, trainer
from rr.training.distributed import World
from rr.training.trainer import Training


@pytest.mark.parametrize("size", [71, 74, 64])  # heads of published arms
@pytest.mark.parametrize("groups", [1, 2])
def test_padded_heads_attend_alike(size, groups):
    made = torch.Generator().manual_seed(size)
    q = torch.randn(2, 4, 9, size, generator=made, dtype=torch.float64, requires_grad=True)
    k, v = torch.randn(2, 2, 4 // groups, 9, size, generator=made, dtype=torch.float64)
    options = {"is_causal": True, "enable_gqa": groups > 1}
    plain = F.scaled_dot_product_attention(q, k, v, **options)
    padded = padded_attention(q, k, v, **options)
    torch.testing.assert_close(padded, plain, rtol=0, atol=1e-14)
    along = torch.randn(plain.shape, generator=made, dtype=torch.float64)
    one, other = (torch.autograd.grad((y * along).sum(), q)[0] for y in (plain, padded))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-13)


def test_heads_are_padded_on_cuda_alone_and_keep_their_scale(monkeypatch):
    module, given = sys.modules["rr.ops.attention"], {}
    with monkeypatch.context() as patched:
        patched.setattr(module, "padded_attention", lambda q, k, v, **options: (q, options))
        there = SimpleNamespace(device=torch.device("cuda"))
        assert attention(there, there, there, is_causal=True) == (there, {"is_causal": True})
        q = torch.ones(1, 1, 2, 7)
        assert torch.equal(attention(q, q, q), q)  # by torch itself

    def seen(q, k, v, **options):
        given.update(options, sizes={t.shape[-1] for t in (q, k, v)})
        return q

    monkeypatch.setattr(F, "scaled_dot_product_attention", seen)
    q = torch.ones(1, 1, 2, 71)
    assert padded_attention(q, q, q).shape == q.shape
    assert given == {"sizes": {72}, "scale": 71**-0.5}


def test_rows_that_fill_a_tile_change_no_loss():
    made = torch.Generator().manual_seed(0)
    hidden = torch.randn(7, 5, generator=made, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(13, 5, generator=made, dtype=torch.float64, requires_grad=True)
    targets = torch.arange(7) % 11
    losses = [
        linear_cross_entropy(hidden, rows, targets, 11) for rows in (weight, padded_rows(weight))
    ]
    assert padded_rows(weight).shape == (16, 5)
    torch.testing.assert_close(*losses, rtol=0, atol=1e-15)
    plain, padded = (torch.autograd.grad(loss, (hidden, weight)) for loss in losses)
    torch.testing.assert_close(plain, padded, rtol=0, atol=1e-15)


class OnGpu(torch.Tensor):
    """A tensor that says that it is on a GPU."""

    device = torch.device("cuda:0")


def test_starts_are_copied_without_waiting(monkeypatch):
    calls, arange = [], torch.arange
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda t: calls.append("pinned") or t)
    monkeypatch.setattr(torch.Tensor, "to", lambda t, *a, **more: calls.append((a, more)) or t)
    monkeypatch.setattr(torch, "arange", lambda n, device: arange(n))
    x, y = gather(torch.arange(90, device=None).as_subclass(OnGpu), np.array([1, 5]), 3)
    assert calls == ["pinned", ((OnGpu.device,), {"non_blocking": True})]
    assert x.tolist() == [[1, 2, 3], [5, 6, 7]] and y.tolist() == [[2, 3, 4], [6, 7, 8]]


class Waits(TorchFunctionMode):
    """Counts what makes the host wait for a GPU: a value that is read, a copy to the CPU."""

    NAMES = ("item", "tolist", "numpy", "cpu", "nonzero", "__bool__", "__float__", "__int__")

    def __init__(self):
        self.count = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.count += getattr(function, "__name__", "") in self.NAMES
        return function(*args, **(kwargs or {}))


def lines(folder):
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


@pytest.mark.parametrize(
    "options", [{"steps": 90}, {"steps": 90, "lr": 1e30}, {"budgets": (40, 90)}]
)
def test_a_run_waits_for_the_gpu_once_a_second(options, monkeypatch, tmp_path):
    tiny = "nano:d_model=16,n_layer=1,n_head=1,d_ff=32,seq_len=16"
    run = rr.plan(tiny, "review", batch=2, eval_batches=1, **options)
    at_once = train(run, tmp_path / "at once", backend="eager")

    now, waits, read = [0.0], Waits(), []
    monkeypatch.setattr(trainer, "time", SimpleNamespace(monotonic=lambda: now[0]))
    taken, recorded = Training._train_step, Training._record_lines

    def step(self):
        now[0] += 0.05
        with waits:
            taken(self)

    def record(self):
        read.append(len(self.unread))
        return recorded(self)

    monkeypatch.setattr(Training, "_train_step", step)
    monkeypatch.setattr(Training, "_record_lines", record)
    # as on a GPU, where a value that is read is waited for
    monkeypatch.setattr(
        Training, "_record_due", lambda self: self._due(self.recorded_at, trainer.RECORD_EVERY)
    )
    once_a_second = train(run, tmp_path / "once a second", backend="eager")
    assert waits.count == 0
    assert len(read) <= now[0] + 5  # three held-out losses and the ends of two budgets
    assert max(read) > 10 or "lr" in options
    assert lines(once_a_second) == lines(at_once)
    one, other = (io.read_json(f / "result.json") for f in (at_once, once_a_second))
    for name in ("status", "tokens", "val_loss"):
        assert one[name] == other[name]


def test_the_loss_of_a_step_is_not_read(monkeypatch):
    """What `Waits` counts is what would wait: a loss that is read counts once."""
    with Waits() as waits:
        float(torch.ones(2).sum())
        torch.ones(2).tolist()
    assert waits.count == 2


def test_angles_far_out_are_exact_to_float32s_rounding():
    far = turns(torch.empty(1, 1, 8), 64, past=100_000)
    exact = 100_000 * 1e4 ** (-np.arange(32) / 32)
    np.testing.assert_allclose(far[0, 0].numpy(), np.cos(exact), rtol=0, atol=6e-8)


@pytest.mark.parametrize("rule", ["standard", "highway", "review"])
def test_a_step_of_each_published_arm_waits_for_no_value(rule):
    """A value that the host asks for is refused by tensors without bytes."""
    small = rr.plan("60M:n_layer=2", rule, protocol="paper", corpus="tinystories")
    held = predict(small, parse_backend("compiled"), 8, "cuda")
    assert held["total"] > held["weights"] > 0


def test_a_share_of_a_gpu_without_a_number_is_of_the_current_one(monkeypatch, kept_threads):
    asked = []
    monkeypatch.setenv(device.GPU_SHARE, "0.5")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.setattr(torch.cuda.memory, "_lazy_init", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(
        torch._C, "_cuda_setMemoryFraction", lambda *given: asked.append(given), raising=False
    )
    device.prepare_device(torch.device("cuda"), 1)
    device.prepare_device(torch.device("cuda:1"), 1)
    assert asked == [(0.5, 3), (0.5, 1)]


@pytest.fixture
def uncollected():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_a_run_that_has_ended_holds_no_memory(uncollected, monkeypatch, tmp_path):
    """Its model lies in cycles, and the next run of the process asks what is free."""
    made = []

    def noted(model, *given, **options):
        made.append(weakref.ref(model))
        return initialise(model, *given, **options)

    monkeypatch.setattr(trainer, "initialise", noted)
    tiny = "nano:d_model=16,n_layer=1,n_head=1,d_ff=32,seq_len=16"
    train(rr.plan(tiny, steps=2, batch=1, eval_batches=1), tmp_path)
    assert [one() for one in made] == [None]


def test_a_first_state_is_the_same_whatever_device_torch_makes_tensors_on():
    config = rr.ModelConfig(50, n_layer=1, n_head=1, d_model=8, d_ff=16, rule="highway")
    one, other = Model(config), Model(config)
    initialise(one, 0)
    with torch.device("meta"):
        initialise(other, 0)
    for name, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


def test_counts_of_steps_do_not_lie_in_a_file_that_is_dropped():
    config = rr.ModelConfig(50, n_layer=1, n_head=1, d_model=8, d_ff=16, seq_len=8)
    recipe = rr.Recipe(steps=4, batch=2, lr=1e-3, warmup=1)
    step = OptimizerStep(Model(config), recipe, parse_backend("reference"), torch.device("cpu"))
    ids = torch.zeros(2, 8, dtype=torch.long)
    step(ids, ids)
    state = step.state()
    counts = [values["step"].data_ptr() for values in state["optimizer"]["state"].values()]
    step.device = torch.device("cuda")  # where the rest is copied anyway
    step.load(state)
    now = [values["step"] for values in step.optimizer.state.values()]
    assert len(now) == len(counts) > 3 and all(count == 1 for count in now)
    assert not {count.data_ptr() for count in now} & {*counts}


@pytest.mark.parametrize("sharded", [False, True])
def test_a_sharded_model_is_not_evaluated_in_halves(sharded):
    """The other processes would wait for calls that they do not make."""
    calls = []

    def hidden(x):
        calls.append(len(x))
        if len(x) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return x

    model = SimpleNamespace(hidden=hidden)
    if not sharded:
        assert evaluate._in_parts_that_fit(model, torch.arange(4)).tolist() == [0, 1, 2, 3]
        assert calls == [4, 2, 2]
        return
    model.set_requires_gradient_sync = None  # as fully_shard gives it
    with pytest.raises(torch.OutOfMemoryError):
        evaluate._in_parts_that_fit(model, torch.arange(4))
    assert calls == [4]


def test_fsdp_on_a_cpu_stays_there_where_there_is_a_gpu(monkeypatch):
    from torch.distributed import device_mesh, fsdp

    meshes, sharded = [], []
    monkeypatch.setattr(device_mesh, "init_device_mesh", lambda *given: meshes.append(given) or 7)
    monkeypatch.setattr(fsdp, "fully_shard", lambda part, mesh: sharded.append(mesh))
    monkeypatch.setattr(fsdp, "register_fsdp_forward_method", lambda *given: None)
    config = rr.ModelConfig(50, n_layer=2, n_head=1, d_model=8, d_ff=16)
    World(0, 2, "fsdp", device=torch.device("cpu")).wrap(Model(config))
    assert meshes == [("cpu", (2,))] and sharded == [7, 7, 7]
