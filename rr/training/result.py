"""What a run came to: its held-out measures, and the result that is written last."""

import numpy as np
import torch

from ..config import Run
from ..data import fables
from ..data.corpus import Tokens
from ..model.ladder import count, published_params
from ..model.transformer import Model
from . import backend, evaluate
from .distributed import World

PAPER_EVAL_BATCHES = 80


class Examiner:
    """Measures a run's model on the held-out tokens, as the run's protocol says."""

    def __init__(
        self, run: Run, model: Model, tokens: Tokens, device: torch.device, path: backend.Path,
        precision: str, world: World,
    ) -> None:  # fmt: skip
        self.run, self.model, self.tokens, self.world = run, model, tokens, world
        self.how = path, device, precision

    def held_out(self, stream: np.random.RandomState, prefix: int | None = None) -> evaluate.Score:
        """Held-out score; of the first `prefix` batches only, for points on the way.

        stream: where protocol `paper` draws its windows from.
        """
        run, valid = self.run, self.tokens.valid
        limits = [n for n in (prefix, run.recipe.eval_batches) if n is not None]
        limit, batch = min(limits) if limits else None, run.recipe.batch
        with backend.measuring(*self.how):
            if run.protocol == "paper":
                batches = limit or PAPER_EVAL_BATCHES
                return evaluate.drawn(self.model, valid, batch, batches, stream, self.world)
            return evaluate.ordered(self.model, valid, batch, limit, self.world)

    def fables(self) -> dict:
        """Loss on whole held-out stories, and the entropy floor of the very same stories.

        The loss is None where a story does not fit the window: it cannot be held against the
        floor. Nothing for another corpus, which has no known floor.
        """
        if self.run.source.get("corpus") != "fables":
            return {}
        floor, error = fables.entropy_floor(self.tokens)
        told = {"story_loss": None, "floor": floor, "floor_error": error}
        valid, eot = self.tokens.valid, self.tokens.eot
        if np.diff(np.flatnonzero(valid == eot), prepend=-1).max() > self.run.model.seq_len:
            return told
        with backend.measuring(*self.how):
            score = evaluate.by_document(self.model, valid, eot, world=self.world)
        return {**told, "story_loss": score.loss}


def result(
    run: Run, tokens: Tokens, precision: str, found: dict, extra: dict, seconds: float
) -> dict:
    """The content of result.json. found: status, tokens, val_loss, ece, eval_tokens, weights."""
    named = ("rung", "rule", "values", "loops", "flavour", "seed", "protocol")
    own = {key: told for key in ("rule_content", "values_content") if (told := getattr(run, key))}
    published = published_params(run)
    return {
        "id": run.id,
        **{key: getattr(run, key) for key in named},
        **own,
        "corpus": tokens.name,
        "corpus_id": run.corpus,
        "tokenizer": tokens.tokenizer_name,
        "tokenizer_id": run.tokenizer,
        "precision": precision,
        "lr": run.recipe.lr,
        **({"depth_lr": True} if run.recipe.depth_lr else {}),
        **({"optimizer": name} if (name := run.recipe.optimizer) != "adamw" else {}),
        "batch": run.recipe.batch,
        "steps": run.recipe.steps,
        **found,
        "eval_shortened": run.recipe.eval_batches is not None,
        "eval_batches": run.recipe.eval_batches,
        **extra,
        "params": count(run.model),
        **({"published_params": published} if published else {}),
        "seconds": seconds,
        "threads": torch.get_num_threads(),
    }
