"""The residual rule: interface, self-description and registry.

A rule stands between a sublayer (attention or MLP) and the residual stream:

    x, state = rule.read(state)      # what the sublayer sees
    u        = sublayer(x)           # the update, (B, T, d)
    state    = rule.write(state, u)  # how the update is written back

`state = rule.sublayer(state, branch)` is these three lines.

A rule's class declares everything about it: equation, source, parameters, FLOPs, coefficient and
gain at initialisation. Parameter matching, cost tables, the command line, the book and the test
suite read these declarations.
"""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeVar, cast, overload

import torch
from torch import Tensor, nn

from ..errors import RRError, nearest
from ..ops.norm import EPS, rms_norm
from ..options import parse_spec, recorded, written
from ..specs import ModelConfig
from . import own

if TYPE_CHECKING:
    from .values import ValueRule

# Fills a tensor with N(0, std²), from the random-number generator of the model's init table.
Normal = Callable[[Tensor, float], None]
ENDS = ("out", "down")  # the matrices that end a branch: attention's and the MLP's


@dataclass(frozen=True)
class Site:
    """The position of a rule: one sublayer of the stack, or the read before the head ("final").

    `rr.residual.site_of()` makes the sites of a model.

    Example:
        >>> from rr.residual import Site
        >>> Site("mlp", sublayer=4, n_layer=8, d_model=64, n_head=2).block
        2
    """

    kind: str  # "attn", "mlp" or "final"
    sublayer: int  # 1 … 2L; 2L + 1 for the final read
    n_layer: int  # L, unique blocks
    d_model: int  # d, channels
    n_head: int  # H
    n_loops: int = 1  # N, passes
    norm: bool = True  # False: the branch normalises what it reads, and the rule does not

    @property
    def block(self) -> int:
        """Block of this sublayer, 1 … L."""
        return (self.sublayer + 1) // 2


class Option(NamedTuple):
    """An option of a rule, as users write it after the colon: `constant:c=0.5`.

    A word is read as the type of `default`. A rule without this option, or a value that `check`
    refuses, raises RRError where the rule is resolved.

    Example:
        >>> from rr.residual import Option
        >>> Option(0.5, "the constant").accepts
        'a finite number'
    """

    default: Any
    meaning: str
    accepts: str = "a finite number"  # what `check` accepts, in words
    check: Callable[[Any], bool] = math.isfinite


def one_of(default: str, meaning: str, *words: str) -> Option:
    """An option whose value is one of a few words."""
    return Option(default, meaning, " or ".join(words), lambda word: word in words)


def whole(default: int, meaning: str, least: int) -> Option:
    """An option whose value is an integer."""
    accepts = f"an integer ≥ {least}"
    return Option(default, meaning, accepts, lambda number: number >= least)


def flag(default: int, meaning: str) -> Option:
    """An option whose value is 0 or 1."""
    return Option(default, meaning, "0 or 1", lambda number: number in (0, 1))


TRUTH = {"True": True, "1": True, "False": False, "0": False}  # to bool(), any word is true
# An option of every rule.
RATE = {
    "rate": Option(
        0.0,
        "factor of the learning rate of the rule's own parameters, which then do not decay; 0: all "
        "as the others",
        "a number from 0 to 1000",
        lambda factor: 0 <= factor <= 1000,
    )
}


def _with(cls: type["Described"], every: dict[str, Option]) -> dict[str, Option]:
    """The options of a class and those of every rule, which it may not redefine."""
    for name, option in every.items():
        if cls.options.get(name, option) is not option:
            raise RRError(f"{cls.__name__}: every rule has {name}=: give yours another name")
    return cls.options | every


class Described(nn.Module):
    """Base of residual rules and value rules: options and self-description.

    Example:
        >>> from rr.residual import RULES
        >>> RULES["standard"].equation
        'h_l = h_{l-1} + u_l'
    """

    kind: ClassVar[str]  # "residual" or "values"
    name: ClassVar[str] = ""  # in the registry; set by `register()`
    equation: ClassVar[str] = ""  # LaTeX
    source: ClassVar[str] = ""  # the publication
    shipped: ClassVar[str] = ""  # public models that use it, and where that can be read
    options: ClassVar[dict[str, Option]] = RATE  # by name; their values are in `self.opt`
    matrix_names: ClassVar[tuple[str, ...]] = ()  # own parameters that weight decay acts on

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        cls.options = _with(cls, RATE)

    def __init__(self, **given: Any) -> None:
        super().__init__()
        defaults = {key: option.default for key, option in self.options.items()}
        self.opt = SimpleNamespace(**(defaults | given))

    def own_rates(self) -> dict[str, float]:
        """Factor of the learning rate, by name, of own parameters that have a rate of their own.

        Without the option `rate` none has; the gain of the norm before a sublayer never has.
        """
        names = [name for name, _ in self.named_parameters(recurse=False) if name != "gain"]
        return {name: self.opt.rate for name in names} if self.opt.rate else {}

    @torch.no_grad()
    def reset(self, normal: Normal) -> None:
        """Set all of the rule's parameters to their initial values, without gradients.

        normal: normal(tensor, std) fills a tensor with N(0, std²) from the run's seed.
        """
        self.fill(normal)

    def fill(self, normal: Normal) -> None:
        """Set own parameters to their start, by a tensor's methods: torch.nn.init may be off."""

    @classmethod
    def parse(cls, given: dict[str, str]) -> dict[str, Any]:
        """Typed option values from the words after the colon.

        Raises RRError for an unknown option, and for a value that it does not accept.
        """
        values = {}
        for key, word in given.items():
            if key not in cls.options:
                known = nearest(key, cls.options) if cls.options else "it has no options"
                raise RRError(f"rule {cls.name!r} has no option {key!r}: {known}")
            option = cls.options[key]
            try:
                kind = type(option.default)
                value = TRUTH[word] if kind is bool else kind(word)
                ok = option.check(value)
            except (ValueError, TypeError, KeyError):
                ok = False
            if not ok:
                raise RRError(f"{cls.name}: {key} must be {option.accepts}, got {word}")
            values[key] = value
        return values


# Of rules that public models have with another ε than 1e-5, the study's and this package's.
EPSILON = {
    "eps": Option(
        0.0, "ε inside the rule's norms; 0: 1e-5, as everywhere here", "a number from 0 to 1",
        lambda e: 0 <= e <= 1,
    )
}  # fmt: skip
# In a looped model all passes share a rule's parameters, norm gains included, unless per_pass=1
# gives each pass its own: an option of every rule that can be looped.
PER_PASS = {"per_pass": flag(0, "1: parameters of its own in each pass")}


class Rule(Described):
    """Base of every residual rule: reads with a pre-norm; subclasses define `write`.

    A rule stands between a sublayer, attention or MLP, and the stream, one object per sublayer:

        x, state = rule.read(state)      # what the sublayer sees, (B, T, d)
        u = sublayer(x)                  # the update, (B, T, d)
        state = rule.write(state, u)     # how the update is written back

    What flows from one to the next, `state`, is one "tensor" (B, T, d), several "streams"
    (B, T, n, d), a "pair" of tensors (B, T, d), the stream first, or a "list" of tensors that grows
    with depth. To write a rule, derive a class and define

    * `write(state, u)`, and `read(state)` and `open(x0)` where the state is no single tensor;
    * `equation` and `source`, without which `rr.register` refuses it;
    * `options`, name to `Option`, where it has any; `self.opt.name` is the value;
    * `build(site, config)` for its own parameters, `fill(normal)` for their initial values, and
      `matrix_names` for those that weight decay acts on;
    * `write_params`, `matmul_flops`, `coefficient` and `carry`: what it declares of itself.

    `rr.analysis.check` tests all of these. Chapter 15 writes a rule step by step.

    Example:
        >>> import rr
        >>> config = rr.ModelConfig(64, n_layer=2, n_head=2, d_model=8, d_ff=16)
        >>> class Half(rr.Rule):
        ...     def write(self, state, u):
        ...         return state + u / 2
        >>> Half(rr.residual.Site("mlp", 2, 2, 8, 2), config).write(1.0, 1.0)
        1.5
    """

    kind = "residual"
    state: ClassVar[str] = "tensor"  # or "streams", "pair", "list": see above
    at_final: ClassVar[bool] = False  # whether the read before the head has parameters of its own
    eps: float = EPS  # inside the rule's norms
    options = PER_PASS | RATE

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        options = _with(cls, PER_PASS)
        if cls.state == "list":
            del options["per_pass"]
        cls.options = options

    def __init__(self, site: Site, config: ModelConfig, **given: Any) -> None:
        super().__init__(**given)
        self.site = site
        if self.options.get("eps") is EPSILON["eps"]:
            self.eps = self.opt.eps or EPS
        if self.norm_params(site):
            self.gain = nn.Parameter(torch.ones(site.d_model))
        if self._has_own(site):
            self.build(site, config)

    def _has_own(self, site: Site) -> bool:
        """Whether there are parameters of the rule's own at a site; mostly not at the last read."""
        return site.kind != "final" or self.at_final

    # -- computation --------------------------------------------------------------------------

    def build(self, site: Site, config: ModelConfig) -> None:
        """Create the rule's own parameters; not called at the final site without `at_final`.

        Nor is `fill`, which gives them their initial values.
        """

    def open(self, x0: Tensor) -> Any:
        """The stream at the bottom, from the embeddings x0 (B, T, d)."""
        return x0

    def streams(self, state: Tensor) -> Tensor:
        """The streams (B, T, n, d) that a state of the kind "streams" holds: all of it, mostly."""
        return state

    def prenorm(self, x: Tensor, eps: float | None = None) -> Tensor:
        """The pre-norm rms(x) ⊙ gain, (B, T, d); x itself where the branch has its own norm."""
        return rms_norm(x, self.gain, eps or self.eps) if self.site.norm else x

    def read(self, state: Any) -> tuple[Tensor, Any]:
        """The sublayer's input (B, T, d), here the pre-norm of h, and the state."""
        return self.prenorm(state), state

    def write(self, state: Any, u: Tensor) -> Any:
        """The state after writing the update u (B, T, d)."""
        raise TypeError(f"{type(self).__name__} has no write: define write(state, u)")

    def forward(self, state: Any, u: Tensor) -> Any:
        """`write`, called as a module, so that forward hooks see and may replace every write."""
        return self.write(state, u)

    def sublayer(self, state: Any, branch: Callable, *args: Any, **kwargs: Any) -> Any:
        """One sublayer: read, u = branch(x, *args, **kwargs), write; returns the new state.

        branch: any callable from x (B, T, d) to the update u (B, T, d). Where it returns a tuple,
        (u, more …), so does the rule: (state, more …). RRError where u is not shaped like x.
        """
        x, state = self.read(state)
        result = branch(x, *args, **kwargs)
        more = []
        if isinstance(result, tuple):
            u, *more = result
        else:
            u = result
        if not isinstance(u, Tensor) or u.shape != x.shape:
            raise RRError(
                f"the branch of sublayer {self.site.sublayer} must return {tuple(x.shape)}, the "
                f"shape that it reads, got {tuple(u.shape) if isinstance(u, Tensor) else u!r}"
            )
        state = self(state, u)
        return (state, *more) if isinstance(result, tuple) else state

    def gate(self, h: Tensor, u: Tensor) -> Tensor | None:
        """The coefficient on u, broadcastable to (B, T, d), for analysis; None if there is none."""
        return None

    def kept(self, h: Tensor, u: Tensor) -> Tensor | float:
        """The coefficient on h in this write, broadcastable to (B, T, d), for analysis."""
        return 1.0

    @torch.no_grad()
    def reset(self, normal: Normal) -> None:
        if self.norm_params(self.site):
            self.gain.fill_(1)
        if self._has_own(self.site):
            self.fill(normal)

    # -- self-description -----------------------------------------------------------------------

    def params(self, site: Site) -> int:
        """Trainable scalars of this site: the norm's gain and the rule's own."""
        own = self.write_params(site) if self._has_own(site) else 0
        return self.norm_params(site) + own

    def norm_params(self, site: Site) -> int:
        """Scalars of the norm's gain; 0 where the rule does not normalise."""
        return site.d_model if site.norm else 0

    def write_params(self, site: Site) -> int:
        """Trainable scalars of the write alone."""
        return 0

    def matmul_flops(self, site: Site) -> int:
        """Forward FLOPs per token of the rule's own matrix products (2 per multiply-add)."""
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
        """Initial standard deviation of a matrix of the branch.

        As in the study: 0.02, times `branch_gain` for "out" and "down", which end a branch. part:
        "q", "k", "v" or "out" of attention, "up" or "down" of the MLP. fan_out, fan_in: its rows
        and columns.
        """
        return 0.02 * (self.branch_gain(site) if part in ENDS else 1.0)

    def embedding_std(self) -> float:
        """Initial standard deviation of the token embedding; read from the final site's rule."""
        return 0.02


REGISTRY: dict[str, dict[str, type[Described]]] = {"residual": {}, "values": {}}
RULES = cast(dict[str, type[Rule]], REGISTRY["residual"])


Kind = TypeVar("Kind", bound=Described)


def register(name: str) -> Callable[[type[Kind]], type[Kind]]:
    """Class decorator: `@register("review")` puts a rule into the registry under its kind.

    It can then be named wherever a rule is: in `rr.plan`, `rr.Residuals`, `rr.attach`. Raises
    RRError where the class lacks `equation` or `source`, and for the name of a rule of `rr`. A name
    of your own that is registered again is another rule: a run's id contains a hash of its code.

    Example:
        >>> import rr
        >>> @rr.register("third")
        ... class Third(rr.Rule):
        ...     equation = "h + u / 3"
        ...     source = "an example"
        ...
        ...     def write(self, state, u):
        ...         return state + u / 3
        >>> rr.plan("nano", "third").rule
        'third'
    """

    def add(cls: type[Kind]) -> type[Kind]:
        if not cls.equation or not cls.source:
            raise RRError(f"rule {name!r} must state its equation and source")
        registered = REGISTRY[cls.kind].get(recorded(name, cls.kind))
        if registered is not None and own.ships(registered) and not own.ships(cls):
            raise RRError(f"rule {name!r} is part of rr: register yours under another name")
        cls.name = name
        REGISTRY[cls.kind][name] = cls
        return cls

    return add


@overload
def resolve(
    spec: str, kind: Literal["residual"] = "residual"
) -> tuple[type[Rule], dict[str, Any]]: ...
@overload
def resolve(spec: str, kind: Literal["values"]) -> tuple[type["ValueRule"], dict[str, Any]]: ...
@overload
def resolve(spec: str, kind: str) -> tuple[type[Described], dict[str, Any]]: ...
def resolve(spec: str, kind: str = "residual") -> tuple[type[Any], dict[str, Any]]:
    """Rule class and typed options of `name:key=value,…` or `path.py:Class:key=value,…`.

    kind: "residual" or "values". The options are those that `spec` names. Raises RRError for an
    unknown rule, option or value, and for a file that was not allowed (`rr.allow_rule`): nothing of
    it is run.

    Example:
        >>> from rr.residual import resolve
        >>> resolve("constant:c=0.25")[1]["c"]
        0.25
    """
    name, given = parse_spec(recorded(spec, kind))
    known = REGISTRY[kind]
    if ".py:" in name:
        cls, (path, _, class_name) = own.load(name), name.rpartition(":")
        if not (inspect.isclass(cls) and issubclass(cls, Described) and cls.kind == kind):
            base = "rr.Rule" if kind == "residual" else "rr.residual.values.ValueRule"
            what = f"{kind} rule named {class_name!r}"
            raise RRError(f"{path} has no {what}: expected {path}:Class, a subclass of {base}")
        if "name" not in vars(cls):  # it would inherit the name of its base class
            cls.name = class_name
    elif name in known:
        cls = known[name]
    else:
        what = "rule" if kind == "residual" else "value rule"
        names = nearest(name, [written(one, kind) for one in known])
        if kind == "residual" and recorded(name, "values") in REGISTRY["values"]:
            names = "it is a value rule, for --values"
        elif kind == "values" and name in REGISTRY["residual"]:
            names = "it is a residual rule, for --rule"
        raise RRError(f"unknown {what} {name!r}: {names}, or your own as my_rule.py:Class")
    return cls, cls.parse(given)


def canonical(spec: str, kind: str = "residual") -> str:
    """The canonical text of a rule, for a run's id: sorted options, without defaults.

    kind and errors as in `resolve()`.

    Example:
        >>> from rr.residual import canonical
        >>> canonical("constant:c=0.5"), canonical("constant:c=0.25")
        ('constant', 'constant:c=0.25')
    """
    cls, given = resolve(spec, kind)
    path = parse_spec(recorded(spec, kind))[0]
    kept = {k: v for k, v in sorted(given.items()) if v != cls.options[k].default}
    if not kept:
        return path
    return f"{path}:{','.join(f'{key}={value}' for key, value in kept.items())}"


def content(spec: str, kind: str = "residual") -> str:
    """The content hash of a rule in a run's id; "" for a rule that is part of `rr`.

    SHA-256, in hexadecimal, of a file's bytes, or of the code and the values of a class that was
    registered elsewhere. kind and errors as in `resolve()`; raises RRError, too, where such a class
    uses a value that cannot be hashed.

    Example:
        >>> from rr.residual import content
        >>> content("review")
        ''
    """
    return own.content(spec, resolve(spec, kind)[0])


def make(spec: str, site: Site, config: ModelConfig) -> Rule:
    """The residual rule that `spec` names, at one site of a model.

    Its parameters have no initial values yet: `reset` gives them. Raises RRError as `resolve()`
    does, and for options that do not fit the site.

    Example:
        >>> import rr
        >>> config = rr.ModelConfig(64, n_layer=2, n_head=2, d_model=8, d_ff=16)
        >>> site = rr.residual.Site("mlp", 2, n_layer=2, d_model=8, n_head=2)
        >>> rr.residual.make("constant:c=0.25", site, config).write(1.0, 1.0)
        1.25
    """
    cls, options = resolve(spec)
    return cls(site, config, **options)
