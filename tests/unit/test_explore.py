"""Explorables: their mathematics against simulation and the real gate; their HTML's promises."""

import copy
import itertools
import math
import re

import numpy as np
import pytest

import rr
from rr.errors import RRError
from rr.residual import RULES
from rrbook.explorables import roofline
from rrbook.explorables.evidence import verdict_data
from rrbook.explorables.kit import number, share
from rrbook.explore import audit_rows, claim_map, depth_cliff, simulated_study, verdict_table
from rrstudy import stats
from tests.explorables import CLAIMS, PUBLISHED, RECORDED, STARTS

JUDGED = {
    c["id"]: ("shown", [n % 2 == 0] * len(c["parts"].split(" | "))) for n, c in enumerate(CLAIMS)
}
MADE = STARTS | {
    "claim-map": lambda: claim_map(audit_rows(CLAIMS, JUDGED)),
}


@pytest.fixture(scope="module", autouse=True)
def one_rung():
    """The roofline is given counts, which take it a quarter of a minute: test_speed_shown.py."""
    parts = dict.fromkeys(roofline.LONG, [1e12, 1e9, 1e9])
    paths = dict.fromkeys(roofline.PATHS, {"memory": 9e9, "parts": parts})
    counts = {"320M": {"tokens": 16384, "flops": 6e12, "micro": 64, "paths": paths}}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(roofline, "_rungs", lambda: counts)
        roofline.step_data.cache_clear()
        yield
    roofline.step_data.cache_clear()


# ---- mathematics -------------------------------------------------------------------------------


def test_stream_shares_are_what_a_simulation_finds(script):
    rules = {"sum": (1, 1), "half": (1, 0.5), "convex": (0.5, 0.5)}
    draws = np.random.default_rng(0).standard_normal((9, 200_000))  # the embedding and 8 updates
    every = script("stream", "streamNumbers", *([8, rule] for rule in rules))
    for (carry, write), numbers in zip(rules.values(), every, strict=True):
        h = draws[0]
        for u in draws[1:]:
            h = carry * h + write * u
        assert numbers["rms"][-1] == pytest.approx(math.sqrt(np.mean(h**2)), rel=0.01)
        # the share of an independent contribution is its squared correlation with the sum
        squared = [np.corrcoef(h, x)[0, 1] ** 2 for x in draws]
        assert numbers["shares"] == pytest.approx(squared, abs=0.01)
        assert sum(numbers["shares"]) == pytest.approx(1) and len(numbers["rms"]) == 9
    [sentence] = script("stream", "streamSentence", [32, "sum"])
    assert "After 32 sublayers under h + u the embedding holds 1/33 of the vector" in sentence


STATE = (1.2, 0.9)  # of the playground


def test_gate_is_the_real_one_with_a_diagonal_matrix(script):
    torch = pytest.importorskip("torch")
    from rr.residual import Site, make
    from rr.specs import ModelConfig

    rule = make(
        "review", Site("mlp", 2, n_layer=1, d_model=2, n_head=1), ModelConfig(8, 1, 1, 2, 8)
    )
    eye = torch.eye(2, dtype=torch.float64)
    weights = {"weight": torch.cat([-1.0 * eye, 2.5 * eye], 1), "bias": torch.full((2,), 0.5)}
    rule.double().load_state_dict(weights, strict=False)
    values = {"angle": 70, "size": 1.3, "state": -1.0, "update": 2.5, "bias": 0.5}
    [numbers] = script("gate", "gateNumbers", [values | {"rule": "review"}])
    h, u = (torch.tensor([[x]], dtype=torch.float64) for x in (STATE, numbers["u"]))
    r = rule.gate(h, u).detach()
    expected = {"r": r, "next": h + r * u, "convex": (1 - r) * h + r * u}
    for name, value in expected.items():
        assert numbers[name] == pytest.approx(value.flatten().tolist(), rel=1e-12)


def test_a_gated_write_turns_by_the_angle_of_complex_numbers(script):
    writes = [{"u1": 1.5, "u2": 0.8, "r1": r1, "r2": r2} for r1, r2 in ((0.9, 0.2), (0.5, 0.5))]
    turned, straight = script("write", "writeNumbers", *([one] for one in writes))
    u, step = complex(1.5, 0.8), complex(1.5 * 0.9, 0.8 * 0.2)
    assert turned["turn"] == pytest.approx(abs(np.angle(step / u, deg=True)))
    assert turned["kept"] == pytest.approx(abs(step / u))
    assert straight["turn"] == 0


@pytest.mark.parametrize(("sublayers", "bias"), [(4, 0.0), (12, -1.0), (24, -3.0)])
def test_cliff_is_what_a_simulation_finds(script, sublayers, bias):
    rng, r = np.random.default_rng(1), 1 / (1 + math.exp(-bias))
    convex = additive = rng.standard_normal(400_000)
    direct = 1.0
    for _ in range(sublayers):
        u = rng.standard_normal(convex.size)
        convex, additive, direct = (1 - r) * convex + r * u, additive + r * u, (1 - r) * direct
    share = direct / math.sqrt(np.mean(convex**2)), 1 / math.sqrt(np.mean(additive**2))
    [numbers] = script("cliff", "cliffNumbers", [sublayers, bias])
    assert numbers["convex"]["direct"] == pytest.approx(direct)
    shown = [numbers[name]["share"] for name in ("convex", "additive")]
    assert shown == pytest.approx(share, rel=0.01)


@pytest.mark.parametrize(
    "make, runs, change, words",
    [
        (depth_cliff, RECORDED, lambda runs: runs[1].update(loss=[1.0]), "3 steps and 1 losses"),
        (depth_cliff, RECORDED, lambda runs: runs[1].update(loss=[7.0, math.nan, 1.0]), "finite"),
        (depth_cliff, RECORDED, lambda runs: runs[1].pop("rule"), "recorded run 1 has no rule"),
        (verdict_table, PUBLISHED, lambda runs: runs.pop(), "need the same seeds"),
        (verdict_table, PUBLISHED, lambda runs: runs[0].update(val_loss=math.nan), "not finite"),
        (verdict_table, PUBLISHED, lambda runs: runs[0].pop("seed"), "run 0 has no seed"),
        (verdict_table, PUBLISHED, lambda runs: runs.append(runs[0]), "two runs of seed 0"),
    ],
)
def test_broken_runs_are_one_clear_line(make, runs, change, words):
    runs = copy.deepcopy(runs)
    change(runs)
    with pytest.raises(RRError, match=words):
        make(runs)


def test_verdicts_are_what_scipy_finds(script):
    from scipy import stats as st

    data = verdict_data(PUBLISHED)
    everything = {"alpha": 0.05, "baseline": "both"} | dict.fromkeys(data, True)
    p = {}
    for test in ("welch", "paired", "sign", "pooled"):
        chosen = everything | {"test": test, "correction": "none"}
        [rows] = script("evidence", "verdictNumbers", [data, chosen])
        assert len(rows) == 10 and all(row["p"] == row["q"] for row in rows)
        p |= {(test, row["rung"], row["base"]): row["p"] for row in rows}
    for rung, base in itertools.product(data, ("standard", "highway")):
        a, b = np.array(data[rung][base]), np.array(data[rung]["review"])
        welch, paired = st.ttest_ind(a, b, equal_var=False), st.ttest_rel(a, b)
        assert p["welch", rung, base] == pytest.approx(welch.pvalue)
        assert p["paired", rung, base] == pytest.approx(paired.pvalue)
        sign = st.binomtest(int((a > b).sum()), len(a))
        assert p["sign", rung, base] == pytest.approx(sign.pvalue)
    # one spread for all sizes is the residual error of an analysis of variance with a mean a size
    d = [np.subtract(arms["standard"], arms["review"]) for arms in data.values()]
    error = sum(((x - x.mean()) ** 2).sum() for x in d) / 9
    t = d[-1].mean() / math.sqrt(error / 3)
    assert p["pooled", "1B", "standard"] == pytest.approx(2 * st.t.sf(t, 9))


def test_corrected_verdicts_follow_the_picked_comparisons(script):
    data = verdict_data(PUBLISHED)
    for test, base in itertools.product(("welch", "paired"), ("both", "highway")):
        picked = dict.fromkeys(data, False) | dict.fromkeys(["60M", "590M", "1B"], True)
        chosen = picked | {"test": test, "alpha": 0.05, "baseline": base}
        calls = [[data, chosen | {"correction": name}] for name in ("none", "bonferroni", "holm")]
        plain, bonferroni, holm = script("evidence", "verdictNumbers", *calls)
        p = [row["p"] for row in plain]
        assert len(p) == (6 if base == "both" else 3)
        assert [row["q"] for row in bonferroni] == pytest.approx(stats.bonferroni(p))
        assert [row["q"] for row in holm] == pytest.approx(stats.holm(p))
        for row in holm:
            lower = "review" if row["gap"] < 0 else row["base"]
            assert row["verdict"] == (lower if row["q"] <= 0.05 else "undecided")


def test_the_scripts_t_distribution_is_scipys(script):
    from scipy import stats as st

    points = [[t, df] for t in (0, 1e-6, 0.3, 2, 12.7, 400) for df in (1, 1.9, 2, 9, 40.5, 1000)]
    tails = script("evidence", "tTail", *points)
    # SciPy itself is off by 3e-11 at t = 1e-6, df = 1, where the tail is 1 − 2·arctan(t)/π
    assert tails == pytest.approx([2 * st.t.sf(t, df) for t, df in points], rel=1e-10)
    assert tails[6] == pytest.approx(1 - 2 * math.atan(1e-6) / math.pi, rel=1e-13)


def test_numbers_in_words(script):
    numbers = {
        0: "0", 1 / 3: "0.333", 12.345: "12.3", 100: "100", -3: "−3", 999.6: "1000",
        0.00098: "9.8\u00a0×\u00a010⁻⁴", 1000: "1\u00a0×\u00a010³", 9.96e-10: "1\u00a0×\u00a010⁻⁹",
    }  # fmt: skip
    assert {x: number(x) for x in numbers} == numbers
    assert script("kit", "number", *([x] for x in numbers)) == list(numbers.values())
    shares = {1 / 33: "3.03\u00a0%", 1e-4: share(1e-4), 1e-9: "1\u00a0×\u00a010⁻⁹"}
    assert {x: share(x) for x in shares} == shares
    assert script("kit", "share", *([x] for x in shares)) == list(shares.values())


# ---- what the HTML promises --------------------------------------------------------------------


@pytest.mark.parametrize("name", MADE)
def test_html_is_self_contained_and_repeatable(name):
    made = MADE[name]()
    html = made._repr_html_()
    assert html == MADE[name]()._repr_html_() and repr(made) == repr(MADE[name]())
    assert "0x" not in repr(made) and "\n" not in repr(made)
    assert html.startswith(f'<figure class="rr-explorable" data-explorable="{name.split()[0]}"')
    # nothing is fetched: the only address is the name of SVG's namespace
    assert set(re.findall(r"https?:[^\"' ]*", html)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"\b(src|href|id|import|url)\s*[=(]", html)
    assert html.count("<script") == html.count("</script") == 1
    assert 'aria-live="polite"' in html and "prefers-color-scheme" not in html
    alone = re.sub(r' data-values="[^"]*"', "", html)
    assert len(alone.encode()) < 24_000
    form = re.search(r"<form.*?</form>", html, re.S)[0]
    controls = re.findall(r"<(?:input|select)\b", form)
    labelled = re.findall(r"<label>(?:(?!</label>).)*<(?:input|select)\b", form)
    assert len(controls) == len(labelled) >= 2
    assert len(re.search(r'role="img" aria-label="([^"]+)"', html)[1]) > 40


# ---- labs --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def labs():
    pytest.importorskip("ipywidgets")
    from rrbook import labs
    from rrbook.labs import depth, evidence, gate, lab, stream  # noqa: F401

    return labs


def sentence_of(lab):
    """What stands under a lab's picture, after checking that the picture carries it too."""
    value = lab.picture.value
    assert value.count('<svg role="img"') == 1
    sentence = re.search(r"<p[^>]*>(.*)</p>", value)[1]
    assert re.search(r'aria-label="([^"]*)"', value)[1] == sentence
    return sentence


def test_lab_frame_follows_its_controls_and_leaves_no_figure_open(labs):
    import ipywidgets
    from matplotlib import pyplot as plt

    def draw(k):
        fig, ax = plt.subplots()
        ax.plot([0, k])
        return fig, f"a line up to <{k}>"

    made = labs.lab.Lab("mine", {"k": ipywidgets.IntSlider(3)}, draw, "Move it.")
    assert sentence_of(made) == "a line up to &lt;3&gt;"
    made.controls["k"].value = 5
    assert sentence_of(made) == "a line up to &lt;5&gt;" and plt.get_fignums() == []


def test_lab_gate_drives_the_real_rule(labs):
    gate_values = labs.gate.gate_values
    assert (gate_values(0.0, 0.0, 1.0) == 0.5).all()
    r = gate_values(-1.0, 2.0, 1.0)
    assert gate_values(-1.0, 2.0, 3.0).numpy() == pytest.approx(r.numpy(), abs=1e-4)
    # Var of the gate's input is scale², its mean the bias
    inside = np.log(r.double().numpy() / (1 - r.double().numpy()))
    assert inside.mean() == pytest.approx(-1, abs=0.1)
    assert inside.std() == pytest.approx(2, rel=0.05)
    made = labs.gate.lab_gate()
    made.controls["scale"].value = 0
    assert "r is 0.5 on average; 0 of the gates are below 0.1" in sentence_of(made)


@pytest.mark.parametrize("sublayers", [4, 16, 32])
def test_recorded_nets_stand_in_one_order_with_their_held_out_losses(script, sublayers):
    runs = [run | {"held_out": 9.0} if run["rule"] == "convex" else run for run in RECORDED]
    [sentence] = script("cliff", "cliffSentence", [sublayers, 0, runs])
    mean = 3.0 + sublayers / 100 + 0.05  # of the two seeds; the curve ends elsewhere
    said = f"additive (b = 0) {mean:.3g}, convex (b = 0) 9 nats per token held out after 101 steps"
    assert said in sentence


def test_lab_stream_measures_a_real_model(labs):
    from rr.model import Model, initialise
    from rr.specs import ModelConfig

    shape = {"n_head": 1, "d_model": 16, "d_ff": 32, "seq_len": 128}
    config = ModelConfig(1024, 2, **shape, rule="constant:c=0")
    norms, slopes = labs.stream.stream_and_gradient(initialise(Model(config), 0))
    # a rule that writes nothing leaves stream and gradient as they are: N(0, 0.02²) twice
    assert len(norms) == len(slopes) == 5
    assert norms == pytest.approx([norms[0]] * 5) and norms[0] == pytest.approx(0.028, rel=0.2)
    assert slopes == pytest.approx([slopes[0]] * 5)


@pytest.mark.parametrize(
    "picked", [slice(3, None, 12), pytest.param(slice(None), marks=pytest.mark.slow)], ids=str
)
def test_lab_stream_measures_every_rule(labs, picked):
    made = labs.stream.lab_stream()
    made.controls["sublayers"].value = 4
    assert made.controls["rule"].options[picked]
    for rule in made.controls["rule"].options[picked]:
        made.controls["rule"].value = rule
        assert sentence_of(made).startswith(f"{rule}, 4 sublayers, at initialisation")


def test_lab_stream_draws_a_gradient_that_vanishes(labs, monkeypatch):
    class Erased(rr.Rule):
        def write(self, state, u):
            return 1e-30 * u

    monkeypatch.setitem(RULES, "erased", Erased)
    made = labs.stream.lab_stream()
    made.controls["rule"].value = "erased"
    assert "the gradient at the embedding is 0 times" in sentence_of(made)


def test_lab_depth_trains_a_real_net(labs, monkeypatch):
    depth = labs.depth
    stream = depth.letters(20)
    assert stream.max() < 256 and len(stream) > 2000
    losses = depth.trained_on_letters("review", 4, 12, stream)[1]
    assert losses[0] == pytest.approx(math.log(256), abs=0.05) and losses[-1] < losses[0] - 1
    assert depth.trained_on_letters("review", 4, 12, stream)[1] == losses
    with monkeypatch.context() as idle:  # until what it is asked for is small
        idle.setattr(depth, "trained_on_letters", lambda rule, n, steps, _: (None, [3.0] * steps))
        made = depth.lab_depth()
        assert "16 sublayers: 3 nats" in sentence_of(made) and "of 60 steps" in sentence_of(made)
        made.controls["sublayers"].value = 4
    made.controls["steps"].value = 20
    _, losses = depth.trained_on_letters("review-convex:bias=0", 4, 20, depth.letters())
    last = sum(losses[-10:]) / 10
    assert f"{number(last)} nats per byte over the last ten of 20 steps" in sentence_of(made)


def test_simulated_studies_have_the_truth_that_was_asked_for():
    rng = np.random.default_rng(3)
    a, b = simulated_study(0.02, 0.01, 0.8, 200_000, rng)
    assert a.mean() - b.mean() == pytest.approx(0.02, abs=1e-4)
    assert (a.std(), b.std()) == (pytest.approx(0.01, rel=0.01), pytest.approx(0.01, rel=0.01))
    assert np.corrcoef(a, b)[0, 1] == pytest.approx(0.8, abs=0.005)


def test_lab_evidence_runs_the_real_tests(labs):
    made = labs.evidence.lab_evidence(200)

    def shares():
        form = r"in ([\d.]+) % of (\d+) studies.*?in ([\d.]+) %; .* in ([\d.]+) %"
        return [float(share) for share in re.search(form, sentence_of(made)).groups()]

    welch, studies, paired, theory = shares()
    # four binomial standard errors around the noncentral t's answer
    assert studies == 200 and abs(paired - theory) < 4 * 100 * math.sqrt(0.25 / 200)
    assert welch < paired - 20  # Welch's test does not know what the arms share
    made.controls["gap"].value = 0
    made.controls["correlation"].value = 0.0
    welch, _, paired, theory = shares()
    assert theory == 5 and welch < 10 and 1 < paired < 10
