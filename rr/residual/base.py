"""The residual rule: protocol, self-description and registry.

A rule stands between a sublayer (attention or MLP) and the residual stream:

    x, state = rule.read(state)      # what the sublayer sees
    u        = sublayer(x)           # the update it proposes, (B, T, d)
    state    = rule.write(state, u)  # how the proposal is written back

`state = rule.sublayer(state, branch)` is these three lines.

Everything that is known about a rule, its class says itself: equation, source, parameters, FLOPs,
coefficient and gain at initialisation. Matching, cost tables, the command line, the book and the
test suite all read it from there.
"""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from ..config import ModelConfig, RRError, nearest, parse_spec
from ..ops.norm import EPS, rms_norm
from . import own

# Fills a tensor with N(0, std): the model's init table hands rules its own random stream.
Normal = Callable[[Tensor, float], None]
ENDS = ("out", "down")  # the matrices that end a branch: attention's and the MLP's


@dataclass(frozen=True)
class Site:
    """Where a rule sits: one sublayer of the stack, or the read before the head ("final")."""

    kind: str  # "attn", "mlp" or "final"
    sublayer: int  # 1 … 2L; 2L + 1 for the final read
    n_layer: int  # L, unique blocks
    d_model: int
    n_head: int
    n_loops: int = 1  # N, passes
    pass_: int | None = None  # which pass, where a rule has one copy a pass; None: shared
    norm: bool = True  # False: the branch normalises what it reads, and the rule does not

    @property
    def block(self) -> int:
        """Block of this sublayer, 1 … L."""
        return (self.sublayer + 1) // 2


class Option(NamedTuple):
    """An option of a rule, as users write it after the colon: `constant:c=0.5`."""

    default: Any
    meaning: str
    accepts: str = "a finite number"
    check: Callable[[Any], bool] = math.isfinite


def one_of(default: str, meaning: str, *words: str) -> Option:
    """An option whose value is one of a few words."""
    return Option(default, meaning, " or ".join(words), lambda word: word in words)


def whole(default: int, meaning: str, least: int) -> Option:
    """An option whose value is a whole number."""
    accepts = f"a whole number of at least {least}"
    return Option(default, meaning, accepts, lambda number: number >= least)


class Described(nn.Module):
    """What residual rules and value rules share: options and a description of themselves.

    equation        LaTeX
    source          where it was published
    options         name -> Option; the values are found in `self.opt`
    matrix_names    own parameters that are matrices and so subject to weight decay
    """

    kind: ClassVar[str]
    name: ClassVar[str] = ""
    equation: ClassVar[str] = ""
    source: ClassVar[str] = ""
    options: ClassVar[dict[str, Option]] = {}
    matrix_names: ClassVar[tuple[str, ...]] = ()

    def __init__(self, **given: Any) -> None:
        super().__init__()
        defaults = {key: option.default for key, option in self.options.items()}
        self.opt = SimpleNamespace(**(defaults | given))

    def reset(self, normal: Normal) -> None:
        """Initial values of the rule's own parameters; called once by the model's init table."""

    @classmethod
    def parse(cls, given: dict[str, str]) -> dict[str, Any]:
        """Typed option values from the words after the colon; RRError names what is accepted."""
        values = {}
        for key, word in given.items():
            if key not in cls.options:
                known = nearest(key, cls.options) if cls.options else "it has none"
                raise RRError(f"rule {cls.name!r} has no option {key!r}: {known}")
            option = cls.options[key]
            try:
                value = type(option.default)(word)
                ok = option.check(value)
            except (ValueError, TypeError):
                ok = False
            if not ok:
                raise RRError(f"{cls.name}: {key}={word} is not accepted: {option.accepts}")
            values[key] = value
        return values


# In a looped model all passes share a rule's parameters, norm gains included, unless it is told to
# have a copy for each: an option of every rule that can be looped.
PER_PASS = {
    "per_pass": Option(0, "1: parameters of its own in each pass", "0 or 1", lambda n: n in (0, 1))
}


class Rule(Described):
    """Base of every residual rule; by itself it is the pre-norm read, and does not write.

    `state` says what flows between layers: a "tensor" (B, T, d), several "streams" (B, T, n, d), or
    a "list" of tensors that grows with depth.
    """

    kind = "residual"
    state: ClassVar[str] = "tensor"
    at_final: ClassVar[bool] = False  # whether the read before the head has parameters of its own
    options = PER_PASS

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        options = {key: option for key, option in cls.options.items() if key not in PER_PASS}
        cls.options = options if cls.state == "list" else options | PER_PASS

    def __init__(self, site: Site, config: ModelConfig, **given: Any) -> None:
        super().__init__(**given)
        self.site = site
        if self.norm_params(site):
            self.gain = nn.Parameter(torch.ones(site.d_model))
        if site.kind != "final" or self.at_final:
            self.build(site, config)

    # -- what a rule does ---------------------------------------------------------------------

    def build(self, site: Site, config: ModelConfig) -> None:
        """Create the rule's own parameters; the final site reads only and mostly has none."""

    def open(self, x0: Tensor) -> Any:
        """The stream at the bottom, from the embeddings x0 (B, T, d)."""
        return x0

    def prenorm(self, x: Tensor, eps: float = EPS) -> Tensor:
        """The pre-norm rms(x) ⊙ gain, (B, T, d); x itself where the branch has its own norm."""
        return rms_norm(x, self.gain, eps) if self.site.norm else x

    def read(self, state: Any) -> tuple[Tensor, Any]:
        """What the sublayer sees, (B, T, d): here the pre-norm of h."""
        return self.prenorm(state), state

    def write(self, state: Any, u: Tensor) -> Any:
        """The stream after the update u (B, T, d) was written."""
        raise TypeError(f"{type(self).__name__} does not say how it writes: define write(state, u)")

    def forward(self, state: Any, u: Tensor) -> Any:
        """`write`, called as a module, so that forward hooks see and may replace every write."""
        return self.write(state, u)

    def sublayer(self, state: Any, branch: Callable, *args: Any, **kwargs: Any) -> Any:
        """One sublayer: read, u = branch(x, *args, **kwargs), write. The stream's new state.

        branch: any callable from x (B, T, d) to the update u (B, T, d). Where it returns a tuple,
        (u, more …), so does the rule: (state, more …). RRError where u has another shape than x.
        """
        x, state = self.read(state)
        made = branch(x, *args, **kwargs)
        u, *more = made if isinstance(made, tuple) else (made,)
        if u.shape != x.shape:
            raise RRError(
                f"the branch of sublayer {self.site.sublayer} must return {tuple(x.shape)}, the "
                f"shape that it reads, got {tuple(u.shape)}"
            )
        state = self(state, u)
        return (state, *more) if isinstance(made, tuple) else state

    def gate(self, h: Tensor, u: Tensor) -> Tensor | None:
        """The coefficient on u, broadcastable to (B, T, d), for analysis; None if there is none."""
        return None

    def kept(self, h: Tensor, u: Tensor) -> Tensor | float:
        """The coefficient on h in this write, broadcastable to (B, T, d), for analysis."""
        return 1.0

    def reset(self, normal: Normal) -> None:
        if self.norm_params(self.site):
            nn.init.ones_(self.gain)

    # -- what a rule says about itself ----------------------------------------------------------

    def params(self, site: Site) -> int:
        """Trainable scalars of this site: the norm's gain and the rule's own."""
        own = site.kind != "final" or self.at_final
        return self.norm_params(site) + (self.write_params(site) if own else 0)

    def norm_params(self, site: Site) -> int:
        """Scalars of the norm's gain; 0 where the rule does not normalise."""
        return site.d_model if site.norm else 0

    def write_params(self, site: Site) -> int:
        """Trainable scalars of the write alone."""
        return 0

    def matmul_flops(self, site: Site) -> int:
        """FLOPs a token of the rule's own matrix products, forward (2 a multiply-add)."""
        return 0

    def coefficient(self, site: Site) -> float | None:
        """Coefficient on u at initialisation, exact; None where it depends on the input."""
        return 1.0

    def carry(self, site: Site) -> float | None:
        """Coefficient on h at initialisation; None where it depends on the input."""
        return 1.0

    def branch_gain(self, site: Site) -> float:
        """Factor on the initial standard deviation of the branch's output projection."""
        return (2 * site.n_layer) ** -0.5

    def init_std(self, site: Site, part: str, fan_out: int, fan_in: int) -> float:
        """Initial standard deviation of a matrix of the branch, "q", "k", "v", "out", "up", "down".

        The study's law: 0.02, times `branch_gain` for the two that end a branch.
        """
        return 0.02 * (self.branch_gain(site) if part in ENDS else 1.0)

    def embedding_std(self) -> float:
        """Initial standard deviation of the token embedding; asked of the final site's rule."""
        return 0.02


REGISTRY: dict[str, dict[str, type[Described]]] = {"residual": {}, "values": {}}
RULES = REGISTRY["residual"]


def register(name: str) -> Callable[[type[Described]], type[Described]]:
    """Class decorator: `@register("review")` puts a rule into the registry under its kind."""

    def add(cls: type[Described]) -> type[Described]:
        if not cls.equation or not cls.source:
            raise RRError(f"rule {name!r} must state its equation and source")
        there = REGISTRY[cls.kind].get(name)
        if there is not None and own.ships(there) and not own.ships(cls):
            raise RRError(f"rule {name!r} ships with rr: any other name is accepted for your own")
        cls.name = name
        REGISTRY[cls.kind][name] = cls
        return cls

    return add


def resolve(spec: str, kind: str = "residual") -> tuple[type[Described], dict[str, Any]]:
    """Rule class and typed options of `name:key=value,…` or `path.py:Class:key=value,…`.

    Raises RRError for a file that was not allowed (`rr.allow_rule`): nothing of it is run.
    """
    name, given = parse_spec(spec)
    known = REGISTRY[kind]
    if ".py:" in name:
        cls, (path, _, class_name) = own.load(name), name.rpartition(":")
        if not (inspect.isclass(cls) and issubclass(cls, Described) and cls.kind == kind):
            base = "rr.Rule" if kind == "residual" else "rr.residual.values.ValueRule"
            raise RRError(f"{path} has no {kind} rule named {class_name!r}: a subclass of {base}")
        if "name" not in vars(cls):  # nor is it the one that it derives from
            cls.name = class_name
    elif name in known:
        cls = known[name]
    else:
        what = "rule" if kind == "residual" else "value rule"
        accepted = nearest(name, known)
        raise RRError(f"unknown {what} {name!r}: {accepted}, or your own as my_rule.py:Class")
    return cls, cls.parse(given)


def canonical(spec: str, kind: str = "residual") -> str:
    """One text for one rule: defaults left out, options sorted; what a run's id is made from."""
    cls, given = resolve(spec, kind)
    path = parse_spec(spec)[0]
    kept = {k: v for k, v in sorted(given.items()) if v != cls.options[k].default}
    return ":".join([path, ",".join(f"{k}={v}" for k, v in kept.items())]) if kept else path


def content(spec: str, kind: str = "residual") -> str:
    """What a run's id holds of a rule beside its name: "" for one that ships with `rr`."""
    return own.content(spec, resolve(spec, kind)[0])


def make(spec: str, site: Site, config: ModelConfig) -> Rule:
    """The residual rule that `spec` names, at one site of a model."""
    cls, options = resolve(spec)
    return cls(site, config, **options)
