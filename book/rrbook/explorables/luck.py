"""Chapter 15's explorable: how far ahead the best of many equal rules looks, by luck alone."""

from scipy import integrate, stats

from . import kit


def best_of(rules: int) -> float:
    """E[max] of `rules` standard normals, ∫ y·n·φ(y)·Φ(y)ⁿ⁻¹ dy: the lead of the best by luck.

    In standard errors of a rule's mean.
    """

    def density(y: float) -> float:
        return y * rules * float(stats.norm.pdf(y) * stats.norm.cdf(y) ** (rules - 1))

    return integrate.quad(density, -10, 10)[0]


def winners_luck(
    rules: int = 30, seeds: int = 3, sd: float = 0.02, lead: float = 0.01
) -> kit.Explorable:
    """Explorable: what first place in a table of many rules and few seeds is worth.

    rules (2 to 40), seeds (2 to 20), sd: noise of one run once what all rules share is taken out
    (0.005 to 0.05 nats per token), lead: the true lead of one rule (0 to 0.1): where it starts.
    """
    return kit.explorable(
        "winners-luck",
        script="luck.js",
        title="What is first place worth?",
        lead="Many rules, few seeds, and one rule that may truly be better than the others.",
        controls=[
            kit.slider("rules", "rules in the table", 2, 40, 1, rules),
            kit.slider("seeds", "seeds", 2, 20, 1, seeds),
            kit.slider("sd", "noise of a run (nats)", 0.005, 0.05, 0.005, sd),
            kit.slider("lead", "true lead (nats)", 0, 0.1, 0.005, lead),
        ],
        picture="Two bell curves over the measured lead: one of the equal rules, and the rule "
        "that truly leads; a line marks where the best of the equal ones is on average",
        note="Model: each rule’s mean over the seeds is its true value plus normal noise, "
        "independent between rules. Right is better: a lower loss.",
    )
