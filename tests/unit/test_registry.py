"""What every rule must hold to, for every rule in the registry: a new one gets all this unasked.

RR_RULE=my_rule.py:Class pytest tests/unit/test_registry.py    tests a rule of your own.

Exact resuming and compiling depend on what flows between layers: they are tested once for each kind
of that in `make test`, and for every rule in `make faults`.
"""

import contextlib
import os
import re
from dataclasses import replace

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from kinds import one_of_a_kind
from tiny import broken_off

from rr.analysis import rule_checks
from rr.analysis.rule_checks import graphs, model_of, shape
from rr.errors import RRError
from rr.model.sizes import RUNGS, SHAPE, parse_rung
from rr.options import parse_spec
from rr.residual import REGISTRY, ValueRule, allow_rule, canonical, resolve
from rr.residual.stack import grows
from rr.training.backend import BACKENDS, CHOICES, parse_backend

OWN = list(filter(None, [os.environ.get("RR_RULE")]))
allow_rule(*OWN)
RESIDUAL = [*REGISTRY["residual"], *OWN]
VALUES = list(REGISTRY["values"])
ARMS = [(rule, "own") for rule in RESIDUAL] + [("standard", v) for v in VALUES]
PROBES = {int: (0, 1, 2, 4), float: (-4.0, -0.7, 0.3, 2.0)}  # values for an option of that type


def test_dense_values_grow_whatever_their_options():
    assert grows(shape("standard", "dense:rate=2")) and grows(shape("standard", "dense"))
    assert not grows(shape("standard", "identity:rate=2"))


def with_options() -> list[str]:
    """Every rule with each of its options at values of its range, one at a time."""
    specs = []
    for rule in REGISTRY["residual"]:
        for key, option in resolve(rule, "residual")[0].options.items():
            kind, tried = type(option.default), []
            for value in PROBES[kind] if kind in PROBES else re.findall(r"[\w-]+", option.accepts):
                with contextlib.suppress(RRError):
                    canonical(f"{rule}:{key}={value}", "residual")  # accepted?
                    tried += [f"{rule}:{key}={value}"] * (value != option.default)
            assert tried, f"{rule}: {key} has no value here but its default"
            specs += tried
    return specs + TOGETHER


# Options of which one needs the other.
TOGETHER = [
    "hyper-connections:sinkhorn=1,single=1",
    "hyper-connections:sinkhorn=1,start=published",
    "x0-scales:start=nanochat,embedding=rms",
]


@pytest.mark.parametrize("rule", RESIDUAL)
@pytest.mark.parametrize("check", [c for c in rule_checks.CHECKS if c is not rule_checks.one_graph])
def test_what_a_rule_declares_holds(check, rule):
    try:
        assert check(rule) is None
    except rule_checks.NotApplicable as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("spec", with_options())
def test_what_a_rule_declares_holds_over_the_range_of_each_option(spec):
    try:
        rule_checks.model_of(spec)
    except RRError:
        pytest.skip("not at this width and depth")
    for check in (rule_checks.parameters, rule_checks.flops, rule_checks.coefficients):
        with contextlib.suppress(rule_checks.NotApplicable):
            assert check(spec) is None


@pytest.mark.parametrize(("rule", "values"), ARMS)
def test_bfloat16_stays_near_float32(rule, values):
    model = model_of(rule, values, d_model=64, d_ff=128, n_layer=4)
    idx = torch.randint(50, (4, 8), generator=torch.Generator().manual_seed(0))
    exact = model(idx)
    with torch.autocast("cpu", torch.bfloat16):
        near = model(idx)
        loss = model(idx, idx.roll(1))
    assert loss.dtype == torch.float32
    # bfloat16 keeps 8 bits: a few rounding errors of 2**-8 relative to the logits' spread.
    assert (near.float() - exact).abs().max() < 0.03 * exact.std() * 4


@pytest.mark.parametrize(("rule", "values"), one_of_a_kind(ARMS, OWN))
def test_all_layers_share_one_graph_and_never_recompile(rule, values):
    count, same = graphs(rule, values)
    # vstate is None before the first block of a pass, so a value rule that carries has a second
    # graph, as has one whose blocks are of two kinds; what grows with depth is one graph for the
    # whole model.
    of_values = resolve(values, "values")[0]
    mixes = of_values.values is not ValueRule.values or of_values.reads_ids()
    carries = mixes and not grows(shape(rule, values))
    assert same and count == (2 if carries else 1)


@pytest.mark.parametrize(("rule", "values"), one_of_a_kind(ARMS, OWN))
def test_a_broken_off_run_ends_as_if_it_had_not(rule, values, planned, tmp_path, cut_off):
    whole, again = broken_off(planned(rule=rule, values=values), tmp_path, cut_off)
    assert again["weights_sha256"] == whole["weights_sha256"]


NAMED = [(k, n) for k, names in REGISTRY.items() for n in names]
NAMED += [("residual", rule) for rule in OWN if not parse_spec(rule)[1]]


@pytest.mark.parametrize(("kind", "name"), NAMED)
def test_a_rule_describes_itself(kind, name):
    cls, _ = resolve(name, kind)
    assert cls.equation.count("{") == cls.equation.count("}")
    assert cls.source and cls.__doc__
    assert canonical(name, kind) == name
    for key, option in cls.options.items():
        assert option.meaning and canonical(f"{name}:{key}={option.default}", kind) == name


# -- texts of rules, rungs and backends -----------------------------------------------------------


def written(name: str, options: dict) -> str:
    return f"{name}:{','.join(f'{key}={value}' for key, value in options.items())}"


@st.composite
def rules_with_options(draw):
    """A rule that ships with rr, and accepted values of some of its options, in any order."""
    kind, name = draw(st.sampled_from([(k, n) for k, names in REGISTRY.items() for n in names]))
    known, given = resolve(name, kind)[0].options, {}
    for key in draw(st.lists(st.sampled_from(sorted(known)), unique=True)) if known else ():
        values = {
            int: st.integers(0, 2**40),
            float: st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False),
            str: st.sampled_from(re.findall(r"[\w-]+", known[key].accepts)),
        }[type(known[key].default)]
        given[key] = draw(values.filter(known[key].check))
    return kind, name, given


@given(rules_with_options())
def test_what_is_written_of_a_rule_is_read_back(drawn):
    kind, name, given = drawn
    cls, read = resolve(written(name, given), kind)
    assert (cls.name, read) == (name, given)
    text = canonical(written(name, given), kind)
    assert text == canonical(written(name, dict(reversed(given.items()))), kind)
    assert text == canonical(text, kind)  # and a default is as good as nothing
    defaults = {key: option.default for key, option in cls.options.items()}
    assert defaults | resolve(text, kind)[1] == defaults | given


@given(st.sampled_from(sorted(RUNGS)), st.dictionaries(st.sampled_from(SHAPE), st.integers(1, 999)))
def test_what_is_written_of_a_rung_is_read_back(name, sizes):
    rung, shape = parse_rung(written(name, sizes))
    assert shape == sizes and rung.name == name
    assert all(getattr(rung, key) == sizes[key] for key in ("n_layer", "d_model") if key in sizes)


@given(st.sampled_from(sorted(BACKENDS)), st.data())
def test_what_is_written_of_a_backend_is_read_back(name, data):
    choices = {key: st.sampled_from(list(known)) for key, known in CHOICES.items()}
    given = data.draw(st.fixed_dictionaries({}, optional=choices))
    assert parse_backend(written(name, given)) == replace(BACKENDS[name], **given)


WORDS = [
    *(name for names in (*REGISTRY.values(), RUNGS, BACKENDS) for name in names),
    *("c", "bias", "rank", "inputs", "d_model", "n_layer", "precision", "graph", "own.py", "Rule"),
    *("0", "-1", "1e999", "nan", "٣", "²", "1_0", "9" * 5000, "\0", " ", "both", "tf32"),
]
TEXTS = st.text() | st.lists(st.sampled_from([*WORDS, *":=,:=,:=,"]), max_size=8).map("".join)


@pytest.mark.parametrize(
    "read", [canonical, lambda text: canonical(text, "values"), parse_rung, parse_backend]
)
@given(text=TEXTS)
@example(text="nano:n_layer=" + "9" * 5000)
@example(text="review:rank=" + "9" * 5000)
@example(text="\0.py:Rule")
def test_any_text_is_read_or_refused_in_one_line(read, text):
    try:
        read(text)
    except RRError as refused:
        assert str(refused)
