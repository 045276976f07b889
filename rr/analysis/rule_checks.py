"""Checks that every residual rule must pass, shared by notebooks and the test suite.

Each takes a rule as `--rule` does and returns None if it passes, else one line with the declared
and the measured value; a check that has nothing to compare raises `NotApplicable`. The test suite
(`tests/unit/test_registry.py`) runs them on every rule in the registry and adds checks that need a
training run or another number format.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.exc import Unsupported
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.flop_counter import FlopCounterMode

from ..model.compile import compile_model
from ..model.init import initialise
from ..model.transformer import Model
from ..residual import Rule, Site, allow_rule, make, site_of
from ..specs import ModelConfig

B, T, D = 2, 6, 16


class NotApplicable(Exception):
    """The rule declares nothing that this check could compare."""


def shape(rule: str = "standard", values: str = "own", **changes: int) -> ModelConfig:
    """A configuration small enough to be checked in seconds: three blocks of width 16."""
    allow_rule(rule, values)
    given: dict[str, Any] = dict(vocab_size=50, n_layer=3, n_head=2, d_model=D, d_ff=40, seq_len=8)
    given |= changes
    return ModelConfig(**given, rule=rule, values=values)


def model_of(
    rule: str,
    values: str = "own",
    dtype: torch.dtype = torch.float32,
    scramble: bool = False,
    **changes: int,
) -> Model:
    """A model of this shape; with scramble=True its parameters differ from their initial values."""
    model = initialise(Model(shape(rule, values, **changes)), seed=1).to(dtype)
    if scramble:
        source = torch.Generator().manual_seed(2)
        with torch.no_grad():
            for p in model.parameters():
                p += 0.3 * torch.randn(p.shape, generator=source, dtype=dtype)
    return model


def stream(rule: Rule, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """A state and an update, the inputs of one write; each (B, T, d) for most rules."""
    source = torch.Generator().manual_seed(0)
    x0, u = (torch.randn(B, T, D, generator=source, dtype=dtype) for _ in range(2))
    return rule.open(x0), u


def sites(config: ModelConfig) -> list[Site]:
    """Every site of a model of this shape, bottom to top."""
    kinds = ["attn", "mlp"] * config.n_layer + ["final"]
    return [site_of(config, kind, i + 1) for i, kind in enumerate(kinds)]


def _named(site: Site) -> str:
    return f"sublayer {site.sublayer} ({site.kind})"


def parameters(rule: str) -> str | None:
    """Check that the declared parameter counts are the actual ones, at every site."""
    config = shape(rule)
    for site in sites(config):
        built = make(rule, site, config)
        counted = sum(p.numel() for p in built.parameters())
        if built.params(site) != counted:
            return f"{_named(site)} declares {built.params(site)} parameters and has {counted}"
    return None


def flops(rule: str) -> str | None:
    """Check that the declared matmul FLOPs are those that torch counts in a read and a write."""
    config = shape(rule)
    built = [make(rule, site, config).double() for site in sites(config)]
    state, u = stream(built[0])
    for one in built:
        with FlopCounterMode(display=False) as counter:
            _, state = one.read(state)
            if one.site.kind != "final":
                state = one.write(state, u)
        declared, counted = B * T * one.matmul_flops(one.site), counter.get_total_flops()
        if declared != counted:
            return f"{_named(one.site)} declares {declared} matmul FLOPs and computes {counted}"
    return None


def gradients(rule: str) -> str | None:
    """Check the gradients of a small model's loss against finite differences, in float64."""
    model = model_of(rule, dtype=torch.float64, scramble=True, n_layer=2)
    idx = torch.arange(5)[None] * 7 % 50

    def loss(*weights: Tensor) -> Tensor:
        names = (name for name, _ in model.named_parameters())
        held = dict(zip(names, weights, strict=True))
        return torch.func.functional_call(model, held, (idx, idx.roll(1)))

    weights = tuple(p.detach().clone().requires_grad_() for p in model.parameters())
    if not torch.autograd.gradcheck(loss, weights, fast_mode=True, raise_exception=False):
        return "autograd's gradient differs from finite differences of the loss"
    return None


def coefficients(rule: str) -> str | None:
    """Check that a write starts as carry·h + coefficient·u, as declared, for arbitrary h and u."""
    compared = False
    for built in model_of(rule, dtype=torch.float64).rules:
        coefficient, carry = built.coefficient(built.site), built.carry(built.site)
        state, u = stream(built)
        if coefficient is None or carry is None or built.state != "tensor":
            continue  # no one number: such a rule's identities are tested by name
        compared = True
        # 1e-7: a parameter such as 0.1 is rounded to float32 before the model turns float64.
        apart = (built.write(state, u) - (carry * state + coefficient * u)).abs().max()
        if not apart <= 1e-7 * (state.abs().max() + u.abs().max()):
            return f"{_named(built.site)} does not start as {carry:g}·h + {coefficient:g}·u"
    if not compared:
        raise NotApplicable("no write starts as one number on h and one on u")
    return None


def gate(rule: str) -> str | None:
    """Check that a write is kept·h + gate·u after training, too, with a gate between 0 and 1."""
    compared = False
    for built in model_of(rule, dtype=torch.float64, scramble=True).rules:
        state, u = stream(built)
        if not isinstance(state, Tensor) or (r := built.gate(state, u)) is None:
            continue
        compared = True
        if not ((r > 0) & (r < 1)).all():
            return f"{_named(built.site)} has gates from {r.min():g} to {r.max():g}, not in (0, 1)"
        if not torch.allclose(built.write(state, u), built.kept(state, u) * state + r * u):
            return f"{_named(built.site)} does not write kept·h + gate·u"
    if not compared:
        raise NotApplicable("no write has a gate")
    return None


def compiled(model: Model, backend: str | Callable) -> None:
    """`compile_model` after a reset of the compiler; a graph break is an error."""
    torch._dynamo.reset()
    compile_model(model, backend)


def graphs(rule: str, values: str = "own") -> tuple[int, bool]:
    """The number of graphs in three training steps, and whether gradients equal the eager ones."""
    model = model_of(rule, values, scramble=True)
    idx = torch.arange(16).reshape(2, 8)
    weight = model.layers[0].mlp.up.weight
    expected = torch.autograd.grad(model(idx, idx.roll(1)), weight)[0]
    counter = CompileCounterWithBackend("aot_eager")
    compiled(model, counter)
    for _ in range(3):
        got = torch.autograd.grad(model(idx, idx.roll(1)), weight)[0]
    same = torch.allclose(got, expected, rtol=1.3e-6, atol=1e-5)
    return counter.frame_count, same


def one_graph(rule: str) -> str | None:
    """Check that all layers share one compiled graph with the gradients of the eager model."""
    try:
        count, same = graphs(rule)
    except Unsupported as error:
        return f"the graph breaks: {str(error).splitlines()[0]}"
    if count != 1:
        return f"{count} graphs for three blocks: the blocks differ, or one is recompiled"
    return None if same else "the compiled gradients differ from the eager ones"


CHECKS = (parameters, flops, gradients, coefficients, gate, one_graph)


def check(rule: str) -> dict[str, str | None]:
    """Run every check on a residual rule, on a model of three blocks of width 16.

    rule: with its options, as `--rule` takes it; its file, if it is in one, is allowed.

    The checks:

    parameters    declared parameter counts are the actual ones, at every site
    flops         declared matmul FLOPs are those that torch counts in a read and a write
    gradients     of the model's loss, against finite differences in float64
    coefficients  a write starts as carry·h + coefficient·u, as declared
    gate          a write is kept·h + gate·u after training, too, with a gate between 0 and 1
    one_graph     all blocks share one compiled graph, with the eager model's gradients

    Returns {name: None if it passes, else one line that says what is wrong}, without the checks
    that do not apply: `coefficients` where no write starts as one number on h and one on u, `gate`
    where none has a gate. A rule that raises an error fails with that error's line.

    Example:
        >>> from rr.analysis import check
        >>> list(check("standard"))  # which has no gate
        ['parameters', 'flops', 'gradients', 'coefficients', 'one_graph']
    """
    results = {}
    for one in CHECKS:
        try:
            results[one.__name__] = one(rule)
        except NotApplicable:
            continue
        except Exception as error:  # a rule that does not run fails each check with its own error
            line = str(error).strip().partition("\n")[0]
            results[one.__name__] = f"{type(error).__name__}: {line}"
    return results
