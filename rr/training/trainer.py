"""One readable training loop, which survives being cut off anywhere."""

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from .. import io
from ..config import Interrupted, Run, RunFailed, positive
from ..data import batches
from ..data.batches import batch_starts
from ..data.corpus import Tokens
from ..model.init import initialise
from ..model.ladder import count
from ..model.transformer import Model
from ..ops import cross_entropy
from . import backend, checkpoint, loggers, memory_fit, optimizer, provenance, save_interval
from .device import out_of_memory, pick_device, prepare, set_threads
from .distributed import World
from .progress import Progress
from .result import Examiner, result
from .run_folder import begin, check_rules, finished, tokens_of
from .signals import Stop
from .step import Step

PREFIX = 16  # batches of the held-out stream scored at each point along a `clean` run
POINTS = 4  # the run is cut into so many parts; the held-out loss is taken after each


def train(
    run: Run,
    out: str | Path,
    *,
    threads: int | None = None,
    device: str | None = None,
    save_every: float | None = None,
    cache: str | Path | None = None,
    micro_batch: int | None = None,
    parallel: str | None = None,
    path: str | None = None,
    charts: Sequence[str] = (),
    log: Callable[[str], None] | None = None,
) -> Path:
    """Train `run` in `out/<id>`, going on where an earlier call was cut off; returns that folder.

    A finished run is left as it is. A resumed run keeps its threads, micro-batch and path, so that
    its weights are, on a CPU, bit for bit those of an uninterrupted run.

    save_every: seconds between checkpoints; None: chosen from what a save takes
    (`.save_interval`), and logged. micro_batch: windows that a process takes through the model at
    once; gradients are accumulated. path: how steps are computed (`.step`). Without them all of the
    batch is taken along the device's default path where that fits the memory (`.memory_fit`), else
    what fits, which is logged. parallel: "ddp" (the default) or "fsdp", where torchrun started
    several processes. charts: "tensorboard", "wandb", where curves are drawn, too. log: gets every
    line of progress; None prints, `lambda line: None` keeps quiet.

    Raises RRError (bad input), RunFailed (the run cannot go on), Interrupted (SIGTERM or Ctrl-C:
    the step was finished and saved). A loss that is not finite ends the run as "diverged".
    """
    check_rules(run)
    folder = Path(out) / run.id
    where = pick_device(device)
    if threads is not None:
        set_threads(threads)  # refused here, before anything is made
    if micro_batch is not None:
        positive("micro-batch", micro_batch)
    save_interval.check(save_every)
    loggers.check(charts)
    with World.here(parallel) as world:
        progress = Progress(log if world.leads else lambda line: None)
        world.check(run.recipe.batch)
        asked, path = path, backend.of_run(path, where, run.recipe.precision, run.model, world)
        optimizer.check(run.recipe, backend.parse_path(path), world)
        if world.agree(lambda: finished(folder)) is not None:
            return folder
        with io.locked(folder) if world.leads else contextlib.nullcontext():
            # by the process that held the lock until now
            if world.agree(lambda: finished(folder)) is not None:
                return folder
            if world.agree(lambda: not (folder / "run.json").exists()):
                micro_batch, path = world.agree(
                    lambda: memory_fit.choose(
                        run, where, micro_batch, asked, path, world, progress.say
                    )
                )
            tokens = world.first(lambda: tokens_of(run, cache, progress.say))
            try:
                kept = world.agree(
                    lambda: begin(run, folder, tokens, where, threads, micro_batch, path, world,
                                  progress.say)
                )  # fmt: skip
                training = _Training(run, folder, tokens, where, *kept, save_every, progress, world)
                with loggers.Charts(charts if world.leads else (), run, folder, training.done,
                                    progress.say) as training.charts:  # fmt: skip
                    training.go()
            except OSError as error:
                why, where = error.strerror or error, error.filename2 or error.filename or folder
                raise RunFailed(f"cannot write in {where}: {why}; what was saved stands") from None
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error):
                    raise
                why = str(error).partition("\n")[0]
                raise RunFailed(
                    f"out of memory; what was saved in {folder} stands ({why})"
                ) from None
            finally:
                progress.close()
    return folder


class _Training:
    """The state of one run while it trains."""

    def __init__(
        self, run: Run, folder: Path, tokens: Tokens, device: torch.device, micro: int,
        precision: str, threads: int, path: str, save_every: float | None, progress: Progress,
        world: World,
    ) -> None:  # fmt: skip
        self.run, self.folder, self.tokens, self.progress = run, folder, tokens, progress
        self.id, self.world = folder.name, world
        self.interval = save_interval.Interval(save_every, count(run.model), progress.say)
        self.device = world.device(device)
        self.segments = run.recipe.segments
        self.segment = self.segments[0]
        left = [(s.done, s.end) for s in self.segments[:-1] if s.budget is not None]
        self.checkpoints = checkpoint.Checkpoints(folder, self.id, left)
        self.precision, self.path, along = precision, path, backend.parse_path(path)
        prepare(self.device, threads)
        self.model = initialise(Model(run.model), run.seed, shared=run.protocol == "clean")
        self.model.to(self.device).train()
        self.examiner = Examiner(run, self.model, tokens, self.device, along, precision, world)
        self.stepper = Step(
            self.model, run.recipe, along, self.device, micro, precision=precision, world=world
        )
        self.text = batches.beside(tokens.train, self.device)
        self.stream = np.random.RandomState(run.seed)  # batches and evaluation of `paper`
        self.charts = loggers.Charts()
        self.done, self.seconds, self.history = 0, 0.0, []
        self.loss_sum = torch.zeros((), dtype=cross_entropy.sums(self.device), device=self.device)
        self.summed = 0  # steps in loss_sum
        self.shown_loss: float | None = None
        self._restore(self._newest())
        self.started = time.monotonic() - self.seconds

    # -- the loop -----------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """Steps behind the weights; `done` counts those of branches that were left, too."""
        return self.segment.start + self.done - self.segment.done

    def go(self) -> None:
        """Train segment by segment, measure where a budget ends, write the result."""
        begun = self.segments.index(self.segment)
        with Stop() as stop:
            for segment in self.segments[begun:]:
                self.segment = segment
                status = self._train_segment(stop)
                # All that is left here is to measure: nothing is lost by stopping at once.
                stop.at_once = True
                if stop.requested:
                    raise Interrupted(f"stopped at step {self.step}; saved in {self.folder}")
                if segment.budget is None and status == "diverged":
                    break
                if self._on_branch:
                    self._leave_branch(status)
                stop.at_once = False
            stop.at_once = True
            self._finish(status)

    def _train_segment(self, stop: Stop) -> str:
        """Train to the end of the segment and save there; returns "running" or "diverged"."""
        run, segment, every = self.run, self.segment, max(1, self.run.recipe.steps // 200)
        points = {round(run.recipe.steps * k / POINTS) for k in range(1, POINTS)}
        if run.protocol != "clean" or self._on_branch:
            points = set()
        line = self.history[-1] if self.history else {}
        ended = "budget_ended" in line  # its status is the branch's, not the plateau's
        status = "running" if ended else line.get("status", "running")
        saved = time.monotonic()
        while self.done < segment.end and status == "running":
            self._train_step()
            self.done += 1
            if self.done == 1:  # what was chosen has shown that it works here
                self.progress.say(f"{self.id}: {self.stepper.told}, along the path {self.path}")
            if self.step % every == 0 or self.done == segment.end:
                status = self._record_losses()
            if self.step in points and status == "running":
                loss = self.examiner.held_out(self.stream, PREFIX).loss
                self._record({"valid": loss if np.isfinite(loss) else None})
            spent = time.monotonic() - self.started
            self.progress.step(run, self.done, self.segments[-1].end, self.shown_loss, spent)
            due = self.world.leads and time.monotonic() - saved > self.interval.seconds
            stop.requested, due = self.world.any(stop.requested, due)
            if stop.requested:
                self._save()
                raise Interrupted(f"stopped at step {self.step}; saved in {self.folder}")
            if due:
                if self.device.type == "cuda":  # steps under way are no part of a save's time
                    torch.cuda.synchronize(self.device)
                begun = time.monotonic()
                self._save()
                saved = time.monotonic()
                self.interval.saved(saved - begun)
        if self._on_branch:
            self.done = segment.end  # a branch that diverged early, too, ends here
        if self.world.agree(lambda: self.checkpoints.steps()[-1:] != [self.done]):
            self._save()
        return status

    @property
    def _on_branch(self) -> bool:
        """Whether the plateau goes on from where this segment left it."""
        return self.segment.budget is not None and self.segment is not self.segments[-1]

    def _leave_branch(self, status: str) -> None:
        """Measure the branch that has ended, and go back to the plateau that it left.

        Nothing is saved here: until the plateau's next checkpoint a resumed run comes to the end of
        the branch and does this again.
        """
        seen = self.history[-1]["tokens"]  # fewer than the budget's where the branch diverged
        found = self._measure(status)
        self._record({"budget_ended": self.segment.budget, **found, "tokens": seen})
        self._take(self.checkpoints.read(self.segment.done))
        self.progress.say(
            f"{self.id}: {_told(found)} at the end of budget {self.segment.budget}; "
            f"back on the plateau at step {self.segment.start}"
        )

    def _train_step(self) -> None:
        """One optimiser step over the whole batch, in micro-batches that fit the memory."""
        run, recipe = self.run, self.run.recipe
        starts = batch_starts(run, self.step, len(self.tokens.train), self.stream)
        x, y = batches.gather(self.text, self.world.slice(starts), run.model.seq_len)
        x, y = x.to(self.device), y.to(self.device)
        self.stepper.set_rate(recipe.lr_at(self.step, self.segment.budget))
        if self.stepper.path.graph == "step":
            loss = self.stepper(x, y)  # update and all
        else:
            loss = self._backward(x, y)
            self.stepper.update()
        self.loss_sum += loss
        self.summed += 1

    def _backward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Gradients of the batch's mean loss, in micro-batches that fit; returns that loss."""
        while True:
            try:
                return self.stepper.gradients(x, y)
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error):
                    raise
                if (micro := min(self.stepper.micro, len(x))) == 1:
                    raise RunFailed("out of memory with a micro-batch of one window") from None
                if self.world.size > 1:  # the others are already waiting for these gradients
                    raise RunFailed(
                        f"out of memory with a micro-batch of {micro} windows in each process: "
                        "start again with a smaller --micro-batch"
                    ) from None
            self._shrink(-(-micro // 2))  # where the error no longer holds on to the activations

    def _shrink(self, micro: int) -> None:
        self.stepper.shrink(micro)
        self.progress.say(
            f"out of memory: micro-batch {micro}, gradients accumulated; "
            f"the batch stays {self.run.recipe.batch}"
        )
        record = io.read_json(self.folder / "run.json")
        record["provenance"]["micro_batch"] = micro
        io.write_record(self.folder / "run.json", record)

    # -- measuring ----------------------------------------------------------------------------

    def _record_losses(self) -> str:
        """Append the mean training loss since the last line; "diverged" if it is not finite."""
        loss = (self.loss_sum / self.summed).item()
        self.loss_sum.zero_()
        self.summed = 0
        self.shown_loss = loss
        if np.isfinite(loss):
            rate = self.run.recipe.lr_at(self.step - 1, self.segment.budget)
            self._record({"loss": loss, "lr": rate})
            return "running"
        self._record({"loss": None, "status": "diverged"})
        return "diverged"

    def _record(self, values: dict) -> None:
        tokens = self.step * self.run.recipe.batch * self.run.model.seq_len
        seconds = round(time.monotonic() - self.started, 3)
        where = {"step": self.step, "tokens": tokens, "seconds": seconds}
        if self._on_branch:
            where["budget"] = self.segment.budget
        self.history.append({**where, **values})
        self.charts.add(self.done, self.history[-1])
        if self.world.leads:
            with open(self.folder / "metrics.jsonl", "a") as file:
                file.write(json.dumps(self.history[-1]) + "\n")

    def _measure(self, status: str) -> dict:
        """What stands at the end of a budget: the held-out score, and which weights it is of."""
        score = None
        if status != "diverged":
            self.progress.say(f"{self.id}: measuring the held-out loss")
            score = self.examiner.held_out(self.stream)
            if not np.isfinite(score.loss):
                status, score = "diverged", None
        return {
            "status": "diverged" if status == "diverged" else "finished",
            "val_loss": score.loss if score else None,
            "ece": score.ece if score else None,
            "eval_tokens": score.tokens if score else None,
            "weights_sha256": checkpoint.weights_sha256(self.stepper.weights()),
        }

    def _finish(self, status: str) -> None:
        run = self.run
        seconds = time.monotonic() - self.started
        found = self._measure(status)
        extra = self.examiner.fables() if found["status"] == "finished" else {}
        found["tokens"] = self.step * run.recipe.batch * run.model.seq_len
        if run.recipe.budgets:
            extra["budgets"] = self._budgets(found)
        extra["curve_sha256"] = hashlib.sha256(provenance.curve_bytes(self.history)).hexdigest()
        if self.world.leads:
            told = result(run, self.tokens, self.precision, found, extra, round(seconds, 3))
            io.write_record(self.folder / "result.json", told)
        self.charts.add(self.done, {"val_loss": found["val_loss"]})
        self.progress.say(f"{self.id}: {_told(found)} after {self.step} steps, {seconds:.0f} s")

    def _budgets(self, last: dict) -> list[dict]:
        """One result a budget; where the plateau diverged, so did those that were still to come."""
        names = ("status", "tokens", "val_loss", "ece", "eval_tokens", "weights_sha256")
        ended = {line["budget_ended"]: line for line in self.history if "budget_ended" in line}
        return [
            {"steps": budget, **{name: ended.get(budget, last)[name] for name in names}}
            for budget in self.run.recipe.budgets
        ]

    # -- saving and restoring -----------------------------------------------------------------

    def _save(self) -> None:
        kind, keys, position, *_ = self.stream.get_state()
        state = {
            **self.stepper.state(),
            "step": self.done,
            "stream": (torch.from_numpy(keys.astype(np.int64)), position),
            "loss_sum": self.loss_sum,
            "summed": self.summed,
            "threads": torch.get_num_threads(),
            "micro": self.stepper.micro,
            "seconds": time.monotonic() - self.started,
            "history": json.dumps(self.history),
        }
        if not self.world.leads:
            return
        try:
            self.checkpoints.save(self.done, state)
        except (OSError, RuntimeError) as error:  # torch's writer raises RuntimeError
            where, cause = self.checkpoints.folder, error
            while cause.__context__ is not None:  # torch's own words hide the system's
                cause = cause.__context__
            why = getattr(cause, "strerror", None) or cause
            raise RunFailed(f"cannot save in {where}: {why}; the last one stands") from None

    def _newest(self) -> dict | None:
        """The newest whole checkpoint: rank 0 finds it, the others read the same."""
        found = self.checkpoints.newest(self.progress.say) if self.world.leads else None
        step = self.world.agree(lambda: None if found is None else found["step"])
        return self.checkpoints.read(step) if found is None and step is not None else found

    def _restore(self, state: dict | None) -> None:
        """Take up a checkpoint; metrics.jsonl goes back to what the checkpoint knew."""
        if state is not None:
            try:
                if state["threads"] != torch.get_num_threads():
                    path = self.folder / "run.json"
                    raise RunFailed(f"{path} is damaged and is not believed: threads differ")
                self._take(state)
                self.stepper.micro, self.done = state["micro"], state["step"]
                self.segment = next(s for s in self.segments if self.done <= s.end)
                self.seconds, self.history = state["seconds"], json.loads(state["history"])
            except (KeyError, TypeError, ValueError) as error:  # whole, and of another layout
                raise RunFailed(f"{self.checkpoints.folder} is not believed: it was written by "
                                f"another version of rr ({error})") from None  # fmt: skip
            self.progress.say(f"{self.id}: going on from step {self.step}")
        if not self.world.leads:
            return
        self.checkpoints.tidy(None if state is None else self.done)
        path, lines = self.folder / "metrics.jsonl", provenance.curve_bytes(self.history)
        if self.history and not (path.is_file() and path.read_bytes().startswith(lines)):
            self.progress.say(f"{path} is damaged: its lines are those of the checkpoint again")
        io.write_atomic(path, lines)

    def _take(self, state: dict) -> None:
        """Weights, optimiser and sums of a checkpoint; what the run has recorded stays."""
        self.stepper.load(state)
        keys, position = state["stream"]
        self.stream.set_state(("MT19937", keys.numpy().astype(np.uint32), position))
        self.loss_sum.copy_(state["loss_sum"])
        self.summed = state["summed"]


def _told(found: dict) -> str:
    loss = found["val_loss"]
    return "diverged" if loss is None else f"held-out loss {loss:.4f}"
