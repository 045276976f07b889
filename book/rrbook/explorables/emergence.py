"""Chapter 14's explorable: how a gap that only training makes can look as if size made it."""

from collections.abc import Sequence
from statistics import fmean

from . import kit

WINDOW = 64 * 256  # tokens per step of the study
DESIGNS = {
    "steps": "the study’s steps",
    "tokens": "equal tokens",
    "ratio": "equal tokens per parameter",
}
FALLS = {"ratio": "tokens per parameter", "tokens": "tokens alone"}


def toy_gap(
    x: float, tenfolds: float, speed: float, size: float, alpha: float, cost: float = 0.0
) -> float:
    """arm − baseline in nats: c − x^(−α)·(1 − s^(−α)) − κ·tenfolds, negative favours the arm.

    The loss that is left to learn is x^(−α) nats after training of amount x (1 nat at x = 1); the
    arm learns as if it had s = `speed` times the tokens; κ = `size` nats is what every tenfold of
    parameters takes off by itself; c = `cost` nats is what the arm loses everywhere.
    """
    return cost - x**-alpha * (1 - speed**-alpha) - size * tenfolds


def size_or_training(runs: Sequence[dict], speed: float = 1.1, cost: float = 0) -> kit.Explorable:
    """Explorable: the gap against size that a speed-up and a true effect of size would each show.

    runs: rows of a ladder's runs with `rung`, `arm`, `params_M`, `steps` and `val_loss`, by size;
    the review arm's shapes are taken, and the published gap is its mean less standard's.
    speed (1 to 1.5) and cost (0 to 0.05 nats) are where it starts.
    """

    def mean(rung: str, arm: str) -> float:
        return fmean(float(r["val_loss"]) for r in runs if (r["rung"], r["arm"]) == (rung, arm))

    rungs = {
        name: [
            name,
            1e6 * float(r["params_M"]),
            int(r["steps"]),
            round(mean(name, "review") - mean(name, "standard"), 6),
        ]
        for r in runs
        if r["arm"] == "review" and (name := r["rung"])
    }
    return kit.explorable(
        "size-or-training",
        script="emergence.js",
        title="Size, or too little training?",
        lead="Set what is true, then choose how the sizes are compared.",
        controls=[
            kit.slider("speed", "speed-up in tokens s", 1, 1.5, 0.01, speed),
            kit.slider("size", "size’s own gain κ (nats per tenfold)", -0.02, 0.04, 0.002, 0),
            kit.slider("alpha", "exponent α", 0.1, 0.6, 0.05, 0.3),
            kit.slider("cost", "constant cost c (nats)", 0, 0.05, 0.005, cost),
            kit.choice("design", "sizes are compared at", DESIGNS, "steps"),
            kit.choice("falls", "what is left to learn falls with", FALLS, "ratio"),
        ],
        picture="The gap against model size: the chosen comparison thick, the two others thin, the "
        "published gaps as hollow circles",
        note="Toy: gap = c − x^(−α)·(1 − s^(−α)) − κ·log₁₀(size / smallest size), x the amount of "
        "training, 1 nat left to learn at x = 1. Thin: the two other comparisons. Hollow circles: "
        "the published gaps to standard, at the study’s steps. Below 0 the rule is better.",
        data=list(rungs.values()),
    )
