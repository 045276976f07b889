"""The ladder against the study's published table and hand counts."""

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from rr.config import ModelConfig, RRError
from rr.model import Model, ladder
from rr.residual import RULES, Rule, allow_rule

# rung, arm, d_model, exact parameters; the study's CSV prints them as params_M to two decimals.
PUBLISHED = [
    ("60M", "review", 512, 59_470_848, 59.47),
    ("60M", "highway", 544, 60_681_024, 60.68),
    ("60M", "standard", 568, 59_713_840, 59.71),
    ("150M", "review", 768, 152_160_768, 152.16),
    ("150M", "highway", 816, 153_210_528, 153.21),
    ("150M", "standard", 876, 154_868_040, 154.87),
    ("320M", "review", 1024, 320_374_784, 320.37),
    ("320M", "highway", 1104, 329_011_872, 329.01),
    ("320M", "standard", 1168, 321_136_928, 321.14),
    ("590M", "review", 1280, 589_278_720, 589.28),
    ("590M", "highway", 1380, 603_300_120, 603.30),
    ("590M", "standard", 1480, 600_782_320, 600.78),
    ("1B", "review", 1536, 984_038_400, 984.04),
    ("1B", "highway", 1648, 996_304_992, 996.30),
    ("1B", "standard", 1776, 998_584_416, 998.58),
]


@pytest.mark.parametrize(("rung", "rule", "d", "params", "params_m"), PUBLISHED)
def test_published_arms_have_their_published_parameters(rung, rule, d, params, params_m):
    config = ladder.arm(rung, rule, protocol="paper")
    with torch.device("meta"):
        model = Model(config)
    assert config.d_model == d
    assert sum(p.numel() for p in model.parameters()) == params == ladder.count(config)
    assert round(params / 1e6, 2) == params_m


def test_gate_parameters_are_the_hand_count():
    for rung, gates in (("60M", 8_396_800), ("1B", 226_566_144)):
        config = ladder.arm(rung, "review", protocol="paper")
        d, sublayers = config.d_model, 2 * config.n_layer
        assert ladder.rule_params(config) == sublayers * (2 * d * d + d) == gates


@pytest.mark.parametrize("rung", ["nano", "mini", "60M", "1B"])
@pytest.mark.parametrize("rule", ["standard", "constant", "highway"])
def test_clean_arms_are_matched_by_mlp_width(rung, rule):
    own = ladder.arm(rung, "review")
    arm = ladder.arm(rung, rule)
    assert (arm.d_model, arm.n_head, arm.n_layer) == (own.d_model, own.n_head, own.n_layer)
    assert (arm.d_ff - own.d_ff) % 64 == 0
    step = 64 * arm.n_layer * (2 * arm.d_model + 1)
    assert abs(ladder.count(arm) - ladder.count(own)) <= step / 2


def test_a_body_of_ones_own_is_not_matched():
    assert ladder.arm("nano:d_ff=100", "standard").d_ff == 100
    assert ladder.arm("nano:n_layer=2", "standard").d_ff == 4 * 128


@pytest.mark.parametrize("rule", ["standard", "review", "highway"])
def test_training_flops_are_those_that_torch_counts(rule):
    """Under the math backend torch counts all T×T scores; ours are causal: (T+1)/2 of T."""
    config = ModelConfig(96, 2, 2, 32, 80, seq_len=16, rule=rule, pad_vocab=False)
    model = Model(config)
    idx = torch.zeros(3, 16, dtype=torch.long)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        F.cross_entropy(model(idx).flatten(0, 1), idx.flatten()).backward()
    tokens, t = idx.numel(), config.seq_len
    full_attention = tokens * 3 * config.n_layer * 4 * config.d_model * t
    causal = tokens * 3 * config.n_layer * 4 * config.d_model * (t + 1) / 2
    counted = counter.get_total_flops() - full_attention + causal
    assert counted == tokens * ladder.flops_per_token(config)


def test_loops_multiply_the_stack_and_not_the_head():
    one, four = (ladder.flops_per_token(ModelConfig(96, 2, 2, 32, 80, n_loops=n)) for n in (1, 4))
    head = 3 * 2 * 96 * 32
    assert four - head == 4 * (one - head)


def test_llama_heads_have_an_even_number_of_channels():
    """Positions turn pairs of channels: the widened arms keep to it, other bodies are refused."""
    for rung in ("60M", "150M"):
        arm = ladder.arm(rung, "standard", protocol="paper", flavour="llama")
        assert arm.head_dim > 64 and arm.head_dim % 2 == 0
        assert ladder.count(arm) >= ladder.count(
            ladder.arm(rung, "review", protocol="paper", flavour="llama")
        )
    with pytest.raises(RRError, match="needs an even number per head: .* over 2 heads is 3"):
        ladder.arm("nano:d_model=6,n_head=2", "standard", flavour="llama")


def test_a_rule_registered_anew_is_counted_anew(monkeypatch):
    config = ModelConfig(64, n_layer=2, n_head=1, d_model=8, d_ff=32, rule="mine")
    counts = []
    for scalars in (0, 3):

        class Mine(Rule):
            equation, source = "h", "a reader"
            own = scalars

            def build(self, site, config):
                self.extra = torch.nn.Parameter(torch.zeros(self.own))

        monkeypatch.setitem(RULES, "mine", Mine)
        counts.append(ladder.count(config))
    assert counts[1] - counts[0] == 2 * 2 * 3


def test_a_readers_file_runs_once_until_it_is_named_again(tmp_path):
    path = tmp_path / "mine.py"
    text = "from rr import Rule\nclass Mine(Rule):\n    equation, source, n = 'h', 'a reader', {}\n"
    path.write_text(text.format(1))
    config = ModelConfig(64, n_layer=2, n_head=1, d_model=8, d_ff=32, rule=f"{path}:Mine")
    allow_rule(config.rule)
    assert len({type(rule) for rule in Model(config).rules}) == 1
    path.write_text(text.format(2))
    assert {rule.n for rule in Model(config).rules} == {1}  # as it was when it was named
    allow_rule(config.rule)
    assert {rule.n for rule in Model(config).rules} == {2}
    assert [p.name for p in tmp_path.iterdir()] == ["mine.py"]


def test_specifications_are_canonical():
    text = dict(corpus="c", tokenizer="t", vocab_size=100)
    ids = {
        ladder.specify("nano:d_model=64,n_layer=2", "constant:c=0.5", **text).id,
        ladder.specify("nano:n_layer=2,d_model=64", "constant", **text).id,
    }
    assert len(ids) == 1
    ids.add(ladder.specify("nano:n_layer=2,d_model=64", "constant", lr=1e-3, **text).id)
    ids.add(ladder.specify("nano:n_layer=2,d_model=64", "constant", seed=1, **text).id)
    ids.add(ladder.specify("nano:n_layer=2,d_model=64", "constant:c=0.25", **text).id)
    assert len(ids) == 4
