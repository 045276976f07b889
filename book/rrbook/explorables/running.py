"""Chapter 17's explorable: what interruptions cost, against the interval between checkpoints."""

import math

from . import kit


def overhead(every: float, save: float, between: float, back: float) -> float:
    """Time lost for each unit of work, M e^{R/M} (e^{(T+C)/M} − 1)/T − 1.

    T (every), C (save), M (between) and R (back) in one unit of time: work between two checkpoints,
    cost of a checkpoint, mean time between interruptions (memoryless, at any moment, also while
    coming back), time until the work goes on. No warning: all since the last checkpoint is lost.
    Source: Daly, 2006, the complete model.
    """
    hours = between * math.exp(back / between) * math.expm1((every + save) / between)
    return hours / every - 1


def young(save: float, between: float) -> float:
    """The interval that loses least to first order, √(2CM). Source: Young, 1974."""
    return math.sqrt(2 * save * between)


def lost_work(
    price: float = 2.5, between: float = 8, save: float = 10, every: float = 30, back: float = 5
) -> kit.Explorable:
    """Explorable: what an hour of work costs on a machine that can be taken away.

    price of an hour (0.1 to 10), between: hours between interruptions (0.5 to 48), save: seconds a
    checkpoint takes (1 to 120), every: minutes between checkpoints (1 to 120), back: minutes until
    the work goes on (0 to 60): where it starts.
    """
    return kit.explorable(
        "lost-work",
        script="running.js",
        title="How often should a run save?",
        lead="A machine that is taken away without warning, and a run that goes on elsewhere.",
        controls=[
            kit.slider("every", "minutes between checkpoints", 1, 120, 1, every),
            kit.slider("save", "a checkpoint takes (s)", 1, 120, 1, save),
            kit.slider("between", "hours between interruptions", 0.5, 48, 0.5, between),
            kit.slider("back", "minutes to come back", 0, 60, 1, back),
            kit.slider("price", "price of an hour", 0.1, 10, 0.1, price),
        ],
        picture="Time lost against minutes between checkpoints, both logarithmic: a valley, with "
        "a dot at your interval and a dashed line at Young’s",
        note="Model: interruptions without memory, at any moment, also while coming back; all work "
        "since the last checkpoint is lost. Both axes are logarithmic; lower is better.",
    )
