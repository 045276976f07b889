"""Run a record again and compare: how far this machine reproduces the recorded numbers.

The run is trained by the record's own specification, with its threads, micro-batch and backend. If
the weights (their SHA-256) are equal, nothing else needs to be compared. Where a torch, a CPU or a
GPU adds in another order, losses differ, and the verdict says by how much: by `TOLERANCE` or less,
they agree. A run that is not stable amplifies rounding: where the first training losses that differ
do so by `ROUNDING` or less, the tolerance is `AMPLIFIED`.
"""

import contextlib
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rr.data.corpus import identity
from rr.errors import Interrupted, RRError, RunFailed, positive
from rr.options import Request
from rr.specs import Run
from rr.training.device import device_name, pick_device
from rr.training.loading import allowed
from rr.training.run_folder import specification
from rr.training.trainer import train

from .stats.records import Record, read_record, read_records

# nats per token. Chapter 16 measured it: rounding moves a held-out loss by up to 0.003 at an
# ordinary learning rate, bf16 products included, and other batches move it by 0.05.
TOLERANCE = 0.01
AMPLIFIED = 0.05
ROUNDING = 1e-4  # of the first two training losses that differ


OF_THE_MOMENT = ("started", "code_path_reason")  # provenance that says nothing of the numbers


@dataclass(frozen=True)
class Verdict:
    """The comparison of a record with its repetition: this run − the record, in nats per token.

    `rr verify` makes one. Where the bits of the weights differ, the losses decide: `agrees` is true
    where `gap` is at most `tolerance`, 0.01 nats per token, or 0.05 where the first two training
    losses that differ lie within 1e-4, because a run that is not stable amplifies rounding.
    Chapter 16 measures both.

    Example:
        >>> from rrstudy import Verdict
        >>> gaps = [(10, 0.0), (20, 0.001)]
        >>> verdict = Verdict(
        ...     "0f", 20, gaps, 2.0, 2.001, False, same_status=True, differ={}
        ... )
        >>> verdict.agrees, round(verdict.gap, 6)
        (True, 0.001)
    """

    id: str
    steps: int  # run again, of those of the record
    gaps: list[tuple[int, float]]  # (step, this run's training loss − the record's), every line
    recorded: float | None  # held-out loss; None where it diverged
    repeated: float | None  # likewise; None, too, where not all steps were run
    same_bits: bool | None  # of the last weights; None where not all steps were run
    same_status: bool
    differ: dict[str, tuple]  # of the metadata: recorded, here

    @property
    def gap(self) -> float:
        """The gap that is judged, nats per token: |repeated − recorded|.

        Where one of the two is None it is the mean of the training losses' absolute gaps.
        """
        if self.recorded is not None and self.repeated is not None:
            return abs(self.repeated - self.recorded)
        return sum(abs(gap) for _, gap in self.gaps) / len(self.gaps)

    @property
    def tolerance(self) -> float:
        """The largest gap that rounding explains: 0.05 or 0.01 nats per token.

        0.05 where the first gap of the training losses that is not 0 is at most 1e-4, else 0.01.
        """
        first = next((abs(gap) for _, gap in self.gaps if gap), 0.0)
        return AMPLIFIED if 0 < first <= ROUNDING else TOLERANCE

    @property
    def agrees(self) -> bool:
        """Whether both ended alike, with losses no further apart than rounding takes them."""
        return bool(self.same_bits) or (self.same_status and self.gap <= self.tolerance)

    def lines(self) -> list[str]:
        """The comparison, a line per quantity, and every difference of the metadata."""
        first = next((f"step {step}, by {gap:+.2g}" for step, gap in self.gaps if gap), "none")
        most = max(abs(gap) for _, gap in self.gaps)
        lines = [f"training loss: first of {len(self.gaps)} that differs: {first}; most {most:.2g}"]
        if self.repeated is not None and self.recorded is not None:
            gap = self.repeated - self.recorded
            lines.append(
                f"held-out loss: {self.recorded:.6f}, now {self.repeated:.6f} ({gap:+.2g})"
            )
        return lines + [f"{name}: {was}, now {now}" for name, (was, now) in self.differ.items()]

    def __str__(self) -> str:
        """The verdict in one line."""
        if self.same_bits:
            return f"{self.id}: the same bits after {self.steps} steps"
        if not self.same_status:
            return f"{self.id}: disagrees: one of the two diverged"
        measured = "mean training loss" if self.repeated is None else "held-out loss"
        if self.same_bits is None and self.gap == 0:
            return f"{self.id}: the same training losses over its first {self.steps} steps"
        word = "agrees" if self.agrees else "disagrees"
        return (
            f"{self.id}: {word}: {measured} {self.gap:.2g} nats per token apart after "
            f"{self.steps} steps (rounding: at most {self.tolerance:g})"
        )


def find(name: str, records: str | Path) -> Record:
    """The one finished run called `name`: its folder, or the beginning of its id in `records`."""
    if name and Path(name).is_dir():
        records_by_id = {name: read_record(name)}
    else:
        records_by_id = {
            record.place.name: record
            for record in read_records(records)
            if record.place.name.startswith(name)
        }
    ended = {key: record for key, record in records_by_id.items() if "result.json" in record}
    if len(ended) != 1 or not name:
        names = f": {', '.join(sorted(ended)[:4])} …" if ended else ""
        raise RRError(
            f"{len(ended)} records in {records} are called {name!r}{names}: give an id, "
            "its first letters, or the folder of a finished run"
        )
    return next(iter(ended.values()))


def repeatable(
    record: Record,
    corpus: str | None = None,
    tokenizer: str | None = None,
    allow_rule: str | Sequence[str] = (),
) -> Run:
    """The run of a record, with its text as it is here. Nothing of the record is imported.

    allow_rule: a rule in a file that may be imported, as `rr.load` takes it.
    corpus, tokenizer: where the text is, as `rr train` takes them (default: as recorded). RRError
    where it is not the text that was recorded, RunFailed where the record is corrupt or its rule is
    not known here as it was.
    """
    metadata, place = record.object("run.json"), record.place
    run = specification(metadata, place)
    if run.id != record.object("result.json")["id"]:
        raise RunFailed(f"{place}: run.json and result.json are of two runs")
    source = {
        "corpus": corpus or run.source["corpus"],
        "tokenizer": tokenizer or run.source["tokenizer"],
    }
    run = replace(run, source=source)
    check_text(
        run,
        corpus="give --corpus, file:PATH that holds it",
        tokenizer="give --tokenizer, a folder that holds it",
    )
    return allowed(run, place, allow_rule)


def check_text(run: Run, **advice: str) -> None:
    """RRError where the text that a run names is no longer the one that it was trained with.

    advice: what to do, where the `corpus` is another and where the `tokenizer` is.
    """
    source = run.source
    for name in ("corpus", "tokenizer"):
        recorded = getattr(run, name)
        try:  # of the corpus alone first, whatever its tokenizer is
            current = identity(
                source["corpus"], source["tokenizer"] if name == "tokenizer" else None
            )[name]
        except RRError as error:
            current = str(error)
        if current != recorded:
            raise RRError(
                f"{run.id} was trained with {name} {recorded}; here {source[name]} is another "
                f"({current}): {advice[name]}"
            )


def verify(
    record: Record,
    *,
    corpus: str | None = None,
    tokenizer: str | None = None,
    steps: int | None = None,
    device: str | None = None,
    allow_rule: str | Sequence[str] = (),
    cache: str | Path | None = None,
    log: Callable[[str], None] | None = None,
) -> Verdict:
    """Run a record again, in a folder that is removed, and compare.

    steps: only the first of them, with the schedule of all; what is compared is the training loss.
    device: where it is another than the record's; then threads, micro-batch and path are those of
    this machine. allow_rule: as `repeatable`. Others as `train`. RRError as `repeatable`, where the
    record is of a device that is not here and none was asked for, or where the run does not fit the
    memory.
    """
    run = repeatable(record, corpus, tokenizer, allow_rule)
    result, made_by = record.object("result.json"), record.object("run.json")["provenance"]
    lines = _losses(record)
    if steps is not None:
        positive("steps", steps)
        lines = {at: loss for at, loss in lines.items() if at[0] <= steps and at[1] is None}
        if run.recipe.budgets:
            raise RRError(f"{run.id} has decay branches: without --steps all of it is run again")
        if not lines:
            raise RRError(f"{run.id} has no training loss in its first {steps} steps: give more")
    complete = steps is None or steps >= run.recipe.steps
    end = run.recipe.steps if complete or steps is None else steps
    if result["status"] == "diverged" and lines:
        end = min(end, max(step for step, _ in lines))
    here = pick_device(device or ("cpu" if made_by["device"] == "cpu" else None))
    same_device = device_name(here) == made_by["device"]
    if device is None and not same_device:
        raise RRError(
            f"{run.id} was trained on {made_by['device']}, which is not here: "
            f"give --device {here.type} to run it there"
        )
    request = Request(device=here.type)
    if same_device:
        request = replace(
            request,
            threads=made_by["threads"],
            micro_batch=made_by["micro_batch"],
            backend=made_by["code_path"],
        )
    with tempfile.TemporaryDirectory(prefix="rr-verify-") as out:
        with contextlib.nullcontext() if complete else contextlib.suppress(Interrupted):
            train(
                run,
                out,
                request,
                cache=cache,
                log=log,
                stop_after=None if complete else steps,
            )
        repetition = read_record(Path(out) / run.id)
        losses = _losses(repetition) if "metrics.jsonl" in repetition else {}
        short = not complete and (not losses or max(losses)[0] < max(lines)[0])
        if short and None not in losses.values():
            raise Interrupted("stopped before the steps that were asked for")
        repeated = repetition.object("result.json") if complete else {}
        repeated_by = repetition.object("run.json")["provenance"]
    return Verdict(
        id=run.id,
        steps=end,
        gaps=[(at[0], _gap(recorded, losses.get(at))) for at, recorded in lines.items()],
        recorded=result["val_loss"],
        repeated=repeated.get("val_loss"),
        same_bits=_weights(repeated) == _weights(result) if complete else None,
        same_status=repeated.get("status", result["status"]) == result["status"],
        differ={
            name: (recorded, repeated_by.get(name))
            for name, recorded in made_by.items()
            if name not in OF_THE_MOMENT and repeated_by.get(name) != recorded
        },
    )


def _losses(record: Record) -> dict[tuple, float | None]:
    """Training losses of a record's curve by step and decay branch; None where not finite."""
    return {
        (line["step"], line.get("budget")): line["loss"]
        for line in record.curve()
        if "loss" in line
    }


def _weights(result: dict) -> list[str]:
    """SHA-256 of the weights at the end of the run, and of each of its budgets."""
    ends = [result, *(result.get("budgets") or [])]
    return [end["weights_sha256"] for end in ends]


def _gap(recorded: float | None, repeated: float | None) -> float:
    """repeated − recorded; 0 where both are not finite, infinite where one is."""
    if recorded is None or repeated is None:
        return 0.0 if recorded is repeated else math.inf
    return repeated - recorded
