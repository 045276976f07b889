"""The content of a class, for a run's id: what it computes, wherever it was defined."""

import dis
import hashlib
import inspect
import sys
import textwrap
from collections.abc import Container, Iterator
from functools import lru_cache
from importlib.metadata import packages_distributions
from types import CodeType, EllipsisType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from ..errors import RRError
from .own import ships

LOOKED_UP = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")  # by its name alone
# Class attributes set by Python, torch and the registry, and documentation.
_NOT_CONTENT = {
    "__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__",
    "__dict__", "__doc__", "__firstlineno__", "__module__", "__qualname__",
    "__static_attributes__", "__weakref__", "name", "equation", "source",
}  # fmt: skip
_PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    EllipsisType,
    np.generic,
    torch.dtype,
    torch.device,
)


def class_sha256(name: str, cls: type) -> str:
    """SHA-256, in hexadecimal, of a rule's class that was registered under `name` elsewhere.

    Of the source of its functions, its attributes, and the functions, classes and values beside it
    that they name; what is installed counts by its name. Raises RRError where the class holds
    something that has no content to name, or uses a file that is not installed.
    """
    words = hashlib.sha256()
    for word in _Walk(name, cls).rule(cls):
        words.update(word.encode() + b"\0")
    return words.hexdigest()


def _dotted(obj: Any) -> str:
    """The name by which a run's id identifies an installed object."""
    return f"{obj.__module__}.{obj.__qualname__}"


@lru_cache(maxsize=1)
def _distributions() -> frozenset[str]:
    return frozenset(packages_distributions())


def check_beside(name: str, what: str, value: Any, home: Container[str]) -> None:
    """Raise RRError where a rule uses something of a module that is not installed, nor its own.

    A run's id does not see that module's content, so a change of it would be taken for the old
    rule. name: the rule; what: the name under which it uses `value`; home: its own modules.
    """
    of_class = str(getattr(value, "__module__", ""))
    module = value.__name__ if isinstance(value, ModuleType) else of_class
    file = getattr(sys.modules.get(module), "__file__", None)
    top = module.partition(".")[0]
    if file is None or module in home or top in sys.stdlib_module_names:
        return
    if top != __name__.partition(".")[0] and top not in _distributions():
        raise RRError(
            f"rule {name!r} uses {what!r} of {file}, which a run's id does not see: put it beside "
            "the rule's class, or install that module"
        )


def check_file(name: str, module: ModuleType) -> None:
    """`check_beside` of all that a rule's own file names."""
    for what, value in vars(module).items():
        check_beside(name, what, value, {module.__name__})


class _Walk:
    """Words that determine what a rule computes, each function and class once."""

    def __init__(self, name: str, cls: type) -> None:
        self.name, self.visited = name, set()
        # modules of the user's own classes; everything else is installed and identified by name
        self.home = {base.__module__ for base in cls.__mro__ if not _installed(base)}

    def rule(self, cls: type) -> Iterator[str]:
        """The class and those it derives from, nearest first."""
        for base in cls.__mro__:
            if base.__module__ in self.home:
                yield from self.members(base)
            else:
                yield _dotted(base)

    def members(self, cls: type) -> Iterator[str]:
        self.visited.add(id(cls))
        for key in sorted(vars(cls).keys() - _NOT_CONTENT):
            yield key
            value = vars(cls)[key]
            if key == "options":  # only defaults, and only of options that rr's classes lack
                known = {}
                for base in filter(_installed, reversed(cls.__mro__)):
                    known |= getattr(base, key, {})
                value = {k: v.default for k, v in sorted(value.items()) if known.get(k) is not v}
            yield from self.value(value, key)

    def value(self, value: Any, name: str) -> Iterator[str]:
        """The words of one value; name: for the error message."""
        check_beside(self.name, name, value, self.home)
        if isinstance(value, _PLAIN):
            yield f"{type(value).__name__} {value!r}"
        elif isinstance(value, torch.Tensor | np.ndarray):
            yield f"{value.dtype} {value.tolist()}"
        elif isinstance(value, list | tuple | set | frozenset | dict):
            yield f"{type(value).__name__} {len(value)}"
            if isinstance(value, dict):
                parts = value.items()
            elif isinstance(value, set | frozenset):
                parts = sorted(value, key=repr)
            else:
                parts = value
            for part in parts:
                yield from self.value(part, name)
        elif isinstance(value, staticmethod | classmethod):
            yield type(value).__name__
            yield from self.value(value.__func__, name)
        elif isinstance(value, property):
            yield from self.value((value.fget, value.fset, value.fdel), name)
        elif isinstance(value, ModuleType):
            yield value.__name__
        elif inspect.isfunction(value):
            yield from self.function(value, name)
        elif isinstance(value, type) and value.__module__ in self.home:
            yield value.__qualname__
            if id(value) not in self.visited:
                yield from self.members(value)
        elif hasattr(value, "__qualname__"):  # built in, or a class of torch
            yield _dotted(value)
        else:
            raise RRError(
                f"rule {self.name!r} uses {name!r}, a {type(value).__name__}, which a run's id "
                "cannot hash: use numbers, strings, tensors, functions and lists of them"
            )

    def function(self, func: FunctionType, name: str) -> Iterator[str]:
        mine = func.__module__ in self.home
        yield func.__qualname__ if mine else _dotted(func)
        if id(func) in self.visited:
            return
        self.visited.add(id(func))
        yield from self.value((func.__defaults__, func.__kwdefaults__), name)
        for key, cell in zip(func.__code__.co_freevars, func.__closure__ or (), strict=True):
            if key != "__class__":  # what super() looks for
                yield from self.value(cell.cell_contents, key)
        if not mine:
            return
        try:
            yield textwrap.dedent(inspect.getsource(func))
        except OSError:
            raise RRError(
                f"rule {self.name!r} uses {name!r}, whose source text cannot be found: define it "
                "in a file or a notebook's cell"
            ) from None
        for key in sorted(_globals(func.__code__) & func.__globals__.keys()):
            yield key
            yield from self.value(func.__globals__[key], key)


def _installed(cls: type) -> bool:
    """Whether a base class of a rule is part of this package, of Python or of torch."""
    return ships(cls) or cls.__module__.split(".")[0] in ("builtins", "torch", "abc", "typing")


def _globals(code: CodeType) -> set[str]:
    """The names that a function and its inner functions look up outside of themselves."""
    inner = (_globals(part) for part in code.co_consts if isinstance(part, CodeType))
    looked_up = {  # of co_names, which holds the names of attributes as well
        each.argval for each in dis.get_instructions(code) if each.opname in LOOKED_UP
    }
    return looked_up.union(*inner)
