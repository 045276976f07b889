"""Analysis of trained gates: what r depends on, and its effect on the loss.

For models whose rules are additive gates, h + r ⊙ u with r (B, T, d) in (0, 1), and one pass.
S = 2L sublayers, B windows of T tokens, d channels; losses in nats, in float64. Everything is
measured by altering a trained model: the value of a gate to *this* network, not the loss of a
network trained without it. `rr.analysis.trace_gates` records the gates.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from scipy.stats import pearsonr, rankdata
from torch import Tensor, nn

from rr.analysis import probes
from rr.analysis.gates import BATCH, GateTrace, gates_of, parts
from rr.analysis.gates import trace_gates as trace_gates
from rr.analysis.network import Network
from rr.data import batches
from rr.data.corpus import Tokens
from rr.errors import RRError
from rr.residual import Rule
from rr.residual.gates import Gated
from rr.training import evaluate

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
# A replacement for the gate: (rule, h, u) -> r, of a shape that multiplies u (B, T, d).
Alter = Callable[[Gated, Tensor, Tensor], Tensor | float]


@contextlib.contextmanager
def gates_as(model: nn.Module, alter: Alter) -> Iterator[None]:
    """Within the context every write is h + alter(rule, h, u) ⊙ u."""

    def altered(rule: Gated, args: tuple[Tensor, Tensor], out: Tensor) -> Tensor:
        state, u = args
        return state + alter(rule, state, u) * u

    with probes.hooked(gates_of(model), altered):
        yield


def losses(model: nn.Module, idx: Tensor, targets: Tensor) -> Tensor:
    """Loss of every token: (B, T), float64, for idx and targets (B, T)."""
    net = Network(model)
    with evaluate.evaluating(model):
        parts = [
            net.token_losses(x, y).double()
            for x, y in zip(idx.split(BATCH), targets.split(BATCH), strict=True)
        ]
    return torch.cat(parts)


def two_way(r: Tensor) -> dict[str, float]:
    """Shares of the variance of r (n, d): between channels, between tokens, and the rest.

    r_tc = m + α_c + β_t + γ_tc with sums of zero; the three parts are orthogonal, so their mean
    squares add up to the variance. A share of 1 between channels is a fixed scale per channel, as
    LayerScale learns; 1 between tokens is one number per token. Raises RRError where r is constant.
    """
    r = r.double()
    m, channel, token = r.mean(), r.mean(0), r.mean(1)
    whole = (r - m).pow(2).mean().item()
    if whole < 1e-14:
        raise RRError("the gate is one constant: its variance is 0 and has no shares")
    between = {
        "channel": (channel - m).pow(2).mean().item() / whole,
        "token": (token - m).pow(2).mean().item() / whole,
    }
    return between | {"both": 1 - sum(between.values())}


def distribution(r: Tensor) -> dict:
    """Mean, spread and quantiles of r (n, d), n tokens, and of its channel means.

    Returns numbers by name:

    * `mean, sd`: over all entries;
    * `quantiles`: at 0.05, 0.25, 0.5, 0.75 and 0.95, of at most 2^21 entries, evenly spread;
    * `channels`: the same quantiles of the d channel means;
    * `shut, open`: the share of entries below 0.1 and above 0.9;
    * `shares`: of the variance, "channel" (between channel means), "token" (between token means)
      and "both" (the rest): r_tc = m + α_c + β_t + γ_tc.

    Raises RRError where r is one constant, whose variance has no shares: every Review gate before
    training.

    Example:
        >>> import torch, rr
        >>> from rr.analysis import trace_gates
        >>> from rrbook.gates import distribution
        >>> shape = rr.ModelConfig(
        ...     64, n_layer=1, n_head=2, d_model=8, d_ff=16, rule="highway"
        ... )
        >>> model = rr.model.initialise(rr.Model(shape), 0)
        >>> gates = trace_gates(model, torch.arange(6)[None])
        >>> facts = distribution(gates.r[0].flatten(0, 1))  # first sublayer
        >>> round(facts["mean"], 2), sorted(facts["shares"])
        (0.5, ['both', 'channel', 'token'])
    """
    q = torch.tensor(QUANTILES, dtype=torch.float64)
    r = r.double()
    few = r.flatten()[:: max(1, r.numel() // 2**20)]  # enough for a quantile
    return {
        "mean": r.mean().item(),
        "sd": r.std(correction=0).item(),
        "quantiles": few.quantile(q).tolist(),
        "channels": r.mean(0).quantile(q).tolist(),
        "shut": (r < 0.1).double().mean().item(),
        "open": (r > 0.9).double().mean().item(),
        "shares": two_way(r),
    }


def logit_shares(cov: Tensor) -> dict[str, float]:
    """var(a) + var(c) + 2·cov(a, c) = var(z) over tokens: shares, of sums over channels.

    cov: (2, 2, d). The covariance's share is negative where the two parts oppose each other.
    A share measures what moves the gate, not the movement's effect on the loss.
    """
    over = cov.sum(-1)
    parts = {"state": over[0, 0], "update": over[1, 1], "together": 2 * over[0, 1]}
    return {name: (part / over.sum()).item() for name, part in parts.items()}


# -- effect on the loss -----------------------------------------------------------------------


def constants(model: nn.Module, known: GateTrace) -> dict[str, Alter]:
    """Coefficients that do not depend on the token: ½, one per sublayer, one per channel.

    known: gates of *other* windows than those that are then scored, best of the training text.
    """
    mean = known.r.double().mean((1, 2)).float()  # (S, d)
    at = {id(rule): i for i, rule in enumerate(gates_of(model))}
    return {
        "one half": lambda rule, h, u: 0.5,
        "a number a sublayer": lambda rule, h, u: mean[at[id(rule)]].mean(),
        "a number a channel": lambda rule, h, u: mean[at[id(rule)]],
    }


def partly(model: nn.Module, known: GateTrace) -> dict[str, Alter]:
    """Gates that depend on the token in part: one number per token, the state, the update.

    "a number a token" (one number per token) keeps each channel's mean and moves all channels of a
    token alike; the other two fix one part of the logit at its mean.
    """
    mean = known.r.double().mean((1, 2)).float()
    at = {id(rule): i for i, rule in enumerate(gates_of(model))}

    def by_token(rule: Gated, h: Tensor, u: Tensor) -> Tensor:
        own = mean[at[id(rule)]]
        return own + rule.gate(h, u).mean(-1, keepdim=True) - own.mean()

    def state_alone(rule: Gated, h: Tensor, u: Tensor) -> Tensor:
        a, _, b = parts(rule, h, u)
        return torch.sigmoid(a + b + known.means[at[id(rule)], 1]).to(h.dtype)

    def update_alone(rule: Gated, h: Tensor, u: Tensor) -> Tensor:
        _, c, b = parts(rule, h, u)
        return torch.sigmoid(c + b + known.means[at[id(rule)], 0]).to(h.dtype)

    return {
        "a number a token": by_token,
        "the update at its mean": state_alone,
        "the state at its mean": update_alone,
    }


def shuffled(seed: int = 0) -> dict[str, Alter]:
    """Gates that read another token's state, update or both (the same token's), drawn by `seed`.

    The permutation is over all tokens of a forward pass, new at every sublayer. Each input keeps
    its distribution; the pair may not.
    """

    def mixed(source: torch.Generator, h: bool, u: bool) -> Alter:
        def alter(rule: Gated, state: Tensor, update: Tensor) -> Tensor:
            flat = state.flatten(0, -2), update.flatten(0, -2)
            order = torch.randperm(len(flat[0]), generator=source).to(state.device)
            seen = (x[order] if mix else x for x, mix in zip(flat, (h, u), strict=True))
            return rule.gate(*(x.view_as(state) for x in seen))

        return alter

    cases = {"the state": (True, False), "the update": (False, True), "both": (True, True)}
    return {
        f"{name} shuffled": mixed(torch.Generator().manual_seed(seed), *case)
        for name, case in cases.items()
    }


def costs(
    model: nn.Module, idx: Tensor, targets: Tensor, alters: dict[str, Alter], base: Tensor
) -> dict[str, Tensor]:
    """Loss with each alteration at all sublayers, minus `base`, the loss as trained: (B,)."""
    cost = {}
    for name, alter in alters.items():
        with gates_as(model, alter):
            cost[name] = (losses(model, idx, targets) - base).mean(1)
    return cost


def one_by_one(model: nn.Module, idx: Tensor, targets: Tensor, alter: Alter) -> Tensor:
    """Loss of every token with `alter` at one sublayer at a time: (S, B, T).

    The sublayer is altered at all tokens of a window at once, so that the effect on later attention
    is included. The chapter on the gate uses three of them:

    saved    = loss with r = 0 there − loss as trained: the value of the update as written;
    choice   = loss with the channels' mean gates there − loss as trained: the value of choosing;
    offered  = loss with r = 0 there − loss with the mean gates: the value of the update when all
               tokens write the same share of it. Unlike saved, it does not shrink where r is small.
    """
    altered = []
    for target in gates_of(model):

        def at_target(rule: Gated, h: Tensor, u: Tensor, target: Gated = target) -> Tensor | float:
            return alter(rule, h, u) if rule is target else rule.gate(h, u)

        with gates_as(model, at_target):
            altered.append(losses(model, idx, targets))
    return torch.stack(altered)


def nothing(rule: Rule, h: Tensor, u: Tensor) -> float:
    """The alteration r = 0: the update is not written."""
    return 0.0


# -- which tokens -----------------------------------------------------------------------------


def first_seen(idx: Tensor) -> np.ndarray:
    """Whether a token is the first of its kind in its window: (B, T), bool."""
    same = idx[:, :, None] == idx[:, None, :]  # (B, T, T): query, key
    return ~same.tril(-1).any(-1).cpu().numpy()


def fifths(tokens: Tokens, idx: Tensor, bins: int = 5) -> np.ndarray:
    """The frequency of each token in the training text: 0 (the rarest fifth of idx) … 4; (B, T).

    Edges are quantiles over the tokens of idx; all occurrences of one token fall into one fifth, so
    that the fifths are approximate.
    """
    counts = np.bincount(np.asarray(tokens.train), minlength=tokens.vocab_size)[idx.cpu().numpy()]
    edges = np.quantile(counts, np.arange(1, bins) / bins)
    return np.searchsorted(edges, counts, side="left")


def places(idx: Tensor, bins: int = 8) -> np.ndarray:
    """The position of each token in its window, in `bins` equal parts: (B, T), from 0."""
    t = idx.shape[1]
    return np.broadcast_to(np.arange(t) * bins // t, idx.shape)


def matched(y: np.ndarray, group: np.ndarray, cells: np.ndarray) -> float:
    """Difference of the means of y inside and outside the group, within cells, averaged over cells.

    Cells that contain both are weighted by n₁n₂/(n₁ + n₂), the inverse of the variance of their
    difference. All arguments of one shape; group bool; cells integers. RRError where no cell
    contains both.
    """
    y, group, cells = (np.ravel(x) for x in (y, group, cells))
    n1, n0 = (np.bincount(cells[g], minlength=cells.max() + 1) for g in (group, ~group))
    s1, s0 = (np.bincount(cells[g], y[g], minlength=cells.max() + 1) for g in (group, ~group))
    both = (n1 > 0) & (n0 > 0)
    if not both.any():
        raise RRError("no cell holds tokens of both groups: there is nothing to match")
    n1, n0, s1, s0 = (x[both] for x in (n1, n0, s1, s0))
    weight = n1 * n0 / (n1 + n0)
    return float(((s1 / n1 - s0 / n0) * weight).sum() / weight.sum())


def correlations(x: np.ndarray, y: np.ndarray, cells: np.ndarray, seed: int = 0) -> dict:
    """Correlations of x and y, (B, T): Pearson, Spearman, Spearman within cells, and two nulls.

    "within" correlates ranks minus their mean in each cell, so that the effect of cells is removed.
    "null" is the 95 % point of |Spearman| with tokens permuted at random; "null_windows" with whole
    windows permuted, which keeps the effect of the position in the window. 200 permutations each.
    """
    source = np.random.default_rng(seed)
    ranks = [rankdata(v).reshape(v.shape) for v in (x, y)]
    flat = [(v - v.mean()).ravel() / v.std() / v.size**0.5 for v in ranks]
    inner = []
    for v in ranks:
        mean = np.bincount(cells.ravel(), v.ravel()) / np.maximum(1, np.bincount(cells.ravel()))
        inner.append((v - mean[cells]).ravel())
    whole: Any = pearsonr(x.ravel(), y.ravel())  # scipy has no types
    within: Any = pearsonr(*inner)
    grid = flat[0].reshape(x.shape)
    tokens = [flat[0][source.permutation(x.size)] @ flat[1] for _ in range(200)]
    windows = [grid[source.permutation(len(x))].ravel() @ flat[1] for _ in range(200)]
    return {
        "pearson": float(whole.statistic),
        "spearman": float(flat[0] @ flat[1]),
        "within": float(within.statistic),
        "null": float(np.quantile(np.abs(tokens), 0.95)),
        "null_windows": float(np.quantile(np.abs(windows), 0.95)),
    }


def held_windows(tokens: Tokens, length: int, count: int) -> tuple[Tensor, Tensor]:
    """`count` held-out windows of `length` tokens, evenly spread, and targets: (B, T) each."""
    return _spread(tokens.valid, length, count)


def known_windows(tokens: Tokens, length: int, count: int) -> Tensor:
    """`count` windows of the training text, evenly spread: (B, T)."""
    return _spread(tokens.train, length, count)[0]


def _spread(text: np.ndarray, length: int, count: int) -> tuple[Tensor, Tensor]:
    room = (len(text) - 1) // length
    if room < count:
        raise RRError(f"expected room for {count} windows of {length} tokens, the text has {room}")
    return batches.gather(text, np.linspace(0, room - 1, count).astype(int) * length, length)
