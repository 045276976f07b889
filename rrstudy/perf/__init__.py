"""What a step costs: `rr bench` measures it, and `rr plan` estimates which runs a GPU pays for.

`rr.training.predict` predicts memory.
"""
