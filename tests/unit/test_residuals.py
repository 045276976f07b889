"""`rr.Residuals`: any rule around any branches, and the same network as `rr.Model`."""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

import rr
from rr.analysis.rule_checks import model_of
from rr.model import initialise
from rr.residual import REGISTRY, RULES

IDX = torch.arange(12).reshape(2, 6)
FADED = """
import torch
import rr

class Own(rr.Rule):
    equation, source = "h + (1 - s) u, with s learned a channel", "a reader"

    def build(self, site, config):
        self.s = torch.nn.Parameter(torch.zeros(site.d_model))

    def write(self, state, u):
        return state + (1 - self.s) * u

    def write_params(self, site):
        return site.d_model
"""
FILLED = """
    def fill(self, normal):
        torch.nn.init.constant_(self.s, 0.5)
"""
RESET = """
    def reset(self, normal):  # as rules did it before there was `fill`
        super().reset(normal)
        if self.site.kind != "final":
            torch.nn.init.constant_(self.s, 0.5)
"""
NORMED = """
import rr
from rr.ops import rms_norm

class Own(rr.Rule):
    equation, source = "h + u, with a read of its own", "a reader"

    def read(self, state):
        return NORM, state

    def write(self, state, u):
        return state + u
"""


class EmptyInit(TorchFunctionMode):
    """As Lightning's Fabric builds a model: `torch.nn.init` does nothing, new memory is unset."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in (kwargs or {}) else args[0]
        made = func(*args, **(kwargs or {}))
        return made.fill_(torch.nan) if func is torch.empty else made


@pytest.fixture
def own(tmp_path):
    """own(name, code) -> the specification of the code's rule."""

    def saved(name, code):
        (tmp_path / f"{name}.py").write_text(code)
        return f"{tmp_path}/{name}.py:Own"

    return saved


def stack_of(model: rr.Model, rule: str, **options) -> rr.Residuals:
    """A stack of the model's shape, with the weights of its rules."""
    c = model.config
    stack = rr.Residuals(rule, c.d_model, c.n_layer, c.n_head, c.n_loops, **options)
    for mine, theirs in zip(stack.rules, model.rules, strict=True):
        mine.load_state_dict(theirs.state_dict())
    stack.final.load_state_dict(model.final_rule.state_dict())
    return stack


def by_hand(stack: rr.Residuals, body: rr.Model, idx: torch.Tensor) -> torch.Tensor:
    """Logits of the stack around the branches and the embedding of a model."""
    x = body.token(idx) + body.position.weight[: idx.shape[1]]
    state, blocks = stack.open(x), list(body.layers) * body.config.n_loops
    for i, block in enumerate(blocks):
        state = stack[2 * i](state, lambda x, block=block: block.attn(x)[0])
        state = stack[2 * i + 1](state, block.mlp)
    return F.linear(stack.close(state), body.token.weight)[..., : body.config.vocab_size]


def held_equal(rule: str, **shape) -> None:
    model = model_of(rule, scramble=True, n_layer=2, **shape)
    body = copy.deepcopy(model)
    stack = stack_of(model, rule)
    expected, got = model(IDX), by_hand(stack, body, IDX)
    assert torch.equal(got, expected)
    for logits in (expected, got):
        F.cross_entropy(logits.flatten(0, 1), IDX.roll(1).flatten()).backward()
    theirs = [p for rule in (*model.rules, model.final_rule) for p in rule.parameters()]
    mine = [p for rule in (*stack.rules, stack.final) for p in rule.parameters()]
    for kind in ("token", "position", "layers.0.attn.", "layers.1.mlp."):
        for net, parameters in ((body, mine), (model, theirs)):
            parameters += [p for name, p in net.named_parameters() if name.startswith(kind)]
    for a, b in zip(mine, theirs, strict=True):
        assert (a.grad is None) == (b.grad is None)
        assert a.grad is None or torch.equal(a.grad, b.grad)


@pytest.mark.parametrize(
    ("rule", "loops"),
    [
        *((rule, 1) for rule in RULES),
        *((rule, 3) for rule in ("review", "scaled", "hyper-connections")),
        *((f"{rule}per_pass=1", 3) for rule in ("review:", "rezero:norm=pre,")),
    ],
)
def test_a_stack_by_hand_is_the_model_to_the_bit(rule, loops):
    held_equal(rule, n_loops=loops)


def test_a_rule_of_the_readers_own_is_too(own):
    held_equal(own("faded", FADED))


@pytest.mark.parametrize("how", [FILLED, RESET])
def test_own_parameters_get_their_initial_values_where_they_are_built(own, how):
    """Not at the last read, which has none."""
    res = rr.Residuals(own("filled", FADED + how), 8, 1)
    assert all((rule.s == 0.5).all() and (rule.gain == 1).all() for rule in res.rules)
    assert (res.final.gain == 1).all() and not hasattr(res.final, "s")


def test_a_readers_own_read_asks_for_the_pre_norm(own):
    """`self.prenorm` works with and without a norm; the gain itself is not there without one."""
    direct = own("direct", NORMED.replace("NORM", "rms_norm(state, self.gain)"))
    asked = own("asked", NORMED.replace("NORM", "self.prenorm(state)"))
    x = torch.randn(1, 3, 8)
    expected = rr.Residuals("standard", 8, 1)[0](x, torch.tanh)
    for rule in (direct, asked):
        assert torch.equal(rr.Residuals(rule, 8, 1)[0](x, torch.tanh), expected)
    bare = rr.Residuals(asked, 8, 1, norm=False)
    assert torch.equal(bare[0](x, torch.tanh), x + x.tanh())
    with pytest.raises(rr.RRError, match=r"reads self.gain.*use self.prenorm"):
        rr.Residuals(direct, 8, 1, norm=False)


@pytest.mark.parametrize("rule", RULES)
def test_without_the_pre_norm_the_branch_brings_it(rule):
    """norm=False around branches that normalise by themselves is norm=True at a gain of 1."""
    mine = rr.Residuals(rule, 8, 2, n_head=2)
    bare = rr.Residuals(rule, 8, 2, n_head=2, norm=False)
    if not mine.final.norm_params(mine.final.site) or rule == "gated-residual":
        pytest.skip("it brings no pre-norm in any case, or normalises its streams before the mix")
    norm, mix = nn.RMSNorm(8, 1e-5), nn.Linear(8, 8)
    x = torch.randn(2, 3, 8)

    def through(stack, branch):
        state = stack.open(x)
        for i in range(len(stack)):
            state = stack[i](state, branch)
        return stack.close(state)

    got = norm(through(bare, lambda x: mix(norm(x))))
    torch.testing.assert_close(got, through(mine, mix))


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("rule", [*RULES, "review:per_pass=1"])
def test_costs_are_those_declared_and_counted(rule, norm):
    loops = 2 if "per_pass" in rule else 1
    stack = rr.Residuals(rule, 16, 3, n_head=2, loops=loops, norm=norm)
    costs = stack.costs()
    assert costs["params"] == sum(p.numel() for p in stack.parameters())
    with FlopCounterMode(display=False) as counter:
        state = stack.open(torch.randn(2, 5, 16))
        for sublayer in stack:
            state = sublayer(state, torch.tanh)
        stack.close(state)
    assert 2 * 5 * costs["flops_per_token"] == counter.get_total_flops()
    assert costs["state"] == RULES[rule.partition(":")[0]].state


@pytest.mark.parametrize("rule", RULES)
def test_a_new_stack_starts_by_its_seed(rule):
    stack, again, other = (rr.Residuals(rule, 16, 2, n_head=2, seed=s) for s in (5, 5, 6))
    values, same, others = (
        torch.cat([p.flatten() for p in net.parameters()]) for net in (stack, again, other)
    )
    assert values.isfinite().all() and torch.equal(values, same)
    drawn = rule in ("highway", "highway-carry", "gtrxl", "delta", "gated-residual")
    assert torch.equal(values, others) != drawn


def test_an_optimiser_decays_the_matrices_alone():
    stack = rr.Residuals("review:gain=1", 8, 2)
    decayed, kept = stack.parameter_groups(0.1)
    assert decayed["weight_decay"] == 0.1 and kept["weight_decay"] == 0
    assert {p.ndim for p in decayed["params"]} == {2} and len(decayed["params"]) == 4
    shapes = sorted(tuple(p.shape) for p in kept["params"])
    assert shapes == sorted([(8,), (8,), (2, 8)] * 4 + [(8,)])  # gains, biases, inner gains; final
    assert rr.Residuals("standard", 8, 2, norm=False).parameter_groups(0.1) == []


@pytest.mark.parametrize("rule", RULES)
def test_the_initial_weights_of_branches_follow_the_rules_law(rule):
    """As `rr.Model` draws them: 0.02, over √(2L) at a branch's end where the rule has no other."""
    stack = rr.Residuals(rule, 8, 3, n_head=2)
    model = model_of(rule, d_model=8, n_layer=3, d_ff=32)
    for i, built in enumerate(model.rules):
        assert stack.branch_gain(i) == built.branch_gain(built.site)
        for part in ("q", "k", "v", "out") if i % 2 == 0 else ("up", "down"):
            law = built.init_std(built.site, part, 8, 32)
            assert stack.init_std(i, part, 8, 32) == law
    if rule == "standard":
        assert stack.init_std(0, "out", 8, 8) == pytest.approx(0.02 / 6**0.5)


def test_a_branch_takes_and_returns_more():
    stack = rr.Residuals("constant", 4, 1)
    x = torch.randn(1, 2, 4)
    state, cache, n = stack[0](stack.open(x), lambda x, a, b=0: (x * a, "cache", b), 2.0, b=3)
    assert (cache, n) == ("cache", 3)
    torch.testing.assert_close(state, x + F.rms_norm(x, (4,), eps=1e-5))
    assert torch.is_tensor(stack[1](state, lambda x: x))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: rr.Residuals("standard", 0, 2), "dim must be"),
        (lambda: rr.Residuals("standard", 8, 2, n_head=3), "multiple of n_head, got 8 and 3"),
        (lambda: rr.Residuals("reveiw", 8, 2), "did you mean review"),
        (
            lambda: rr.Model(rr.ModelConfig(64, 1, 1, 8, 16, 16)).generate(
                torch.zeros(1, 17, dtype=torch.long), 1
            ),
            r"T at most seq_len 16.* got \(1, 17\)",
        ),
        (
            lambda: rr.Model(rr.ModelConfig(64, 1, 1, 8, 16, 16)).generate(
                torch.zeros(2, 3, dtype=torch.long), 1, stop=0
            ),
            r"one row with stop, got \(2, 3\)",
        ),
        (lambda: rr.Residuals("constant-resformer", 8, 2), "is a value rule, for --values"),
        (lambda: rr.plan("nano", values="review"), "is a residual rule, for --rule"),
        (lambda: rr.Residuals(None, 8, 2), "must be text, .* got None"),
        (lambda: rr.plan(None), "must be text, .* got None"),
        (lambda: rr.plan("nano", values=3), "must be text, .* got 3"),
        (lambda: rr.plan("nano", corpus=Path("a.txt")), "must be text, got PosixPath"),
        (lambda: rr.plan("nano", tokenizer=3), "must be text, got None and 3"),
        (lambda: rr.Residuals("attnres", 8, 2, loops=2), "needs loops=1, got 2"),
        (lambda: rr.Residuals("standard:per_pass=1", 8, 2, loops=2, norm=False), "per_pass=0"),
        (lambda: rr.Residuals("standard", 8, 2).open(torch.zeros(1, 3, 6)), r"got \(1, 3, 6\)"),
        (
            lambda: rr.Residuals("standard", 8, 2)[1](torch.zeros(1, 3, 8), nn.Linear(8, 6)),
            r"sublayer 2 must return \(1, 3, 8\).* got \(1, 3, 6\)",
        ),
        (
            lambda: rr.Residuals("standard", 8, 2)[0](torch.zeros(1, 3, 8), lambda x: None),
            r"must return \(1, 3, 8\).* got None",
        ),
        (lambda: rr.Residuals("standard", 8, 2).init_std(1, "out", 8, 8), "up, down, got 'out'"),
    ],
)
def test_bad_input_gets_one_line(call, words):
    with pytest.raises(rr.RRError, match=words):
        call()


def test_a_sublayer_that_is_not_there():
    stack = rr.Residuals("standard", 8, 2, loops=2)
    assert len(list(stack)) == len(stack) == 8 and stack.rule(0) is stack.rule(4)
    with pytest.raises(IndexError, match="0 to 7"):
        stack[8]


@pytest.mark.parametrize("name", [*RULES, "review:bias=7"])
def test_a_rule_starts_as_it_should_where_torch_nn_init_is_switched_off(name):
    shape = {"dim": 16, "n_layer": 4, "n_head": 2}
    wanted = rr.Residuals(name, **shape).state_dict()
    with EmptyInit():
        assert nn.init.constant_(torch.empty(1), 0).isnan()
        made = rr.Residuals(name, **shape)
    for key, value in made.state_dict().items():
        assert torch.equal(value, wanted[key]), key


@pytest.mark.parametrize("values", REGISTRY["values"])
def test_a_value_rule_starts_as_it_should_where_torch_nn_init_is_switched_off(values):
    config = rr.ModelConfig(40, n_layer=3, n_head=2, d_model=16, d_ff=32, values=values)
    wanted = initialise(rr.Model(config), 0)
    with EmptyInit():
        made = initialise(rr.Model(config), 0)
    for mine, theirs in zip(made.layers, wanted.layers, strict=True):
        for key, value in theirs.attn.rule.state_dict().items():
            assert torch.equal(mine.attn.rule.state_dict()[key], value), key
