"""`nn.ModuleList` that says which modules it holds: torch types its members as plain modules."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Generic, TypeVar, overload

from torch import nn

M = TypeVar("M", bound=nn.Module)

if TYPE_CHECKING:

    class ModuleList(nn.ModuleList, Generic[M]):
        """`nn.ModuleList` of modules of type M."""

        def __init__(self, modules: Iterable[M] | None = None) -> None: ...
        def __iter__(self) -> Iterator[M]: ...
        @overload
        def __getitem__(self, idx: int) -> M: ...
        @overload
        def __getitem__(self, idx: slice) -> "ModuleList[M]": ...
        def __getitem__(self, idx: int | slice) -> "M | ModuleList[M]": ...
else:
    ModuleList = nn.ModuleList
