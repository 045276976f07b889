"""Training of one run: the loop, optimiser steps, checkpoints, the run's folder and result.

The package is not called `train`, because `rr.train` is the function that trains a run.

One run, from `rr train` to result.json:

    cli.train.run                    the verb: calls the next two with its arguments
    training.planning.plan           the run that the options describe, and its id
    training.trainer.train           checks the request, reads the tokens, locks the folder
    training.context.Context         backend, precision, micro-batch: `begin` or `resume`; run.json
    training.trainer.Training        builds the model, restores the newest checkpoint
    training.trainer.Training.go     takes the steps, to the end of each budget
    training.evaluate.Examiner       the held-out loss; `Training` then writes result.json

One step:

    training.trainer.Training._train_step         gathers the windows of this step
    training.step.OptimizerStep.gradients         micro-batches that fit the memory
    model.transformer.Stack.forward               opens the state of the rule with the embedding
    model.transformer.Layer.forward               a sublayer twice: attention, then the MLP
    residual.base.Rule.sublayer                   x, state = read(state); write(state, branch(x))
    residual.gates.Gated.write                    h + r ⊙ u, where the rule is a gate
    ops.cross_entropy.linear_cross_entropy        the head and the loss, in chunks
    training.step.OptimizerStep.update            clips the gradients; AdamW or Muon steps
    training.trainer.Training._record_lines       a line of metrics.jsonl
    training.trainer.Training._save_now           a checkpoint, now and then

Example:
    >>> import tempfile, rr
    >>> from rr.training import finished
    >>> tiny = "nano:d_model=16,n_layer=1,n_head=1,d_ff=32,seq_len=16"
    >>> run = rr.plan(tiny, steps=2, batch=1, eval_batches=1)
    >>> with tempfile.TemporaryDirectory() as out:
    ...     folder = rr.train(run, out, log=lambda line: None)
    ...     finished(folder)["tokens"]  # two steps of one window
    32
"""

from .. import lazy_names

_MODULES = {
    "Backend": "backend",
    "Checkpoints": "checkpoint",
    "OptimizerStep": "step",
    "Score": "evaluate",
    "finished": "run_folder",
    "ordered": "evaluate",
    "parse_backend": "backend",
    "predict": "memory",
    "weights_sha256": "checkpoint",
    "young": "checkpoint",
}
__all__ = [*_MODULES]
__getattr__, __dir__ = lazy_names(__name__, _MODULES, __all__)
