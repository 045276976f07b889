"""Looping: one stack passed N times, its scales, its learning rates, and another N afterwards."""

from dataclasses import replace

import pytest
import torch
from small import IDX, TARGETS
from small import model_of as small
from tiny import broken_off, train
from torch._dynamo.testing import CompileCounterWithBackend

from rr.analysis.probes import norms_by_depth, trace
from rr.errors import RRError
from rr.model import Model, at_loops, costs, initialise, sizes
from rr.residual import REGISTRY, RULES, Rule
from rr.specs import ModelConfig, Recipe
from rr.training import loading
from rrstudy import cli

BODY = "nano:n_layer=2,d_model=32,n_head=2,seq_len=16"
LOOPED = [name for name, cls in RULES.items() if cls.state != "list"]
ONE_OF_A_KIND = ("review", "hyper-connections")  # of state


def model_of(rule="standard", loops=1, body=BODY, **more):
    return small(rule, body=body, loops=loops, **more)


# -- passes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", LOOPED)
def test_two_passes_are_the_stack_twice(rule):
    """By hand, layer after layer; values start afresh in each pass, so V₁ is of the same pass.

    test_values.py has caches for each pass.
    """
    looped = model_of(rule, 2, values="identity", moved=0.1)
    state = looped.final_rule.open(looped.token(IDX) + looped.position.weight[: IDX.shape[1]])
    for _ in range(2):
        vstate = None
        for layer in looped.layers:
            state, vstate = layer(state, vstate)
    assert torch.equal(looped.hidden(IDX), looped.final_rule.read(state)[0])


@pytest.mark.parametrize("rule", LOOPED)
def test_one_pass_is_the_plain_model(rule):
    plain, own = model_of(rule), model_of(f"{rule}:per_pass=1")
    own.load_state_dict(plain.state_dict())
    assert torch.equal(plain(IDX), own(IDX))


# -- parameters of its own in each pass ----------------------------------------------------------


@pytest.mark.parametrize("rule", LOOPED)
def test_copies_are_counted_once_a_pass_and_nothing_else_grows(rule):
    shared, own = (
        ModelConfig(70, 2, 2, 32, 64, n_loops=3, rule=f"{rule}{option}")
        for option in ("", ":per_pass=1")
    )
    model = Model(own)
    a_pass = sum(rule.params(rule.site) for layer in model.layers for rule in layer.rules)
    assert costs.count(own) == costs.count(shared) + 2 * a_pass
    assert costs.rule_params(own) == 3 * costs.rule_params(shared)
    assert costs.flops_per_token(own) == costs.flops_per_token(shared)
    assert len(model.rules) == 12
    held = [id(p) for rule in model.rules for p in rule.parameters()]
    assert len(set(held)) == len(held)  # no parameter is shared


def test_copies_with_equal_weights_are_the_shared_rule_and_learn_apart():
    shared, own = model_of("review", 3, moved=0.1), model_of("review:per_pass=1", 3)
    own.load_state_dict(shared.state_dict(), strict=False)
    for i, rule in enumerate(own.rules):
        rule.load_state_dict(shared.rules[i % 4].state_dict())
    assert torch.equal(own(IDX), shared(IDX))
    shared(IDX, TARGETS).backward()
    own(IDX, TARGETS).backward()
    first, second, third = (rule.weight.grad for rule in own.rules[1::4])
    torch.testing.assert_close(first + second + third, shared.rules[1].weight.grad)
    assert not torch.allclose(second, third)


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(rule, marks=[] if rule in ONE_OF_A_KIND else pytest.mark.slow)
        for rule in LOOPED
    ],
)
def test_copies_share_one_graph_too(rule):
    """The pass chooses a module, never a branch inside one: nothing is compiled anew for it."""
    model = model_of(f"{rule}:per_pass=1", 3, moved=0.1).float()
    weight = model.layers[0].mlp.up.weight
    expected = torch.autograd.grad(model(IDX, TARGETS), weight)[0]
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    for layers in model.passes:
        for layer in layers:
            layer.compile(backend=counter, fullgraph=True, dynamic=False)
    torch.testing.assert_close(torch.autograd.grad(model(IDX, TARGETS), weight)[0], expected)
    assert counter.frame_count == 1


def test_copies_where_they_mean_nothing():
    """test_residuals.py has the rule without a parameter that could be copied."""
    with pytest.raises(RRError, match="no option 'per_pass'"):
        sizes.arm(BODY, "attnres:per_pass=1")
    with pytest.raises(RRError, match="per_pass must be 0 or 1, got 2"):
        sizes.arm(BODY, "review:per_pass=2")


# -- another number of passes --------------------------------------------------------------------


@pytest.mark.parametrize("rule", LOOPED)
def test_a_model_run_at_another_number_of_passes(rule):
    model = model_of(rule, 2, moved=0.1)
    for loops in (1, 2, 5):
        config = replace(model.config, n_loops=loops)
        built = Model(config).double()
        built.load_state_dict(model.state_dict())
        other = at_loops(model, loops)
        assert torch.equal(other(IDX), built(IDX)) and other.config == config
        kept = at_loops(model, loops, keep_scale=True)
        same = loops == 2 or rule not in ("scaled", "deepnorm", "keel")
        assert torch.equal(kept(IDX), other(IDX)) == same
    assert model.config.n_loops == 2 and model(IDX).dtype == torch.float64


def test_scaled_takes_the_epsilon_of_the_new_number_or_keeps_its_own():
    model = model_of("scaled:reference=2", 4)
    for keep, epsilon in ((False, 1 / 8), (True, 1 / 4)):
        steps = trace(at_loops(model, 8, keep), IDX)
        factors = [((step.out - step.h).norm() / step.u.norm()).item() for step in steps]
        assert factors == pytest.approx([epsilon] * 32)
    again = at_loops(at_loops(model, 8, keep_scale=True), 2, keep_scale=True)  # still trained at 4
    assert again.rules[0].coefficient(again.rules[0].site) == 1 / 4


@pytest.mark.parametrize(("init", "std"), [("depth", 0.02 / 96**0.5), ("flat", 0.02)])
def test_initial_branch_ends_of_scaled(init, std):
    """48 blocks: divided by √(2L), or as every other matrix, which is what the paper has."""
    config = ModelConfig(70, 48, 2, 32, 256, rule=f"scaled:init={init}", n_loops=2)
    for layer in initialise(Model(config), 0).layers[::47]:
        assert layer.mlp.down.weight.std().item() == pytest.approx(std, rel=0.05)
        assert layer.attn.out.weight.std().item() == pytest.approx(std, rel=0.05)
        assert layer.mlp.up.weight.std().item() == pytest.approx(0.02, rel=0.05)


def test_two_factor_law_keeps_the_last_norm_over_a_grid():
    """ε = 1/(N√L): the same within a third over 1 … 8 passes of 2 … 8 blocks; 1/√(NL) is not."""

    def last(blocks, loops, law):
        rule = f"scaled:reference=1,init=flat,law={law}"
        body = f"nano:n_layer={blocks},d_model=64,n_head=2,seq_len=16"
        return norms_by_depth(model_of(rule, loops, body=body), IDX)[-1]

    grid = {
        law: [last(blocks, loops, law) for blocks in (2, 8) for loops in (2, 8)]
        for law in ("linear", "sqrt")
    }
    assert max(grid["linear"]) / min(grid["linear"]) < 4 / 3
    assert max(grid["sqrt"]) / min(grid["sqrt"]) > 5 / 3


def test_what_belongs_to_one_number_of_passes_is_refused():
    for rule in ("denseformer", "attnres", "unet"):
        with pytest.raises(RRError, match=f"^{rule} mixes fixed depths and needs loops=1"):
            at_loops(model_of(rule), 2)
    with pytest.raises(RRError, match="expected loops=3, got 2"):
        at_loops(model_of("review:per_pass=1", 3), 2)
    for loops in (0, 1.5, True):
        with pytest.raises(RRError, match="^n_loops must be an integer ≥ 1, got "):
            at_loops(model_of(), loops)


def test_a_run_is_loaded_at_another_number_of_passes(planned, tmp_path, capsys, refuses):
    folder = train(planned(rule="scaled", loops=2, steps=2), tmp_path)
    own, _, _ = loading.load(folder)
    other, run, _ = loading.load(folder, loops=3)
    assert (own.config.n_loops, other.config.n_loops, run.loops) == (2, 3, 2)
    assert torch.equal(at_loops(own, 3)(IDX), other(IDX))
    kept = loading.load(folder, loops=3, keep_scale=True)[0]
    assert torch.equal(at_loops(own, 3, keep_scale=True)(IDX), kept(IDX))
    assert not torch.equal(kept(IDX), other(IDX))
    with pytest.raises(RRError, match="keep-scale needs loops"):
        loading.load(folder, keep_scale=True)

    def sample(*more):
        code = cli.main(["sample", str(folder), "--temperature", "0", "--tokens", "9", *more])
        return code, *capsys.readouterr()

    assert sample() == sample("--loops", "2") and sample("--loops", "3", "--keep-scale")[0] == 0
    assert "n_loops must be" in refuses("sample", folder, "--loops", 0)


# -- the learning rate by depth ------------------------------------------------------------------


def test_rates_by_depth_are_the_papers():
    recipe = Recipe(10, 1, 1.25e-3, 1, depth_lr=True)
    for blocks, rate in ((12, 1.25e-3), (24, 8.84e-4), (48, 6.25e-4)):
        assert recipe.lr * recipe.block_factor(blocks) == pytest.approx(rate, rel=2e-4)
    assert Recipe(10, 1, 1.25e-3, 1).block_factor(48) == 1.0


@pytest.fixture
def begun(planned, tmp_path, cut_off, steppers):
    """begun(steps, **changes) -> a run, and its `OptimizerStep` after so many steps of training."""

    def make(taken=0, **changes):
        run = planned(**changes)
        with cut_off(taken):
            train(run, tmp_path / str(taken))
        return run, steppers[-1]

    return make


def group_of_each(stepper) -> dict:
    """Every parameter's name -> its group in the optimiser, which has each once."""
    names = {id(p): name for name, p in stepper.model.named_parameters()}
    pairs = [
        (names.pop(id(p)), group)
        for group in stepper.optimizer.param_groups
        for p in group["params"]
    ]
    assert not names
    return dict(pairs)


@pytest.mark.parametrize("protocol", ["clean", "paper"])
@pytest.mark.parametrize("loops", [1, 3])
def test_groups_of_a_run_with_rates_by_depth(begun, protocol, loops):
    """The blocks' parameters at lr·(2/12)^(−½) with eps likewise, at any N."""
    how = {"rule": "review:per_pass=1", "loops": loops, "protocol": protocol, "lr": 1e-3}
    run, scaled = begun(1, depth_lr=True, **how)
    plain = group_of_each(begun(**how)[1])
    for name, group in group_of_each(scaled).items():
        factor = 1.0 if name.startswith(("token", "position", "final_rule")) else 6**0.5
        assert group["lr"] == pytest.approx(run.recipe.lr_at(0) * factor)
        assert group["eps"] == pytest.approx(1e-8 * factor)
        assert group["weight_decay"] == plain[name]["weight_decay"]


def test_without_rates_by_depth_there_are_two_groups(begun):
    """Records from before the option keep their ids: test_records.py."""
    groups = begun()[1].optimizer.param_groups
    assert len(groups) == 2 and not any("factor" in group for group in groups)


@pytest.mark.parametrize("rule", ["standard", "review:per_pass=1"])
def test_a_broken_off_run_ends_as_if_it_had_not(rule, planned, tmp_path, cut_off):
    run = planned(rule=rule, loops=2, depth_lr=True)
    whole, again = broken_off(run, tmp_path, cut_off)
    assert whole["depth_lr"] is True
    assert again["weights_sha256"] == whole["weights_sha256"]


def test_a_rule_that_was_registered_again_is_not_given_old_weights(monkeypatch):
    def made(sign: float) -> type[Rule]:
        class Mine(Rule):
            equation, source = r"h \pm u", "a test"

            def build(self, site, config):
                self.own = torch.nn.Parameter(torch.zeros(2 + int(sign)))

            def write(self, state, u):
                return state + sign * u

            def write_params(self, site):
                return 2 + int(sign)

        Mine.name = "mine"
        return Mine

    monkeypatch.setitem(REGISTRY["residual"], "mine", made(1.0))
    model = Model(ModelConfig(64, n_layer=2, n_head=2, d_model=8, d_ff=16, rule="mine"))
    assert at_loops(model, 2).config.n_loops == 2
    monkeypatch.setitem(REGISTRY["residual"], "mine", made(-1.0))
    with pytest.raises(RRError, match="has another class by now"):
        at_loops(model, 2)
