"""A run behind the interface of EleutherAI's lm-evaluation-harness, which scores its tasks.

The harness asks for log-probabilities of continuations and of whole texts, and for greedy text. A
text begins after an end-of-text token, as every document does in training.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lm_eval import evaluator  # pyright: ignore[reportMissingImports]
from lm_eval.api.instance import Instance  # pyright: ignore[reportMissingImports]
from lm_eval.api.model import TemplateLM  # pyright: ignore[reportMissingImports]
from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]
from lm_eval.utils import (  # pyright: ignore[reportMissingImports]
    get_rolling_token_windows,
    make_disjoint_window,
)

from rr.data.tokenizer import Vocabulary
from rr.errors import RRError, nearest
from rr.model.transformer import Model

GENERATED = 256  # tokens at most, where a task does not say


class Harness(TemplateLM):
    """A trained model as the harness sees one: text in; log-probabilities (nats) and text out.

    batch: texts that the model reads at once. A prompt that is longer than the model's window loses
    its beginning; a continuation keeps all its tokens up to the window's length.
    """

    def __init__(self, model: Model, vocabulary: Vocabulary, batch: int = 8) -> None:
        super().__init__()
        self.model, self.vocabulary, self.batch = model.eval(), vocabulary, batch
        self._device = model.token.weight.device

    @property
    def eot_token_id(self) -> int:
        return self.vocabulary.eot

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
    ) -> list[int]:
        """Token ids of a text; no mark is added."""
        return self.vocabulary.encode(string)

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        context_ids, continuation_ids = super()._encode_pair(context, continuation)
        return [self.eot_token_id, *context_ids], continuation_ids

    @torch.no_grad()
    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        """Log-probability of each continuation after its context; whether it is the greedy text."""
        for key, _, targets in requests:
            if not targets:
                raise RRError(
                    f"a task asks how likely an empty text is after {key and key[0]!r}: it is "
                    "certain in every model, so an empty choice always wins; change the question"
                )
        results: list[tuple[float, bool]] = [(0.0, True)] * len(requests)
        by_length = sorted(range(len(requests)), key=lambda i: -len(sum(requests[i][1:], [])))
        for start in range(0, len(by_length), self.batch):
            chosen = by_length[start : start + self.batch]
            rows = [self._row(*requests[i][1:]) for i in chosen]
            width = max(len(ids) for ids, _ in rows)
            x = torch.full((len(rows), width), self.eot_token_id, device=self._device)
            for line, (ids, _) in zip(x, rows, strict=True):
                line[: len(ids)] = torch.tensor(ids, device=self._device)
            logp = self.model(x).float().log_softmax(-1)
            for i, line, (ids, targets) in zip(chosen, logp, rows, strict=True):
                wanted = torch.tensor(targets, device=self._device)
                logp_of_row = line[len(ids) - len(targets) : len(ids)]
                total = logp_of_row.gather(1, wanted[:, None]).sum().item()
                results[i] = (total, bool((logp_of_row.argmax(-1) == wanted).all()))
        for (key, *_), result in zip(requests, results, strict=True):
            if key is not None:
                self.cache_hook.add_partial("loglikelihood", key, result)
        return results

    def _row(self, context: list[int], continuation: list[int]) -> tuple[list[int], list[int]]:
        """What the model reads, at most its window, and the ids to predict at its end."""
        length = self.model.config.seq_len
        targets = continuation[-length:]
        return [*context, *continuation][-length - 1 : -1], targets

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Log-probability of each whole text, in windows; every token is predicted once."""
        windows, owners = [], []
        for owner, request in enumerate(requests):
            ids = self.tok_encode(request.args[0])
            pairs = get_rolling_token_windows(
                ids, self.prefix_token_id, self.model.config.seq_len, context_len=1
            )
            for pair in map(make_disjoint_window, pairs):
                windows.append((None, *pair))
                owners.append(owner)
        totals = [0.0] * len(requests)
        for owner, (logp, _) in zip(owners, self._loglikelihood_tokens(windows), strict=True):
            totals[owner] += logp
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    @torch.no_grad()
    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """The greedy text after each prompt, up to the first of the task's stop sequences.

        At most half a window of it, where the task asks for a window or more: stderr says so.
        """
        texts, short = [], set()
        for request in requests:
            prompt, given = request.args
            if given.get("do_sample") and given.get("temperature", 1.0) > 0:
                raise RRError("rr eval generates greedily, but a task asks for samples "
                              "(do_sample): choose another task")  # fmt: skip
            until = given.get("until") or []
            stops = [until] if isinstance(until, str) else list(until)
            wanted = int(given.get("max_gen_toks", GENERATED))
            length = self.model.config.seq_len
            if wanted >= length:
                wanted = length // 2
                short.add(f"rr: answers are cut to {wanted} tokens: the window has {length}")
            ids = [self.eot_token_id, *self.tok_encode(prompt)][-(length - wanted) :]
            x = torch.tensor([ids], device=self._device)
            generated = self.model.generate(x, wanted, temperature=0, stop=self.eot_token_id)
            new = [i for i in generated[0, len(ids) :].tolist() if i != self.eot_token_id]
            text = self.vocabulary.decode(new)
            for stop in filter(None, stops):
                text = text.partition(stop)[0]
            self.cache_hook.add_partial("generate_until", request.args, text)
            texts.append(text)
        for line in short:
            print(line, file=sys.stderr)
        return texts


def evaluate(
    model: Model,
    vocabulary: Vocabulary,
    tasks: Sequence[str],
    *,
    include: str | Path | None = None,
    fewshot: int | None = None,
    limit: int | None = None,
    batch: int = 8,
) -> dict[str, dict[str, Any]]:
    """The results of the harness, by task and metric.

    include: a folder with task files of your own (YAML), beside the harness's. fewshot: solved
    examples before each question (None: the task's own). limit: questions per task (None: all).
    Raises RRError where there is no such task.
    """
    manager = TaskManager(include_path=None if include is None else str(include))
    for task in tasks:
        if not manager.match_tasks([task]):
            raise RRError(f"no task {task!r}: {nearest(task, manager.all_tasks)}")
    results = evaluator.simple_evaluate(
        Harness(model, vocabulary, batch),
        tasks=list(tasks),
        num_fewshot=fewshot,
        limit=limit,
        task_manager=manager,
        bootstrap_iters=0,
        log_samples=False,
    )
    assert results is not None  # None is what a process of another rank gets
    return results["results"]
