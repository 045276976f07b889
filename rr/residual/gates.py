"""Rules whose coefficient is a gate: a number between 0 and 1 per token and channel."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import RRError
from ..ops.norm import rms_norm
from ..specs import ModelConfig
from .base import Normal, Option, Rule, Site, flag, one_of, register, whole

STUDY = "Review Residuals (2606.31859)"


class Gated(Rule):
    """Base of the gates: one weight matrix (d, inputs·d) and a bias (d,)."""

    inputs = 1  # how many vectors of d channels the gate reads
    convex = False  # whether the state's coefficient is 1 minus the gate
    matrix_names = ("weight",)
    options = {"bias": Option(0.0, "initial gate bias; negative starts near carry")}

    def build(self, site: Site, config: ModelConfig) -> None:
        d = site.d_model
        self.weight = nn.Parameter(torch.zeros(d, self.inputs * d))
        self.bias = nn.Parameter(torch.zeros(d))

    def fill(self, normal: Normal) -> None:
        self.weight.zero_()
        self.bias.fill_(self.opt.bias)

    def gate(self, h: Tensor, u: Tensor) -> Tensor:
        raise TypeError(f"{type(self).__name__} has no gate: define gate(h, u)")

    def squashed(self, z: Tensor) -> Tensor:
        """σ(z). From a bias above 6 bfloat16 holds 1 alone, and the gate would have no gradient."""
        wide = torch.promote_types(z.dtype, torch.float32) if self.opt.bias > 6 else z.dtype
        return torch.sigmoid(z.to(wide)).to(z.dtype)

    def write(self, state: Tensor, u: Tensor) -> Tensor:
        return state + self.gate(state, u) * (u - state if self.convex else u)

    def write_params(self, site: Site) -> int:
        return self.inputs * site.d_model**2 + site.d_model

    def matmul_flops(self, site: Site) -> int:
        return 0 if site.kind == "final" else 2 * self.inputs * site.d_model**2

    def coefficient(self, site: Site) -> float | None:
        return 1 / (1 + math.exp(-self.opt.bias))


class StateGated(Gated):
    """A gate on the raw state, with weights initialised N(0, 0.02²) like every linear layer."""

    def gate(self, h: Tensor, u: Tensor) -> Tensor:
        return self.squashed(F.linear(h, self.weight, self.bias))

    def fill(self, normal: Normal) -> None:
        super().fill(normal)
        normal(self.weight, 0.02)

    def coefficient(self, site: Site) -> None:
        return None  # σ(W h + b) depends on the state from the first step


class Convex:
    """The convex write (1 − r) ⊙ h + r ⊙ u."""

    convex = True
    # of the gated rule that this is mixed into
    gate: Callable[[Tensor, Tensor], Tensor]
    coefficient: Callable[[Site], float | None]

    def kept(self, h: Tensor, u: Tensor) -> Tensor:
        return 1 - self.gate(h, u)

    def carry(self, site: Site) -> float | None:
        coefficient = self.coefficient(site)
        return None if coefficient is None else 1 - coefficient


@register("highway")
class Highway(StateGated):
    """The study's "Highway" arm: additive, its gate reading the un-normalised state.

    It is not the Highway network of 2015, which carries (1 − r)h: see `highway-carry`. Its gate
    starts near ½ but not at it, because the weights are not zero.
    """

    equation = r"h_l = h_{l-1} + \sigma(W h_{l-1} + b) \odot u_l"
    source = f"{STUDY}, its baseline; compare the output gate of GTrXL (1910.06764)"


class NormedGate(Gated):
    """Gates σ(W[…] + b) on RMS-normalised inputs, with W = 0 at the start.

    rank        W = P·Q of this rank, P = 0 at the start; 0: dense
    granularity one gate per channel, per head (d/H channels share it) or per token ("scalar")
    groups      G: group g reads the g-th part of the channels of each input and writes the g-th
                part of r, so that W has 1/G of the dense weights
    gain        1: learned gains inside the gate's norms, 1 at the start
    """

    reads: tuple[str, ...] = ("state", "update")
    matrix_names = ("weight", "down")
    options = {
        **Gated.options,
        "rank": whole(0, "rank of W; 0 is dense", 0),
        "granularity": one_of("channel", "who shares a gate", "channel", "head", "scalar"),
        "groups": whole(1, "groups of channels that gate themselves", 1),
        "gain": flag(0, "1: learned gains inside the gate's norms"),
    }

    def build(self, site: Site, config: ModelConfig) -> None:
        d, wide, out = site.d_model, len(self.inputs_read) * site.d_model, self.width(site)
        rank, groups = self.opt.rank, self.opt.groups
        if rank > d:
            raise RRError(
                f"{self.name}: rank must be an integer from 0 to the width {d}, got {rank}"
            )
        if d % groups or (groups > 1 and (rank or out != d)):
            raise RRError(
                f"{self.name}: groups must divide the width {d}, with granularity=channel and "
                f"rank=0, got groups={groups}"
            )
        if rank:
            self.weight = nn.Parameter(torch.zeros(out, rank))
            self.down = nn.Parameter(torch.zeros(rank, wide))
        elif groups > 1:
            self.weight = nn.Parameter(torch.zeros(groups, d // groups, wide // groups))
        else:
            self.weight = nn.Parameter(torch.zeros(out, wide))
        self.bias = nn.Parameter(torch.zeros(out))
        if self.opt.gain:
            self.inner_gain = nn.Parameter(torch.ones(len(self.inputs_read), d))

    @property
    def inputs_read(self) -> tuple[str, ...]:
        """Which of state and update the gate reads."""
        return self.reads

    def width(self, site: Site) -> int:
        """Gates per token: d, H or 1."""
        return {"channel": site.d_model, "head": site.n_head, "scalar": 1}[self.opt.granularity]

    def fill(self, normal: Normal) -> None:
        super().fill(normal)
        if self.opt.rank:
            normal(self.down, 0.02)
        if self.opt.gain:
            self.inner_gain.fill_(1)

    def gate(self, h: Tensor, u: Tensor) -> Tensor:
        inputs = {"state": h, "update": u}
        seen = [inputs[name] for name in self.inputs_read]
        gains = self.inner_gain if self.opt.gain else [None] * len(seen)
        seen = [rms_norm(x, gain) for x, gain in zip(seen, gains, strict=True)]
        if self.opt.groups > 1:
            parts = torch.cat([x.unflatten(-1, (self.opt.groups, -1)) for x in seen], -1)
            z = torch.einsum("btgi,goi->btgo", parts, self.weight).flatten(-2) + self.bias
        elif self.opt.rank:
            z = F.linear(F.linear(torch.cat(seen, -1), self.down), self.weight, self.bias)
        else:
            z = F.linear(torch.cat(seen, -1), self.weight, self.bias)
        r = self.squashed(z)
        if self.opt.granularity == "head":
            r = r.repeat_interleave(h.shape[-1] // r.shape[-1], -1)
        return r

    def write_params(self, site: Site) -> int:
        d, inputs, out = site.d_model, len(self.inputs_read), self.width(site)
        weights = inputs * d * out // self.opt.groups
        if self.opt.rank:
            weights = self.opt.rank * (inputs * d + out)
        return weights + out + (inputs * d if self.opt.gain else 0)

    def matmul_flops(self, site: Site) -> int:
        if site.kind == "final":
            return 0
        d, inputs, out = site.d_model, len(self.inputs_read), self.width(site)
        if self.opt.rank:
            return 2 * self.opt.rank * (inputs * d + out)
        return 2 * inputs * d * out // self.opt.groups


@register("state-gate")
class StateGate(NormedGate):
    """The Review gate that reads only the normalised state."""

    equation = r"h_l = h_{l-1} + \sigma(W\,\mathrm{rms}(h_{l-1}) + b) \odot u_l"
    source = f"an ablation that {STUDY} lacks"
    reads = ("state",)


@register("update-gate")
class UpdateGate(NormedGate):
    """The Review gate that reads only the normalised update."""

    equation = r"h_l = h_{l-1} + \sigma(W\,\mathrm{rms}(u_l) + b) \odot u_l"
    source = f"an ablation that {STUDY} lacks"
    reads = ("update",)


@register("review")
class Review(NormedGate):
    """The study's rule: the gate reads the normalised state and the normalised update.

    W = 0 and b = 0 at the start, so r = ½ exactly, for every token and channel.
    """

    equation = (
        r"h_l = h_{l-1} + r_l \odot u_l,\quad "
        r"r_l = \sigma(W[\mathrm{rms}(h_{l-1}), \mathrm{rms}(u_l)] + b)"
    )
    source = STUDY
    options = {
        **NormedGate.options,
        "inputs": one_of("both", "what the gate reads", "both", "state", "update"),
    }

    @property
    def inputs_read(self) -> tuple[str, ...]:
        return self.reads if self.opt.inputs == "both" else (self.opt.inputs,)


@register("review-convex")
class ReviewConvex(Convex, Review):
    """The convex form of the Review gate, which the study reports to fail with depth."""

    equation = (
        r"h_l = (1 - r_l) \odot h_{l-1} + r_l \odot u_l,\quad "
        r"r_l = \sigma(W[\mathrm{rms}(h_{l-1}), \mathrm{rms}(u_l)] + b)"
    )
    source = f"{STUDY}, the form it rejects"


@register("highway-carry")
class HighwayCarry(Convex, StateGated):
    """The Highway network of 2015, with the sublayer's update as transform, biased to carry."""

    equation = r"h_l = (1 - r_l) \odot h_{l-1} + r_l \odot u_l,\quad r_l = \sigma(W h_{l-1} + b)"
    source = "Highway Networks (1505.00387)"
    options = {"bias": Option(-2.0, "initial bias of the transform gate; negative carries")}


@register("gtrxl")
class GTrXL(Rule):
    """The GRU gate of GTrXL, the first gate on a residual that reads the update it gates.

    The bias b > 0 of the update gate z starts near carry; 2 is what implementations use. relu=1
    passes the update through a ReLU first, as the paper's figure does.
    """

    equation = (
        r"h_l = (1 - z_l) \odot h_{l-1} + z_l \odot \hat h_l,\quad "
        r"\hat h_l = \tanh(W_g u_l + U_g(\rho_l \odot h_{l-1})),\quad "
        r"z_l = \sigma(W_z u_l + U_z h_{l-1} - b),\quad "
        r"\rho_l = \sigma(W_r u_l + U_r h_{l-1})"
    )
    source = "Stabilizing Transformers for RL (1910.06764)"
    matrix_names = ("from_update", "from_state", "candidate")
    options = {
        "bias": Option(2.0, "b of the update gate z; positive starts near carry"),
        "relu": flag(0, "1: ReLU on the update first"),
    }

    def build(self, site: Site, config: ModelConfig) -> None:
        d = site.d_model
        self.from_update = nn.Parameter(torch.empty(3 * d, d))  # W_r, W_z, W_g
        self.from_state = nn.Parameter(torch.empty(2 * d, d))  # U_r, U_z
        self.candidate = nn.Parameter(torch.empty(d, d))  # U_g
        self.bias = nn.Parameter(torch.empty(d))

    def fill(self, normal: Normal) -> None:
        for matrix in (self.from_update, self.from_state, self.candidate):
            normal(matrix, 0.02)
        self.bias.fill_(self.opt.bias)

    def _gates(self, h: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        u = u.relu() if self.opt.relu else u
        u_r, u_z, u_g = F.linear(u, self.from_update).chunk(3, -1)
        h_r, h_z = F.linear(h, self.from_state).chunk(2, -1)
        return torch.sigmoid(u_r + h_r), torch.sigmoid(u_z + h_z - self.bias), u_g

    def write(self, state: Tensor, u: Tensor) -> Tensor:
        r, z, u_g = self._gates(state, u)
        return state + z * (torch.tanh(u_g + F.linear(r * state, self.candidate)) - state)

    def kept(self, h: Tensor, u: Tensor) -> Tensor:
        return 1 - self._gates(h, u)[1]

    def write_params(self, site: Site) -> int:
        return 6 * site.d_model**2 + site.d_model

    def matmul_flops(self, site: Site) -> int:
        return 0 if site.kind == "final" else 12 * site.d_model**2

    def coefficient(self, site: Site) -> None:
        return None  # u enters through a tanh

    def carry(self, site: Site) -> None:
        return None
