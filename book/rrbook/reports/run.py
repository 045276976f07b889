"""The report of one run: the run that a notebook's parameters name, and its results."""

import hashlib
import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rr import io
from rr.analysis import probes
from rr.data import baselines, batches
from rr.errors import Interrupted, RRError, RunFailed, nearest
from rr.io import MIB, file_bytes
from rr.model import costs
from rr.model.transformer import Model
from rr.options import Request, options_of
from rr.specs import Run
from rr.training import evaluate, trainer
from rr.training.checkpoint import Checkpoints
from rr.training.context import tokens_of
from rr.training.device import autocast
from rr.training.loading import allowed, load
from rr.training.planning import plan
from rr.training.provenance import curve_bytes
from rr.training.run_folder import finished, specification
from rr.training.sampling import sample
from rrstudy.stats.results import problem

# What is trained where no rung is named; the smoke tier is short enough for a page of the book.
TIERS = {
    "smoke": (
        "nano:d_model=64,n_layer=4,n_head=2,seq_len=64",
        {"steps": 200, "eval_batches": 16, "precision": "fp32"},
    ),
    "colab": ("mini", {}),
    "paper": ("60M", {"corpus": "tinystories"}),
}
BATCHES = 32  # of held-out text that a report scores again, for the reliability diagram
LARGEST_CURVE = 64 * MIB  # bytes read of a metrics.jsonl at most
COUNTED = 2**24  # training tokens that a report's bigram table counts at most: 128 MiB of pairs
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)  # quantiles of a gate
NO_NUMBERS = "nothing: it diverged"


def chosen(tier: str, rung: str = "", rule: str = "", **options) -> Run:
    """The run that a notebook's parameters describe; "", 0 and [] mean the default of `rr`.

    A rung that is named is trained as `rr train` would, whatever the tier: equal options name the
    same run. Raises RRError as `plan` does.
    """
    if tier not in TIERS:
        raise RRError(f"unknown tier {tier!r}: {nearest(str(tier), TIERS)}")
    given = {name: value for name, value in options.items() if value}
    budgets = given.get("budgets", [])
    if not isinstance(budgets, list) or any(type(steps) is not int for steps in budgets):
        raise RRError(f"budgets must be a list of integers, as in [2000, 4000], got {budgets!r}")
    if not rung:
        rung, usual = TIERS[tier]
        given = {k: v for k, v in usual.items() if k != "steps" or not budgets} | given
    return plan(rung, rule or "review", **given)


def train(run: Run, out: str = "", tier: str = "paper", **options) -> Path:
    """`rr.training.trainer.train` with a notebook's parameters: "" and 0 mean its defaults.

    Without `out` the run is in `runs`, at the smoke tier in a temporary folder.
    """
    return _trained(run, _place(out, tier), options)


def train_in_parts(
    run: Run, out: str, tier: str, stops: Sequence[int], words: int = 40, **options
) -> tuple[Path, list[tuple[int, str]]]:
    """`train`, stopped after each of these steps for a text; the folder, and (step, text) each.

    A stopped run is saved and resumes exactly: the weights it ends with are those of a run without
    stops. The last text is that of the whole run. Stops that the run has passed are left out.
    words: tokens of each text at most.
    """
    out, texts, device = _place(out, tier), [], options.get("device", "")
    passed = max(Checkpoints(Path(out) / run.id, run.id).steps(), default=0)
    for step in [step for step in stops if step > passed]:
        try:
            _trained(run, out, {**options, "stop_after": step})
            break  # it ended: it had passed this step before
        except Interrupted:
            folder = Path(out) / run.id
            if Checkpoints(folder, run.id).steps()[-1:] != [step]:  # a person stopped it
                raise
        texts.append((step, text(folder, words, device)))
    folder = _trained(run, out, options)
    ended = io.read_sealed(folder / "result.json")["tokens"]
    last = ended // (run.recipe.batch * run.model.seq_len)  # fewer steps where it diverged
    return folder, [*texts, (last, text(folder, words, device))]


def _place(out: str, tier: str) -> str:
    return out or (tempfile.mkdtemp(prefix="rr-") if tier == "smoke" else "runs")


def _trained(run: Run, out: str, options: Mapping[str, Any]) -> Path:
    given = {name: value for name, value in options.items() if value}
    machine = {name: given.pop(name) for name in options_of(Request) if name in given}
    return trainer.train(run, out, Request(**machine), **given)


def text(folder: str | Path, tokens: int = 40, device: str = "") -> str:
    """What the model of a run's newest checkpoint writes, or why it is nothing."""
    result = finished(Path(folder))
    if result is not None and result["status"] == "diverged":
        return NO_NUMBERS
    model, _, vocabulary = load(folder, device or None)
    with torch.no_grad():  # before the trainer has noticed: it writes no text, either
        start = torch.tensor([[vocabulary.eot]], device=model.token.weight.device)
        if not model(start).isfinite().all():
            return NO_NUMBERS
    return sample(model, vocabulary, tokens=tokens) or "nothing but white space, or the end at once"


def bigram(run: Run, cache: str = "") -> float:
    """Held-out loss of a bigram table of the run's text, nats per token: see `rr.data.baselines`.

    It counts at most the first COUNTED training tokens.
    """
    tokens = tokens_of(run, cache or None, lambda line: None)
    return float(baselines(replace(tokens, train=tokens.train[:COUNTED]))["bigram_nats"])


@dataclass(frozen=True)
class Ended:
    """A run that has ended, read from its folder."""

    folder: Path
    run: Run
    result: dict
    made_by: dict  # provenance
    history: list[dict]  # the lines of metrics.jsonl

    @property
    def diverged(self) -> bool:
        """Whether its loss was not finite at the end."""
        return self.result["status"] == "diverged"

    @property
    def curves(self) -> list[dict]:
        """Training loss of the run, and of each of its decay branches but the last.

        One mapping per curve for `figures.loss_curves`; NaN where the loss was not finite.
        """
        curves: dict[int | None, dict] = {}
        for line in self.history:
            if "loss" in line:
                budget = line.get("budget")
                branch = f"{self.run.rule}:to {budget}"  # its rule's colour, dotted
                empty = {
                    "rule": self.run.rule if budget is None else branch,
                    "steps": [],
                    "loss": [],
                    "label": "training" if budget is None else f"to {budget}",
                }
                curve = curves.setdefault(budget, empty)
                curve["steps"].append(line["step"])
                curve["loss"].append(math.nan if line["loss"] is None else line["loss"])
        return list(curves.values())

    @property
    def norms(self) -> list[dict]:
        """Gradient norm before clipping, of the run and its decay branches, shaped as `curves`.

        Empty for a run from before norms were recorded.
        """
        lines = [{**line, "loss": line["grad_norm"]} for line in self.history
                 if line.get("grad_norm") is not None]  # fmt: skip
        return replace(self, history=lines).curves

    @property
    def held_out(self) -> list[tuple[int, float]]:
        """(step, held-out loss): of a sample during training, of the whole text at each budget."""
        points = [(line["step"], line["valid"]) for line in self.history if "valid" in line]
        ends = self.result.get("budgets") or [self.result]
        points += [(end["steps"], end["val_loss"]) for end in ends]
        return [
            (step, loss) for step, loss in sorted(points, key=lambda p: p[0]) if loss is not None
        ]

    @property
    def story(self) -> tuple[int, float] | None:
        """(step, loss) of the held-out stories, to compare with `floor`; fables only."""
        loss = self.result.get("story_loss")
        return None if loss is None else (self.result["steps"], loss)

    @property
    def floor(self) -> tuple[float, float] | None:
        """The entropy floor of the held-out stories and its standard error; fables only."""
        result = self.result
        return (result["floor"], result["floor_error"]) if "floor" in result else None


def read(folder: str | Path, allow_rule: str | Sequence[str] = ()) -> Ended:
    """The run in a folder. RRError where it has not ended, RunFailed where it is corrupt.

    allow_rule: a rule in a file that may be imported, as `rr.load` takes it; not needed for one
    that was trained in this process.
    """
    folder = Path(folder)
    result = finished(folder)
    if result is None:
        raise RRError(f"{folder} has no result.json: expected a run that has ended")
    if wrong := problem(result):
        raise RunFailed(f"{folder / 'result.json'} is corrupt: {wrong}")
    record = io.read_sealed(folder / "run.json")
    path = folder / "metrics.jsonl"
    try:
        lines = file_bytes(path, LARGEST_CURVE).decode().splitlines()
        history = [json.loads(line) for line in lines]
        checksum = hashlib.sha256(curve_bytes(history)).hexdigest()
        if result.get("curve_sha256") not in (None, checksum):  # the first results have none
            raise ValueError("checksum mismatch with result.json")
    except (OSError, ValueError) as error:
        raise RunFailed(f"{path} is corrupt ({error})") from None
    run = allowed(specification(record, folder), folder, allow_rule)
    if run.id != result["id"]:
        raise RunFailed(f"{folder / 'run.json'} belongs to run {run.id}, not to {result['id']}")
    return Ended(folder, run, result, record["provenance"], history)


def outcome(ended: Ended) -> str:
    """How the run ended, in one line."""
    result = ended.result
    if ended.diverged:
        last = ended.history[-1]["step"] if ended.history else 0
        return (
            f"DIVERGED at step {last} of {result['steps']}: the loss is not finite; "
            "the run is kept, and marked in every table"
        )
    shortened = " (shortened)" if result["eval_shortened"] else ""
    steps = f"{result['steps']} step{'s' * (result['steps'] != 1)}"
    return (
        f"finished {steps}: held-out loss {result['val_loss']:.4f} nats per token, "
        f"ECE {result['ece']:.4f}, over {result['eval_tokens']:,} held-out tokens{shortened}"
    )


@dataclass(frozen=True)
class Look:
    """Gates and calibration of a run's model on held-out text."""

    gates: list[dict]  # one per sublayer: see `gates`
    why: str  # why there are no gates to show, or ""
    bins: np.ndarray | None  # (15, 3): tokens, summed confidence, right answers
    score: evaluate.Score | None  # over the same tokens
    again: bool  # whether these are all the tokens of the result's val_loss and ECE


def look(ended: Ended, cache: str = "", device: str = "") -> Look:
    """Gates and calibration of the run's model, on the start of the held-out text.

    At most BATCHES batches, in order, in the run's precision. For a diverged run only `why` is set.
    """
    if ended.diverged:
        return Look([], "The run diverged: its weights are not a trained model.", None, None, False)
    model, run, _ = load(ended.folder, device or None)
    tokens = tokens_of(run, cache or None, lambda line: None)
    length, batch = run.model.seq_len, run.recipe.batch
    limit = min(BATCHES, run.recipe.eval_batches or BATCHES)
    starts = np.arange(0, len(tokens.valid) - 1 - length, length)[: limit * batch]
    tally, model_device = evaluate.Tally(), model.token.weight.device
    with evaluate.evaluating(model), autocast(model_device, ended.result["precision"]):
        for i in range(0, len(starts), batch):
            x, y = batches.gather(tokens.valid, starts[i : i + batch], length)
            evaluate.add_batch(model, tally, x, y)
        x, _ = batches.gather(tokens.valid, starts[:batch], length)
        rows, why = gates(model, x.to(model_device))
    score = tally.score()
    again = run.protocol == "clean" and score.eval_tokens == ended.result["eval_tokens"]
    return Look(rows, why, tally.bins, score, again)


def gates(model: Model, idx) -> tuple[list[dict], str]:
    """The share of its update that each sublayer writes, over tokens and channels of idx (B, T).

    Rows `name, r, coefficient, mean`: r has the quantiles LEVELS of a gate, or is None under a rule
    without one; coefficient is then c of h' = kept ⊙ h + c·u, by least squares (exact where c is a
    number), and `mean` is either's mean. No rows, and the reason, where there is no single stream,
    and where a tenth of a write or more is no multiple of the update, each channel by itself.
    """
    try:
        steps = probes.trace(model, idx)
    except RRError as error:
        return [], f"No gate and no coefficient: {error}."
    rows = []
    for step in steps:
        name = f"{step.sublayer} {step.kind}"
        if model.config.n_loops > 1:
            name += f", pass {step.pass_}"
        row = {"name": name, "r": None, "coefficient": None}
        if step.r is not None:
            r = step.r.float().expand_as(step.u).cpu().numpy()
            row |= {"r": [float(q) for q in np.quantile(r, LEVELS)], "mean": float(r.mean())}
        else:
            u = step.u.double()
            written = step.out.double() - step.kept * step.h.double()
            size = float((u * u).sum())
            c = float((written * u).sum()) / size if size else math.nan
            by_channel = (written * u).sum((0, 1)) / (u * u).sum((0, 1)).clamp_min(1e-300)
            one, each = (
                bool(((written - k * u) ** 2).sum() <= 0.01 * (written**2).sum())
                for k in (c, by_channel)
            )
            if size and not each:
                why = "what it writes is no multiple of the update"
                if (written**2).sum() < 1e-12 * (step.h.double() ** 2).sum():
                    why = "what it writes is lost in the rounding of the stream"
                return [], f"No gate and no coefficient: {why}."
            if size and not one:  # its channels have come apart
                row["name"] = f"{name}, mean"
            row |= {"coefficient": c, "mean": c}
        rows.append(row)
    return rows, ""


def cost(ended: Ended) -> list[tuple[str, str]]:
    """The cost of the run: (quantity with unit, value). Tokens and FLOPs include decay branches."""
    run, result = ended.run, ended.result
    window = run.recipe.batch * run.model.seq_len
    steps = run.recipe.segments[-1].end
    tokens = result["tokens"] if ended.diverged else steps * window
    flops, seconds = costs.flops_per_token(run.model), result["seconds"]
    return [
        ("parameters", f"{result['params']:,}"),
        ("of them in the residual rule", f"{costs.rule_params(run.model):,}"),
        ("tokens trained on", f"{tokens:,}"),
        ("seconds of training", f"{seconds:,.1f}"),
        ("tokens per second", f"{tokens / seconds:,.0f}" if seconds else "unknown"),
        ("matmul FLOPs per token", f"{flops:,}"),
        ("matmul FLOPs in total", f"{flops * tokens:.3e}"),
        ("FLOPs per second", f"{flops * tokens / seconds:.3e}" if seconds else "unknown"),
    ]


def provenance(ended: Ended) -> list[tuple[str, str]]:
    """What produced the numbers: code, packages, machine and text."""
    made_by, result = ended.made_by, ended.result
    packages = ", ".join(f"{name} {number}" for name, number in made_by["packages"].items())
    rows = [
        ("run", ended.run.id),
        ("rr", f"{made_by['rr']}, commit {(made_by['git'] or 'unknown')[:12]}"),
        ("python", made_by["python"]),
        ("packages", packages),
        ("device", f"{made_by['device']}, {made_by['platform']}"),
        ("CPU threads", str(made_by["threads"])),
        ("precision", made_by["precision"]),
        ("code path", f"{made_by['code_path']}, micro-batch {made_by['micro_batch']}"),
        ("corpus", f"{result['corpus']}, id {result['corpus_id']}"),
        ("tokenizer", result["tokenizer"]),
        ("weights", f"sha256 {result['weights_sha256'][:16]}"),
    ]
    if made_by.get("bit_exact") is False:
        why = "resumed on another device, version or number of processes"
        rows.append(("bits", f"{why}: not reproducible bit for bit"))
    return rows
