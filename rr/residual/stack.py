"""Residuals: one rule at every sublayer of a stack, around any branches; `rr.Model` uses it."""

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import RRError, positive
from ..options import parse_spec
from ..specs import ModelConfig
from . import own
from .base import Described, Rule, Site, make, resolve


def site_of(config: ModelConfig, kind: str, sublayer: int, norm: bool = True) -> Site:
    """The site of one sublayer in a model of this shape.

    kind: "attn" (odd sublayers), "mlp" (even ones) or "final". sublayer: 1 … 2L, or 2L + 1 for the
    final read. norm: whether the rule brings the pre-norm.

    Example:
        >>> import rr
        >>> config = rr.ModelConfig(64, n_layer=2, n_head=2, d_model=8, d_ff=16)
        >>> site = rr.model.site_of(config, "mlp", sublayer=4)
        >>> site.kind, site.block
        ('mlp', 2)
    """
    shape = config.n_layer, config.d_model, config.n_head, config.n_loops
    return Site(kind, sublayer, *shape, norm)


def keyed(seed: int, name: str) -> torch.Generator:
    """The random-number generator of one tensor, by the run's seed and the tensor's name."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def grows(config: ModelConfig) -> bool:
    """Whether the state between blocks grows with depth: list states, dense values."""
    return resolve(config.rule)[0].state == "list" or parse_spec(config.values)[0] == "dense"


def decayed(model: nn.Module) -> set[str]:
    """Names of the matrices that weight decay acts on in protocol `clean`.

    Weights of linear layers and of rules (`matrix_names`); not embeddings, gains or biases.
    """
    names = set()
    for module_name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            matrices = ("weight",)
        else:
            matrices = getattr(module, "matrix_names", ())
        parameters = dict(module.named_parameters(recurse=False))
        names.update(f"{module_name}.{name}" for name in matrices if name in parameters)
    return names


def rated(model: nn.Module) -> dict[str, float]:
    """Factor of the learning rate by parameter, of those whose rule was given the option `rate`.

    Raises RRError where a rule was given it and has no parameters of its own.
    """
    factors, asked = {}, {}
    for module_name, module in model.named_modules():
        if isinstance(module, Described):
            own_rates = module.own_rates()
            if module.opt.rate:
                asked.setdefault((type(module), module.name), []).extend(own_rates)
            factors |= {f"{module_name}.{name}": factor for name, factor in own_rates.items()}
    for name in (name for (_, name), found in asked.items() if not found):
        raise RRError(f"{name}: rate is for parameters of the rule's own, and this rule has none")
    return factors


def decay_groups(model: nn.Module, weight_decay: float, everything: bool = False) -> list[dict]:
    """AdamW's groups: what decays (all parameters, or those of `decayed`), then what does not.

    Parameters of a rule with a rate of its own follow, without decay: a group for each "factor" of
    the learning rate.
    """
    named = dict(model.named_parameters())
    factors = rated(model)
    names = set(named) if everything else decayed(model)
    groups = [
        {
            "params": [p for name, p in named.items() if (name in names) == inside
                       and name not in factors],
            "weight_decay": weight_decay if inside else 0.0,
        }
        for inside in (True, False)
    ]  # fmt: skip
    for factor in sorted(set(factors.values())):
        own = [named[name] for name, one in factors.items() if one == factor and name in named]
        groups.append({"params": own, "weight_decay": 0.0, "factor": factor})
    return [group for group in groups if group["params"]]


class Residuals(nn.Module):
    """One residual rule at every sublayer of a stack, for branches of your own.

        res = rr.Residuals("hyper-connections", dim=512, n_layer=12, n_head=8)
        state = res.open(x)                             # embeddings (B, T, d)
        for i, block in enumerate(blocks):
            state = res[2 * i](state, block.attn)       # any callable (B, T, d) -> (B, T, d)
            state = res[2 * i + 1](state, block.mlp)
        x = res.close(state)                            # what the head reads, (B, T, d)

    A branch may take more, `res[i](state, attn, mask, cache=cache)`, and may return more, (u, …):
    then the call returns (state, …). Between two calls the state is one tensor (B, T, d), streams
    (B, T, n, d), or a pair or list of tensors (B, T, d), as `res.state` says.

    rule     of `rr.residual.RULES`, with its options, or a file of your own: "my_rule.py:Class"
    dim      d, channels of the stream
    n_layer  L, blocks of two sublayers: attention, then MLP
    n_head   H; rules with one gate per head need it
    loops    N, passes over the same L blocks: `res[i]` for i = 0 … 2·L·N − 1. All passes share a
             rule's parameters; with the option per_pass=1 each has its own
    norm     whether the rule brings the pre-norm rms(x) ⊙ gain, and one before the head;
             rms(x) = x/√(mean(x²) + 1e-5) over channels. False: the branches have their own, and so
             has the head. Other norms, such as those inside a gate or DeepNorm's after the write,
             are the rule's in any case
    seed     of the initial values of the rules' own parameters, each drawn by a random-number
             generator of its own

    The branches' initial weights are yours. The standard deviation that a rule wants is `init_std`:

        nn.init.normal_(block.attn.out.weight, std=res.init_std(2 * i, "out", d, d))

    or, with a standard deviation of your own, `branch_gain(i)` times it for the matrix that ends a
    branch.

    Value rules work inside attention, which is yours, so none is here: see `rr.attach`. Raises
    RRError for an unknown rule, one that cannot be looped, or a wrong size.

    Example:
        >>> import torch
        >>> import rr
        >>> res = rr.Residuals("hyper-connections", dim=16, n_layer=1, n_head=2)
        >>> state = res.open(torch.zeros(2, 5, 16))
        >>> for sublayer in range(len(res)):
        ...     state = res[sublayer](state, torch.tanh)
        >>> tuple(state.shape), tuple(res.close(state).shape)
        ((2, 5, 4, 16), (2, 5, 16))
    """

    def __init__(
        self,
        rule: str,
        dim: int,
        n_layer: int,
        n_head: int = 1,
        loops: int = 1,
        norm: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__()
        for name, value in (
            ("dim", dim),
            ("n_layer", n_layer),
            ("n_head", n_head),
            ("loops", loops),
        ):
            positive(name, value)
        if dim % n_head:
            raise RRError(f"dim must be a multiple of n_head, got {dim} and {n_head}")
        own.allow(rule)
        # no rule asks for what a stack does not know, such as the width of the MLP
        self._build(ModelConfig(1, n_layer, n_head, dim, 4 * dim, rule=rule, n_loops=loops), norm)
        self.reset(seed)

    @classmethod
    def of(cls, config: ModelConfig) -> "Residuals":
        """The rules of a model of this shape, before they have initial values."""
        residuals = cls.__new__(cls)
        nn.Module.__init__(residuals)
        residuals._build(config, norm=True)
        return residuals

    def _build(self, config: ModelConfig, norm: bool) -> None:
        self.dim, self.sublayers = config.d_model, 2 * config.n_layer * config.n_loops
        self.per_pass = bool(resolve(config.rule)[1].get("per_pass"))
        self.rules: Any = nn.ModuleList(
            make(config.rule, site_of(config, kind, 2 * block + i, norm), config)
            for _ in range(config.n_loops if self.per_pass else 1)
            for block in range(config.n_layer)
            for i, kind in enumerate(("attn", "mlp"), 1)
        )
        last = site_of(config, "final", 2 * config.n_layer + 1, norm=norm)
        self.final = make(config.rule, last, config)
        if self.per_pass and not any(p.numel() for p in self.rules.parameters()):
            raise RRError(
                f"{config.rule}: per_pass=1 gives each pass parameters of its own, and "
                "this rule has none: use per_pass=0"
            )
        if not norm:
            self._check_without_norm(config.rule)

    @torch.no_grad()
    def _check_without_norm(self, name: str) -> None:
        """Raise RRError where a rule, such as a reader's own, counts on the gain of its norm."""
        x = torch.zeros(1, 1, self.dim)
        try:
            self.close(self[0](self.open(x), torch.zeros_like))
        except AttributeError as error:
            if error.name != "gain":
                raise
            raise RRError(
                f"{name} reads self.gain, which a rule lacks where the branch has its own norm "
                "(norm=False, rr.attach): use self.prenorm(x) instead of rms_norm(x, self.gain)"
            ) from None

    @torch.no_grad()
    def reset(self, seed: int = 0) -> None:
        """Give all rules their initial values of `seed`; drawn on the CPU, as a model's are.

        Raises RRError unless seed is an integer ≥ 0.
        """
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise RRError(f"seed must be an integer ≥ 0, got {seed!r}")
        names = {id(p): name for name, p in self.named_parameters()}

        def normal(tensor: Tensor, std: float) -> None:
            source = keyed(seed, names[id(tensor)])
            options = {"generator": source, "dtype": torch.float32, "device": "cpu"}
            tensor.copy_(torch.randn(tensor.shape, **options) * std)

        for module in self.modules():
            if isinstance(module, Described):
                module.reset(normal)

    def __len__(self) -> int:
        """Sublayers of the unrolled stack, 2·L·N."""
        return self.sublayers

    def __getitem__(self, i: int) -> Callable:
        """Sublayer i as a function, state = res[i](state, branch): `Rule.sublayer`."""
        return self.rule(i).sublayer

    def rule(self, i: int) -> Rule:
        """The rule at sublayer i, 0 … 2·L·N − 1: even ones are attention's, odd ones the MLP's.

        Raises IndexError for others.
        """
        if not 0 <= i < len(self):
            raise IndexError(f"sublayer {i}: this stack has 0 to {len(self) - 1}")
        return self.rules[i % len(self.rules)]

    @property
    def pairs(self) -> list[tuple[Rule, Rule]]:
        """The two rules of each block, bottom to top; pass by pass where each has its own."""
        return list(zip(self.rules[0::2], self.rules[1::2], strict=True))

    @property
    def state(self) -> str:
        """What flows between sublayers: "tensor", "streams", "pair" or "list"; see `Rule`."""
        return self.final.state

    def open(self, x: Tensor) -> Any:
        """The state at the bottom of the stack, from embeddings x (B, T, d).

        Raises RRError for x of another shape.
        """
        if x.ndim != 3 or x.shape[-1] != self.dim:
            raise RRError(f"x must be (windows, tokens, dim = {self.dim}), got {tuple(x.shape)}")
        return self(x)

    def forward(self, x: Tensor) -> Any:
        """`open`, called as a module, so that forward hooks see where a stack begins."""
        return self.final.open(x)

    def close(self, state: Any) -> Tensor:
        """What the head reads, (B, T, d), from the state after the last sublayer."""
        return self.final.read(state)[0]

    def branch_gain(self, i: int) -> float:
        """The rule's factor on the initial weights of the matrix that ends branch i."""
        return self.rule(i).branch_gain(self.rule(i).site)

    def init_std(self, i: int, part: str, fan_out: int, fan_in: int) -> float:
        """The rule's initial standard deviation of a matrix of branch i.

        part: "q", "k", "v" or "out" of attention, "up" or "down" of the MLP. fan_out, fan_in: its
        rows and columns. Raises RRError for another part.
        """
        parts = ("q", "k", "v", "out") if i % 2 == 0 else ("up", "down")
        if part not in parts:
            raise RRError(f"part of branch {i} must be one of {', '.join(parts)}, got {part!r}")
        return self.rule(i).init_std(self.rule(i).site, part, fan_out, fan_in)

    def parameter_groups(self, weight_decay: float) -> list[dict]:
        """The rules' parameters as an optimiser's groups: matrices decay, the rest does not.

        A rule with the option `rate` has groups with a "factor": set their "lr" to it times yours.
        """
        return decay_groups(self, weight_decay)

    def costs(self) -> dict[str, Any]:
        """Costs that the rules declare.

        Returns "params", trainable scalars; "flops_per_token", forward FLOPs of the rules' own
        matrix products, 2 per multiply-add, over all passes; and "state", as above.
        """
        called = [*(self.rule(i) for i in range(len(self))), self.final]
        return {
            "params": sum(rule.params(rule.site) for rule in (*self.rules, self.final)),
            "flops_per_token": sum(rule.matmul_flops(rule.site) for rule in called),
            "state": self.state,
        }
