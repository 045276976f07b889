"""What a run is: frozen specifications, their validation, and the content hash that names a run.

Two runs with equal specifications have equal ids, on any machine; what does not change the meaning
of the numbers (paths, device, version) is not hashed.
"""

import hashlib
import math
import sys
from dataclasses import asdict, dataclass, field, replace

from .errors import RRError, check_number, check_texts, nearest, positive
from .io import canonical_json
from .options import RunOption, budgets_of, option, options_of, parse_spec

PROTOCOLS = ("clean", "paper")
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
FLAVOURS = ("gpt2", "llama")
OPTIMIZERS = ("adamw", "muon")
SCHEDULES = ("plateau", "cosine")
ARM = ("rule", "values", "loops", "flavour")  # of a run, read off its model
REFERENCE_DEPTH = 12  # blocks at which the looped paper's scales are 1


# Part of what an id is: at their default these fields are not hashed, because runs were recorded
# before there was a choice.
LATER = {
    "model": {"n_kv_head": None, "tied": True},
    "recipe": {"budgets": None, "depth_lr": False, "optimizer": "adamw"},
}


@dataclass(frozen=True)
class ModelConfig:
    """The decoder's shape. Widths in channels, lengths in tokens.

    Raises RRError for sizes below 1, more than 10,000 blocks in all, a d_model that n_head does not
    divide, an n_head that n_kv_head does not divide, or an unknown flavour. Whether the rules exist
    is checked where they are built. `rr.residual.RULES` lists the residual rules,
    `rr.residual.REGISTRY` the value rules too, each with its equation and options.

    Example:
        >>> import rr
        >>> config = rr.ModelConfig(1000, n_layer=2, n_head=2, d_model=8, d_ff=16)
        >>> config.head_dim, config.padded_vocab
        (4, 1024)
    """

    vocab_size: int  # tokens of the tokenizer
    n_layer: int  # unique blocks (attention + MLP); there are 2·n_layer sublayers per pass
    n_head: int  # query heads; divides d_model
    d_model: int  # d, channels of the stream
    d_ff: int  # MLP width
    seq_len: int = 256  # context, tokens
    rule: str = "standard"  # residual rule with its options, "constant:c=0.5", or "my.py:Class"
    values: str = "own"  # value rule, likewise: "identity", "neutreno:lam=0.2"; "own" mixes nothing
    n_loops: int = 1  # passes over the whole stack with tied weights
    flavour: str = "gpt2"  # learned positions, GELU, biases; or "llama": RoPE, SwiGLU
    pad_vocab: bool = True  # pad the embedding to a multiple of 64; padding gets no probability
    n_kv_head: int | None = None  # heads of keys and values; None: n_head (no grouping)
    tied: bool = True  # the head is the embedding

    def __post_init__(self) -> None:
        for name in ("vocab_size", "n_layer", "n_head", "d_model", "d_ff", "seq_len", "n_loops"):
            positive(name, getattr(self, name))
        if self.depth > 10_000:  # whatever counts sublayers would fill the memory
            raise RRError(f"n_layer · n_loops must be at most 10000, got {self.depth}")
        check_texts(self, "rule", "values", "flavour")
        if self.d_model % self.n_head:
            raise RRError(
                f"d_model must be a multiple of n_head: {self.d_model} channels do not divide into "
                f"{self.n_head} heads"
            )
        if self.n_kv_head is not None:
            positive("n_kv_head", self.n_kv_head)
            if self.n_head % self.n_kv_head:
                raise RRError(
                    f"n_kv_head must divide n_head: {self.n_kv_head} does not divide {self.n_head}"
                )
        if self.flavour not in FLAVOURS:
            raise RRError(f"unknown flavour {self.flavour!r}: {nearest(self.flavour, FLAVOURS)}")
        if self.flavour == "llama" and self.head_dim % 2:
            raise RRError(
                f"flavour llama rotates pairs of channels and needs an even number per head: "
                f"d_model {self.d_model} over {self.n_head} heads is {self.head_dim}"
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
    """Consecutive training steps of a run, from `start` up to `stop` (0-based, exclusive)."""

    start: int
    stop: int
    budget: int | None  # of the branch that ends here; None: the plateau up to a branch
    taken_before: int  # steps, those of earlier branches included

    @property
    def end(self) -> int:
        """Steps taken, those of branches included, once this segment is over."""
        return self.taken_before + self.stop - self.start


@dataclass(frozen=True)
class Recipe:
    """How a model is trained. Lengths in optimiser steps, batches in windows of seq_len tokens.

    Raises RRError for a value of the wrong type or out of its range, budgets that do not rise to
    `steps`, a warm-up that is not over before the learning rate falls (in the first branch, where
    there are budgets), and an unknown schedule, precision or optimizer.

    Example:
        >>> import rr
        >>> recipe = rr.Recipe(steps=100, batch=8, lr=1e-3, warmup=10)
        >>> [round(recipe.lr_at(step), 6) for step in (0, 50, 90)]
        [0.0001, 0.001, 0.0005]
    """

    steps: int = option("optimiser steps (default: the rung's)", int)
    batch: int = option("windows per step (default: the rung's)", int)
    lr: float = option("peak learning rate, of muon too (default: the rung's)", float)
    warmup: int = option("steps of linear warm-up (default: the protocol's)", int)
    schedule: str = "plateau"  # "plateau": constant, then linear to 0 in the last fifth; "cosine"
    betas: tuple[float, float] = (0.9, 0.95)  # of AdamW
    eps: float = 1e-8  # of AdamW
    weight_decay: float = 0.1  # a step shrinks the matrices by lr times it
    decay_all: bool = False  # the study decays norms, biases and embeddings too
    clip: float = 1.0  # largest Euclidean norm of all gradients together
    precision: str = option(  # of matrix products
        "fp32, tf32, bf16 or fp16 (default: the protocol's)", default="bf16"
    )
    eval_batches: int | None = option(
        "shorten the evaluation to this many batches; the result says so", int, default=None
    )
    depth_lr: bool = option(  # AdamW's eps likewise
        "scale the blocks' learning rate and AdamW's eps by (L/12)^-1/2 for L blocks",
        bool,
        default=False,
    )
    budgets: tuple[int, ...] | None = option(  # rising; the last is steps
        "several training lengths in one run: a learning-rate decay branches off one plateau "
        "for each of these numbers of steps",
        budgets_of,
        "STEPS,STEPS,…",
        default=None,
    )
    optimizer: str = option(
        "adamw, or muon for the blocks' matrices, its updates scaled to adamw's (default: adamw)",
        default="adamw",
    )

    def __post_init__(self) -> None:
        positive("steps", self.steps)
        if self.budgets is not None:
            self._check_budgets(self.budgets)
        positive("batch", self.batch)
        if self.eval_batches is not None:
            positive("eval-batches", self.eval_batches)
        for name in ("lr", "clip"):
            wanted = "a finite number > 0"
            check_number(name, getattr(self, name), wanted, lambda x: 0 < x <= sys.float_info.max)
        for name in ("eps", "weight_decay"):
            wanted = "a finite number ≥ 0"
            check_number(name, getattr(self, name), wanted, lambda x: 0 <= x <= sys.float_info.max)
        for name in ("lr", "clip", "eps", "weight_decay"):  # 1 and 1.0 name one run
            object.__setattr__(self, name, float(getattr(self, name)))
        if not isinstance(self.betas, tuple) or len(self.betas) != 2:
            raise RRError(f"betas must be a pair of numbers, got {self.betas!r}")
        for beta in self.betas:
            check_number("betas", beta, "two numbers ≥ 0 and < 1", lambda x: 0 <= x < 1)
        object.__setattr__(self, "betas", tuple(map(float, self.betas)))
        for name in ("decay_all", "depth_lr"):
            if not isinstance(given := getattr(self, name), bool):
                raise RRError(f"{name} must be True or False, got {given!r}")
        words = {"schedule": SCHEDULES, "precision": PRECISIONS, "optimizer": OPTIMIZERS}
        for name, known in words.items():
            if (given := getattr(self, name)) not in known:
                raise RRError(f"unknown {name} {given!r}: {nearest(str(given), known)}")
        self._check_warmup()

    def _check_warmup(self) -> None:
        positive("warmup", self.warmup)
        first = self.budgets[0] if self.budgets else self.steps
        end = self.decay_start(first) if self.schedule == "plateau" else first - 1
        if self.warmup > max(1, end):  # a warm-up of one step changes no rate
            raise RRError(
                f"warmup must be over before the learning rate falls, after {end} of {first} "
                f"steps: give a warmup of at most {max(1, end)}, or more steps, got {self.warmup}"
            )

    def _check_budgets(self, budgets: tuple[int, ...]) -> None:
        given = ", ".join(map(str, budgets))
        for budget in budgets:
            positive("budgets", budget)
        if sorted(set(budgets)) != list(budgets) or budgets[-1:] != (self.steps,):
            raise RRError(f"budgets must be increasing numbers of steps, got {given}")
        if len({0, *map(self.decay_start, budgets)}) <= len(budgets):
            raise RRError(
                f"budgets {given}: two decays begin at one step, or one at the first: "
                "give budgets that lie further apart, or longer ones"
            )
        if self.schedule != "plateau":
            raise RRError(
                f"budgets need a plateau to branch off, but this schedule is a {self.schedule}: "
                "use protocol clean, or leave budgets out"
            )

    @property
    def segments(self) -> tuple["Segment", ...]:
        """What is trained, in order: the plateau up to a branch, that branch, the plateau again …

        After each branch but the last, training resumes from the checkpoint where it branched off.
        """
        *branches, last = self.budgets or (self.steps,)
        parts: list[Segment] = []
        reached = taken = 0  # the plateau's step so far; all steps, those of branches included
        for budget in branches:
            leaves = self.decay_start(budget)
            parts.append(Segment(reached, leaves, None, taken))
            taken += leaves - reached
            reached = leaves
            parts.append(Segment(leaves, budget, budget, taken))
            taken += budget - leaves
        # nothing follows the last budget: its plateau and its decay are one segment
        return (*parts, Segment(reached, last, last, taken))

    def block_factor(self, n_layer: int) -> float:
        """Factor of the blocks' learning rate and AdamW eps under depth_lr; 1 without it.

        (L/12)^(−1/2) for L unique blocks, whatever the number of passes, as in the paper on looped
        transformers (2606.18524). Embeddings, final norm and head keep lr and eps.
        """
        return (n_layer / REFERENCE_DEPTH) ** -0.5 if self.depth_lr else 1.0

    def lr_at(self, step: int, budget: int | None = None) -> float:
        """Learning rate of the step with 0-based index `step`, on the way to `budget` (or steps).

        For step s, peak rate η = lr and W steps of warm-up:

        * plateau: η·min(1, (s+1)/W) for s < D, then η·(steps − s)/(steps − D), D = ⌊0.8·steps⌋;
        * cosine: η·(s+1)/W for s < W, then η·(0.1 + 0.9·½(1 + cos π(s−W)/(steps−W))), the study's.

        The warm-up is over where the rate falls: W ≤ D, W < steps (W = 1 changes no rate).
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


# All options of `rr.plan`; those of the recipe follow its fields.
RUN_OPTIONS = {
    "corpus": RunOption(
        "fables, tinystories, fineweb-edu, file:PATH, or a dataset of the Hugging Face hub, "
        "org/name[:config][@revision] "
        "(default: fables for nano and mini)"
    ),
    "tokenizer": RunOption(
        "gpt2, bpe:N (trained on the corpus, N tokens), or a folder with vocab.json and "
        "merges.txt (default: bpe:1024 for fables, else gpt2)"
    ),
    "rung": RunOption(
        "model size: nano, mini, 60M … 1B, with options: nano:n_layer=16,d_model=64 "
        "(default: nano)",
        default="nano",
    ),
    "rule": RunOption(
        "residual rule with its options, constant:c=0.5, or your own, my_rule.py:Class "
        "(default: review)",
        default="review",
    ),
    "values": RunOption(
        "value rule with its options, constant-resformer:lam=1 (default: own)", default="own"
    ),
    "loops": RunOption("passes over the stack of blocks (default: 1)", int, 1),
    "flavour": RunOption("architecture: gpt2 or llama (default: gpt2)", default="gpt2"),
    "protocol": RunOption(
        "clean, or paper: as the study trained (default: clean)", default="clean"
    ),
    "seed": RunOption("random seed of weights and batches (default: 0)", int, 0),
    **options_of(Recipe),
}


@dataclass(frozen=True)
class Run:
    """One training run: every option that changes its numbers. `rr.plan` makes one.

    Raises RRError for a seed outside 0 … 2³² − 1 and an unknown protocol.

    Example:
        >>> import rr
        >>> run = rr.plan("nano", "review", seed=0)
        >>> run.with_seed(1).seed, len(run.id)
        (1, 12)
    """

    rung: str  # name of the model's size, "nano" … "1B", with its options
    seed: int  # of weights and batches
    protocol: str  # "clean", or "paper": the study's own recipe and batches
    corpus: str  # content identity, never a path
    tokenizer: str  # content identity
    model: ModelConfig
    recipe: Recipe
    rule_content: str = ""  # SHA-256 of a rule that does not ship with rr; "" for those that do
    values_content: str = ""  # likewise
    source: dict = field(default_factory=dict, compare=False)  # the text as named; not hashed

    def __post_init__(self) -> None:
        names = ("rung", "protocol", "corpus", "tokenizer", "rule_content", "values_content")
        check_texts(self, *names)
        if not all(isinstance(value, str) for value in self.source.values()):
            raise RRError(f"source must map names to strings, got {self.source!r}")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise RRError(f"seed must be an integer ≥ 0, got {self.seed!r}")
        if self.seed >= 2**32:
            raise RRError(f"seed must be an integer below 2**32, got {self.seed}")
        if self.protocol not in PROTOCOLS:
            raise RRError(
                f"unknown protocol {self.protocol!r}: {nearest(self.protocol, PROTOCOLS)}"
            )

    @property
    def rule(self) -> str:
        """The model's residual rule, options in canonical form."""
        return self.model.rule

    @property
    def values(self) -> str:
        """The model's value rule, likewise."""
        return self.model.values

    @property
    def loops(self) -> int:
        """N, the model's passes over the stack."""
        return self.model.n_loops

    @property
    def flavour(self) -> str:
        """The model's, "gpt2" or "llama"."""
        return self.model.flavour

    def spec(self) -> dict:
        """The hashed part, as plain JSON types; it repeats what names an arm beside the model."""
        parts = asdict(self)
        del parts["source"]
        arm = {name: getattr(self, name) for name in ARM}
        return {"rung": parts.pop("rung"), **arm, **parts}

    @property
    def tokens(self) -> int:
        """Tokens that the run trains on, those of its decay branches included."""
        return self.recipe.segments[-1].end * self.recipe.batch * self.model.seq_len

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
            spec[kind] = _hashed_rule(spec[kind], spec.pop(f"{kind}_content"))
            spec["model"][kind] = spec[kind]
        return hashlib.sha256(canonical_json(spec).encode()).hexdigest()[:12]

    @classmethod
    def from_spec(cls, spec: dict, source: dict | None = None) -> "Run":
        """The run that `spec()` described. Raises RRError where the fields are not a run's.

        No code is run: a rule in a file is only a name here.
        """
        try:
            spec = dict(spec)
            spec["model"] = ModelConfig(**spec["model"])
            recipe = dict(spec["recipe"])
            for name in ("betas", "budgets"):  # JSON has lists alone
                if recipe.get(name) is not None:
                    recipe[name] = tuple(recipe[name])
            spec["recipe"] = Recipe(**recipe)
            arm = {name: spec.pop(name) for name in ARM}
            run = cls(**spec, source=source or {})
        except (KeyError, TypeError, ValueError) as error:
            raise RRError(f"not a run's specification: {error}") from None
        for name, value in arm.items():
            if getattr(run, name) != value:
                raise RRError(f"not a run's specification: its model has another {name}")
        return run

    def with_seed(self, seed: int) -> "Run":
        """The same run at another seed."""
        return replace(self, seed=seed)


def _hashed_rule(spec: str, content: str) -> str:
    """A rule as it is hashed: of `folder/my.py:Mine:c=1` with content 0f…, `0f…:Mine:c=1`."""
    if not content:
        return spec
    name, _ = parse_spec(spec)
    return f"{content}:{name.rpartition(':')[2]}{spec.removeprefix(name)}"
