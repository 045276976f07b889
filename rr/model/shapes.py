"""The code of rules and model without torch: a stand-in for it that knows shapes alone.

A plan needs the rules' options, the number of parameters and the matrix products, and to import
torch takes longer than all else that planning does. So in a process that has not imported it,
`code` executes the source of the rules and of the model once more, with a stand-in where they
import torch. Modules are built and counted as ever: there is no second arithmetic to keep in step.

Only construction is stood in for. Where a constructor asks for more, torch is imported and answers.
"""

import builtins
import contextlib
import functools
import importlib.util
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple, ParamSpec, TypeVar

from ..config import RRError

ROOT = Path(__file__).resolve().parents[1]
PRIVATE = ("rr.residual", "rr.ops", "rr.model")  # executed anew; of the rest only rr.config is used
P = ParamSpec("P")
T = TypeVar("T")


class NeedsTorch(Exception):
    """What only torch itself can answer."""


class _Anything:
    """Any other name of torch: may be named, called and inherited from; has no value."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self

    def __mro_entries__(self, bases: tuple) -> tuple:
        return ()

    def __or__(self, other: Any) -> Any:  # in annotations
        return Any

    __ror__ = __or__

    def __bool__(self) -> bool:
        raise NeedsTorch


class _Tensor:
    """A tensor of some shape."""

    def __init__(self, *shape: Any) -> None:
        self.shape = tuple(shape[0]) if shape and not isinstance(shape[0], int) else shape
        if not all(isinstance(size, int) for size in self.shape):
            raise NeedsTorch

    def numel(self) -> int:
        return math.prod(self.shape)


class _Parameter(_Tensor):
    def __init__(self, data: _Tensor) -> None:
        if not isinstance(data, _Tensor):
            raise NeedsTorch
        super().__init__(*data.shape)


class _Module:
    """A module: its parameters and submodules are its attributes, in the order they were set."""

    def __init__(self) -> None:
        pass

    def register_buffer(self, name: str, tensor: Any, persistent: bool = True) -> None:
        setattr(self, name, _Anything())

    def modules(self) -> Iterator["_Module"]:
        """This module and all below it, each once."""
        seen: set[int] = set()
        waiting: list[_Module] = [self]
        while waiting:
            module = waiting.pop()
            if id(module) not in seen:
                seen.add(id(module))
                yield module
                waiting += [part for part in module._parts() if isinstance(part, _Module)]

    def parameters(self) -> Iterator[_Parameter]:
        """All parameters, each once."""
        found = (p for m in self.modules() for p in m._parts() if isinstance(p, _Parameter))
        return iter({id(p): p for p in found}.values())

    def _parts(self) -> Iterable[Any]:
        return vars(self).values()


class _ModuleList(_Module):
    def __init__(self, modules: Iterable[_Module] = ()) -> None:
        self.held = list(modules)

    def __len__(self) -> int:
        return len(self.held)

    def __iter__(self) -> Iterator[_Module]:
        return iter(self.held)

    def __getitem__(self, at: Any) -> Any:
        return _ModuleList(self.held[at]) if isinstance(at, slice) else self.held[at]

    def _parts(self) -> Iterable[Any]:
        return self.held


class _Linear(_Module):
    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        self.weight = _Parameter(_Tensor(outputs, inputs))
        if bias:
            self.bias = _Parameter(_Tensor(outputs))


class _Embedding(_Module):
    def __init__(self, rows: int, width: int) -> None:
        self.weight = _Parameter(_Tensor(rows, width))


class _Torch(_Anything):
    """The stand-in for torch. Of torch.nn it has what counts, and nothing else."""

    nn = SimpleNamespace(Module=_Module, Parameter=_Parameter, ModuleList=_ModuleList,
                         Linear=_Linear, Embedding=_Embedding, functional=_Anything(),
                         init=_Anything())  # fmt: skip
    Tensor = empty = zeros = ones = _Tensor


class _Importer:
    """Executes the modules of `PRIVATE` with an `import` of their own; no other module sees it."""

    def __init__(self) -> None:
        self.torch = _Torch()
        self.modules: dict[str, ModuleType] = {}
        self.builtins = vars(builtins) | {"__import__": self.import_}

    def import_(
        self, name: str, globals: Any = None, locals: Any = None, names: Any = (), level: int = 0
    ) -> Any:
        """What `import name` (no names) and `from name import names` take their objects from."""
        if level:
            name = importlib.util.resolve_name("." * level + name, globals["__package__"])
        first, *rest = name.split(".")
        if first == "torch":
            return functools.reduce(getattr, rest if names else (), self.torch)
        if not name.startswith(PRIVATE):
            return builtins.__import__(name, globals, locals, names)
        module = self.load(name)
        for part in names or ():
            if not hasattr(module, part):
                self.load(f"{name}.{part}")
        return module

    def load(self, name: str) -> Any:
        """The module of this name, executed once."""
        if name not in self.modules:
            path = ROOT.joinpath(*name.split(".")[1:])
            package = path.is_dir()
            file = str(path / "__init__.py" if package else path.with_suffix(".py"))
            module = self.modules[name] = ModuleType(name)
            above, _, last = name.rpartition(".")
            vars(module).update(
                __file__=file, __package__=name if package else above, __builtins__=self.builtins
            )
            code = SourceFileLoader(name, file).get_code(name)
            assert code is not None
            exec(code, vars(module))
            if above in self.modules:
                setattr(self.modules[above], last, module)
        return self.modules[name]


class Code(NamedTuple):
    """The code that rules and models are built with: rr's own, on torch or on its stand-in."""

    residual: Any  # the package rr.residual
    transformer: Any  # the module rr.model.transformer
    linear: type[Any]  # the class of a matrix product
    building: Callable[[], contextlib.AbstractContextManager]  # around the construction of modules


@functools.cache
def _without_torch() -> Code:
    importer = _Importer()
    parts = importer.load("rr.residual"), importer.load("rr.model.transformer")
    return Code(*parts, _Linear, contextlib.nullcontext)


@functools.cache
def _with_torch() -> Code:
    from torch.nn import Linear

    from .. import residual
    from . import meta, transformer

    return Code(residual, transformer, Linear, meta.building)


def stands_in(*specs: str) -> bool:
    """Whether `code` does without torch: nothing has imported it, and no rule is in a file."""
    return "torch" not in sys.modules and not any(".py:" in spec for spec in specs)


def code(*specs: str) -> Code:
    """The code of rules and model, on torch where `stands_in` says so for these rules."""
    return _without_torch() if stands_in(*specs) else _with_torch()


def without_torch(plans: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that plans by `code`: where the stand-in fails, torch takes its place."""

    @functools.wraps(plans)
    def planned(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return plans(*args, **kwargs)
        except RRError:
            raise
        except Exception:
            if "torch" in sys.modules:
                raise
        _with_torch()  # imports torch, which all that follows uses; a mistake of the caller returns
        return plans(*args, **kwargs)

    return planned
