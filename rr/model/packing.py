"""Residual and value states as one tensor, which travels between another library's blocks."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten


class Layout:
    """Packs a residual state and a value state into one tensor (B, T, channels), and unpacks it."""

    def __deepcopy__(self, memo: dict) -> "Layout":
        return self  # nothing of it changes

    def __init__(self, state: Any, vstate: Any) -> None:
        """Of states of one token."""
        streams, of_values = tree_flatten(state)[0], tree_flatten(vstate)[0]
        leaves, self.spec = tree_flatten((state, vstate))
        self.kinds = ["stream"] * len(streams) + [self._kind(leaf) for leaf in of_values]
        self.shapes: list[tuple[int, ...]] = [
            () if kind == "none" else tuple(leaf.shape[2:] if kind == "stream" else leaf.shape)
            for leaf, kind in zip(leaves, self.kinds, strict=True)
        ]
        self.widths = [
            0 if kind == "none" else leaf.numel()
            for leaf, kind in zip(leaves, self.kinds, strict=True)
        ]
        self.width = sum(self.widths)

    @staticmethod
    def _kind(leaf: Tensor | None) -> str:
        # values (B, heads, T, e), or a tensor that is the same for all tokens
        return "none" if leaf is None else "heads" if leaf.ndim == 4 else "shared"

    def pack(self, state: Any, vstate: Any) -> Tensor:
        leaves = tree_flatten((state, vstate))[0]
        b, t = leaves[0].shape[:2]
        flat = []
        for leaf, kind in zip(leaves, self.kinds, strict=True):
            if kind == "stream":
                flat.append(leaf.flatten(2))
            elif kind == "heads":
                flat.append(as_channels(leaf))
            elif kind == "shared":
                flat.append(leaf.flatten().expand(b, t, -1))
        return flat[0] if len(flat) == 1 else torch.cat(flat, -1)

    def unpack(self, packed: Tensor) -> tuple[Any, Any]:
        leaves: list[Any] = []
        pieces = packed.split(self.widths, -1)
        for piece, kind, shape in zip(pieces, self.kinds, self.shapes, strict=True):
            if kind == "stream":
                leaves.append(piece.unflatten(-1, shape))
            elif kind == "heads":
                leaves.append(as_heads(piece, shape[1]))
            else:
                leaves.append(piece[0, 0].view(shape) if kind == "shared" else None)
        return tree_unflatten(leaves, self.spec)


def as_heads(x: Tensor, heads: int) -> Tensor:
    """(B, T, heads·e) -> (B, heads, T, e)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def as_channels(x: Tensor) -> Tensor:
    """(B, heads, T, e) -> (B, T, heads·e)."""
    return x.transpose(1, 2).flatten(2)
