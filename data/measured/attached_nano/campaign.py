"""The runs behind the plan in README.md beside this file.

    python data/measured/attached_nano/campaign.py CORPUS RUNS     # resumable; start it again
    rr records import RUNS/rr --to data/measured/attached_nano

CORPUS is `file:` and the folder of the TinyStories slice. The call that finds all runs there writes
attached.csv, a line per step of the attached runs, and attached.json: what made them.
"""

import csv
import io as text
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import torch
import transformers
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

import rr
from rr import io
from rr.data import batches
from rr.ops.cross_entropy import linear_cross_entropy
from rr.specs import Run
from rr.training import evaluate, provenance
from rr.training.device import autocast, prepare_device

RULES, SEEDS = ("constant", "review"), (0, 1, 2)
RUNG = "nano:d_ff=512"  # with an option, a rung's arms are not widened to one size
CPU, THREADS = torch.device("cpu"), 1


def plan(corpus: str) -> Iterator[Run]:
    """One run of each house: seed by seed, so that what is cut off leaves whole pairs."""
    for seed in SEEDS:
        for rule in RULES:
            yield rr.plan(RUNG, rule, corpus=corpus, tokenizer="bpe:1024", seed=seed)


def gpt2(run: Run) -> transformers.GPT2LMHeadModel:
    """A random GPT-2 of the run's shape, with its library's own initial weights, and the rule."""
    shape = run.model
    config = transformers.GPT2Config(
        vocab_size=shape.vocab_size,
        n_positions=shape.seq_len,
        n_embd=shape.d_model,
        n_layer=shape.n_layer,
        n_head=shape.n_head,
        n_inner=shape.d_ff,
        bos_token_id=None,
        eos_token_id=None,
        **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0),
    )
    torch.manual_seed(run.seed)
    return rr.attach(transformers.GPT2LMHeadModel(config), run.rule)


class Head(nn.Module):
    """A GPT-2 with the names that rr's evaluation asks for."""

    def __init__(self, model: transformers.GPT2LMHeadModel, run: Run) -> None:
        super().__init__()
        self.model, self.config, self.token = model, run.model, model.transformer.wte
        self.head_weight = self.token.weight

    def hidden(self, idx: Tensor) -> Tensor:
        """Token ids (B, T) -> the head's input, (B, T, d)."""
        return self.model.transformer(input_ids=idx, use_cache=False).last_hidden_state

    def forward(self, idx: Tensor, targets: Tensor) -> Tensor:
        """The mean loss in nats per token."""
        hidden = self.hidden(idx).flatten(0, 1)
        return linear_cross_entropy(
            hidden, self.head_weight, targets.flatten(), self.config.vocab_size
        )


def groups(model: transformers.GPT2LMHeadModel, weight_decay: float) -> list[dict]:
    """AdamW's, as in rr: matrices of blocks and rules decay; embeddings, norms, biases do not."""
    of_rules = model.rr_residuals.parameter_groups(weight_decay)
    body = dict(model.transformer.named_parameters())
    inside = {name for name, p in body.items() if name.startswith("h.") and p.ndim == 2}
    return [
        *of_rules,
        {"params": [body[name] for name in sorted(inside)], "weight_decay": weight_decay},
        {"params": [p for name, p in body.items() if name not in inside], "weight_decay": 0.0},
    ]


def attached(run: Run, tokens: rr.data.Tokens) -> dict:
    """Train an attached GPT-2 as rr trains the run: its losses, and the held-out one."""
    recipe, head = run.recipe, Head(gpt2(run), run).train()
    optimizer = torch.optim.AdamW(
        groups(head.model, recipe.weight_decay), lr=recipe.lr, betas=recipe.betas, eps=recipe.eps
    )
    losses = []
    for step in range(recipe.steps):
        starts = batches.batch_starts(run, step, len(tokens.train), None)
        x, y = batches.gather(tokens.train, starts, run.model.seq_len)
        optimizer.zero_grad()
        with autocast(CPU, recipe.precision):
            loss = head(x, y)
        loss.backward()
        nn.utils.clip_grad_norm_(head.parameters(), recipe.clip)
        for group in optimizer.param_groups:
            group["lr"] = recipe.lr_at(step)
        optimizer.step()
        losses.append(loss.item())
    with autocast(CPU, recipe.precision):
        score = evaluate.ordered(head, tokens.valid, recipe.batch)
    return {"rule": run.rule, "seed": run.seed, "losses": losses, **asdict(score),
            "params": sum(p.numel() for p in head.parameters())}  # fmt: skip


def main(corpus: str, out: Path) -> None:
    """Train what is missing of both houses; gather the attached ones when all are there."""
    tokens = rr.open_corpus(corpus, "bpe:1024", log=lambda line: None)
    (out / "attached").mkdir(parents=True, exist_ok=True)
    prepare_device(CPU, THREADS)
    found = []
    for run in plan(corpus):
        rr.train(run, out / "rr", rr.Request(threads=THREADS, device="cpu"), log=lambda line: None)
        file = out / "attached" / f"{run.rule} {run.seed}.json"
        if not file.exists():
            io.write_json(file, attached(run, tokens))
        found.append(io.read_json(file))
        print(run.rule, run.seed, found[-1]["val_loss"], flush=True)
    lines = text.StringIO()
    table = csv.writer(lines, lineterminator="\n")
    table.writerow(["rule", "seed", "step", "loss", "val_loss"])
    for one in found:
        last = len(one["losses"])
        for step, loss in enumerate(one.pop("losses"), 1):
            held = one["val_loss"] if step == last else ""
            table.writerow([one["rule"], one["seed"], step, f"{loss:.6g}", held])
    here = Path(__file__).parent
    io.write_atomic(here / "attached.csv", lines.getvalue().encode())
    run = next(plan(corpus))
    told = provenance.provenance(run, CPU, THREADS)
    told["packages"]["transformers"] = transformers.__version__
    config = gpt2(run).config.to_diff_dict()
    io.write_json(here / "attached.json", {"config": config, "provenance": told, "runs": found})


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
