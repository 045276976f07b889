"""Chapter 12's lab: what a model's parameters are spent on, counted from the real modules."""

import ipywidgets as widgets

from rr.model import costs, sizes

from .. import figures
from ..explorables.kit import number
from .lab import Drawn, Lab

RULES = ("review", "highway", "gtrxl", "layerscale", "standard")


def budget(rung: str, rule: str, vocab_size: int = 50257) -> dict[str, int]:
    """Parameters of a rung's arm, as the study shapes it: gates, blocks, embeddings; they add up.

    gates: the rule's writes; embeddings: the tied head, counted once, and positions; blocks: all
    else. Raises RRError as `sizes.arm` does.
    """
    model = sizes.arm(rung, rule, vocab_size, protocol="paper")
    total, gates = costs.count(model), costs.rule_params(model)
    embeddings = (vocab_size + model.seq_len) * model.d_model
    return {"gates": gates, "blocks": total - gates - embeddings, "embeddings": embeddings}


def lab_audit() -> Lab:
    """Lab: the gates' share of a model, by size, rule and vocabulary."""

    def draw(rung: str, rule: str, vocabulary: int) -> Drawn:
        parts = budget(rung, rule, vocabulary)
        total = sum(parts.values())
        figure, ax = figures.canvas(height=1.9)
        figures.parameter_bar(ax, parts)
        share = 100 * parts["gates"] / total
        return figure, (
            f"{rule} at {rung}, {vocabulary} tokens in the vocabulary: {total / 1e6:.1f} million "
            f"parameters, of which gates {number(share)} %, blocks "
            f"{number(100 * parts['blocks'] / total)} % and embeddings "
            f"{number(100 * parts['embeddings'] / total)} %."
        )

    published = [name for name, rung in sizes.RUNGS.items() if rung.published]
    controls = {
        "rung": widgets.Dropdown(options=published, value="1B", description="size"),
        "rule": widgets.Dropdown(options=RULES, value="review", description="rule"),
        "vocabulary": widgets.SelectionSlider(
            options=[1024, 4096, 50257, 128256, 256000], value=50257, description="vocabulary"
        ),
    }
    lead = (
        "Every count is taken from the modules. At which settings do Review’s gates come nearest "
        "to 7\u00a0% of the model? (Networks with other "
        "rules are widened to Review’s count, as in the study.)"
    )
    grid = {
        "rung": ["60M", "320M", "1B"],
        "rule": ["review", "highway", "standard"],
        "vocabulary": [1024, 50257, 256000],
    }
    return Lab("audit", controls, draw, lead, grid)
