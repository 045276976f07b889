"""Chapter 05's explorable: how alike tokens become when attention averages their values."""

import math
from typing import Any

from . import kit

RULES = {
    "own": "own: Vₙ",
    "identity": "identity: ½V₁ + ½Vₙ",
    "constant": "constant: λV₁ + Vₙ",
    "svformer": "svformer: V₁",
    "neutreno": "neutreno: AVₙ + λ(V₁ − Vₙ)",
}
TOKENS = 16


def value_numbers(rule: str, lam: float, even: float, blocks: int) -> dict[str, list[float]]:
    """Token similarity and what tokens keep of themselves, after 0 … `blocks` attentions.

    Sixteen tokens start as orthogonal unit vectors; W_V and W_O are 1, and there is no MLP:
    h ← h + A·V' with V_n = h/‖h‖ token by token, V' as the rule has it (block 1 is plain), and
    A = (1 − m)·1 + m·U, where U looks at each token's past evenly and m is `even`. NeuTRENO writes
    A·V_n + λ(V₁ − V_n). `similarity`: mean cosine of two different tokens' states. `kept`: mean
    cosine of a token's state and its own embedding.
    """
    t = range(TOKENS)
    h = [[float(i == j) for j in t] for i in t]
    found: dict[str, list[float]] = {"similarity": [], "kept": []}

    def unit(rows: list[list[float]]) -> list[list[float]]:
        lengths = [math.sqrt(math.fsum(x * x for x in row)) for row in rows]
        return [[x / n for x in row] for row, n in zip(rows, lengths, strict=True)]

    def measure() -> list[list[float]]:
        v = unit(h)
        total = math.fsum(math.fsum(row[j] for row in v) ** 2 for j in t)
        found["similarity"].append((total - TOKENS) / (TOKENS * (TOKENS - 1)))
        found["kept"].append(math.fsum(v[i][i] for i in t) / TOKENS)
        return v

    first = v = measure()
    for block in range(1, blocks + 1):
        one, own = {"identity": (0.5, 0.5), "constant": (lam, 1.0), "svformer": (1.0, 0.0)}.get(
            rule, (0.0, 1.0)
        )
        if block == 1:
            one, own = 0.0, 1.0
        extra = lam if rule == "neutreno" else 0.0
        past = [0.0] * TOKENS  # Σ of V' over the token and its past
        for i in t:
            for j in t:
                mixed = one * first[i][j] + own * v[i][j]
                past[j] += mixed
                looked = (1 - even) * mixed + even * past[j] / (i + 1)
                h[i][j] += looked + extra * (first[i][j] - v[i][j])
        v = measure()
    return found


def value_sentence(**values: Any) -> str:
    """The result in words; takes the arguments of `value_numbers`."""
    own: dict[str, Any] = values | {"rule": "own"}
    found, plain = value_numbers(**values), value_numbers(**own)
    words = {"constant": " with λ = ", "neutreno": " with λ = "}.get(values["rule"], "")
    words += kit.number(values["lam"]) if words else ""
    said = (
        f"{values['rule']}{words}, {values['blocks']} blocks: two tokens end at a mean cosine of "
        f"{kit.number(found['similarity'][-1])}, and a token at {kit.number(found['kept'][-1])} to "
        "its own embedding."
    )
    if values["rule"] == "own":
        return said
    return (
        f"{said} With own values it would be {kit.number(plain['similarity'][-1])} and "
        f"{kit.number(plain['kept'][-1])}."
    )


def value_dilution(
    rule: str = "constant", lam: float = 2.0, even: float = 1.0, blocks: int = 8
) -> kit.Explorable:
    """Explorable: token similarity by depth under five value rules, in a toy of sixteen tokens.

    `rule` (a key of `RULES`), `lam` (λ, 0 to 5), `even` (0: a token looks at itself alone, 1: at
    its past evenly) and `blocks` (2 to 16) are where it starts.
    """
    values = {"rule": rule, "lam": lam, "even": even, "blocks": blocks}
    said = value_sentence(**values)
    return kit.explorable(
        "value-dilution",
        script="values.js",
        title="How alike do tokens become?",
        lead="Attention averages. Each block averages what the one below has averaged already, "
        "unless it is also given the first values.",
        controls=[
            kit.slider("lam", "λ", 0, 5, 0.5, lam),
            kit.slider("even", "how evenly tokens look at their past", 0, 1, 0.1, even),
            kit.slider("blocks", "blocks L", 2, 16, 1, blocks),
            kit.choice("rule", "values", RULES, rule),
        ],
        picture="Curves of the mean cosine of two tokens’ states after each block: the chosen rule "
        "thick, own values thin",
        said=said,
        note="Toy: sixteen orthogonal tokens, projections of 1, no MLP, pre-norm. Each token gives "
        "a share to itself and spreads the rest evenly over its past. NeuTRENO’s λ and the "
        "constant rule’s are two different numbers.",
    )
