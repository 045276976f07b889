"""Evaluation of a model: held-out loss and calibration; a run's last one, and its result.json.

Losses are in nats per token, summed in float64.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from ..data import fables
from ..data.batches import gather
from ..data.corpus import Tokens
from ..model.costs import count
from ..model.sizes import published_params
from ..model.transformer import Model
from ..ops.cross_entropy import token_losses
from ..specs import Run
from .context import Context, Settings
from .device import out_of_memory
from .distributed import ALONE, World

PAPER_EVAL_BATCHES = 80
CLEAN_LIMIT = 1_000_000  # held-out tokens that protocol `clean` evaluates at most
BINS = 15  # of the calibration error


@dataclass(frozen=True)
class Score:
    """A held-out evaluation, under the names that result.json gives its numbers.

    `ece` sorts the n scored tokens by the probability of the likeliest token into 15 bins of equal
    width, and takes the mean over bins, weighted by their n_b tokens, of the difference between the
    share of tokens whose likeliest token is the right one and their mean confidence. Source of ece:
    Guo et al. 2017 (1706.04599).

    Example:
        >>> import math
        >>> from rr.training import Score
        >>> score = Score(val_loss=math.log(50), ece=0.02, eval_tokens=1000)
        >>> round(math.exp(score.val_loss), 3)  # perplexity
        50.0
    """

    val_loss: float  # nats per token
    ece: float  # expected calibration error, a probability: Σ_b (n_b/n)·|accuracy − confidence|
    eval_tokens: int  # target tokens that were scored


class Tally:
    """Sums of losses and calibration bins over batches."""

    def __init__(self) -> None:
        self.means: list[float] = []
        self.loss, self.tokens = 0.0, 0
        self.bins = np.zeros((BINS, 3))  # tokens, summed confidence, hits

    def add(self, loss: Tensor, confidence: Tensor, hit: Tensor) -> None:
        """Add the tokens of one batch; each (n,)."""
        losses, sure, hits = (t.cpu().double().numpy() for t in (loss, confidence, hit))
        self.means.append(losses.mean())
        self.loss += losses.sum()
        self.tokens += len(losses)
        # Bins are open below: confidence on an edge falls into the lower bin, as in the study.
        edges = np.linspace(0, 1, BINS + 1)
        bin_of = np.clip(np.searchsorted(edges, sure, side="left") - 1, 0, BINS - 1)
        for column, weight in enumerate((None, sure, hits)):
            self.bins[:, column] += np.bincount(bin_of, weight, minlength=BINS)

    def gather(self, world: World) -> "Tally":
        """The sums of all processes, in each of them."""
        if world.size > 1:
            parts = world.gathered((self.means, self.loss, self.tokens, self.bins))
            self.means = [mean for means, *_ in parts for mean in means]
            self.loss = sum(loss for _, loss, _, _ in parts)
            self.tokens = sum(tokens for _, _, tokens, _ in parts)
            self.bins = sum((bins for *_, bins in parts), np.zeros((BINS, 3)))
        return self

    def score(self, mean_of_batches: bool = False) -> Score:
        """Loss over all tokens, or the mean of batch means as the study reports it."""
        loss = float(np.mean(self.means)) if mean_of_batches else self.loss / self.tokens
        # Σ_b (n_b / n)·|accuracy_b − confidence_b|, with accuracy and confidence as bin means.
        ece = float(np.abs(self.bins[:, 2] - self.bins[:, 1]).sum() / self.tokens)
        return Score(loss, ece, self.tokens)


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The context of evaluation mode without gradients; restores the model's mode."""
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
    hidden = _in_parts_that_fit(model, x.to(device)).flatten(0, 1)
    y = y.to(device).flatten()
    if keep is not None:
        keep = keep.to(device).flatten()
        hidden, y = hidden[keep], y[keep]
    parts = [
        token_losses(
            hidden[i : i + 1024], model.head_weight, y[i : i + 1024], model.config.vocab_size
        )
        for i in range(0, len(y), 1024)
    ]
    if counts:
        tally.add(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _in_parts_that_fit(model: Model, x: Tensor) -> Tensor:
    """The head's input, in halves where memory runs out."""
    whole = len(x) == 1 or hasattr(model, "set_requires_gradient_sync")  # shards: all call alike
    try:
        return model.hidden(x)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error) or whole:
            raise
    # Outside the except block, where the error no longer holds on to the activations.
    torch.cuda.empty_cache()
    return torch.cat([_in_parts_that_fit(model, half) for half in x.chunk(2)])


def ordered(
    model: Model,
    tokens: np.ndarray,
    batch: int,
    batches: int | None = None,
    world: World = ALONE,
) -> Score:
    """Score the held-out stream in order, the same for every seed: protocol `clean`.

    Windows of seq_len follow each other without overlap; the last, shorter one counts too. At most
    the first million tokens are scored.

    tokens: token ids (T,). batch: windows per forward pass. batches: so many batches at most; None:
    all. world: the processes that share the work; by default this one alone.

    Example:
        >>> import numpy as np, rr
        >>> from rr.training import ordered
        >>> shape = rr.ModelConfig(
        ...     64, n_layer=1, n_head=2, d_model=8, d_ff=16, seq_len=8
        ... )
        >>> ordered(rr.Model(shape), np.arange(21), batch=2).eval_tokens
        20
    """
    tokens, t = tokens[: CLEAN_LIMIT + 1], model.config.seq_len
    starts = np.arange(0, len(tokens) - 1, t)
    if batches is not None:
        starts = starts[: batches * batch]
    tally = Tally()
    with evaluating(model):
        whole = starts[starts + t < len(tokens)]
        parts = [(whole[i : i + batch], t) for i in range(0, len(whole), batch)]
        parts += [(np.array([start]), len(tokens) - 1 - start) for start in starts[len(whole) :]]
        for (members, length), counts in world.distribute(parts):
            add_batch(model, tally, *gather(tokens, members, length), counts=counts)
    return tally.gather(world).score()


def random_windows(
    model: Model,
    tokens: np.ndarray,
    batch: int,
    batches: int,
    rng: np.random.RandomState,
    world: World = ALONE,
) -> Score:
    """Score random windows of the run's own generator: protocol `paper`; mean of batch means."""
    t, tally = model.config.seq_len, Tally()
    parts = [rng.randint(0, len(tokens) - t - 1, batch) for _ in range(batches)]
    with evaluating(model):
        for starts, counts in world.distribute(parts):
            add_batch(model, tally, *gather(tokens, starts, t), counts=counts)
    return tally.gather(world).score(mean_of_batches=True)


def by_document(
    model: Model,
    tokens: np.ndarray,
    eot: int,
    batch: int = 32,
    world: World = ALONE,
    documents: int | None = None,
) -> Score:
    """Score each held-out document alone in its window, after one end-of-text token.

    documents: the first so many alone.

    The loss to compare with an entropy floor: every token of a document is predicted, its end
    included, and without any context before it. Documents must fit seq_len.
    """
    t = model.config.seq_len
    ends = np.flatnonzero(np.asarray(tokens) == eot)[:documents]
    starts = np.concatenate([[0], ends[:-1] + 1])
    if (ends - starts + 1).max() > t:
        raise ValueError(f"a document of {(ends - starts + 1).max()} tokens exceeds {t}")
    order = np.argsort(ends - starts, kind="stable")  # batches of similar length
    tally = Tally()
    with evaluating(model):
        parts = [order[i : i + batch] for i in range(0, len(order), batch)]
        for members, counts in world.distribute(parts):
            longest = int((ends[members] - starts[members]).max()) + 1
            rows = np.full((len(members), longest + 1), eot, dtype=np.int64)
            keep = np.zeros((len(members), longest), dtype=bool)
            for row, j in enumerate(members):
                n = ends[j] - starts[j] + 1
                rows[row, 1 : n + 1] = tokens[starts[j] : ends[j] + 1]
                keep[row, :n] = True
            x, y = torch.from_numpy(rows[:, :-1]), torch.from_numpy(rows[:, 1:])
            add_batch(model, tally, x, y, torch.from_numpy(keep), counts)
    return tally.gather(world).score()


class Examiner:
    """Evaluates a run's model on the held-out tokens, by the run's protocol."""

    def __init__(self, model: Model, context: Context) -> None:
        self.run, self.model = context.run, model
        self.tokens, self.world, self.device = context.tokens, context.world, context.device
        self.backend, self.precision = context.settings.backend, context.settings.precision

    def held_out(self, rng: np.random.RandomState, prefix: int | None = None) -> Score:
        """The held-out score; with `prefix`, of that many batches only.

        rng: the source from which protocol `paper` draws its windows.
        """
        run, valid = self.run, self.tokens.valid
        limits = [n for n in (prefix, run.recipe.eval_batches) if n is not None]
        limit, batch = min(limits) if limits else None, run.recipe.batch
        with self.backend.evaluation(self.device, self.precision):
            if run.protocol == "paper":
                batches = limit or PAPER_EVAL_BATCHES
                return random_windows(self.model, valid, batch, batches, rng, self.world)
            return ordered(self.model, valid, batch, limit, self.world)

    def fables(self) -> dict:
        """The loss on whole held-out stories, and the entropy floor of the same stories.

        All, or the first `stories`, as many as the windows of a shortened evaluation.

        The loss is None where a story does not fit the window, because it is then not comparable
        with the floor. Empty for another corpus, whose floor is unknown.
        """
        if self.run.source.get("corpus") != "fables":
            return {}
        shortened, batch = self.run.recipe.eval_batches, self.run.recipe.batch
        stories = None if shortened is None else max(2, shortened * batch)  # two have an error
        floor, error = fables.entropy_floor(self.tokens, stories)
        valid, eot = self.tokens.valid, self.tokens.eot
        scored = int((valid == eot).sum())
        scored = scored if stories is None else min(stories, scored)
        scores = {"story_loss": None, "floor": floor, "floor_error": error, "stories": scored}
        if np.diff(np.flatnonzero(valid == eot), prepend=-1).max() > self.run.model.seq_len:
            return scores
        with self.backend.evaluation(self.device, self.precision):
            score = by_document(self.model, valid, eot, world=self.world, documents=stories)
        return {**scores, "story_loss": score.val_loss}


def result(
    run: Run, tokens: Tokens, settings: Settings, evaluation: dict, extra: dict, seconds: float
) -> dict:
    """The content of result.json.

    evaluation: status, tokens, the fields of `Score`, and weights_sha256. code_path says
    which backend was taken, code_path_reason why.
    """
    names = ("rung", "rule", "values", "loops", "flavour", "seed", "protocol")
    contents = {"rule_content": run.rule_content, "values_content": run.values_content}
    published = published_params(run)
    return {
        "id": run.id,
        **{key: getattr(run, key) for key in names},
        **{key: sha256 for key, sha256 in contents.items() if sha256},
        "corpus": tokens.name,
        "corpus_id": run.corpus,
        "tokenizer": tokens.tokenizer_name,
        "tokenizer_id": run.tokenizer,
        "precision": settings.precision,
        "lr": run.recipe.lr,
        **({"depth_lr": True} if run.recipe.depth_lr else {}),
        **({"optimizer": run.recipe.optimizer} if run.recipe.optimizer != "adamw" else {}),
        "batch": run.recipe.batch,
        "steps": run.recipe.steps,
        **evaluation,
        "eval_shortened": run.recipe.eval_batches is not None,
        "eval_batches": run.recipe.eval_batches,
        **extra,
        "params": count(run.model),
        **({"published_params": published} if published else {}),
        "seconds": seconds,
        "threads": torch.get_num_threads(),
        "code_path": settings.backend_name,
        "code_path_reason": settings.reason,
    }
