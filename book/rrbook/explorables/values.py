"""Chapter 05's explorable: how alike tokens become when attention averages their values."""

from . import kit

RULES = {
    "own": "own: Vₙ",
    "identity": "identity: ½V₁ + ½Vₙ",
    "constant-resformer": "constant-resformer: λV₁ + Vₙ",
    "svformer": "svformer: V₁",
    "neutreno": "neutreno: AVₙ + λ(V₁ − Vₙ)",
}


def value_dilution(
    rule: str = "constant-resformer", lam: float = 2.0, even: float = 1.0, blocks: int = 8
) -> kit.Explorable:
    """Explorable: token similarity by depth under five value rules, in a toy of sixteen tokens.

    `rule` (a key of `RULES`), `lam` (λ, 0 to 5), `even` (0: a token looks at itself alone, 1: at
    its past evenly) and `blocks` (2 to 16) are where it starts.
    """
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
        note="Toy: sixteen orthogonal tokens, projections of 1, no MLP, pre-norm. Each token gives "
        "a share to itself and spreads the rest evenly over its past. NeuTRENO’s λ and that "
        "of constant-resformer are two different numbers.",
    )
