"""The field guide: what a rule does is found, not declared; its toy is rr's; its table whole."""

import json
import math
import re

import numpy as np
import pytest
import torch

import rr
from rr import DATA
from rr.errors import RRError
from rr.options import written
from rr.residual import REGISTRY, RULES, Site, make
from rr.residual.table import describe
from rr.specs import ModelConfig
from rrbook.anatomy import FAMILIES, anatomy
from rrbook.explorables.field import TOY
from rrbook.explorables.poster import rule_poster
from rrbook.explore import annotated_card, rule_gallery
from rrbook.labs.field import stream
from rrstudy import stats

RECORDS = DATA / "measured" / "04_field_guide"
# registered after the records were made
LATER = ("x0-scales", "unet", "parallel", "orthogonal", "scales-skips", "gated-residual", "keel",
         "delta", "lanes", "norm-place")  # fmt: skip

# ---- what a rule does --------------------------------------------------------------------------

# from the papers' equations, not from the code
KNOWN = {
    "standard": {"family": "scale", "norm": "read", "coefficient": 1, "learned": False},
    "constant": {"family": "scale", "coefficient": 0.5, "carry": 1, "learned": False},
    "rezero": {"family": "scale", "norm": "none", "coefficient": 0, "learned": True},
    "rezero:norm=pre": {"norm": "read"},
    "fixup": {"family": "scale", "norm": "none"},
    "layerscale": {"family": "scale", "coefficient": 0.1, "learned": True},
    "scaled": {"family": "scale", "coefficient": 1, "learned": False},
    "deepnorm": {"family": "carry", "norm": "write"},
    "highway": {"family": "gate", "gate": {"state": "raw"}},
    "state-gate": {"gate": {"state": "normalised"}, "coefficient": 0.5},
    "update-gate": {"gate": {"update": "normalised"}, "coefficient": 0.5},
    "review": {
        "family": "gate",
        "gate": {"state": "normalised", "update": "normalised"},
        "coefficient": 0.5,
        "carry": 1,
        "channels": "each channel",
    },
    "review:granularity=scalar": {"channels": "one"},
    "review:inputs=update": {"gate": {"update": "normalised"}},
    "review-convex": {"family": "carry", "coefficient": 0.5, "carry": 0.5, "remade": False},
    "highway-carry": {"family": "carry", "gate": {"state": "raw"}},
    "gtrxl": {"family": "carry", "gate": {"state": "raw", "update": "raw"}, "remade": True},
    "denseformer": {"family": "look-back", "mixes": "write", "norm": "read", "adds": True},
    "attnres": {"family": "look-back", "mixes": "read", "norm": "read", "adds": False},
    "hyper-connections": {
        "family": "streams",
        "streams": 4,
        "norm": "read",
        "mixed": True,
        "weighs": "number",
    },
    "hyper-connections:mix=identity": {"streams": 4, "mixed": False, "weighs": "number"},
    "gated-residual": {
        "family": "streams",
        "streams": 4,
        "norm": "read",
        "mixed": False,
        "weighs": "each channel",
        "apart": True,
    },
    "lanes": {"family": "streams", "streams": 2, "norm": "read", "mixed": False, "weighs": "one"},
    "parallel": {"family": "look-back", "streams": 1, "reads": "earlier", "learned": False},
    "scales-skips": {"family": "look-back", "mixes": "read", "reads": "both"},
    "keel": {"family": "carry", "norm": "both"},
    "norm-place": {"family": "scale", "norm": "read", "resized": True, "carry": 1},
    "norm-place:place=output": {"family": "scale", "norm": "none", "resized": True},
    "norm-place:place=stream": {"family": "carry", "norm": "write", "resized": False},
    "norm-place:place=depth": {"norm": "read", "resized": False, "coefficient": 1},
    "delta": {"norm": "read", "learned": True, "erases": True},
    "orthogonal": {"family": "carry", "orthogonal": True, "erases": False, "gate": {}},
    "x0-scales": {"family": "look-back", "reads": "both", "adds": True, "learned": True},
    "unet": {"family": "look-back", "reads": "both", "adds": True, "learned": True},
}
KNOWN_VALUES = {
    "own": {"first": 0, "own": 1, "blocks": []},
    "identity": {"first": 0.5, "own": 0.5, "blocks": [2, 3, 4], "learned": False},
    "constant": {"first": 2, "own": 1, "others": False},
    "sparse": {"first": 5, "own": 1, "blocks": [3, 4]},  # ⌈3L/8⌉ = 2 of 4
    "learnable": {"first": 0.5, "own": 0.5, "learned": True},
    "learnable-plus": {"own": 0.5, "learned": True, "blocks": [2, 3, 4]},
    "dense": {"first": 0, "own": 1, "others": True, "learned": True},
    "svformer": {"first": 1, "own": None, "blocks": [2, 3, 4]},
    "neutreno": {"first": 0, "own": 1, "after": True},
    "neutreno:residual=1": {"first": 0.5, "own": 0.5, "after": True},
    "gated-attention": {"first": 0, "own": 1, "learned": False, "gated": "each channel"},
    "gated-attention:granularity=head": {"blocks": [], "gated": "each head"},
    "embeddings": {"first": 0, "own": 1, "blocks": [], "looks_up": [2, 4], "gated": ""},
}


@pytest.mark.parametrize(
    "kind, spec",
    [*(("residual", spec) for spec in KNOWN), *(("values", spec) for spec in KNOWN_VALUES)],
)
def test_pushing_on_a_rule_finds_what_its_paper_says(kind, spec):
    facts, known = anatomy(spec, kind), KNOWN if kind == "residual" else KNOWN_VALUES
    for key, expected in known[spec].items():
        assert facts[key] == expected, key


def test_every_registered_rule_has_one_card_with_a_picture(monkeypatch):
    rows, shown = describe(), []
    monkeypatch.setattr("rr.residual.table.describe", lambda: rows)  # counted once for all families
    assert rule_gallery("gate").html == rule_gallery("gate").html
    for family in FAMILIES:
        html = rule_gallery(family).html
        names = re.findall(r'<p class="rr-name">([\w-]+)</p>', html)
        labels = re.findall(r'<svg [^>]*role="img" aria-label="([\w-]+): [^"]{15,}"', html)
        assert labels == names and html.count(r'<div class="math">\(') >= len(names)
        assert not re.search(r"\b(src|import|url)\s*[=(]", html)
        shown += [("values" if family == "values" else "residual", name) for name in names]
    assert sorted(shown) == sorted(
        (kind, written(name, kind)) for kind in REGISTRY for name in REGISTRY[kind]
    )
    with pytest.raises(RRError, match="no family 'gates'"):
        rule_gallery("gates")


def test_the_annotated_card_numbers_its_parts_and_says_each():
    html = annotated_card().html
    assert html == annotated_card().html
    assert html.count('class="pin"') == html.count("<li>") == 6
    with pytest.raises(RRError, match="unknown|no residual"):
        annotated_card("nosuchrule")


def test_the_poster_has_a_card_for_every_rule_with_its_three_answers():
    html = rule_poster()
    cards = re.findall(
        r'data-reads="(\w+)" data-keeps="(\w+)" data-writes="(\w+)">.*?rr-name">([\w-]+)<', html
    )
    assert sorted(name for *_, name in cards) == sorted(
        written(name, kind) for kind in REGISTRY for name in REGISTRY[kind]
    )
    shown = {name: answers for *answers, name in cards}
    assert shown["standard"] == ["stream", "all", "whole"]
    assert shown["rezero"] == ["stream", "all", "number"]
    assert shown["review"] == ["stream", "all", "gate"]
    assert shown["gtrxl"] == ["stream", "scaled", "gate"]
    assert shown["attnres"] == ["earlier", "apart", "whole"]
    assert shown["hyper-connections"] == ["streams", "mixed", "spread"]
    assert shown["delta"] == ["stream", "erased", "part"]
    assert shown["svformer"] == ["earlier", "all", "whole"]
    assert html.count('class="rr-mark"') == len(cards)


def test_a_readers_own_rule_gets_a_picture_without_a_word_of_its_own(monkeypatch):
    class Third(rr.Rule):
        name, equation, source = "third", r"h_l = h_{l-1} + r\,u_l", "a reader"

        def gate(self, h, u):
            return u.sigmoid() / 3

        def write(self, state, u):
            return state + self.gate(state, u) * u

        def coefficient(self, site):
            return None

    monkeypatch.setitem(RULES, "third", Third)
    assert anatomy("third")["gate"] == {"update": "raw"}
    assert anatomy("third")["family"] == "gate"
    assert '<p class="rr-name">third</p>' in rule_gallery("gate").html


# ---- the toy -----------------------------------------------------------------------------------

D, GAIN = 32, 1.6  # of the toy
BIASED = ("constant", "state-gate", "update-gate", "review", "highway", "review-convex",
          "highway-carry", "gtrxl")  # fmt: skip


def draw(key: int, n: int) -> np.ndarray:
    """n numbers of mean 0 and variance 1, the same here and in the script (mulberry32)."""
    mask = np.uint64(0xFFFFFFFF)
    start = np.uint64((key + 1) * 0x9E3779B1 & 0xFFFFFFFF)
    state = (start + np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x6D2B79F5)) & mask
    t = (state ^ (state >> np.uint64(15))) * (state | np.uint64(1)) & mask
    t ^= t + ((t ^ (t >> np.uint64(7))) * (t | np.uint64(61)) & mask) & mask
    t = (t ^ (t >> np.uint64(14))) & mask
    return (t / 4294967296 * 2 - 1) * np.sqrt(3)


def rule_spec(rule: str, bias: float) -> str:
    """The rule with the option that the slider sets, as `rr train` takes it.

    The constant rule gets c = σ(b), the coefficient of a gate with that bias and no weights.
    """
    if rule == "constant":
        return f"constant:c={1 / (1 + math.exp(-bias))}"
    return f"{rule}:bias={bias}" if rule in BIASED else rule


def _filler(sublayer: int):
    """What a rule's `reset` draws from: its first matrix, its second, its third."""
    keys = iter(range(1000 + sublayer, 10_000, 1000))

    def normal(tensor: torch.Tensor, std: float) -> None:
        numbers = draw(next(keys), tensor.numel()) * std
        tensor.copy_(torch.from_numpy(numbers).reshape(tensor.shape))

    return normal


def factors(rule, start: str) -> tuple[float, float]:
    """What a rule's initialisation makes of W₁ and W₂; 1 each where updates start at full size."""
    if start != "own":
        return 1.0, 1.0
    # GPT-2's 0.02 and Xavier's 1/√d are what the rules' laws begin with: 1/√d here
    unit = D**-0.5 if rule.name == "deepnorm" else 0.02
    return tuple(rule.init_std(rule.site, part, D, D) / unit for part in ("up", "down"))


def field_numbers(
    rule: str, sublayers: int, start: str = "unit", bias: float = 0.0
) -> dict[str, list[float]]:
    """The explorable's toy by rr's own rules and torch's derivatives: `norms` and `gradients`.

    rms of what is read before any norm at depth 0 … S; ‖∂loss/∂h_0‖, then ‖∂loss/∂u_l‖.
    """
    spec, L = rule_spec(rule, bias), sublayers // 2
    config = ModelConfig(64, n_layer=L, n_head=1, d_model=D, d_ff=4 * D, rule=spec)

    def vector(key: int, rows: int = 1, std: float = 1.0) -> torch.Tensor:
        return torch.from_numpy(draw(key, rows * D) * std).reshape(rows, D)

    def built(kind: str, sublayer: int):
        made = make(spec, Site(kind, sublayer, L, D, n_head=1), config).double()
        with torch.no_grad():
            made.reset(_filler(sublayer))
        return made

    first = vector(0).unsqueeze(0).requires_grad_()  # (1, 1, d)
    state, updates, norms = None, [], []
    for depth in range(1, sublayers + 1):
        own = built("attn" if depth % 2 else "mlp", depth)
        state = own.open(first) if state is None else state
        norms.append(stream(own, state).detach().pow(2).mean().sqrt().item())
        x, state = own.read(state)
        up, down = factors(own, start)
        u = torch.tanh(x @ vector(2 * depth, D, up / D**0.5).T)
        u = u @ vector(2 * depth + 1, D, down * GAIN / D**0.5).T
        u.retain_grad()
        updates.append(u)
        state = own.write(state, u)
    final = built("final", sublayers + 1)
    norms.append(stream(final, state).detach().pow(2).mean().sqrt().item())
    x, _ = final.read(state)
    (x * vector(1)).mean().backward()
    gradients = [0.0 if v.grad is None else v.grad.norm().item() for v in (first, *updates)]
    return {"norms": norms, "gradients": gradients}


CASES = [
    {"rule": rule, "sublayers": sublayers, "start": start, "bias": bias}
    for rule in TOY
    for sublayers, start, bias in ((4, "unit", 0.0), (12, "unit", 2.5), (40, "own", -2.0))
]


def test_the_script_is_rrs_own_rules(script):
    """The script has its own derivatives; Python runs the real rules under autograd."""
    every = script("field", "fieldNumbers", *([case] for case in CASES))
    for case, numbers in zip(CASES, every, strict=True):
        expected = field_numbers(**case)
        assert len(expected["norms"]) == len(expected["gradients"]) == case["sublayers"] + 1
        for key, values in expected.items():
            assert numbers[key] == pytest.approx(values, rel=1e-9, abs=1e-300), (case, key)


def test_the_real_model_under_the_same_two_measures():
    """∂loss/∂u_l of the standard rule is ∂loss/∂h_l, which `evaluate` measures in another way."""
    pytest.importorskip("ipywidgets")

    from rr.analysis import probes
    from rr.model import Model, initialise
    from rrbook.labs.field import lab_field, updates_and_gradients

    shape = {"vocab_size": 64, "n_layer": 2, "n_head": 1, "d_model": 16, "d_ff": 32, "seq_len": 9}
    model = initialise(Model(ModelConfig(**shape, rule="standard")), 0)
    source = torch.Generator().manual_seed(0)
    ids = torch.randint(64, (4, 9), generator=source)
    steps = probes.trace(model, ids[:, :-1])
    norms, slopes = updates_and_gradients(model)
    assert norms == pytest.approx(
        [probes.rms(steps[0].h), *(probes.rms(s.out) for s in steps)], rel=1e-6
    )
    by_stream = probes.gradient_by_depth(model, ids[:, :-1], ids[:, 1:])
    assert slopes == pytest.approx(by_stream, rel=1e-5)
    half = initialise(Model(ModelConfig(**shape, rule="constant:c=0.25")), 0)
    assert updates_and_gradients(half)[1][1:] == pytest.approx(
        [g / 4 for g in probes.gradient_by_depth(half, ids[:, :-1], ids[:, 1:])[1:]], rel=1e-5
    )
    made = lab_field()
    made.controls["sublayers"].value = 4
    for rule in ("attnres", "rezero"):
        made.controls["rule"].value = rule
        assert "<p style" in made.picture.value and f"{rule}, 4 sublayers" in made.picture.value
    assert "4 of 4 updates get no gradient" in made.picture.value


# ---- the figure and the table ------------------------------------------------------------------


def test_the_recorded_table_holds_every_registered_rule_at_three_paired_seeds():
    rows, seeds = stats.as_rows(stats.read_results(RECORDS)), {}
    for row in rows:
        arm = ("residual", row["rule"]) if row["values"] == "own" else ("values", row["values"])
        seeds.setdefault(arm, set()).add(row["seed"])
    names = {(kind, name) for kind in REGISTRY for name in REGISTRY[kind]} - {("values", "own")}
    later = {("residual", name) for name in LATER}
    later |= {("values", "gated-attention"), ("values", "embeddings")}
    assert names - set(seeds) == later  # the guide shows them as not run
    assert all(three == {0, 1, 2} for three in seeds.values())
    # one protocol, one text, one budget, one learning rate: nothing but the arm differs
    same = "rung protocol corpus corpus_id tokenizer steps batch lr precision tokens loops flavour"
    assert all(len({json.dumps(row.get(key)) for row in rows}) == 1 for key in same.split())
    assert {row["rule"] for row in rows if row["values"] != "own"} == {"standard"}
