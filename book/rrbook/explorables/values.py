"""Chapter 05's explorable: how alike tokens become when attention averages their values."""

from . import kit

RULES = {
    "own": "own: Vₙ",
    "identity": "identity: ½V₁ + ½Vₙ",
    "constant-resformer": "constant-resformer: λV₁ + Vₙ",
    "svformer": "svformer: V₁",
    "neutreno": "neutreno: AVₙ + λ(V₁ − Vₙ)",
}


def value_dilution() -> kit.Explorable:
    """Explorable: token similarity by depth under five value rules, in a toy of sixteen tokens."""
    return kit.explorable(
        "value-dilution",
        script="values.js",
        title="How alike do tokens become?",
        lead="Attention averages. Each block averages what the one below has averaged already, "
        "unless it is also given the first values.",
        controls=[
            kit.slider("lam", "λ", 0, 5, 0.5, 2),
            kit.slider("even", "how evenly tokens look at their past", 0, 1, 0.1, 1),
            kit.slider("blocks", "blocks L", 2, 16, 1, 8),
            kit.choice("rule", "values", RULES, "constant-resformer"),
        ],
        picture="Curves of the mean cosine of two tokens’ states after each block: the chosen rule "
        "thick, own values thin",
        note="Toy: sixteen orthogonal tokens, projections of 1, no MLP, pre-norm. Each token gives "
        "a share to itself and spreads the rest evenly over its past. NeuTRENO’s λ and that "
        "of constant-resformer are two different numbers.",
    )
