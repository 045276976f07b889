"""The training loop, which resumes exactly after an interruption at any point."""

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .. import io
from ..data import batches
from ..data.batches import batch_starts
from ..errors import CompiledWrong, Interrupted, RunFailed, positive
from ..model.costs import count
from ..model.init import initialise
from ..model.transformer import Model
from ..ops import cross_entropy
from ..options import Request
from ..specs import Run
from . import backend, checkpoint, evaluate, optimizer, provenance
from .context import Context, check_request, tokens_of
from .device import let_go, out_of_memory, pick_device
from .distributed import World
from .progress import Progress, Stop
from .run_folder import check_rules, finished
from .step import OptimizerStep

FORMAT = 2  # of a checkpoint; a change of its keys or of what they hold is another one
HELD_OUT_BATCHES = 16  # that are scored at the points of a `clean` run
RECORD_EVERY = 1.0  # seconds; reading a loss waits for the GPU
PARTS = 4  # of a `clean` run; the held-out loss is taken after each
DEFAULTS = Request()
METRICS = tuple(field.name for field in fields(evaluate.Score))


def train(
    run: Run,
    out: str | Path,
    request: Request = DEFAULTS,
    *,
    log: Callable[[str], None] | None = None,
    cache: str | Path | None = None,
    stop_after: int | None = None,
) -> Path:
    """Train `run` in `out/<id>`, or resume it there after an interruption; returns that folder.

    A finished run is left as it is. From its first checkpoint on, a run keeps its threads,
    micro-batch and backend, so that its weights are, on a CPU, bit for bit those of an
    uninterrupted run. On another GPU or kind of `request.device`, with other versions of packages
    or a smaller `request.micro_batch` the batches stay, and run.json says it is not bit for bit.

    request: device, threads, backend and the other options of the machine. log: receives every line
    of progress; None prints them. cache: the folder of tokenised texts; None: `$RR_CACHE`, else
    `~/.cache/review-residuals`. stop_after: steps, those of branches too, after which it stops,
    saved, as after SIGTERM; its schedule stays that of the whole run.

    A loss that is not finite ends the run as "diverged". Raises RRError for bad input,
    `rr.errors.RunFailed` where the run cannot continue, and `rr.errors.Interrupted` after SIGTERM
    or Ctrl-C, the step finished and saved.

    Example:
        >>> import tempfile
        >>> import rr
        >>> tiny = "nano:d_model=16,n_layer=1,n_head=1,d_ff=32,seq_len=16"
        >>> run = rr.plan(tiny, steps=2, batch=1, eval_batches=1)
        >>> with tempfile.TemporaryDirectory() as out:
        ...     folder = rr.train(run, out, log=lambda line: None)
        ...     print(folder.name == run.id, (folder / "result.json").exists())
        True True
    """
    check_request(request)
    if stop_after is not None:
        positive("stop_after", stop_after)
    folder = Path(out) / run.id
    world = World.from_environment(request.parallel, pick_device(request.device))
    check(run, request, world)
    progress = Progress(log if world.leads else lambda line: None)
    if finished(folder) is not None:
        return folder
    tokens = tokens_of(run, cache, progress.say)  # before others wait for this process
    lock = io.locked(folder) if world.leads else contextlib.nullcontext()
    with world.joined(progress.say), lock:
        if world.agree(lambda: finished(folder)) is not None:  # by the process that held the lock
            return folder
        with _errors_in_one_line(folder, progress):
            context = Context(run, folder, tokens, request, world, progress.say)
            Training(context, progress).go(stop_after)
            del context  # which holds the tokens
    let_go(world.device)
    return folder


def check(run: Run, request: Request, world: World) -> None:
    """Raise RRError where this run cannot be computed as requested; nothing is read or written."""
    check_rules(run)
    world.check_batch(run.recipe.batch)
    spec = request.backend or backend.default(world.device, run.model, world)
    backend.check_spec(spec, world.device, run, world)
    optimizer.check_optimizer(run.recipe, world)


@contextlib.contextmanager
def _errors_in_one_line(folder: Path, progress: Progress) -> Iterator[None]:
    """Turn errors of the disk and of the memory into RunFailed; end the progress line."""
    try:
        yield
    except OSError as error:
        path = error.filename2 or error.filename or folder
        why = error.strerror or error
        raise RunFailed(f"cannot write in {path}: {why}; saved checkpoints remain") from None
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        why = str(error).partition("\n")[0]
        raise RunFailed(f"out of memory; checkpoints saved in {folder} remain ({why})") from None
    finally:
        progress.close()


class Training:
    """The state of one run while it trains: `go` trains it to its end."""

    def __init__(self, context: Context, progress: Progress) -> None:
        self.context, self.progress, self.request = context, progress, context.request
        self.run, self.folder = run, folder = context.run, context.folder
        self.id, self.world, self.device = run.id, context.world, context.device
        self.tokens, self.text = context.tokens, context.text
        self.interval = checkpoint.Interval(self.request.save_every, count(run.model), progress.say)
        self.segments = run.recipe.segments
        self.segment = self.segments[0]
        branches = [(s.taken_before, s.end) for s in self.segments[:-1] if s.budget is not None]
        self.checkpoints = checkpoint.Checkpoints(folder, self.id, branches)
        try:
            self.optimizer_step = self._first_step()
        except CompiledWrong as error:
            context.drop_compiler(error)
            self.optimizer_step = self._first_step()
        self.model = self.optimizer_step.model
        self.examiner = evaluate.Examiner(self.model, context)
        self.rng = np.random.RandomState(run.seed)  # batches and evaluation of `paper`
        self.steps_taken, self.seconds = 0, 0.0
        self.history: list[dict] = []  # the lines of metrics.jsonl
        self.loss_sum = torch.zeros((), dtype=cross_entropy.sums(self.device), device=self.device)
        self.steps_in_sum = 0  # of loss_sum
        self.unread: list[tuple[int, dict, torch.Tensor]] = []  # lines with values on the device
        self.charts: Any = None  # `loggers.Charts`, where curves are drawn
        self.recorded_at = time.monotonic()
        self.shown_loss: float | None = None
        self._restore(self._newest())
        context.keep_changes()
        self.started = time.monotonic() - self.seconds

    def _first_step(self) -> OptimizerStep:
        """The optimiser step of a model with its first weights, by the settings of the context."""
        settings = self.context.settings
        settings.backend.set_up(self.device)
        model = initialise(
            Model(self.run.model), self.run.seed, shared=self.run.protocol == "clean"
        )
        return OptimizerStep(
            model.to(self.device).train(),
            self.run.recipe,
            settings.backend,
            self.device,
            settings.micro_batch,
            precision=settings.precision,
            world=self.world,
            on_shrink=self._record_micro_batch,
        )

    # -- the loop -----------------------------------------------------------------------------

    @property
    def schedule_step(self) -> int:
        """Steps that led to the current weights; `steps_taken` also counts finished branches'."""
        return self.segment.start + self.steps_taken - self.segment.taken_before

    def go(self, stop_after: int | None = None) -> None:
        """Train segment by segment, evaluate at the end of each budget, write the result."""
        self.stop_after = stop_after or float("inf")
        if self.steps_taken >= self.stop_after:
            raise Interrupted(f"{self.folder} has taken {self.steps_taken} steps already")
        first = self.segments.index(self.segment)
        with self._open_charts() as self.charts, Stop() as stop:
            for segment in self.segments[first:]:
                self.segment = segment
                status = self._train_segment(stop)
                # From here on only evaluation is left: nothing is lost by stopping at once.
                stop.at_once = True
                if stop.requested:
                    raise Interrupted(
                        f"stopped at step {self.schedule_step}; saved in {self.folder}"
                    )
                if segment.budget is None and status == "diverged":
                    break
                if self._on_branch:
                    self._leave_branch(status)
                stop.at_once = False
            stop.at_once = True
            self._finish(status)

    def _open_charts(self) -> contextlib.AbstractContextManager:
        """Where curves are drawn beside metrics.jsonl; None for a run that asks for none."""
        names = self.request.charts if self.world.leads else None
        if not names:
            return contextlib.nullcontext()
        from .loggers import Charts

        return Charts(names, self.run, self.folder, self.steps_taken, self.progress.say)

    def _train_segment(self, stop: Stop) -> str:
        """Train to the end of the segment and save there; returns "running" or "diverged"."""
        run, segment = self.run, self.segment
        every = max(1, run.recipe.steps // 200)  # steps between two lines of metrics.jsonl
        status, self.saved_at = self._status(), time.monotonic()
        while self.steps_taken < segment.end and status == "running":
            self._train_step()
            self.steps_taken += 1
            if self.steps_taken == 1:  # after a step, which shows that the settings work here
                self._after_first_step()
            if self.schedule_step % every == 0 or self.steps_taken == segment.end:
                self._begin_line()
            stop.requested |= self.steps_taken >= self.stop_after
            stop.requested, save, record = self.world.any(
                stop.requested, self._due(self.saved_at, self.interval.seconds), self._record_due()
            )
            held_out = self.schedule_step in self._held_out_points()
            if record or save or stop.requested or held_out or self.steps_taken == segment.end:
                status = self._record_lines()
            if held_out and status == "running":
                self._record_held_out()
            self.progress.step(run, self.steps_taken, self.segments[-1].end, self.shown_loss)
            if stop.requested:
                self._save()
                raise Interrupted(f"stopped at step {self.schedule_step}; saved in {self.folder}")
            if save:
                self._save_now()
        if self._on_branch:
            self.steps_taken = segment.end  # a branch that diverged early, too, ends here
        if self.world.agree(lambda: self.checkpoints.steps()[-1:] != [self.steps_taken]):
            self._save()
        return status

    def _status(self) -> str:
        """The status with which a segment begins: that of the last line of the plateau."""
        line = self.history[-1] if self.history else {}
        ended = "budget_ended" in line  # its status is the branch's, not the plateau's
        return "running" if ended else line.get("status", "running")

    def _held_out_points(self) -> set[int]:
        """The steps after which a `clean` run takes its held-out loss, on the plateau."""
        if self.run.protocol != "clean" or self._on_branch:
            return set()
        return {round(self.run.recipe.steps * k / PARTS) for k in range(1, PARTS)}

    def _after_first_step(self) -> None:
        """Log the settings; on a GPU also score one batch, so that a lack of memory shows now."""
        backend = self.context.settings.backend_name
        self.progress.say(f"{self.id}: {self.optimizer_step.description}, backend {backend}")
        if self.device.type == "cuda":
            self._held_out(np.random.RandomState(0), 1)

    def _due(self, last: float, seconds: float) -> bool:
        """Whether more than so many seconds have passed since; the process that writes decides."""
        return self.world.leads and time.monotonic() - last > seconds

    def _record_due(self) -> bool:
        """Whether losses are to be read now: on a GPU, which is waited for, once a second."""
        return self.device.type == "cpu" or self._due(self.recorded_at, RECORD_EVERY)

    def _save_now(self) -> None:
        """A checkpoint, whose duration sets the interval of the next ones."""
        if self.device.type == "cuda":  # steps under way are no part of a save's time
            torch.cuda.synchronize(self.device)
        began = time.monotonic()
        self._save()
        self.saved_at = time.monotonic()
        self.interval.saved(self.saved_at - began)

    @property
    def _on_branch(self) -> bool:
        """Whether the plateau continues from where this segment left it."""
        return self.segment.budget is not None and self.segment is not self.segments[-1]

    def _leave_branch(self, status: str) -> None:
        """Evaluate the branch that has ended, and go back to the plateau that it left.

        Nothing is saved here: a run that is resumed before the plateau's next checkpoint starts at
        the end of the branch and does this again.
        """
        tokens = self.history[-1]["tokens"]  # fewer than the budget's where the branch diverged
        evaluation = self._evaluate(status)
        ended = {"budget_ended": self.segment.budget, **evaluation, "tokens": tokens}
        self._record(self._line() | ended)
        self._load(self.checkpoints.read(self.segment.taken_before))
        self.progress.say(
            f"{self.id}: {_in_words(evaluation)} at the end of budget {self.segment.budget}; "
            f"back on the plateau at step {self.segment.start}"
        )

    def _train_step(self) -> None:
        """One optimiser step over the whole batch, in micro-batches that fit the memory."""
        run, recipe = self.run, self.run.recipe
        starts = batch_starts(run, self.schedule_step, len(self.tokens.train), self.rng)
        x, y = batches.gather(self.text, self.world.slice(starts), run.model.seq_len)
        x, y = batches.moved(x, self.device), batches.moved(y, self.device)
        self.optimizer_step.set_rate(recipe.lr_at(self.schedule_step, self.segment.budget))
        self.loss_sum += self.optimizer_step(x, y)
        self.steps_in_sum += 1

    def _record_micro_batch(self, micro: int) -> None:
        """Log and record a smaller micro-batch, which resumed runs keep."""
        self.progress.say(
            f"out of memory: micro-batch {micro}, gradients accumulated; "
            f"the batch stays {self.run.recipe.batch}"
        )
        record = io.read_sealed(self.folder / "run.json")
        record["provenance"]["micro_batch"] = micro
        io.write_record(self.folder / "run.json", record)

    # -- evaluation ---------------------------------------------------------------------------

    def _begin_line(self) -> None:
        """Begin a line of metrics.jsonl, whose values stay on the device: nothing waits for it.

        They are the mean training loss since the last line and the gradient norm of this step.
        """
        norm = self.optimizer_step.grad_norm
        assert norm is not None  # a step was taken
        loss = self.loss_sum / self.steps_in_sum
        values = torch.stack([loss, self.world.whole(norm).to(loss)])
        rate = self.run.recipe.lr_at(self.schedule_step - 1, self.segment.budget)
        self.unread.append((self.steps_taken, self._line() | {"lr": rate}, values))
        self.loss_sum.zero_()
        self.steps_in_sum = 0

    def _record_lines(self) -> str:
        """Append the lines that were begun to metrics.jsonl; waits for the device.

        Returns "diverged" if a loss is not finite, else "running". Steps taken since then count
        for nothing: the run ended at that line.
        """
        unread, self.unread, self.recorded_at = self.unread, [], time.monotonic()
        rows = torch.stack([values for *_, values in unread]).tolist() if unread else []
        for (done, line, _), (loss, norm) in zip(unread, rows, strict=True):
            self.shown_loss = loss
            if not np.isfinite(loss):
                del line["lr"]
                self.steps_taken = done
                self._record(line | {"loss": None, "status": "diverged"})
                return "diverged"
            rate = line.pop("lr")
            # the norm of one step, where float16 may have overflowed
            norm = norm if np.isfinite(norm) else None
            self._record(line | {"loss": loss, "lr": rate, "grad_norm": norm}, done)
        return "running"

    def _line(self) -> dict:
        """What every line of metrics.jsonl begins with: where the run stands."""
        tokens = self.schedule_step * self.run.recipe.batch * self.run.model.seq_len
        seconds = round(time.monotonic() - self.started, 3)
        line = {"step": self.schedule_step, "tokens": tokens, "seconds": seconds}
        if self._on_branch:
            line["budget"] = self.segment.budget
        return line

    def _record(self, line: dict, done: int | None = None) -> None:
        """Append a line to metrics.jsonl and to the charts; done: steps before it."""
        self.history.append(line)
        if self.charts:
            self.charts.add(self.steps_taken if done is None else done, line)
        if self.world.leads:
            with open(self.folder / "metrics.jsonl", "a") as file:
                file.write(json.dumps(line) + "\n")

    def _record_held_out(self) -> None:
        """Append the held-out loss of the first batches."""
        loss = self._held_out(self.rng, HELD_OUT_BATCHES).val_loss
        self._record(self._line() | {"valid": loss if np.isfinite(loss) else None})

    def _held_out(self, rng: np.random.RandomState, batches: int | None = None) -> evaluate.Score:
        """The held-out score. Gradients are let go first: evaluation needs their memory."""
        self.optimizer_step.optimizer.zero_grad(set_to_none=True)
        return self.examiner.held_out(rng, batches)

    def _evaluate(self, status: str) -> dict:
        """The evaluation at the end of a budget: status, held-out score, hash of the weights."""
        score = None
        if status != "diverged":
            self.progress.say(f"{self.id}: measuring the held-out loss")
            score = self._held_out(self.rng)
            if not np.isfinite(score.val_loss):
                score = None
        weights = self.optimizer_step.weights()  # gathered by all processes, whole in one
        return {
            "status": "finished" if score else "diverged",
            **(asdict(score) if score else dict.fromkeys(METRICS)),
            "weights_sha256": self.world.agree(lambda: checkpoint.weights_sha256(weights)),
        }

    def _finish(self, status: str) -> None:
        run = self.run
        seconds = time.monotonic() - self.started
        evaluation = self._evaluate(status)
        extra = self.examiner.fables() if evaluation["status"] == "finished" else {}
        evaluation["tokens"] = self.schedule_step * run.recipe.batch * run.model.seq_len
        if run.recipe.budgets:
            extra["budgets"] = self._budgets(evaluation)
        curve = provenance.curve_bytes(self.history)
        extra["curve_sha256"] = hashlib.sha256(curve).hexdigest()
        if self.world.leads:
            settings = self.context.settings
            record = evaluate.result(
                run, self.tokens, settings, evaluation, extra, round(seconds, 3)
            )
            if not self.request.keep_checkpoints:
                self.checkpoints.write_weights()
            io.write_atomic(self.folder / "metrics.jsonl", curve)  # synced before what names it
            io.write_record(self.folder / "result.json", record)
            if not self.request.keep_checkpoints:
                self.checkpoints.drop_steps()
        if self.charts:
            self.charts.add(self.steps_taken, {"val_loss": evaluation["val_loss"]})
        self.progress.say(
            f"{self.id}: {_in_words(evaluation)} after {self.schedule_step} steps, {seconds:.0f} s"
        )

    def _budgets(self, last: dict) -> list[dict]:
        """One result per budget; where the plateau diverged, so did the later budgets."""
        names = ("status", "tokens", *METRICS, "weights_sha256")
        ended = {line["budget_ended"]: line for line in self.history if "budget_ended" in line}
        return [
            {"steps": budget, **{name: ended.get(budget, last)[name] for name in names}}
            for budget in self.run.recipe.budgets or ()
        ]

    # -- saving and restoring -----------------------------------------------------------------

    def _save(self) -> None:
        generator: Any = self.rng.get_state()
        _, keys, position, *_ = generator
        state = {
            **self.optimizer_step.state(),
            "format": FORMAT,
            "steps_taken": self.steps_taken,
            "rng": (torch.from_numpy(keys.astype(np.int64)), position),
            "loss_sum": self.loss_sum,
            "summed": self.steps_in_sum,
            "threads": torch.get_num_threads(),
            "seconds": time.monotonic() - self.started,
            "history": json.dumps(self.history),
        }
        if self.world.leads:
            self.checkpoints.save(self.steps_taken, state)

    def _newest(self) -> dict | None:
        """The newest checkpoint that is not corrupt: rank 0 finds it, the others read the same."""
        state = self.checkpoints.newest(self.progress.say) if self.world.leads else None
        if state is not None:
            self._check_checkpoint(state)
        step = self.world.agree(lambda: None if state is None else state["steps_taken"])
        if self.world.leads or step is None:
            return state
        return self.checkpoints.read(step)

    def _restore(self, state: dict | None) -> None:
        """Restore a checkpoint, and metrics.jsonl as it was when the checkpoint was saved."""
        if state is not None:
            try:
                self._load(state)
                self.steps_taken = state["steps_taken"]
                self.segment = next(s for s in self.segments if self.steps_taken <= s.end)
                self.seconds, self.history = state["seconds"], json.loads(state["history"])
            except (KeyError, TypeError, ValueError) as error:  # its checksum is right all the same
                raise RunFailed(
                    f"{self.checkpoints.folder} is corrupt ({error}): remove the run's folder to "
                    "start again"
                ) from None
            self.progress.say(f"{self.id}: resuming from step {self.schedule_step}")
        if not self.world.leads:
            return
        self.checkpoints.tidy(None if state is None else self.steps_taken)
        path, lines = self.folder / "metrics.jsonl", provenance.curve_bytes(self.history)
        if self.history and not (path.is_file() and path.read_bytes().startswith(lines)):
            self.progress.say(f"{path} is corrupt: restored from the checkpoint")
        io.write_atomic(path, lines)

    def _check_checkpoint(self, state: dict) -> None:
        """Raise RunFailed for another format of checkpoint, or other threads than run.json's."""
        if state.get("format") != FORMAT:
            raise RunFailed(
                f"{self.checkpoints.folder} has checkpoints of format {state.get('format')}, this "
                f"version of rr reads format {FORMAT}: resume with the version in run.json, or "
                "remove the run's folder to start again"
            )
        if state["threads"] != torch.get_num_threads():
            raise RunFailed(
                f"{self.folder / 'run.json'} is corrupt (it has {torch.get_num_threads()} threads, "
                f"the checkpoint {state['threads']})"
            )

    def _load(self, state: dict) -> None:
        """Load a checkpoint's weights, optimiser and sums; the run's history stays."""
        self.optimizer_step.load(state)
        keys, position = state["rng"]
        generator: Any = "MT19937", keys.numpy().astype(np.uint32), position
        self.rng.set_state(generator)
        self.loss_sum.copy_(state["loss_sum"])
        self.steps_in_sum = state["summed"]


def _in_words(evaluation: dict) -> str:
    loss = evaluation["val_loss"]
    return "diverged" if loss is None else f"held-out loss {loss:.4f}"
