"""`rr`: how a transformer writes to its residual stream, as code that can be run and judged.

Where to start, and in which order to read on. Each package imports only those above it:

    config.py   what a run is: ModelConfig, Recipe, Run, and the hash that names it
    io.py       atomic files, seals, locks
    stats/      paired tests, intervals, fits, tables (no torch)
    ops/        RMS norm, gated write, cross-entropy, and which kernels compute them
    data/       corpora, tokenizers, windows
    residual/   base.py: what a rule is; additive.py and gates.py: most of them; values.py
    model/      transformer.py: the decoder; init.py: its weights; ladder.py: the published sizes
    training/   trainer.py: the loop; step.py: one optimiser step; run_folder.py: a run's files
    analysis/   what a trained model does: probes, gates, attention, numerics
    perf/       what a step costs: memory, roofline, benchmark, budget
    sweep/      many runs, and the reports of one and of a folder
    cli/        the verbs of `rr`, a module each

One training step, in eight lines:

    trainer._train_step             asks data.batches which windows step s reads, and gathers them
    step.OptimizerStep              splits the batch into micro-batches that fit the memory
    transformer.Model, Stack        embed the tokens: state = rule.open(x0)
    transformer.Layer.forward       for each sublayer: x, state = rule.read(state)
                                    u = attention(x) or mlp(x); state = rule.write(state, u)
    ops.cross_entropy               the head and the loss, in chunks; backward gives the gradients
    step.OptimizerStep.update       clips them, and AdamW (training.optimizer) moves the weights
    trainer._record_losses, _save   a line of metrics.jsonl; now and then a checkpoint

`rr train` calls it by cli -> training.run_folder.plan (the run and its id) ->
training.trainer.train, which ends with training.result: the held-out loss and result.json.
"""

from importlib import import_module
from pathlib import Path

__version__ = "0.1.0"

# Published and measured figures. They belong to the repository, not to an installed wheel.
DATA = Path(__file__).resolve().parents[1] / "data"

_WHERE = {
    "Model": "model",
    "ModelConfig": "config",
    "Recipe": "config",
    "Residuals": "residual",
    "RRError": "config",
    "Rule": "residual",
    "Run": "config",
    "allow_rule": "residual",
    "attach": "model.attach",
    "detach": "model.attach",
    "from_pretrained": "training.hub",
    "load": "training.run_folder",
    "open_corpus": "data",
    "plan": "training.run_folder",
    "register": "residual",
    "save_pretrained": "training.hub",
    "train": "training.trainer",
}
__all__ = ["DATA", "__version__", *_WHERE]


def __getattr__(name: str):
    # Lazy, so that `import rr` costs nothing and a reader without torch can still draw figures.
    if name in _WHERE:
        return getattr(import_module(f"rr.{_WHERE[name]}"), name)
    raise AttributeError(f"module 'rr' has no attribute {name!r}")
