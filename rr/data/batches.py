"""Batches: which windows of the token stream a step reads, and how they are gathered."""

import numpy as np
import torch
from torch import Tensor

from ..specs import Run


def windows(tokens: np.ndarray, start: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets (length,), int64, from one place of a token stream."""
    window = np.asarray(tokens[start : start + length + 1], dtype=np.int64)
    return window[:-1], window[1:]


def gather(tokens: np.ndarray | Tensor, starts: np.ndarray, length: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets (B, length), int64, of windows that start at `starts`.

    From a tensor of tokens (`on_device`) they are gathered on its device.
    """
    if isinstance(tokens, Tensor):
        first = moved(torch.from_numpy(np.asarray(starts, dtype=np.int64)), tokens.device)
        rows = tokens[first[:, None] + torch.arange(length + 1, device=tokens.device)].long()
        return rows[:, :-1], rows[:, 1:]
    pairs = [windows(tokens, int(start), length) for start in starts]
    x, y = (torch.from_numpy(np.stack(side)) for side in zip(*pairs, strict=True))
    return x, y


def moved(x: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device; to a GPU from pinned memory, so that the host does not wait."""
    if device.type == "cuda" and x.device.type == "cpu":
        return x.pin_memory().to(device, non_blocking=True)
    return x.to(device)


def on_device(tokens: np.ndarray, device: torch.device) -> np.ndarray | Tensor:
    """The token stream on the GPU, 4 bytes per token, if it fits a quarter of the free memory.

    Otherwise unchanged: windows are then cut on the host and copied.
    """
    if device.type != "cuda" or 4 * len(tokens) > torch.cuda.mem_get_info(device)[0] / 4:
        return tokens
    return torch.from_numpy(np.asarray(tokens, dtype=np.int32)).to(device)


def batch_starts(
    run: Run, step: int, n_tokens: int, rng: np.random.RandomState | None
) -> np.ndarray:
    """Start positions of the windows of one step, (batch,).

    paper: `randint(0, n − T − 1, batch)` from NumPy's legacy generator, the study's own batches.
    clean: a function of (seed, step) alone, from raw Philox words, so any step can be recomputed.
    """
    batch, last = run.recipe.batch, n_tokens - run.model.seq_len - 1
    if run.protocol == "paper":
        assert rng is not None  # the study draws from it
        return rng.randint(0, last, batch)
    words = np.random.Philox(key=np.array([run.seed, step], dtype=np.uint64)).random_raw(batch)
    return (words % np.uint64(last)).astype(np.int64)
