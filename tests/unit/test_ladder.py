"""Sizes, costs and starts of models against the study's published table, hand counts and papers.

A published rung's name stands for its published size, or says which other size came out.

Initial weights of init=paper, for d = 64, d_ff = 256 and L = 8 blocks, so S = 16 branches; worked
out from the papers' equations and the authors' code, not by `rr`:

* ReZero: nn.Transformer's Xavier; q, k, v one matrix of 192 × 64: √(2/256) = 0.0883883;
  out √(2/128) = 0.125; MLP √(2/320) = 0.0790569.
* Fixup: the same Xavier, times 16^(−1/6) = 0.6299605 for q, k, v and 16^(−1/2) = ¼ for the MLP's
  first matrix; branch ends 0.
* DeepNorm: q, k Xavier √(2/128) = 0.125; v, out and MLP times β = 64^(−1/4) = 0.3535534.
"""

import json

import pytest
import torch
from test_published import SIZES, computed, load, only
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import rr
from rr.errors import RRError
from rr.model import Model, costs, initialise, sizes
from rr.residual import REGISTRY, RULES, Rule, allow_rule
from rr.specs import ModelConfig
from rr.training import planning
from rrbook import reports as report
from rrstudy import cli
from rrstudy.sweep import cells

FIGURES = computed(load("review_residuals_summary"))


@pytest.mark.parametrize("rule", ["review", "highway", "standard"])
@pytest.mark.parametrize("rung", SIZES)
def test_published_arms_have_their_published_parameters(rung, rule):
    """To the last parameter; test_published has them by hand, and as the study prints them."""
    config = sizes.arm(rung, rule, protocol="paper")
    with torch.device("meta"):
        counted = sum(p.numel() for p in Model(config).parameters())
    params = only(FIGURES, size=rung, arm=rule, metric="params")
    assert counted == costs.count(config) == params
    if rule == "review":
        assert costs.rule_params(config) == only(FIGURES, size=rung, metric="gate params")
        clean = rr.plan(rung, corpus="tinystories")  # read with GPT-2's tokens
        assert clean.source["tokenizer"] == "gpt2" and sizes.other_size(clean) is None
        assert costs.count(clean.model) == params
    else:
        assert config.d_model == only(FIGURES, size=rung, arm=rule, metric="d_model")


@pytest.mark.parametrize("rung", ["nano", "mini", "60M", "1B"])
@pytest.mark.parametrize("rule", ["standard", "constant", "highway"])
def test_clean_arms_are_matched_by_mlp_width(rung, rule):
    own, arm = sizes.arm(rung, "review"), sizes.arm(rung, rule)
    assert (arm.d_model, arm.n_head, arm.n_layer) == (own.d_model, own.n_head, own.n_layer)
    assert (arm.d_ff - own.d_ff) % 64 == 0
    step = 64 * arm.n_layer * (2 * arm.d_model + 1)
    assert abs(costs.count(arm) - costs.count(own)) <= step / 2
    # but not a body of one's own
    assert sizes.arm(f"{rung}:d_ff=128", rule).d_ff == 128
    assert sizes.arm(f"{rung}:n_layer=2", rule).d_ff == 4 * own.d_model


FORMS = ["hyper-connections:head=sigmoid", "hyper-connections:sinkhorn=1,head=sigmoid"]
COSTS = [(rule, "own") for rule in (*RULES, *FORMS)]
COSTS += [("standard", values) for values in REGISTRY["values"] if values != "own"]


@pytest.mark.parametrize(("rule", "values"), COSTS)
def test_training_flops_are_those_that_torch_counts(rule, values):
    """Under the math backend torch counts all T×T scores; ours are causal: (T+1)/2 of T."""
    config = ModelConfig(96, 2, 2, 32, 80, 16, rule, values, pad_vocab=False)
    model = Model(config)
    idx = torch.zeros(3, 16, dtype=torch.long)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        F.cross_entropy(model(idx).flatten(0, 1), idx.flatten()).backward()
    tokens, t = idx.numel(), config.seq_len
    full_attention = tokens * 3 * config.n_layer * 4 * config.d_model * t
    causal = tokens * 3 * config.n_layer * 4 * config.d_model * (t + 1) / 2
    counted = counter.get_total_flops() - full_attention + causal
    assert counted == tokens * costs.flops_per_token(config)


def test_loops_multiply_the_stack_and_not_the_head():
    one, four = (costs.flops_per_token(ModelConfig(96, 2, 2, 32, 80, n_loops=n)) for n in (1, 4))
    head = 3 * 2 * 96 * 32
    assert four - head == 4 * (one - head)


def test_llama_heads_have_an_even_number_of_channels():
    """Positions turn pairs of channels: the widened arms keep to it, other bodies are refused."""
    for rung in ("60M", "150M"):
        arm = sizes.arm(rung, "standard", protocol="paper", flavour="llama")
        assert arm.head_dim > 64 and arm.head_dim % 2 == 0
        assert costs.count(arm) >= costs.count(
            sizes.arm(rung, "review", protocol="paper", flavour="llama")
        )
    with pytest.raises(RRError, match="needs an even number per head: .* over 2 heads is 3"):
        sizes.arm("nano:d_model=6,n_head=2", "standard", flavour="llama")


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
        counts.append(costs.count(config))
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
    def id_of(rung="nano:n_layer=2,d_model=64", rule="constant", **more):
        return planning.specify(rung, rule, corpus="c", tokenizer="t", vocab_size=100, **more).id

    assert id_of() == id_of("nano:d_model=64,n_layer=2", "constant:c=0.5")
    assert id_of() != id_of(rule="constant:c=0.25")


# -- a published name and another size ------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "ways"),
    [
        ("train", ["60M", "--corpus tinystories", "--tokenizer"]),
        ("train --protocol paper", ["60M", "--corpus tinystories", "--tokenizer"]),
        ("sweep --dry-run", ["60M", "--corpus tinystories", "--tokenizer"]),
        ("train --corpus fables", ["--tokenizer gpt2", "bpe:N"]),
    ],
)
def test_without_a_text_or_its_tokens_both_ways_out_are_named(refuses, tmp_path, words, ways):
    line = refuses(*words.split(), "--rung", "60M", "--out", tmp_path / "out")
    assert all(way in line for way in ways)
    assert not (tmp_path / "out").exists()


def test_small_rungs_keep_their_text():
    for rung in ("nano", "mini", "nano:n_layer=2"):
        run = rr.plan(rung)
        assert run.source == {"corpus": "fables", "tokenizer": "bpe:1024"}
        assert sizes.other_size(run) is None
    assert rr.plan("nano").id == rr.plan("nano", corpus="fables", tokenizer="bpe:1024").id


def test_another_size_is_said_once_a_size_and_not_of_a_body_of_ones_own(tiny_corpus):
    printed = []
    options = {"rung": ["60M"], "seed": [0, 1], "corpus": [tiny_corpus], "tokenizer": ["bpe:300"]}
    assert len(cells(options, printed.append)) == 2
    by_hand = 59_470_848 - (50_257 - 300) * 512  # the embedding's rows, tied with the head
    assert printed == [
        f"rung 60M with vocabulary 300: {by_hand:,} parameters, not the published 59,470,848"
    ]
    printed.clear()
    cells({**options, "rung": ["60M:n_layer=2"]}, printed.append)
    assert not printed


def test_the_size_is_recorded_beside_the_name(tiny_corpus, tmp_path, monkeypatch, capsys):
    small = sizes.Rung("60M", 16, 1, 2, steps=2, batch=2, seq_len=16)
    monkeypatch.setitem(sizes.RUNGS, "60M", small)  # the name and all that hangs on it
    options = "--rung 60M --tokenizer bpe:300 --eval-batches 1 --threads 1 --corpus"
    assert cli.main(["train", *options.split(), tiny_corpus, "--out", str(tmp_path)]) == 0
    (folder,) = tmp_path.iterdir()
    params = costs.count(sizes.arm("60M", vocab_size=300))
    published = params + (50_257 - 300) * 16
    line = f"rung 60M with vocabulary 300: {params:,} parameters, not the published {published:,}"
    assert capsys.readouterr().err.count(line) == 1
    plan = json.loads((folder / "run.json").read_text())
    result = json.loads((folder / "result.json").read_text())
    for record in (plan["provenance"], result):
        assert (record["params"], record["published_params"]) == (params, published)
    assert "params" not in json.dumps(plan["run"])
    assert report.read(folder).made_by["published_params"] == published


def test_a_notebooks_paper_tier_is_the_published_model():
    run = report.chosen("paper", corpus="", tokenizer="", rung="")
    assert run.source == {"corpus": "tinystories", "tokenizer": "gpt2"}
    assert costs.count(run.model) == 59_470_848
    with pytest.raises(RRError, match="needs a text"):
        report.chosen("smoke", "60M", corpus="")
    assert report.chosen("smoke", "nano", corpus="").source["corpus"] == "fables"


# -- published starts -----------------------------------------------------------------------------

SHAPE = "nano:d_model=64,n_layer=8,n_head=2,d_ff=256,seq_len=32"
BY_HAND = {  # of q, k, v, out, up, down
    "rezero": (0.0883883, 0.0883883, 0.0883883, 0.125, 0.0790569, 0.0790569),
    "fixup": (0.0556812, 0.0556812, 0.0556812, 0.0, 0.0197642, 0.0),
    "deepnorm": (0.125, 0.125, 0.0441942, 0.0441942, 0.0279508, 0.0279508),
}


def drawn(spec):
    return initialise(Model(sizes.arm(SHAPE, spec)), seed=0)


@pytest.mark.parametrize("rule", BY_HAND)
def test_branches_start_as_their_paper_says(rule):
    parts = [
        (*b.attn.qkv.weight.chunk(3), b.attn.out.weight, b.mlp.up.weight, b.mlp.down.weight)
        for b in drawn(f"{rule}:init=paper").layers
    ]
    spreads = [torch.cat(part).std().item() for part in zip(*parts, strict=True)]
    # 8 blocks of 4,096 numbers or more: the spread of a sample is within 2 %
    assert spreads == pytest.approx(BY_HAND[rule], rel=0.02)


@pytest.mark.parametrize("rule", BY_HAND)
def test_the_stream_starts_at_an_rms_near_one(rule):
    idx = torch.randint(1000, (4, 32), generator=torch.Generator().manual_seed(0))
    for init, rms in (("paper", (1 + 64 * 0.02**2) ** 0.5), ("shared", 0.02 * 2**0.5)):
        model = drawn(f"{rule}:init={init}")
        x0 = model.token(idx) + model.position(torch.arange(32))
        seen = model.final_rule.open(x0)
        assert seen.pow(2).mean().sqrt().item() == pytest.approx(rms, rel=0.05)  # 128 tokens
        # what the first sublayer reads, for none of these three has a norm before it
        assert torch.equal(model.rules[0].read(seen)[0], seen)
        assert torch.isfinite(model.eval()(idx)).all()
