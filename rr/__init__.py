"""`rr`: how a transformer writes to its residual stream, as code that can be run and judged.

Where to start, and in which order to read on. Each imports only those above it:

    config.py   what a run is: ModelConfig, Recipe, Run, and the hash that names it
    io.py       atomic files, seals, locks
    stats/      records of runs, paired tests, intervals, fits, tables (no torch)
    ops/        RMS norm, gated write, cross-entropy, and which kernels compute them
    data/       corpora, tokenizers, windows
    residual/   base.py: what a rule is; additive.py and gates.py: most of them; values.py;
                stack.py: `Residuals`, one rule at every sublayer
    model/      transformer.py: the decoder; init.py: its weights; ladder.py: the published sizes;
                shapes.py: models counted without torch; attach.py: rules in another library's
                decoder
    training/   planning.py: the run that options describe; trainer.py: the loop; step.py: one
                optimiser step; run_folder.py: a run's files; verify.py: a record run again
    analysis/   what a trained model does: probes, gates, attention, numerics
    perf/       what a step costs: memory, roofline, benchmark, budget
    sweep/      many runs, and the reports of one and of a folder
    cli/        the verbs of `rr`, a module each

One training step, in eight lines:

    trainer._train_step             asks data.batches which windows step s reads, and gathers them
    step.OptimizerStep.gradients    splits the batch into micro-batches that fit the memory
    transformer.Model, Stack        embed the tokens: x0; state = rule.open(x0)
    transformer.Layer               calls Rule.sublayer twice: for attention, then for the MLP
    residual.base.Rule.sublayer     x, state = read(state); u = branch(x); state = write(state, u)
    ops.cross_entropy               the head and the loss, in chunks; backward gives the gradients
    step.OptimizerStep.update       clips them; training.optimizer's AdamW or Muon moves the weights
    trainer._record_losses, _save   a line of metrics.jsonl; at intervals a checkpoint

From `rr train` to result.json:

    cli.train.run                   the verb: calls the next two with its arguments
    training.planning.plan          the run, by model.ladder.specify, and its id; nothing is trained
    training.trainer.train          backend, lock, settings that fit the memory (memory_fit), tokens
    run_folder.start_run            writes run.json; resume_run checks the one that is there
    trainer._Training               builds the model, restores the newest checkpoint
    trainer._Training.go            takes the steps above, to the end of each budget
    trainer._Training._finish       result.Examiner takes the held-out loss; writes result.json
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

# Published and measured figures. They belong to the repository, not to an installed wheel.
DATA = Path(__file__).resolve().parents[1] / "data"


def lazy_names(
    package: str, where: Mapping[str, str], names: Sequence[str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose names are imported when they are asked for.

    So a package costs nothing to import, and no module needs all the others: plans and figures do
    without torch. package: its `__name__`. where: name -> module that has it, relative to the
    package, with a dot more for each package above. names: its `__all__`.
    """

    def __getattr__(name: str) -> Any:
        if name in where:
            return getattr(import_module(f".{where[name]}", package), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return __getattr__, lambda: list(names)


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
    "plan": "training.planning",
    "push_to_hub": "training.hub",
    "register": "residual",
    "save_pretrained": "training.hub",
    "train": "training.trainer",
}
__all__ = ["DATA", "__version__", *_WHERE]
__getattr__, __dir__ = lazy_names(__name__, _WHERE, __all__)
