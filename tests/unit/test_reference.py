"""The API reference: what docstrings become on its pages, and what each page shows."""

import re

import pytest
import reference
from docstrings import aligned, escaped, prose

from rr.residual import REGISTRY

LINKS = {"rrstudy.stats.fit": "fit", "fit": "fit", "Fit": "result", "rates": "rates"}


@pytest.mark.parametrize(
    ("text", "page"),
    [
        (
            "as `fit()` and `rrstudy.stats.fit` do",
            "as [`fit()`](#fit) and [`rrstudy.stats.fit`](#fit) do",
        ),
        ("`Fit`", "[`Fit`](#result)"),
        ("`fit` and `rates`", "`fit` and `rates`"),  # the key of a row, or a parameter
        ("*one* thing, x*y, t*·s, a_b", r"*one* thing, x\*y, t\*·s, a\_b"),
        ("see chapter 9", "see [chapter 9](../../notebooks/09_scaling_run.ipynb)"),
    ],
)
def test_text_of_a_docstring_on_its_page(text, page):
    assert escaped(text, LINKS) == page


def test_an_aligned_block_becomes_a_list():
    block = "dim      d, channels\nn_layer  L, blocks\n         of two sublayers"
    assert aligned(block) == [("dim", "d, channels"), ("n_layer", "L, blocks of two sublayers")]
    assert aligned("x = f(y)   # a comment") == aligned("words over\ntwo lines") == []
    assert prose(block, {"dim": "dim: int"}, {}).splitlines()[0] == "* `dim: int`: d, channels"


def test_parameters_results_errors_and_sources_stand_apart():
    text = "Of x. x: numbers; level: of it. Returns a pair. Raises RRError for none. Source: Me."
    lines = [line for line in prose(text, {"x": "x", "level": "level"}, {}).splitlines() if line]
    assert lines == ["Of x.", "* `x`: numbers", "* `level`: of it.", "**Returns** a pair.",
                     "**Raises** RRError for none.", "**Source:** Me."]  # fmt: skip


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    links = reference.targets()
    return {package: reference.page(package, links) for package in reference.PACKAGES}


def test_every_rule_is_shown_with_its_equation_and_options(pages):
    page = pages["rr.residual"]
    for kind, rules in REGISTRY.items():
        for name, cls in rules.items():
            entry = page.partition(f"(api-rule-{kind}-{name})=")[2].partition("\n(api-")[0]
            assert cls.equation in entry, name
            assert all(f"| `{option}` | `" in entry for option in cls.options), name


def test_every_link_within_the_reference_has_its_target(pages):
    text = "\n".join(pages.values())
    targets = set(re.findall(r"(?m)^\((api-\S+)\)=$", text))
    assert set(re.findall(r"\]\(#(api-[^)]+)\)", text)) <= targets
