"""Chapter 15's explorable: how far ahead the best of many equal rules looks, by luck alone."""

import math

from . import kit

STEP = 0.01  # of the grid that integrals are summed over, in standard errors
REACH = 9  # where it ends, both ways


def grid() -> list[tuple[float, float]]:
    """(y, Φ(y)) of the standard normal from −9 to 9, Φ summed by trapezia."""
    points, total, before = [], 0.0, 0.0
    for i in range(round(2 * REACH / STEP) + 1):
        y = -REACH + i * STEP
        now = density(y)
        total += (before + now) / 2 * STEP if i else 0.0
        points.append((y, total))
        before = now
    return points


def density(y: float) -> float:
    """Standard normal density."""
    return math.exp(-y * y / 2) / math.sqrt(2 * math.pi)


def luck_numbers(rules: int, seeds: int, sd: float, lead: float) -> dict:
    """What a table of `rules` rules by their means over `seeds` seeds shows.

    Each rule's mean is its true value plus noise N(0, se²), se = sd/√seeds, independent between
    rules; sd is in nats per token, as everything here. Returns `se`; `luck`, the expected lead of
    the best of `rules` equal rules over their true value, se·E[max]; and `first`, the
    probability that one rule truly `lead` ahead of n = rules − 1 equal ones comes first,
    ∫ φ(y) Φ(y + lead/se)ⁿ dy.
    """
    se, points = sd / math.sqrt(seeds), grid()
    luck = first = below = 0.0
    for y, cdf in points:
        best = cdf**rules
        luck += (y - STEP / 2) * (best - below)
        below = best
        first += density(y) * _between(points, y + lead / se) ** (rules - 1) * STEP
    return {"se": se, "luck": luck * se, "first": first}


def _between(points: list[tuple[float, float]], y: float) -> float:
    """Φ between two points of the grid, by a straight line; 1 beyond its end."""
    place = (y + REACH) / STEP
    i = math.floor(place)
    if i >= len(points) - 1:
        return 1.0
    return points[i][1] + (place - i) * (points[i + 1][1] - points[i][1])


def luck_sentence(rules: int, seeds: int, sd: float, lead: float) -> str:
    """The result in words."""
    found = luck_numbers(rules, seeds, sd, lead)
    return (
        f"{rules} rules that are equally good, {seeds} seeds: the best of them looks "
        f"{kit.number(found['luck'])} nats ahead of what it is, by luck alone. One rule that is "
        f"truly {kit.number(lead)} ahead of the others comes first in "
        f"{kit.share(found['first'])} of such tables."
    )


def winners_luck(
    rules: int = 30, seeds: int = 3, sd: float = 0.02, lead: float = 0.01
) -> kit.Explorable:
    """Explorable: what first place in a table of many rules and few seeds is worth.

    rules (2 to 40), seeds (2 to 20), sd: noise of one run once what all rules share is taken out
    (0.005 to 0.05 nats per token), lead: the true lead of one rule (0 to 0.1): where it starts.
    """
    said = luck_sentence(rules, seeds, sd, lead)
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
        said=said,
        note="Model: each rule’s mean over the seeds is its true value plus normal noise, "
        "independent between rules. Right is better: a lower loss.",
    )
