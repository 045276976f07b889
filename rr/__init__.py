"""How a transformer writes to its residual stream: rules, models, training.

* A model of your own: `rr.Residuals` puts one rule around your own attention and MLP.
* A model of `transformers`: `rr.attach` puts a rule into it, `rr.detach` takes it out.
* A run: `rr.plan` describes it, `rr.train` trains it, `rr.load` reads it.

The names below are those that `import rr` gives; the packages hold the others. CONTRIBUTING.md has
a map of the code: which file does what, and in which order to read them.

Example:
    >>> import tempfile, rr
    >>> tiny = "nano:d_model=16,n_layer=1,n_head=1,d_ff=32,seq_len=16"
    >>> run = rr.plan(tiny, "review", steps=2, batch=1, eval_batches=1)
    >>> with tempfile.TemporaryDirectory() as out:
    ...     folder = rr.train(run, out, log=lambda line: None)
    ...     model, trained, tokenizer = rr.load(folder)
    >>> trained.id == run.id, model.config.rule
    (True, 'review')
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

# Published and measured figures. They belong to the repository, not to an installed wheel.
DATA = Path(__file__).resolve().parents[1] / "data"


def lazy_names(
    package: str, modules: Mapping[str, str], names: Sequence[str], packages: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose names are imported when they are asked for.

    So a package costs nothing to import, and no module needs all the others. package: its
    `__name__`. modules: name -> module that has it, relative to the package, with a dot more for
    each package above. names: its `__all__`. packages: those in it, imported likewise.
    """

    def __getattr__(name: str) -> Any:
        if name in modules:
            return getattr(import_module(f".{modules[name]}", package), name)
        if name in packages:
            return import_module(f".{name}", package)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return __getattr__, lambda: list(names)


_MODULES = {
    "Model": "model",
    "ModelConfig": "specs",
    "Recipe": "specs",
    "Residuals": "residual",
    "RRError": "errors",
    "Request": "options",
    "Rule": "residual",
    "Run": "specs",
    "allow_rule": "residual",
    "attach": "model.attach",
    "detach": "model.attach",
    "load": "training.loading",
    "open_corpus": "data",
    "plan": "training.planning",
    "register": "residual",
    "train": "training.trainer",
}
_PACKAGES = ("analysis", "data", "model", "ops", "residual", "training")
__all__ = ["DATA", "__version__", *_MODULES]
__getattr__, __dir__ = lazy_names(__name__, _MODULES, __all__, _PACKAGES)
