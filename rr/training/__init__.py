"""One run: the loop, its steps, its folder on disk, and what came out.

The package is not called `train`, because `rr.train` is the function that trains a run.
"""
