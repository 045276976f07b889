"""Performance: FLOPs, bytes, time and memory of a step, predicted and measured; run planning.

Memory is predicted by `rr.training.memory`, which the trainer itself uses.
"""

from .roofline import work

__all__ = ["work"]
