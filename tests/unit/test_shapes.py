"""Planning without torch counts what the model has: each rule and option, flavour, loops."""

import subprocess
import sys
from dataclasses import replace
from itertools import product

import pytest
from test_registry import with_options

from rr.config import ModelConfig, RRError
from rr.model import ladder, shapes
from rr.residual import REGISTRY, own

SHAPE = ModelConfig(60, n_layer=4, n_head=4, d_model=16, d_ff=40, seq_len=8, pad_vocab=True)
SHIPPED = {
    kind: [name for name, rule in rules.items() if own.ships(rule)]
    for kind, rules in REGISTRY.items()
}


@pytest.fixture
def stand_in(monkeypatch):
    """Switches planning to the stand-in for torch and back."""

    def switch(on: bool) -> None:
        monkeypatch.setattr(shapes, "stands_in", lambda *specs: on)

    return switch


def planned(config: ModelConfig) -> tuple | str:
    """What a plan reads off a model, or why there is none."""
    try:
        return tuple(f(config) for f in (ladder.count, ladder.rule_params, ladder.flops_per_token))
    except RRError as error:
        return str(error)


def both(stand_in, make):
    """`make()` without and with torch."""
    made = []
    for on in (True, False):
        stand_in(on)
        made.append(make())
    return made


def bodies():
    """Flavour, loops, a head of its own and shared key heads, each with each."""
    for flavour, loops, tied, kv in product(("gpt2", "llama"), (1, 3), (True, False), (None, 2)):
        yield replace(SHAPE, flavour=flavour, n_loops=loops, tied=tied, n_kv_head=kv)


@pytest.mark.parametrize("rule", SHIPPED["residual"])
def test_counts_are_those_of_the_model(rule, stand_in):
    """For every value rule beside it, too, as the two are built into one block."""
    for body, values in product(bodies(), SHIPPED["values"]):
        config = replace(body, rule=rule, values=values)
        without, real = both(stand_in, lambda c=config: planned(c))
        assert without == real, config


@pytest.mark.parametrize("kind", ["rule", "values"])
def test_counts_follow_the_options(kind, stand_in):
    """What a model of this shape refuses is refused in the same words."""
    values = ["sparse:blocks=1", "neutreno:residual=1", "constant:lam=3", "neutreno:gain=1"]
    for spec in with_options() if kind == "rule" else values:
        for loops in (1, 2):
            config = replace(SHAPE, n_loops=loops, **{kind: spec})
            without, real = both(stand_in, lambda c=config: planned(c))
            assert without == real, spec


@pytest.mark.parametrize("protocol", ["clean", "paper"])
def test_ids_are_the_same(protocol, stand_in):
    given = {"corpus": "a", "tokenizer": "b", "vocab_size": 500, "protocol": protocol}
    arms = [("standard", "own"), ("review:rank=4", "own"), ("constant:c=0.3", "sparse:blocks=2")]
    for rule, values in arms:
        without, real = both(
            stand_in, lambda r=rule, v=values: ladder.specify("mini", r, values=v, **given)
        )
        assert (without, without.id) == (real, real.id)


def test_the_descriptions_are_the_same(stand_in):
    without, real = both(stand_in, ladder.describe)
    assert without == [row for row in real if row["name"] in SHIPPED[row["kind"]]]


def test_what_only_torch_knows_is_left_to_it():
    """A constructor that asks for more than shapes: the stand-in gives up, and torch counts."""
    code = (
        "import sys\nfrom rr.model import ladder, shapes\n"
        "model = ladder.arm('nano', 'review')\nassert 'torch' not in sys.modules\n"
        "first = ladder.count(model)\nladder._built.cache_clear(), ladder._numbers.cache_clear()\n"
        "del shapes._Torch.zeros\n"
        "assert ladder.count(model) == first and 'torch' in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert not done.returncode, done.stderr
