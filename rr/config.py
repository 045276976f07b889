"""What a run is: frozen specifications, their validation, and the content hash that names a run.

Two runs with equal specifications have equal ids, on any machine; nothing that leaves the numbers'
meaning alone (paths, device, version) enters the hash.
"""

import difflib
import errno
import hashlib
import json
import math
import stat
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

PROTOCOLS = ("clean", "paper")
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
FLAVOURS = ("gpt2", "llama")
OPTIMIZERS = ("adamw", "muon")
REFERENCE_DEPTH = 12  # blocks at which the looped paper's scales are 1
MIB = 1 << 20
LARGEST_JSON = 4 * MIB  # bytes that are read of a JSON file; those that rr writes are a few KiB


# Fields that came after the first records: at their default they are not hashed, so that a run
# keeps its id.
LATER = {
    "model": {"n_kv_head": None, "tied": True},
    "recipe": {"budgets": None, "depth_lr": False, "optimizer": "adamw"},
}


class RRError(Exception):
    """Bad input: one line that says what, why and what is accepted. The CLI exits with 2."""


class RunFailed(RRError):
    """A run that could not go on or whose loss is no longer finite. The CLI exits with 3."""


class Interrupted(Exception):
    """A run stopped by SIGTERM or Ctrl-C after its checkpoint was saved. The CLI exits with 130."""


def nearest(word: str, known: Any) -> str:
    """A clause that names the accepted words, the closest first: for one-line error messages."""
    names = sorted(map(str, known))
    close = difflib.get_close_matches(word, names, n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    return f"{hint}accepted: {', '.join(names)}"


def parse_spec(spec: str) -> tuple[str, dict[str, str]]:
    """`"review:rank=64,inputs=state"` -> `("review", {"rank": "64", "inputs": "state"})`.

    A reader's own class, `"my_rule.py:Name"` or `"my_rule.py:Name:option=1"`, keeps its path as
    part of the name.
    """
    head, _, rest = spec.partition(":")
    if head.endswith(".py"):
        name, _, rest = rest.partition(":")
        head = f"{head}:{name}"
    options = {}
    for item in filter(None, rest.split(",")):
        key, equals, value = item.partition("=")
        if not equals or not key or not value:
            raise RRError(f"cannot read {item!r} in {spec!r}: options are written name:key=value,…")
        if key in options:
            raise RRError(f"option {key!r} is given twice in {spec!r}")
        options[key] = value
    return head, options


def positive(name: str, value: Any) -> None:
    """Raise unless `value` is a whole number above zero, and one that a machine can count to."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise RRError(f"{name} is {value!r}: a whole number of at least 1 is accepted")
    if value >= 2**31:
        raise RRError(f"{name} is {value}: a whole number below 2**31 is accepted")


def checked_file(path: Path, limit: int) -> Path:
    """The path of a file that may be anybody's, if it is one of at most `limit` bytes.

    Raises OSError where it is no regular file (a pipe would never end), ValueError where larger.
    """
    told = path.stat()
    if not (stat.S_ISREG(told.st_mode) or stat.S_ISDIR(told.st_mode)):  # a folder says so if opened
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    if told.st_size > limit:
        raise ValueError(f"{path.name} is larger than {limit // MIB} MiB")
    return path


def file_bytes(path: Path, limit: int = LARGEST_JSON) -> bytes:
    """The content of such a file; OSError and ValueError as `checked_file`."""
    return checked_file(path, limit).read_bytes()


def _texts(given: object, *names: str) -> None:
    """Raise unless these attributes are texts: specifications are read from files, too."""
    for name in names:
        if not isinstance(getattr(given, name), str):
            raise RRError(f"{name} is {getattr(given, name)!r}: a text is accepted")


@dataclass(frozen=True)
class ModelConfig:
    """The decoder's shape. Widths in channels, lengths in tokens."""

    vocab_size: int  # tokens the tokenizer knows
    n_layer: int  # unique blocks (attention + MLP); there are 2·n_layer sublayers a pass
    n_head: int
    d_model: int
    d_ff: int  # MLP width
    seq_len: int = 256  # context, tokens
    rule: str = "standard"  # residual rule with its options, "constant:c=0.5"
    values: str = "own"  # value rule
    n_loops: int = 1  # passes over the whole stack with tied weights
    flavour: str = "gpt2"
    pad_vocab: bool = True  # pad the embedding to a multiple of 64; the pad never gets probability
    n_kv_head: int | None = None  # heads of keys and values; None: n_head (no grouping)
    tied: bool = True  # the head is the embedding

    def __post_init__(self) -> None:
        for name in ("vocab_size", "n_layer", "n_head", "d_model", "d_ff", "seq_len", "n_loops"):
            positive(name, getattr(self, name))
        _texts(self, "rule", "values", "flavour")
        if self.d_model % self.n_head:
            raise RRError(
                f"d_model {self.d_model} does not divide into {self.n_head} heads: "
                "a multiple of n_head is accepted"
            )
        if self.n_kv_head is not None:
            positive("n_kv_head", self.n_kv_head)
            if self.n_head % self.n_kv_head:
                raise RRError(
                    f"n_kv_head {self.n_kv_head} does not divide n_head {self.n_head}: "
                    "a divisor is accepted"
                )
        if self.flavour not in FLAVOURS:
            raise RRError(f"unknown flavour {self.flavour!r}: {nearest(self.flavour, FLAVOURS)}")
        if self.flavour == "llama" and self.head_dim % 2:
            raise RRError(
                f"d_model {self.d_model} over {self.n_head} heads is {self.head_dim} channels a "
                "head: llama rotates pairs of channels, so an even number is accepted"
            )

    @property
    def head_dim(self) -> int:
        """Channels of one head."""
        return self.d_model // self.n_head

    @property
    def depth(self) -> int:
        """Blocks of the unrolled network, L·N; it has twice as many sublayers."""
        return self.n_layer * self.n_loops

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.n_kv_head or self.n_head

    @property
    def padded_vocab(self) -> int:
        """Rows of the embedding: the vocabulary, rounded up to 64 where it is padded."""
        return -(-self.vocab_size // 64) * 64 if self.pad_vocab else self.vocab_size


@dataclass(frozen=True)
class Segment:
    """Steps of a run that are trained in a row, from `start` up to `stop` (0-based)."""

    start: int
    stop: int
    budget: int | None  # of the branch that ends here; None: the plateau up to a branch
    done: int  # steps that the run has taken before this segment, left branches included

    @property
    def end(self) -> int:
        """Steps that the run has taken after this segment."""
        return self.done + self.stop - self.start


@dataclass(frozen=True)
class Recipe:
    """How a model is trained. Lengths in optimiser steps, batches in windows of seq_len tokens."""

    steps: int
    batch: int
    lr: float  # peak learning rate
    warmup: int  # steps of linear warm-up
    schedule: str = "plateau"  # "plateau": constant, then linear to 0 in the last fifth; "cosine"
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1
    decay_all: bool = False  # the study decays norms, biases and embeddings too
    clip: float = 1.0
    precision: str = "bf16"
    eval_batches: int | None = None  # shorten the evaluation to this many batches
    depth_lr: bool = False  # blocks learn at lr·(L/12)^(−1/2), with AdamW's eps likewise
    budgets: tuple[int, ...] | None = None  # steps of each decay branch, rising; the last is steps
    optimizer: str = "adamw"  # "muon": for the blocks' matrices, AdamW for the rest

    def __post_init__(self) -> None:
        positive("steps", self.steps)
        if self.budgets is not None:
            self._check_budgets()
        positive("batch", self.batch)
        if self.eval_batches is not None:
            positive("eval-batches", self.eval_batches)
        if not 0 < self.lr < float("inf"):
            raise RRError(f"lr is {self.lr!r}: a finite number above 0 is accepted")
        for name, known in (("precision", PRECISIONS), ("optimizer", OPTIMIZERS)):
            if (given := getattr(self, name)) not in known:
                raise RRError(f"unknown {name} {given!r}: {nearest(str(given), known)}")

    def _check_budgets(self) -> None:
        told = ", ".join(map(str, self.budgets))
        for budget in self.budgets:
            positive("budgets", budget)
        if sorted(set(self.budgets)) != list(self.budgets) or self.budgets[-1:] != (self.steps,):
            raise RRError(f"budgets are {told}: different numbers of steps, rising, are accepted")
        if self.schedule != "plateau":
            raise RRError(
                f"budgets {told} need a plateau to leave from, and this schedule is a "
                f"{self.schedule}: protocol clean is accepted"
            )

    @property
    def segments(self) -> tuple["Segment", ...]:
        """What is trained, in order: the plateau up to a branch, that branch, the plateau again …

        Each branch but the last is left again for the checkpoint that it started from.
        """
        parts, at, done = [], 0, 0
        for budget in self.budgets or (self.steps,):
            leaves = self.decay_start(budget)
            if budget == self.steps:
                leaves = at  # nothing comes back from here: plateau and decay are one segment
            elif leaves > at:
                parts.append(Segment(at, leaves, None, done))
                at, done = leaves, done + leaves - at
            parts.append(Segment(leaves, budget, budget, done))
            done += budget - leaves
        return tuple(parts)

    def block_factor(self, n_layer: int) -> float:
        """What depth_lr multiplies the blocks' learning rate and AdamW eps with; else 1.

        (L/12)^(−1/2) for L unique blocks, whatever the number of passes: the rule of the looped
        transformers (2606.18524). Embeddings, final norm and head keep lr and eps.
        """
        return (n_layer / REFERENCE_DEPTH) ** -0.5 if self.depth_lr else 1.0

    def lr_at(self, step: int, budget: int | None = None) -> float:
        """Learning rate of the step with 0-based index `step`, on the way to `budget` (or steps).

        plateau: η·min(1, (s+1)/W) until 0.8·steps, then η·(steps − s)/(0.2·steps);
        cosine: η·(s+1)/W, then η·(0.1 + 0.9·½(1 + cos π(s−W)/(steps−W))), the study's own.
        """
        if step < self.warmup:
            return self.lr * (step + 1) / self.warmup
        if self.schedule == "cosine":
            done = min(1.0, (step - self.warmup) / max(1, self.steps - self.warmup))
            return self.lr * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * done)))
        end = budget or self.steps
        return self.lr * min(1.0, (end - step) / (end - self.decay_start(end)))

    @staticmethod
    def decay_start(budget: int) -> int:
        """First step whose learning rate falls: 80 % of the budget, rounded down."""
        return min(budget - 1, budget * 4 // 5)


@dataclass(frozen=True)
class Run:
    """One training run, to the last option that changes numbers."""

    rung: str
    rule: str
    values: str
    loops: int
    flavour: str
    seed: int
    protocol: str
    corpus: str  # content identity, never a path
    tokenizer: str  # content identity
    model: ModelConfig
    recipe: Recipe
    # SHA-256 of a rule that does not ship with rr; "" where its name says all.
    rule_content: str = ""
    values_content: str = ""
    # Where the text is on this machine, and under which name it was asked for: not hashed.
    source: dict = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        _texts(self, "rung", "rule", "values", "flavour", "protocol", "corpus", "tokenizer",
               "rule_content", "values_content")  # fmt: skip
        if not all(isinstance(value, str) for value in self.source.values()):
            raise RRError(f"source is {self.source!r}: texts are accepted")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise RRError(f"seed is {self.seed!r}: a whole number of at least 0 is accepted")
        if self.seed >= 2**32:
            raise RRError(f"seed is {self.seed}: a whole number below 2**32 is accepted")
        if self.protocol not in PROTOCOLS:
            raise RRError(
                f"unknown protocol {self.protocol!r}: {nearest(self.protocol, PROTOCOLS)}"
            )

    def spec(self) -> dict:
        """The hashed part, as plain JSON types."""
        spec = asdict(self)
        del spec["source"]
        return spec

    @property
    def id(self) -> str:
        """Twelve hexadecimal digits of the specification's SHA-256.

        A reader's own rule counts by its content and its name, not by the path of its file.
        """
        spec = self.spec()
        for part, names in LATER.items():
            for name, default in names.items():
                if spec[part][name] == default:
                    del spec[part][name]
        for kind in ("rule", "values"):
            rule, content = spec[kind], spec.pop(f"{kind}_content")
            if content:
                name, _ = parse_spec(rule)
                rule = rule.replace(name, f"{content}:{name.rpartition(':')[2]}", 1)
            spec[kind] = spec["model"][kind] = rule
        return hashlib.sha256(canonical_json(spec).encode()).hexdigest()[:12]

    @classmethod
    def from_spec(cls, spec: dict, source: dict | None = None) -> "Run":
        """The run that `spec()` described. Raises RRError where the fields are not a run's.

        Nothing of it is run: a rule in a file is a name here.
        """
        try:
            spec = dict(spec)
            spec["model"] = ModelConfig(**spec["model"])
            recipe = dict(spec["recipe"])
            for name in ("betas", "budgets"):  # JSON has lists alone
                if recipe.get(name) is not None:
                    recipe[name] = tuple(recipe[name])
            spec["recipe"] = Recipe(**recipe)
            run = cls(**spec, source=source or {})
        except (KeyError, TypeError) as error:
            raise RRError(f"not a run's specification: {error}") from None
        for kind in ("rule", "values"):  # the id is of the run's own, whatever its model says
            if getattr(run.model, kind) != getattr(run, kind):
                raise RRError(f"not a run's specification: its model has another {kind}")
        return run

    def with_seed(self, seed: int) -> "Run":
        """The same run at another seed: its pair."""
        return replace(self, seed=seed)


def canonical_json(value: Any) -> str:
    """One text for one value: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
