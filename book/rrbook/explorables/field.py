"""Chapter 04's explorable: a toy stream under one rule, its norm and its gradient by depth.

The toy: one token of 32 channels; u = W₂ tanh(W₁ x), x what the rule reads, W₁ and W₂ random and
the same for every rule; the loss is the mean product of what the head would read with a fixed
random vector. The script has a tape of its own; the tests hold it equal to rr's rules under torch.
"""

from . import kit

# the rules that the script knows; of a reader's own, the lab draws the real thing
TOY = ("standard", "constant", "scaled", "rezero", "layerscale", "fixup", "highway", "state-gate",
       "update-gate", "review", "deepnorm", "review-convex", "highway-carry", "gtrxl",
       "denseformer", "attnres", "hyper-connections")  # fmt: skip
WORDS = {"unit": "as large as the embedding", "own": "as each rule begins"}


def rule_field() -> kit.Explorable:
    """Explorable: a toy stream under one of seventeen residual rules (TOY), at its start."""
    return kit.explorable(
        "rule-field",
        script="field.js",
        title="A toy stream under one rule",
        lead="One token, random sublayers, each rule before training, its gate with the bias b.",
        controls=[
            kit.slider("sublayers", "sublayers", 4, 64, 4, 32),
            kit.choice("rule", "rule", {name: name for name in TOY}, "review-convex"),
            kit.slider("bias", "bias b of a gate", -4, 4, 0.5, 0),
            kit.radios("start", "size of updates", WORDS, "unit"),
        ],
        picture="Two curves over depth, for the chosen rule and the standard one: rms of the "
        "stream, and gradient at each update on a logarithmic scale",
        note="Toy: u = W₂ tanh(W₁ x) with random W₁ and W₂, 32 channels, one token, no attention; "
        "all derivatives are exact. The gradient is that of a fixed random read-out by each "
        "update u<sub>l</sub>, at 0 by the embedding. The share σ(b) is the update’s; in gtrxl, "
        "which rr starts at b = 2, it is what is kept. rr starts highway-carry at −2, the others "
        "at 0. One draw of the weights: small wiggles mean nothing.",
    )
