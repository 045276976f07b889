"""Measuring a model: held-out loss, calibration, and probes of stream, gates and gradients.

Losses are in nats a token, summed in float64.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from .config import RRError, nearest
from .distributed import ALONE, World
from .model import Model
from .ops import token_losses

CLEAN_LIMIT = 1_000_000  # held-out tokens that protocol `clean` evaluates at most
BINS = 15  # of the calibration error


@dataclass(frozen=True)
class Score:
    """A held-out result: loss (nats a token), calibration error, and target tokens counted."""

    loss: float
    ece: float
    tokens: int


def windows(tokens: np.ndarray, start: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets (length,) from one place of a token stream, as int64."""
    cut = np.asarray(tokens[start : start + length + 1], dtype=np.int64)
    return cut[:-1], cut[1:]


def gather(
    tokens: np.ndarray | Tensor, starts: np.ndarray, length: int
) -> tuple[Tensor, Tensor]:
    """Inputs and targets (B, length), int64, of windows that start at `starts`.

    Of a tensor of tokens (`beside` the model) they are gathered where it is.
    """
    if isinstance(tokens, Tensor):
        first = torch.from_numpy(np.asarray(starts, dtype=np.int64)).to(tokens.device)
        rows = tokens[first[:, None] + torch.arange(length + 1, device=tokens.device)].long()
        return rows[:, :-1], rows[:, 1:]
    pairs = [windows(tokens, int(start), length) for start in starts]
    x, y = (torch.from_numpy(np.stack(side)) for side in zip(*pairs, strict=True))
    return x, y


def beside(tokens: np.ndarray, device: torch.device) -> np.ndarray | Tensor:
    """A token stream on the GPU, 4 bytes a token, where a quarter of what is free there holds it.

    Elsewhere as it came: windows are then cut on the host and copied.
    """
    if device.type != "cuda" or 4 * len(tokens) > torch.cuda.mem_get_info(device)[0] / 4:
        return tokens
    return torch.from_numpy(np.asarray(tokens, dtype=np.int32)).to(device)


class Tally:
    """Sums losses and calibration bins over batches."""

    def __init__(self) -> None:
        self.means: list[float] = []
        self.loss, self.tokens = 0.0, 0
        self.bins = np.zeros((BINS, 3))  # tokens, summed confidence, hits

    def add(self, loss: Tensor, confidence: Tensor, hit: Tensor) -> None:
        """Count the tokens of one batch; each (n,)."""
        loss, confidence, hit = (t.cpu().double().numpy() for t in (loss, confidence, hit))
        self.means.append(loss.mean())
        self.loss += loss.sum()
        self.tokens += len(loss)
        # Bins are open below: confidence on an edge falls into the lower bin, as in the study.
        edges = np.linspace(0, 1, BINS + 1)
        where = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, BINS - 1)
        for column, weight in enumerate((None, confidence, hit)):
            self.bins[:, column] += np.bincount(where, weight, minlength=BINS)

    def gather(self, world: World) -> "Tally":
        """The sums of all processes, in each of them."""
        if world.size > 1:
            parts = world.gathered((self.means, self.loss, self.tokens, self.bins))
            self.means = [mean for means, *_ in parts for mean in means]
            self.loss, self.tokens, self.bins = (sum(part[i] for part in parts) for i in (1, 2, 3))
        return self

    def score(self, mean_of_batches: bool = False) -> Score:
        """Loss over all tokens, or the mean of batch means as the study reports it."""
        loss = float(np.mean(self.means)) if mean_of_batches else self.loss / self.tokens
        # Σ_b (n_b / n)·|accuracy_b − confidence_b|, with accuracy and confidence as bin means.
        ece = float(np.abs(self.bins[:, 2] - self.bins[:, 1]).sum() / self.tokens)
        return Score(loss, ece, self.tokens)


@contextlib.contextmanager
def evaluating(model: Model) -> Iterator[None]:
    """Evaluation mode without gradients; the model's mode is put back."""
    mode = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(mode)


def add_batch(
    model: Model,
    tally: Tally,
    x: Tensor,
    y: Tensor,
    keep: Tensor | None = None,
    counts: bool = True,
) -> None:
    """Score inputs x against targets y, both (B, T); `keep` masks targets out.

    counts=False runs the model and adds nothing: a sharded model runs in all processes or in none.
    """
    device = model.token.weight.device
    hidden = model.hidden(x.to(device)).flatten(0, 1)
    y = y.to(device).flatten()
    if keep is not None:
        keep = keep.to(device).flatten()
        hidden, y = hidden[keep], y[keep]
    parts = [
        token_losses(hidden[i : i + 1024], model.head_weight, y[i : i + 1024],
                     model.config.vocab_size)
        for i in range(0, len(y), 1024)
    ]
    if counts:
        tally.add(*(torch.cat(column) for column in zip(*parts, strict=True)))


def ordered(
    model: Model,
    tokens: np.ndarray,
    batch: int,
    batches: int | None = None,
    world: World = ALONE,
) -> Score:
    """Protocol `clean`: the held-out stream in order, the same for every seed.

    Windows of seq_len follow each other without overlap; the last, shorter one counts too. At
    most the first million tokens; `batches` shortens it further.
    """
    tokens, t = tokens[: CLEAN_LIMIT + 1], model.config.seq_len
    starts = np.arange(0, len(tokens) - 1, t)
    if batches is not None:
        starts = starts[: batches * batch]
    tally = Tally()
    with evaluating(model):
        whole = starts[starts + t < len(tokens)]
        parts = [(whole[i : i + batch], t) for i in range(0, len(whole), batch)]
        parts += [([start], len(tokens) - 1 - start) for start in starts[len(whole) :]]
        for (where, length), counts in world.deal(parts):
            add_batch(model, tally, *gather(tokens, where, length), counts=counts)
    return tally.gather(world).score()


def drawn(
    model: Model,
    tokens: np.ndarray,
    batch: int,
    batches: int,
    stream: np.random.RandomState,
    world: World = ALONE,
) -> Score:
    """Protocol `paper`: random windows from the run's own NumPy stream; mean of batch means."""
    t, tally = model.config.seq_len, Tally()
    parts = [stream.randint(0, len(tokens) - t - 1, batch) for _ in range(batches)]
    with evaluating(model):
        for starts, counts in world.deal(parts):
            add_batch(model, tally, *gather(tokens, starts, t), counts=counts)
    return tally.gather(world).score(mean_of_batches=True)


def by_document(
    model: Model, tokens: np.ndarray, eot: int, batch: int = 32, world: World = ALONE
) -> Score:
    """Each held-out document alone in its window, read after one end-of-text.

    The loss to hold against an entropy floor: every token of a document is predicted, its end
    included, and nothing before it helps. Documents must fit seq_len.
    """
    t = model.config.seq_len
    ends = np.flatnonzero(np.asarray(tokens) == eot)
    starts = np.concatenate([[0], ends[:-1] + 1])
    if (ends - starts + 1).max() > t:
        raise ValueError(f"a document of {(ends - starts + 1).max()} tokens exceeds {t}")
    order = np.argsort(ends - starts, kind="stable")  # batches of similar length
    tally = Tally()
    with evaluating(model):
        parts = [order[i : i + batch] for i in range(0, len(order), batch)]
        for chosen, counts in world.deal(parts):
            longest = int((ends[chosen] - starts[chosen]).max()) + 1
            rows = np.full((len(chosen), longest + 1), eot, dtype=np.int64)
            keep = np.zeros((len(chosen), longest), dtype=bool)
            for row, j in enumerate(chosen):
                n = ends[j] - starts[j] + 1
                rows[row, 1 : n + 1] = tokens[starts[j] : ends[j] + 1]
                keep[row, :n] = True
            x, y = torch.from_numpy(rows[:, :-1]), torch.from_numpy(rows[:, 1:])
            add_batch(model, tally, x, y, torch.from_numpy(keep), counts)
    return tally.gather(world).score()


# -- probes -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """One sublayer's write, seen from outside: tensors (B, T, d); r is None without a gate."""

    kind: str
    sublayer: int
    h: Tensor
    u: Tensor
    r: Tensor | None
    kept: Tensor | float  # coefficient on h: 1 for additive rules, 1 − r for convex ones
    out: Tensor
    pass_: int  # 1 … N


@contextlib.contextmanager
def wrapped(owners: list, name: str, wrap: Callable[[Any, Callable], Callable]) -> Iterator[None]:
    """Replace the method `name` of each owner by wrap(owner, method); put back what was there."""
    before = [(owner, vars(owner).get(name), getattr(owner, name)) for owner in owners]
    for owner, _, method in before:
        setattr(owner, name, wrap(owner, method))
    try:
        yield
    finally:
        for owner, own, _ in before:
            delattr(owner, name)
            if own is not None:  # a caller's own patch
                setattr(owner, name, own)


def trace(model: Model, idx: Tensor, grad: bool = False) -> list[Step]:
    """What every sublayer read, proposed and left behind, for token ids (B, T).

    Looped models give 2·L·N steps, pass by pass. With grad=True the tensors stay in the graph and
    each stream state keeps its gradient. For rules whose state is one tensor.
    """
    steps: list[Step] = []

    def spy(rule: Any, write: Callable) -> Callable:
        def record(state: Tensor, u: Tensor) -> Tensor:
            out = write(state, u)
            if grad:
                out.retain_grad()
            site, r, kept = rule.site, rule.gate(state, u), rule.kept(state, u)
            pass_ = 1 + len(steps) // (2 * site.n_layer)
            steps.append(Step(site.kind, site.sublayer, state, u, r, kept, out, pass_))
            return out

        return record

    rules = model.rules
    for rule in rules:
        if rule.state != "tensor":
            raise TypeError(f"{rule.name} keeps {rule.state} as its state: no single stream")
    with wrapped(rules, "write", spy), torch.enable_grad() if grad else torch.no_grad():
        model.hidden(idx)
    return steps


def rms(x: Tensor) -> float:
    """Root of the mean square over all entries."""
    return x.detach().double().pow(2).mean().sqrt().item()


def norms_by_depth(model: Model, idx: Tensor) -> list[float]:
    """Root mean square of the stream h_l, l = 0 … S, for S = 2·L·N sublayers (the unrolled net).

    idx: token ids (B, T); over all tokens and channels. For rules whose state is one tensor.
    """
    steps = trace(model, idx)
    return [rms(steps[0].h), *(rms(step.out) for step in steps)]


def increment_cosines(model: Model, idx: Tensor, each: str = "sublayer") -> Tensor:
    """Cosines between the increments of the stream, pair by pair: (n, n), float64.

    An increment is what one "sublayer", "block" or "pass" has added to the stream at a token, so
    that n is 2·L·N, L·N or N; entry (i, j) is the mean over tokens of cos(Δh_i, Δh_j). Independent
    increments have cosines near 0, and their sum grows as √n; aligned ones have 1, and it grows as
    n. One that is zero has cosine 0 with all. idx: (B, T). For rules whose state is one tensor.
    """
    sizes = {"sublayer": 1, "block": 2, "pass": 2 * model.config.n_layer}
    if each not in sizes:
        raise RRError(f"unknown increment {each!r}: {nearest(each, sizes)}")
    steps = trace(model, idx)
    ends = torch.stack([steps[0].h, *(s.out for s in steps[sizes[each] - 1 :: sizes[each]])])
    moves = F.normalize(ends.double().diff(dim=0), dim=-1)
    return torch.einsum("ibtd,jbtd->ij", moves, moves) / idx.numel()


def gradient_by_depth(model: Model, idx: Tensor, targets: Tensor) -> list[float]:
    """‖∂loss/∂h_l‖ for l = 0 … S (S = 2L·N): how much of the loss's gradient reaches each depth.

    Euclidean norm over all entries of the stream after sublayer l; entry 0 is the embedding's.
    The gradients that the parameters hold stay as they are. For rules whose state is no list.
    """
    if model.final_rule.state == "list":
        raise TypeError(f"{model.final_rule.name} keeps a list as its state: no single stream")
    streams: list[Tensor] = []

    def after(owner: Any, method: Callable) -> Callable:
        def kept(*args: Any) -> Tensor:
            streams.append(method(*args))
            return streams[-1]

        return kept

    with (
        wrapped([model.final_rule], "open", after),
        wrapped(model.rules, "write", after),
        torch.enable_grad(),
    ):
        loss = model(idx, targets)
    return [g.double().norm().item() for g in torch.autograd.grad(loss, streams)]


def jacobian_gain(model: Model, idx: Tensor, probes: int = 8, seed: int = 0) -> float:
    """Root-mean-square singular value of ∂h_S/∂h_0, the *total* Jacobian of the stack.

    Estimated as sqrt(mean_v ‖Jᵀv‖² / ‖v‖²) over `probes` random v; 1 means that perturbations of
    the embedding reach the last state at their own size. idx: (B, T).
    """
    kept: list[Tensor] = []

    def leaf(owner: Any, method: Callable) -> Callable:
        def opened(x0: Tensor) -> Tensor:
            kept.append(method(x0.detach()).requires_grad_())
            return kept[0]

        return opened

    with wrapped([model.final_rule], "open", leaf), torch.enable_grad():
        steps = trace(model, idx, grad=True)
    last = steps[-1].out
    source = torch.Generator().manual_seed(seed)
    total = 0.0
    for i in range(probes):
        v = torch.randn(last.shape, generator=source).to(last)
        (back,) = torch.autograd.grad(last, kept[0], v, retain_graph=i + 1 < probes)
        total += (back.double().pow(2).sum() / v.double().pow(2).sum()).item()
    return (total / probes) ** 0.5


def embedding_share(model: Model, idx: Tensor) -> float:
    """‖(∏ kept_l) ⊙ h_0‖ / ‖h_S‖: what is left of the embedding itself in the last state.

    kept_l is the coefficient on h in write l; Euclidean norms over all entries. idx: (B, T).
    """
    steps = trace(model, idx)
    left = steps[0].h.double()
    for step in steps:
        left = left * step.kept
    return (left.norm() / steps[-1].out.double().norm()).item()


def updates_by_depth(model: Model, idx: Tensor, targets: Tensor) -> tuple[list[float], list[float]]:
    """rms of each update u_l, and ‖∂loss/∂u_l‖ over all its entries, for l = 1 … S.

    Unlike the stream's, they exist under every rule. idx, targets: (B, T). The gradients that the
    parameters hold stay as they are.
    """
    updates: list[Tensor] = []

    def spy(rule: Any, write: Callable) -> Callable:
        def record(state: Any, u: Tensor) -> Any:
            updates.append(u)
            return write(state, u)

        return record

    with wrapped(model.rules, "write", spy), torch.enable_grad():
        loss = model(idx, targets)
    slopes = torch.autograd.grad(loss, updates)
    return [rms(u) for u in updates], [g.double().norm().item() for g in slopes]


@torch.no_grad()
def depth_attention(model: Model, idx: Tensor) -> Tensor:
    """Where depth attention looks: the mean over tokens of α, (S + 1, sources), float64.

    Row l − 1 is sublayer l, the last row the head. Column 0 is the embedding, column i block i of
    sublayers (with size=1: sublayer i); what a sublayer does not see is 0. idx: (B, T).
    """
    if model.final_rule.name != "attnres":
        raise RRError(f"{model.final_rule.name} has no depth attention: attnres is accepted")
    rows: list[Tensor] = []

    def spy(rule: Any, read: Callable) -> Callable:
        def record(state: list[Tensor]) -> Any:
            rows.append(rule.weights(state).double().mean((1, 2, 3)))
            return read(state)

        return record

    with wrapped([*model.rules, model.final_rule], "read", spy):
        model.hidden(idx)
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).cpu()
