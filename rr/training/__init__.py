"""Training of one run: the loop, optimiser steps, checkpoints, the run's folder and result.

The package is not called `train`, because `rr.train` is the function that trains a run.
"""
