"""The Triton gate against the equation in float64: on a GPU where there is one, else interpreted.

The interpreter runs the kernels in NumPy, program by program (conftest.py asks
for it). It rounds to bfloat16 by cutting off, so its bounds there are twice those of a GPU.
"""

import pytest
import torch
from test_ops import BOTH, gate_inputs, gated_model, model_gradients, plain_write, written
from torch._dynamo.testing import CompileCounterWithBackend

from rr.config import RRError
from rr.model import compile_model
from rr.ops import backends, gated_write
from rr.ops.backends import Kernels

pytest.importorskip("triton", reason="Triton is not installed (it is for Linux alone)")
from rr.ops import gated_write_triton  # noqa: E402

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
FORMS = [(reads, convex) for reads in (BOTH, BOTH[:1], BOTH[1:]) for convex in (False, True)]
# Relative to each tensor's norm: forward, then the gradients of h, u, W and b.
BOUNDS = {
    torch.float32: [2e-6] * 5,
    torch.bfloat16: [b * (1 if CUDA else 2) for b in (2e-3, 4e-3, 6e-3, 8e-3, 6e-3)],
}


# One row; fewer channels than a tile; ragged edges in both; several tiles each way.
SHAPES = [(1, 1, 1), (1, 5, 3), (3, 7, 19), (2, 25, 48)]
# Every form at the ragged edges in both types, and both inputs at every shape; `make faults`: all.
CASES = [
    pytest.param(
        shape,
        *form,
        dtype,
        marks=[] if shape == SHAPES[2] or form == FORMS[1] else pytest.mark.slow,
    )
    for shape in SHAPES
    for form in FORMS
    for dtype in BOUNDS
]


@pytest.mark.parametrize(("shape", "reads", "convex", "dtype"), CASES)
def test_the_kernel_computes_the_equation(shape, reads, convex, dtype):
    tensors = list(gate_inputs(shape, reads))
    tensors[1] = tensors[1].bfloat16().double()
    expected = written(plain_write, tensors, torch.float64, reads, convex)
    got = written(gated_write.triton_gated_write, tensors, dtype, reads, convex, DEVICE)
    for a, b, bound in zip(got, expected, BOUNDS[dtype], strict=True):
        # d = 1 turns h and u into their signs: gradients through them vanish, hence the T
        assert (a.cpu().double() - b).norm() <= bound * (b.norm() + shape[1])


@pytest.mark.parametrize(
    "rule",
    [
        "review",
        *(
            pytest.param(rule, marks=pytest.mark.slow)
            for rule in ("review-convex", "state-gate", "update-gate:gain=1")
        ),
    ],
)
def test_models_take_the_kernel_and_compile_around_it(rule, monkeypatch):
    model = gated_model(rule, n_layer=2).to(DEVICE)
    expected = model_gradients(model)
    calls = []
    kernel = gated_write_triton.gated_write
    monkeypatch.setattr(gated_write_triton, "gated_write", lambda *a: calls.append(1) or kernel(*a))
    model.use(Kernels(gate="triton"))
    torch.testing.assert_close(model_gradients(model), expected, rtol=1e-4, atol=1e-6)
    assert len(calls) == 4  # two blocks, two sublayers each
    monkeypatch.undo()
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compile_model(model, counter)
    for _ in range(2):
        got = model_gradients(model)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)
    assert counter.frame_count == 1


def test_what_the_operators_promise_is_what_they_give():
    """Shapes, dtypes and gradients of the registered operators, as torch checks them."""
    h, u, w, b = (t.float().to(DEVICE) for t in gate_inputs((1, 5, 4), BOTH))
    leaves = [t.requires_grad_() for t in (h[0].detach(), u[0].detach(), w, b)]
    for reads in ((True, True), (True, False), (False, True)):
        weight = leaves[2] if all(reads) else leaves[2][:, :4].detach().contiguous()
        args = (leaves[0], leaves[1], weight, leaves[3], *reads, False, 1e-5, torch.float32)
        torch.library.opcheck(
            torch.ops.rr.gated_write.default,
            args,
            test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
        )


def test_what_the_kernel_cannot_do_it_says(monkeypatch):
    h, u, w, b = gate_inputs((1, 3, 4), BOTH)
    with pytest.raises(RRError, match="float64"):
        gated_write.triton_gated_write(h, u, w, b)
    monkeypatch.setattr(gated_write_triton, "INTERPRETED", False)
    with pytest.raises(RRError, match="needs a GPU"):
        gated_write.triton_gated_write(*(t.float() for t in (h, u, w, b)))
    monkeypatch.setattr(backends.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RRError, match="not installed"):
        gated_model("review").use(Kernels(gate="triton"))
