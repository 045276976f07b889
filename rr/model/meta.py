"""Models on torch's meta device: modules without numbers, to be counted."""

import contextlib
from collections.abc import Iterator

import torch
from torch.overrides import TorchFunctionMode


class _Uninitialised(TorchFunctionMode):
    """Skips torch's initialisation, for which torch would import its compiler on this device.

    That takes longer than any plan, and fails where the compiler's cache cannot be written.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if kwargs and "tensor" in kwargs else args[0]
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def building() -> Iterator[None]:
    """The context in which modules are built without numbers."""
    with torch.device("meta"), _Uninitialised():
        yield
