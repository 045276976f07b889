"""The final evaluation of a run and the contents of result.json."""

import numpy as np
import torch

from ..data import fables
from ..data.corpus import Tokens
from ..model.costs import count
from ..model.sizes import published_params
from ..model.transformer import Model
from ..specs import Run
from . import evaluate
from .context import Context, Settings

PAPER_EVAL_BATCHES = 80


class Examiner:
    """Evaluates a run's model on the held-out tokens, by the run's protocol."""

    def __init__(self, model: Model, context: Context) -> None:
        self.run, self.model = context.run, model
        self.tokens, self.world, self.device = context.tokens, context.world, context.device
        self.backend, self.precision = context.settings.backend, context.settings.precision

    def held_out(self, rng: np.random.RandomState, prefix: int | None = None) -> evaluate.Score:
        """The held-out score; with `prefix`, of that many batches only.

        rng: the source from which protocol `paper` draws its windows.
        """
        run, valid = self.run, self.tokens.valid
        limits = [n for n in (prefix, run.recipe.eval_batches) if n is not None]
        limit, batch = min(limits) if limits else None, run.recipe.batch
        with self.backend.evaluation(self.device, self.precision):
            if run.protocol == "paper":
                batches = limit or PAPER_EVAL_BATCHES
                return evaluate.random_windows(self.model, valid, batch, batches, rng, self.world)
            return evaluate.ordered(self.model, valid, batch, limit, self.world)

    def fables(self) -> dict:
        """The loss on whole held-out stories, and the entropy floor of the same stories.

        All of them, or as many as the windows of a shortened evaluation, the first ones; `stories`
        says how many.

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
            score = evaluate.by_document(
                self.model, valid, eot, world=self.world, documents=stories
            )
        return {**scores, "story_loss": score.val_loss}


def result(
    run: Run, tokens: Tokens, settings: Settings, evaluation: dict, extra: dict, seconds: float
) -> dict:
    """The content of result.json.

    evaluation: status, tokens, the fields of `evaluate.Score`, and weights_sha256. code_path says
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
