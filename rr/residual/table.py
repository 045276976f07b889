"""Every registered rule in plain types: equation, source, start, and costs as polynomials of d."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from ..specs import ModelConfig
from .base import REGISTRY, Rule
from .stack import Residuals
from .values import make_values

WIDTHS = (16, 32, 48, 80)  # at which costs are evaluated to print them as polynomials of d


def describe() -> list[dict]:
    """Every registered rule in plain types, from its class's declarations."""
    rows = []
    for kind, names in REGISTRY.items():
        for name, cls in names.items():
            flops = [_cost(name, kind, d)[1] for d in WIDTHS]
            rows.append(
                {
                    "name": name,
                    "kind": kind,
                    "equation": cls.equation,
                    "source": cls.source,
                    "shipped": cls.shipped,
                    "cost": {
                        "params_per_block": _params(name, kind),
                        "matmul_flops_per_token_and_block": polynomial(flops),
                    },
                    "coefficient": _start(name) if kind == "residual" else None,
                    "options": {key: option.meaning for key, option in cls.options.items()},
                }
            )
    return rows


def _params(name: str, kind: str) -> str:
    """Parameters of one rule in a middle block, as a polynomial of d and of the vocabulary V."""
    none, one = ([_cost(name, kind, d, vocab)[0] for d in WIDTHS] for vocab in (64, 65))
    per_row = [b - a for a, b in zip(none, one, strict=True)]
    rest = polynomial([a - 64 * row for a, row in zip(none, per_row, strict=True)])
    return f"V·{polynomial(per_row)} + {rest}" if any(per_row) else rest


def _cost(name: str, kind: str, d: int, vocab: int = 64) -> tuple[int, int]:
    """Parameters and forward FLOPs per token that one rule adds to a middle block of width d.

    Negative where a value rule removes the block's value projection.
    """
    named = {"rule": name} if kind == "residual" else {"values": name}
    config = replace(ModelConfig(vocab, n_layer=4, n_head=1, d_model=d, d_ff=4 * d), **named)
    rules = _middle(config)
    if kind == "values":
        site = rules[0].site
        rule = make_values(name, site, config)
        params, flops = rule.saved(config)
        return rule.params(site) - params, rule.matmul_flops(site) - flops
    pairs = [(rule.write_params(rule.site), rule.matmul_flops(rule.site)) for rule in rules]
    return sum(p for p, _ in pairs), sum(f for _, f in pairs)


def polynomial(costs: Sequence[int]) -> str:
    """`a d² + b d + c` through costs at WIDTHS; "" where the last disagrees with the others."""
    x, y, last = WIDTHS[:3], costs[:3], WIDTHS[3]
    a = (y[2] - 2 * y[1] + y[0]) // (2 * x[0] ** 2)
    b = (y[1] - y[0]) // x[0] - 3 * a * x[0]
    c = y[0] - a * x[0] ** 2 - b * x[0]
    if costs[3] != a * last**2 + b * last + c:
        return ""
    terms = []
    for factor, power in ((a, "d²"), (b, "d"), (c, "")):
        if factor and power and abs(factor) == 1:
            terms.append(power if factor > 0 else f"-{power}")
        elif factor:
            terms.append(f"{factor}{power}")
    return " + ".join(terms).replace("+ -", "- ") or "0"


def _middle(config: ModelConfig) -> tuple[Rule, Rule]:
    """The rules of a model's second block."""
    with torch.device("meta"):
        return Residuals.of(config).pairs[1]


def _start(name: str) -> float | None:
    rule, _ = _middle(ModelConfig(64, 12, 1, 8, 32, rule=name))  # 12 blocks, as GPT-2
    return rule.coefficient(rule.site)
