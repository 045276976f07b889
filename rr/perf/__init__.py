"""What a step costs: its work and its time, predicted and measured, and what a budget buys.

What a step holds in memory is predicted by `rr.training.memory`, which the trainer asks itself.
"""

from .roofline import work

__all__ = ["work"]
