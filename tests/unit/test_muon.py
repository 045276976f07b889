"""Muon for the blocks' matrices: what it does to which of them, resumed, recorded and refused."""

import pytest
import torch
from tiny import broken_off, result_of, train
from torch.utils.flop_counter import FlopCounterMode

from rr.errors import RRError
from rr.model import Model, initialise
from rr.specs import ModelConfig, Recipe
from rr.training import memory
from rr.training.backend import parse_backend
from rr.training.distributed import World
from rr.training.optimizer import check_optimizer
from rr.training.step import OptimizerStep
from rrstudy.perf.budget import step_flops
from rrstudy.stats import as_rows, compare

SHAPE = {"vocab_size": 60, "n_layer": 2, "n_head": 2, "d_model": 32, "d_ff": 64, "seq_len": 8}
MATRICES = (
    "attn.qkv.weight",
    "attn.out.weight",
    "mlp.up.weight",
    "mlp.down.weight",
    "attn_rule.weight",
    "mlp_rule.weight",
)


def stepped(optimizer, rule="review", values="own", **recipe):
    """Weights before and after the first step of a model, and that step's gradients."""
    model = initialise(Model(ModelConfig(**SHAPE, rule=rule, values=values)), 0)
    with torch.no_grad():  # off the zeros that gates start with
        for p in model.parameters():
            p += 0.02 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1))
    settings = {"weight_decay": 0.0, "precision": "fp32", "optimizer": optimizer} | recipe
    step = OptimizerStep(
        model,
        Recipe(10, 4, 1e-2, 1, **settings),
        parse_backend("reference:precision=fp32"),
        torch.device("cpu"),
    )
    step.set_rate(1e-2)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    x = torch.randint(60, (4, 8), generator=torch.Generator().manual_seed(2))
    step(x, x.roll(-1, 1))
    grads = {name: p.grad for name, p in model.named_parameters()}
    return before, {name: p.detach() for name, p in model.named_parameters()}, grads, step


def test_the_blocks_matrices_move_by_their_gradients_orthogonal_factor():
    """−0.2·η·√max(A, B)·UVᵀ (2502.16982), U and V the gradient's singular vectors, by an SVD."""
    before, after, grads, _ = stepped("muon")
    taken = [name for name in before if name.startswith("layers.") and name.endswith(MATRICES)]
    assert len(taken) == 2 * len(MATRICES)
    for name in taken:
        moved = before[name] - after[name]
        u, s, v = torch.linalg.svd(grads[name].double(), full_matrices=False)
        size = 0.2 * 1e-2 * max(moved.shape) ** 0.5
        strong = s > 0.1 * s[0]  # five iterations lift what is far smaller only part of the way
        stretched = torch.einsum("ik,ij,kj->k", u, moved.double() / size, v)[strong]
        assert 0.6 < stretched.min() and stretched.max() < 1.3, name


def test_the_rest_moves_as_under_adamw():
    before, after, _, _ = stepped("muon")
    _, plain, _, _ = stepped("adamw")
    rest = [name for name in before if not (name.startswith("layers.") and name.endswith(MATRICES))]
    assert {"token.weight", "position.weight", "layers.0.mlp_rule.gain"} <= set(rest)
    for name in before:
        assert torch.equal(after[name], plain[name]) == (name in rest), name
        assert not torch.equal(after[name], before[name]), name


def test_decay_and_rates_by_depth_reach_both_parts():
    before, free, _, _ = stepped("muon")
    _, held, _, _ = stepped("muon", weight_decay=0.5)
    name = "layers.0.mlp.up.weight"
    shrunk = held[name] - free[name]
    torch.testing.assert_close(shrunk, -1e-2 * 0.5 * before[name], rtol=1e-3, atol=1e-7)
    assert torch.equal(held["token.weight"], free["token.weight"])  # protocol clean
    _, deep, _, step = stepped("muon", depth_lr=True)
    rate = (2 / 12) ** -0.5  # two blocks
    torch.testing.assert_close(
        before[name] - deep[name], rate * (before[name] - free[name]), rtol=1e-3, atol=1e-7
    )
    assert torch.equal(deep["token.weight"], free["token.weight"])
    step.set_rate(3e-3)
    assert {round(g["lr"] / 3e-3, 6) for g in step.optimizer.param_groups} == {1.0, round(rate, 6)}


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_rule_s_parameters_have_a_rate_of_their_own_and_no_decay(optimizer):
    """As nanochat ships its scales and value embeddings; one step of Adam moves by its rate."""
    rule = "x0-scales:start=nanochat,rate=0.25,rate_x0=25"
    rules = {"rule": rule, "values": "embeddings:rate=5"}
    before, after, _, step = stepped(optimizer, weight_decay=0.5, **rules)
    moved = {name: (after[name] - before[name]).abs() for name in before}
    factors = {".scales": 0.25, ".mu": 25, ".table": 5}
    seen = set()
    for name, change in moved.items():
        for end, factor in factors.items():
            if name.endswith(end):
                seen.add(end)
                largest = change.max().item()  # Adam's first step: the rate, whatever the gradient
                assert largest == pytest.approx(factor * 1e-2, rel=2e-2), name
    assert seen == set(factors)
    groups = {g.get("factor", 1.0): g["weight_decay"] for g in step.optimizer.param_groups
              if g.get("factor", 1.0) != 1.0}  # fmt: skip
    assert groups == {0.25: 0.0, 5.0: 0.0, 25.0: 0.0}
    step.set_rate(3e-3)
    assert {g["lr"] for g in step.optimizer.param_groups} == {3e-3 * f for f in (1, 0.25, 5, 25)}


def test_a_rate_for_a_rule_without_parameters_is_refused():
    for values in ("own", "embeddings:rate=5"):  # also beside one that has such parameters
        with pytest.raises(RRError, match="standard: rate is for parameters of the rule's own"):
            stepped("adamw", rule="standard:rate=2", values=values)


def test_a_broken_off_run_ends_as_if_it_had_not(planned, tmp_path, cut_off):
    whole, again = broken_off(planned(rule="review", optimizer="muon"), tmp_path, cut_off)
    assert again["weights_sha256"] == whole["weights_sha256"]
    plain = result_of(train(planned(rule="review"), tmp_path))
    assert "optimizer" not in plain and plain["weights_sha256"] != whole["weights_sha256"]
    # two optimisers are two protocols: their runs are in no comparison
    rows = as_rows(compare([whole, plain], "review"))
    assert {(row["optimizer"], row["n"]) for row in rows} == {(None, 1), ("muon", 1)}


def test_where_it_cannot_be_is_one_line(planned, monkeypatch, tmp_path):
    recipe = Recipe(10, 4, 1e-2, 1, optimizer="muon")
    with pytest.raises(RRError, match="--parallel ddp"):
        check_optimizer(recipe, World(0, 2, "fsdp"))
    check_optimizer(recipe, World(0, 2, "ddp"))
    with pytest.raises(RRError, match="did you mean muon"):
        planned(optimizer="moun")
    monkeypatch.delattr(torch.optim, "Muon")
    with pytest.raises(RRError, match="torch 2.9"):
        train(planned(optimizer="muon"), tmp_path)
    assert not list(tmp_path.iterdir())


def test_its_matrix_products_are_those_that_torch_counts():
    *_, step = stepped("muon")
    with FlopCounterMode(display=False) as counter:
        step.optimizer.step()
    config = ModelConfig(**SHAPE, rule="review")
    recipe = Recipe(10, 4, 1e-2, 1, optimizer="muon")
    assert step_flops(config, recipe) == counter.get_total_flops() > 0
    assert step_flops(config, Recipe(10, 4, 1e-2, 1)) == 0


def test_its_memory_is_counted():
    """One moment of the matrices instead of two: 4 bytes fewer for each of their entries."""
    config, path = ModelConfig(**SHAPE, rule="review"), parse_backend("eager")
    of = {
        name: memory.predict(config, path, 4, recipe=Recipe(10, 4, 1e-2, 1, optimizer=name))
        for name in ("adamw", "muon")
    }
    held = sum(
        p.numel()
        for name, p in Model(config).named_parameters()
        if name.startswith("layers.") and name.endswith(MATRICES)
    )
    # AdamW also counts the steps of each parameter, a float each
    assert of["adamw"]["moments"] - of["muon"]["moments"] == 4 * held + 4 * 2 * len(MATRICES)
