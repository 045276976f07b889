"""What a trained gate does: probes against weights read directly, loops, and changed models."""

import copy
import json
import runpy
import statistics
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch
from tiny import TINY

from rr import DATA
from rr.analysis.probes import trace
from rr.errors import RRError
from rr.model import Model, initialise, sizes
from rr.ops import rms_norm
from rrbook import gates
from rrbook.explorables.strip import strip_data

IDX, TARGETS = torch.randint(70, (2, 6, 16), generator=torch.Generator().manual_seed(0))
RECORDS = DATA / "measured" / "13_inside_the_gate"
STORY = json.loads((RECORDS / "story.json").read_text())


def model_of(rule="review", trained=True):
    model = initialise(Model(sizes.arm(TINY, rule, 70)), 0)
    source = torch.Generator().manual_seed(1)
    with torch.no_grad():  # away from the start, where every gate is one half
        for name, p in model.named_parameters():
            if trained and "rule" in name and p.ndim > 1:
                p.copy_(0.5 * torch.randn(p.shape, generator=source))
            elif trained:
                p.add_(0.2 * torch.randn(p.shape, generator=source))
    return model


@pytest.mark.parametrize(
    "rule", ["review", "review:groups=2", "review:rank=4", "state-gate", "update-gate", "highway"]
)
def test_the_two_parts_and_the_bias_are_the_logit(rule):
    gate = model_of(rule).rules[1]
    h, u = torch.randn(2, 3, 5, 16, generator=torch.Generator().manual_seed(2)).double() * 3
    a, c, b = gates.parts(gate, h, u)
    r = copy.deepcopy(gate).double().gate(h, u)
    torch.testing.assert_close(torch.sigmoid(a + c + b), r, rtol=1e-10, atol=1e-12)
    if rule == "review":
        weight = gate.weight.double()
        torch.testing.assert_close(a, rms_norm(h) @ weight[:, :16].T)
        torch.testing.assert_close(c, rms_norm(u) @ weight[:, 16:].T)
        torch.testing.assert_close(b.flatten(), gate.bias.double())
    assert a.any() == (rule != "update-gate")
    assert c.any() == (rule not in ("state-gate", "highway"))


def test_parts_keep_their_digits_where_single_precision_says_one():
    gate = model_of().rules[0]
    with torch.no_grad():
        gate.bias.fill_(20.0)  # σ(20) is 1 in single precision, and its logit infinite
    h, u = torch.randn(2, 1, 4, 16, generator=torch.Generator().manual_seed(3))
    a, c, b = gates.parts(gate, h, u)
    expected = rms_norm(h) @ gate.weight[:, :16].T
    torch.testing.assert_close(a, expected.double(), rtol=1e-4, atol=1e-4)
    assert torch.isfinite(c).all() and b.flatten().sub(20).abs().max() < 1e-6


@pytest.fixture(scope="module")
def measured():
    """A model, its loss at each token, and its gates."""
    model = model_of()
    return model, gates.losses(model, IDX, TARGETS), gates.trace_gates(model, IDX)


def test_losses_are_the_models_and_its_own_gate_costs_nothing(measured):
    model, base, _ = measured
    assert base.shape == IDX.shape
    assert base.mean().item() == pytest.approx(model(IDX, TARGETS).item(), rel=1e-5)
    own = {"own": lambda rule, h, u: rule.gate(h, u)}
    assert gates.costs(model, IDX, TARGETS, own, base)["own"].abs().max() < 1e-6
    assert "write" not in vars(model.rules[0])  # what was there is back


def test_one_half_is_the_constant_rule_on_the_same_body(measured):
    model, base, known = measured
    body = model_of("constant:c=0.5", trained=False)
    body.load_state_dict(model.state_dict(), strict=False)
    cost = gates.costs(model, IDX, TARGETS, gates.constants(model, known), base)["one half"]
    expected = body(IDX, TARGETS).item()
    assert (base.mean() + cost.mean()).item() == pytest.approx(expected, rel=1e-5)


def test_constants_are_the_means_of_the_gates(measured):
    model, _, known = measured
    alters = gates.constants(model, known)
    for i, rule in enumerate(model.rules):
        channels = alters["a number a channel"](rule, None, None)
        torch.testing.assert_close(channels, known.r[i].flatten(0, 1).mean(0))
        assert alters["a number a sublayer"](rule, None, None).item() == pytest.approx(
            known.r[i].mean().item(), rel=1e-5
        )


def test_a_part_at_its_mean_is_a_gate_with_another_bias(measured):
    model, _, known = measured
    h, u = torch.randn(2, 2, 5, 16, generator=torch.Generator().manual_seed(4))
    for i, rule in enumerate(model.rules):
        by_hand = rms_norm(h) @ rule.weight[:, :16].T + rule.bias + known.means[i, 1]
        gate = gates.partly(model, known)["the update at its mean"](rule, h, u)
        torch.testing.assert_close(gate, torch.sigmoid(by_hand).float(), rtol=1e-4, atol=1e-5)


def test_moments_of_the_parts_are_those_over_all_tokens(measured):
    model, _, seen = measured
    step = trace(model, IDX)[2]
    a, c, _ = gates.parts(model.rules[2], step.h, step.u)
    a, c = (x.flatten(0, 1).detach().numpy() for x in (a, c))
    for channel in (0, 7):
        cov = np.cov(a[:, channel], c[:, channel], ddof=0)
        np.testing.assert_allclose(seen.cov[2, :, :, channel].detach(), cov, rtol=1e-6, atol=1e-9)
    whole = (a + c).var(0).sum()
    shares = gates.logit_shares(seen.cov[2])
    assert shares["state"] == pytest.approx(a.var(0).sum() / whole)
    assert sum(shares.values()) == pytest.approx(1)


@pytest.mark.parametrize(("rule", "unread"), [("update-gate", "state"), ("state-gate", "update")])
def test_shuffling_what_a_gate_does_not_read_costs_nothing(rule, unread):
    model = model_of(rule)
    base = gates.losses(model, IDX, TARGETS)
    cost = gates.costs(model, IDX, TARGETS, gates.shuffled(0), base)
    assert cost[f"the {unread} shuffled"].abs().max() < 1e-6
    assert cost["both shuffled"].abs().max() > 1e-3


def test_both_shuffled_is_a_permutation_of_the_same_gates():
    rule = model_of().rules[0]
    h, u = torch.randn(2, 3, 5, 16, generator=torch.Generator().manual_seed(5))
    own = rule.gate(h, u).flatten(0, 1)
    other = gates.shuffled(0)["both shuffled"](rule, h, u).flatten(0, 1)
    gaps = torch.cdist(own, other)
    assert (gaps.min(1).values < 1e-5).all() and (gaps.diagonal() > 0.01).sum() > 10


def test_saved_is_the_loss_of_a_model_whose_gate_is_shut_there(measured):
    model, base, _ = measured
    saved = gates.one_by_one(model, IDX, TARGETS, gates.nothing) - base
    assert saved.shape == (4, 6, 16)
    for i in (0, 3):
        shut = copy.deepcopy(model)
        with torch.no_grad():
            shut.rules[i].weight.zero_()
            shut.rules[i].bias.fill_(-200.0)
        expected = gates.losses(shut, IDX, TARGETS) - base
        torch.testing.assert_close(saved[i], expected, rtol=1e-4, atol=1e-5)


def test_a_distribution_by_hand():
    facts = gates.distribution(torch.tensor([[0.05, 0.75], [0.45, 0.95]]))
    assert facts["mean"] == pytest.approx(0.55)
    assert facts["sd"] == pytest.approx(statistics.pstdev([0.05, 0.75, 0.45, 0.95]))
    assert facts["quantiles"] == pytest.approx(
        np.quantile([0.05, 0.75, 0.45, 0.95], gates.QUANTILES)
    )
    assert facts["channels"] == pytest.approx(np.quantile([0.25, 0.85], gates.QUANTILES))
    assert (facts["shut"], facts["open"]) == (0.25, 0.25)


def test_shares_of_variance_by_hand():
    channel, token = torch.tensor([0.1, 0.2, 0.6]), torch.tensor([0.0, 0.1, 0.2, 0.3])
    a, t = channel.var(correction=0).item(), token.var(correction=0).item()
    expected = {"channel": a / (a + t), "token": t / (a + t), "both": 0}
    assert gates.two_way(token[:, None] + channel) == pytest.approx(expected, abs=1e-6)
    # rows and columns that sum to zero: nothing but interaction
    assert gates.two_way(torch.tensor([[0.6, 0.4], [0.4, 0.6]])) == pytest.approx(
        {"channel": 0, "token": 0, "both": 1}, abs=1e-12
    )
    with pytest.raises(RRError, match="one constant"):
        gates.two_way(torch.full((3, 4), 0.5))


def test_tokens_by_loops():
    first = gates.first_seen(IDX)
    for b in range(6):
        for t in range(16):
            assert first[b, t] == (IDX[b, t] not in IDX[b, :t])
    places = gates.places(IDX, 4)
    assert places[0].tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    text = np.repeat(np.arange(70), np.arange(70))  # token k stands k times in the training text
    fifths = gates.fifths(SimpleNamespace(train=text, vocab_size=70), IDX)
    order = IDX.flatten().numpy().argsort()
    assert (np.diff(fifths.ravel()[order]) >= 0).all()
    assert np.bincount(fifths.ravel()).min() > 0.1 * IDX.numel()


def test_matching_takes_out_what_the_cells_explain():
    cells = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    group = np.array([True, False, False, False, True, True, True, False])
    y = 10.0 * cells + group  # raw means differ by the cells, too
    assert y[group].mean() - y[~group].mean() == pytest.approx(6)
    assert gates.matched(y, group, cells) == pytest.approx(1)
    with pytest.raises(RRError, match="nothing to match"):
        gates.matched(y, cells == 1, cells)


def test_correlations_against_scipy_and_their_nulls():
    source = np.random.default_rng(0)
    cells = np.broadcast_to(np.arange(40) // 10, (30, 40))
    x = source.normal(size=(30, 40)) + 5 * cells
    y = 0.3 * source.normal(size=(30, 40)) - 5 * cells
    r = gates.correlations(x, y, cells)
    assert r["spearman"] == pytest.approx(scipy.stats.spearmanr(x.ravel(), y.ravel()).statistic)
    assert r["pearson"] == pytest.approx(np.corrcoef(x.ravel(), y.ravel())[0, 1])
    assert r["spearman"] < -0.9 and abs(r["within"]) < 0.08  # the cells explain it all
    assert r["null"] == pytest.approx(1.96 / 1200**0.5, rel=0.25)
    assert r["null_windows"] > 0.9  # windows permuted: the place in them still explains it


def test_a_report_is_plain_and_adds_up():
    rng = np.random.default_rng(0)
    tokens = SimpleNamespace(
        train=rng.integers(0, 70, 900), valid=rng.integers(0, 70, 400), vocab_size=70
    )
    measure = RECORDS / "measure.py"
    reported = runpy.run_path(str(measure), run_name="imported")["report"]
    report = json.loads(json.dumps(reported(model_of(), tokens, 9)))
    assert len(report["sublayers"]) == 4 and len(report["costs"]) == 9
    for row in report["sublayers"]:
        assert sum(row["shares"].values()) == pytest.approx(1)
        assert sum(row["logit"].values()) == pytest.approx(1)
    with pytest.raises(RRError, match="the text has 24"):
        reported(model_of(), tokens, 25)


@pytest.mark.parametrize(
    ("rule", "loops", "words"),
    [
        ("standard", 1, "no additive gate"),
        ("review-convex", 1, "no additive gate"),
        ("review", 2, "one pass"),
    ],
)
def test_models_without_additive_gates_in_one_pass_are_refused(rule, loops, words):
    with pytest.raises(RRError, match=words):
        gates.gates_of(Model(sizes.arm(TINY, rule, 70, loops=loops)))


# ---- the records, and the explorable drawn from one -----------------------------------------


def test_records_are_of_recorded_runs():
    runs = pd.read_parquet(DATA / "measured" / "mini_arms" / "runs.parquet").set_index("id")
    records = [json.loads(path.read_text()) for path in RECORDS.glob("????????????.json")]
    assert records
    for record in records:
        assert record["corpus"] == "tinystories" and record["seed"] < 100
        if record["id"] in runs.index:  # the weights measured are those whose loss is recorded
            assert runs.weights_sha256[record["id"]] == record["weights_sha256"]
        for row in record["sublayers"]:
            assert sum(row["shares"].values()) == pytest.approx(1, abs=1e-5)


def test_strip_numbers_against_scipy(script):
    data = strip_data(STORY)
    calls = [[data, s, "saved"] for s in range(1, len(data["kinds"]) + 1)]
    for i, shown in enumerate(script("strip", "stripNumbers", *calls)):
        held, saved = np.array(data["held"][i]), np.array(data["saved"][i])
        assert shown["rank"] == pytest.approx(scipy.stats.spearmanr(held, saved).statistic)
        assert (shown["low"], shown["high"]) == (held.min(), held.max())
        assert (held[shown["at_low"]], held[shown["at_high"]]) == (held.min(), held.max())
        assert shown["mean"] == pytest.approx(held.mean()) and shown["helped"] == (saved > 0).sum()
    [sentence] = script("strip", "stripSentence", [data, 1, "loss"])
    luck = 1.96 / np.sqrt(len(data["loss"]) - 1)
    assert sentence.startswith("Sublayer 1, attention: ") and f"within ±{luck:.3g}." in sentence
