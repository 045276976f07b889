"""The roofline of a training step: FLOPs and bytes of each part, and the least time they take.

`rr.training.predict` predicts memory. `rr bench` measures a step, and `rr plan` estimates which
runs a GPU, hours or dollars pay for.
"""

from .roofline import Work, times, work

__all__ = ["Work", "times", "work"]
