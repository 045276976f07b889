"""`rr …` on the command line: each verb one call into the package.

Exit codes: 0 success; 2 a bad argument (one line on stderr: what, why, what is accepted); 3 a run
that failed or diverged; 130 interrupted, the checkpoint saved.
"""

import argparse
import contextlib
import json
import os
import shlex
import sys
import traceback
from pathlib import Path

from .config import Interrupted, RRError, RunFailed


class Parser(argparse.ArgumentParser):
    """argparse whose complaints are one line, like all of ours."""

    def error(self, message: str):
        raise RRError(f"{message} ({self.prog} --help lists what is accepted)")


def main(argv: list[str] | None = None) -> int:
    """Run one verb; returns the exit code."""
    try:
        argv = sys.argv[1:] if argv is None else argv
        args = _parser().parse_args(argv)
        args.again = shlex.join(["rr", *argv])
        code = args.verb(args) or 0
        sys.stdout.flush()
        return code
    except Interrupted as stop:
        return _fail(130, stop)
    except RunFailed as failure:
        return _fail(3, failure)
    except RRError as error:
        return _fail(2, error)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "rr":
            raise
        extra = "pip install 'review-residuals[book]' brings it"
        return _fail(2, f"this verb needs {error.name}, which is not installed: {extra}")
    except KeyboardInterrupt:
        return _fail(130, "interrupted")
    except BrokenPipeError:  # the reader of our output, `| head`, has gone
        _drop_output()
        return 0
    except OSError as error:  # a folder that may not be read, or output that finds no room
        _drop_output()
        return _fail(2, f"{error.filename or 'output'}: {error.strerror or error}")


def _drop_output() -> None:
    """What is still to be written goes nowhere: Python would complain of it at its exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _fail(code: int, why: object) -> int:
    """One line on stderr, whatever its words came from."""
    _say(f"rr: {' '.join(str(why).split())}")
    return code


def _parser() -> Parser:
    parser = Parser(prog="rr", description="How a transformer writes to its residual stream.")
    verbs = parser.add_subparsers(required=True, metavar="VERB", parser_class=Parser)

    def verb(name: str, run, help: str) -> Parser:
        sub = verbs.add_parser(name, help=help, description=help, allow_abbrev=False)
        sub.set_defaults(verb=run)
        return sub

    rules = verb("rules", _rules, "every rule: equation, source, cost, coefficient at the start")
    ladder = verb("ladder", _ladder, "rungs and arms: shape, exact parameter counts, cost, budget")
    ladder.add_argument("--protocol", default="clean", help="clean or paper (default: clean)")
    prepare = verb("prepare", _prepare, "tokenise a corpus once, and say how predictable it is")
    train = verb("train", _train, "train one run, or go on with it; prints its folder last")
    sweep = verb(
        "sweep",
        _sweep,
        "train every combination of the options, some at a time; the "
        "same command goes on where it was cut off",
    )
    planned = verb(
        "plan",
        _plan,
        "what a GPU, hours or dollars buy: runs in order, hours, "
        "memory; without options of a run, of the study's own 42",
    )
    sample = verb("sample", _sample, "let a trained run write")
    table = verb(
        "table", _table, "differences between the arms in a folder of runs, or in anybody's logs"
    )
    _power_options(verb("power", _power, "how many seeds a difference needs, before training"))
    bench = verb("bench", _bench, "what a training step costs: tokens/s, MFU, peak memory")

    _text_options(prepare, "fables", default="fables")
    for sub in (rules, ladder, prepare, bench):
        sub.add_argument("--json", action="store_true", help="one JSON value on stdout")

    _run_options(train)
    _machine_options(train)
    train.add_argument("--out", required=True, help="folder of the runs; this one is OUT/<id>")

    _run_options(sweep, many=True)
    _machine_options(sweep, many=True)
    _order_options(sweep)
    sweep.add_argument(
        "--hours",
        type=float,
        help="that the sweep may take: no run is started "
        "that would not end within them, and those running then stop, saved",
    )
    sweep.add_argument(
        "--out",
        default="runs",
        help="folder of the runs (default: runs); several sweeps on one share the work",
    )
    sweep.add_argument(
        "--runner",
        default="papermill",
        help="papermill: each run is a notebook, its report; direct: rr train (default: papermill)",
    )
    sweep.add_argument(
        "--notebook",
        metavar="PATH",
        help="for papermill (default: the checkout's notebooks/09_scaling_run.ipynb)",
    )
    sweep.add_argument(
        "--engine", default="local", help="local, or ray: a running cluster (default: local)"
    )
    sweep.add_argument(
        "--jobs",
        type=int,
        help="runs at a time; GPUs are shared round robin "
        "(default: one a GPU, else one; ray: what the cluster holds)",
    )
    sweep.add_argument(
        "--processes",
        type=int,
        default=1,
        metavar="N",
        help="of each run, by torchrun, a GPU each: for a run larger than a GPU; --runner direct",
    )
    sweep.add_argument(
        "--address", help="ray: of the cluster (default: the one this machine is part of)"
    )
    sweep.add_argument(
        "--gpu-fraction",
        type=float,
        metavar="F",
        help="ray: GPUs of each run, 0.5 for two on one (default: one where the cluster has any)",
    )
    sweep.add_argument(
        "--cpus-per-cell",
        type=int,
        metavar="N",
        help="ray: cores of each run (default: one a process)",
    )
    sweep.add_argument(
        "--dry-run",
        action="store_true",
        help="print each run's command, a line each, and do nothing",
    )

    _run_options(planned, many=True)
    _order_options(planned)
    planned.add_argument(
        "--gpu",
        metavar="NAME",
        help="H100, H200, A100, L4, T4 …; any other with "
        "--tflops and --memory (default: the one of --measured)",
    )
    planned.add_argument("--tflops", type=float, help="dense peak of 16-bit products")
    planned.add_argument("--memory", type=float, metavar="GB", help="of the card, in 10^9 bytes")
    planned.add_argument("--hours", type=float, help="that may be used (default: no limit)")
    planned.add_argument("--dollars", type=float, help="that may be spent; needs --price")
    planned.add_argument("--price", type=float, help="dollars an hour, yours to give")
    planned.add_argument(
        "--mfu",
        metavar="LO-HI",
        help="assumed where nothing was measured on this card (default: 0.2-0.45)",
    )
    planned.add_argument("--json", action="store_true", help="one JSON value on stdout")

    sample.add_argument("run", help="a run's folder")
    sample.add_argument(
        "--rule",
        nargs="+",
        default=[],
        metavar="FILE.py:CLASS",
        help="rules of your own that the run was trained with: their files are imported",
    )
    sample.add_argument("--prompt", default="", help="text to go on from")
    sample.add_argument("--loops", type=int, help="passes over the stack (default: the run's own)")
    sample.add_argument(
        "--keep-scale",
        action="store_true",
        help="with --loops: keep the scale of the trained number of passes",
    )
    sample.add_argument("--tokens", type=int, default=200, help="tokens at most (default: 200)")
    sample.add_argument("--temperature", type=float, default=0.8, help="0 takes the likeliest")
    sample.add_argument("--top-k", type=int, default=40)
    sample.add_argument("--seed", type=int, default=0)

    _log_options(table)
    table.add_argument(
        "--baseline", default="standard", help="rule to compare with (default: standard)"
    )
    form = table.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON value on stdout")
    form.add_argument("--csv", action="store_true", help="a line an arm, with all digits")
    form.add_argument("--markdown", action="store_true", help="a table for each group of runs")
    bench.add_argument("--rung", nargs="+", default=["nano"], help="as train's (default: nano)")
    bench.add_argument(
        "--rule",
        nargs="+",
        default=["review"],
        help="as train's; in the arms of protocol clean (default: review)",
    )
    bench.add_argument(
        "--paths",
        nargs="+",
        default=["reference", "fast"],
        metavar="PATH",
        help="reference, eager (what train runs), fast, compiled, triton, with "
        "choices: fast:precision=tf32 (default: reference fast)",
    )
    bench.add_argument("--steps", type=int, default=5, help="timed steps a repeat (default: 5)")
    bench.add_argument(
        "--repeats", type=int, default=3, help="turns that each case takes (default: 3)"
    )
    bench.add_argument("--batch", type=int, help="windows a step (default: the rung's)")
    bench.add_argument(
        "--micro-batch", type=int, help="windows at once (default: the batch on a GPU, 8 on a CPU)"
    )
    bench.add_argument("--threads", type=int, help="CPU threads (default: OMP_NUM_THREADS or all)")
    bench.add_argument("--device", help="auto, cpu or cuda (default: auto)")
    bench.add_argument(
        "--ablate",
        action="store_true",
        help="the last path again with each of its choices undone alone",
    )
    bench.add_argument(
        "--peers",
        action="store_true",
        help="what is installed of transformers, x-transformers and litgpt, at equal size",
    )
    return parser


def _text_options(sub: Parser, usual: str, default: str | None = None, **more) -> None:
    """Which text, and in which tokens."""
    sub.add_argument(
        "--corpus",
        default=default,
        **more,
        help=f"fables, tinystories, file:PATH or a hub name (default: {usual})",
    )
    sub.add_argument(
        "--tokenizer",
        **more,
        help="gpt2, bpe:N, or a folder with vocab.json and "
        "merges.txt (default: bpe:1024 for fables, else gpt2)",
    )


def _run_options(sub: Parser, many: bool = False) -> None:
    """What a run is, and how it is trained. many: each option that is part of the run takes a list.

    A list has no default here: that of protocol `paper` is another.
    """

    def option(name: str, default: object = None, help: str = "", **more) -> None:
        more |= {"nargs": "+"} if many else {"default": default}
        sub.add_argument(f"--{name}", help=help, **more)

    _text_options(sub, "fables for nano and mini", **({"nargs": "+"} if many else {}))
    option(
        "rung",
        "nano",
        "nano, mini, 60M … 1B, with options: nano:n_layer=16,d_model=64 (default: nano)",
    )
    option(
        "rule",
        "review",
        "a rule with its options, constant:c=0.5, or your own, my_rule.py:Class (default: review)",
    )
    option("values", "own", "value rule (default: own)")
    option("loops", 1, "passes over the stack (default: 1)", type=int)
    option("flavour", "gpt2", "gpt2 or llama (default: gpt2)")
    option("protocol", "clean", "clean or paper (default: clean)")
    option("seed", 0, "seed (default: 0)", type=int)
    option("steps", None, "optimiser steps (default: the rung's)", type=int)
    option(
        "budgets",
        None,
        "a decay branch for each of these numbers of steps leaves one plateau",
        type=_numbers,
        metavar="STEPS,STEPS,…",
    )
    option("warmup", None, "steps of warm-up (default: the protocol's)", type=int)
    option("lr", None, "peak learning rate (default: the rung's)", type=float)
    option("batch", None, "windows a step (default: the rung's)", type=int)
    option("eval-batches", None, "shorten the evaluation, and say so", type=int)
    option("precision", None, "fp32, tf32, bf16 or fp16 (default: the protocol's)")
    option("optimizer", None, "adamw, or muon for the blocks' matrices (default: adamw)")
    sub.add_argument(
        "--depth-lr",
        action="store_true",
        help="blocks learn at lr times (L/12)^-1/2, AdamW's eps likewise",
    )


def _order_options(sub: Parser) -> None:
    """In which order runs are trained, and what says how long they take."""
    sub.add_argument(
        "--order",
        default="smallest",
        help="smallest: small models first, all arms "
        "of a seed together; longest: longest run first; given: as the options list "
        "them (default: smallest)",
    )
    sub.add_argument(
        "--measured",
        metavar="FILE",
        help="what rr bench --json wrote on this machine: hours are estimated by it",
    )


def _machine_options(sub: Parser, many: bool = False) -> None:
    """Where and how a run, or many, is computed."""
    sub.add_argument("--threads", type=int, help="CPU threads (default: OMP_NUM_THREADS or all)")
    sub.add_argument("--device", help="auto (cuda, else cpu), cpu, cuda or mps (default: auto)")
    sub.add_argument(
        "--path",
        help="how steps are computed: reference, eager, fast, compiled, "
        "triton, with choices: fast:recompute=layer (default: eager on a CPU, "
        "compiled on a GPU)",
    )
    sub.add_argument(
        "--micro-batch",
        type=int,
        help="windows a process takes at once; gradients "
        "are accumulated (default: all of its batch, halved until it fits)",
    )
    sub.add_argument(
        "--parallel",
        help="under torchrun: ddp, every process holds the model, or "
        "fsdp, each holds a shard (default: ddp)",
    )
    sub.add_argument(
        "--save-every",
        type=_seconds,
        metavar="SECONDS",
        help="seconds between checkpoints (default: auto, chosen from what a save takes)",
    )
    sub.add_argument(
        "--log",
        default=None if many else "",
        metavar="NAME,…",
        help="tensorboard, wandb: curves there, beside metrics.jsonl",
    )


def _seconds(word: str) -> float | None:
    """A number of seconds; None for auto."""
    try:
        return None if word == "auto" else float(word)
    except ValueError:
        raise RRError(f"save-every {word!r}: a number of seconds, or auto, is accepted") from None


def _numbers(words: str) -> list[int]:
    """`2000,4000` as numbers."""
    try:
        return [int(word) for word in words.split(",")]
    except ValueError:
        raise RRError(f"budgets {words!r}: whole numbers, as in 2000,4000, are accepted") from None


def _json(value: object) -> None:
    print(json.dumps(value, allow_nan=False, ensure_ascii=False))


def _aligned(rows: list[tuple], right: str = "") -> None:
    """Print rows as columns; letters of `right` that are "r" align their column right."""
    widths = [max(len(str(row[i])) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = (
            str(cell).rjust(width) if right[i : i + 1] == "r" else str(cell).ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join(cells).rstrip())


def _rules(args) -> None:
    from .model.ladder import describe

    rows = describe()
    if args.json:
        return _json(rows)
    head = [("name", "kind", "params a block", "at the start", "source")]
    _aligned(
        head
        + [
            (
                row["name"],
                row["kind"],
                row["cost"]["params_per_block"],
                "–" if row["coefficient"] is None else f"{row['coefficient']:.4g}",
                row["source"],
            )
            for row in rows
        ]
    )


def _ladder(args) -> None:
    from .config import PROTOCOLS, nearest
    from .model.ladder import table

    if args.protocol not in PROTOCOLS:
        raise RRError(f"unknown protocol {args.protocol!r}: {nearest(args.protocol, PROTOCOLS)}")
    rows = table(args.protocol)
    if args.json:
        return _json(rows)
    keys = list(rows[0])
    _aligned(
        [tuple(keys)]
        + [
            tuple(f"{row[k]:,}" if isinstance(row[k], int) else row[k] for k in keys)
            for row in rows
        ],
        "llrrrrrrrrr",
    )


def _prepare(args) -> None:
    from .data.corpus import baselines, open_corpus

    tokens = open_corpus(args.corpus, args.tokenizer, log=_say)
    found = baselines(tokens)
    if args.json:
        return _json(found)
    _aligned(
        [
            (key, f"{value:,}" if isinstance(value, int) else f"{value:.4f}")
            for key, value in found.items()
        ],
        "lr",
    )


def _train(args) -> int:
    from .training.loggers import named
    from .training.run_folder import finished, plan
    from .training.trainer import train

    names = (
        "values",
        "loops",
        "flavour",
        "protocol",
        "seed",
        "steps",
        "budgets",
        "warmup",
        "lr",
        "batch",
        "eval_batches",
        "precision",
        "depth_lr",
        "optimizer",
    )
    with _own_rules(args.rule, args.values):
        run = plan(
            args.rung,
            args.rule,
            corpus=args.corpus,
            tokenizer=args.tokenizer,
            **{name: getattr(args, name) for name in names},
        )
        folder = train(
            run,
            args.out,
            threads=args.threads,
            device=args.device,
            save_every=args.save_every,
            micro_batch=args.micro_batch,
            parallel=args.parallel,
            path=args.path,
            charts=named(args.log),
        )
    if os.environ.get("RANK", "0") == "0":  # one of torchrun's processes speaks for all
        print(folder)
    if finished(folder)["status"] == "diverged":
        raise RunFailed(f"{folder}: the loss is no longer finite; the run is kept, as diverged")
    return 0


def _sweep(args) -> None:
    from .sweep import AXES, Hours, Runner, cells, check, commands, sweep

    machine = {name: getattr(args, name) for name in (
        "threads", "device", "path", "micro_batch", "save_every", "parallel", "log")}  # fmt: skip
    with _own_rules(*(args.rule or ()), *(args.values or ())):
        plan = cells(
            {name: getattr(args, name) for name in (*AXES, "depth_lr")}, _say, order=args.order
        )
    if args.measured and args.hours is None:
        raise RRError("--measured without --hours: it says which runs end within the hours")
    hours = None
    if args.hours is not None:
        from .perf.budget import expected, read_bench

        hours = Hours(args.hours, *([expected(read_bench(args.measured))] if args.measured else []))
    if args.dry_run:
        runner = Runner(args.runner, Path(args.out), machine, args.processes, args.notebook)
        asked = {
            name: getattr(args, name.replace("-", "_"))
            for name in ("address", "gpu-fraction", "cpus-per-cell")
        }
        check(runner.machine, args.engine, asked, here=False)  # the commands may run elsewhere
        for words in commands(plan, runner):
            print(shlex.join(words))
        if args.runner == "papermill":
            _say(f"rr: papermill makes no folders: each command needs its {args.out}/<id> first")
        if hours is not None:
            _say("rr: all runs are listed; rr plan says which fit the hours")
        return
    sweep(
        plan,
        args.out,
        runner=args.runner,
        engine=args.engine,
        jobs=args.jobs,
        processes=args.processes,
        machine=machine,
        notebook=args.notebook,
        address=args.address,
        gpu_fraction=args.gpu_fraction,
        cpus_per_cell=args.cpus_per_cell,
        hours=hours,
        again=args.again,
    )
    print(args.out)


@contextlib.contextmanager
def _own_rules(*specs: str):
    """An error in a reader's own rule, among `specs`, becomes one line that names the place."""
    try:
        yield
    except (RRError, Interrupted):
        raise
    except Exception as error:
        own = next((spec for spec in specs if ".py:" in spec), None)
        if own is None:
            raise
        raise RRError(f"{_place(error, own)}: {type(error).__name__}: {error}") from error


def _plan(args) -> None:
    from dataclasses import asdict

    from .perf import budget
    from .sweep import AXES, cells
    from .training.progress import Progress

    bench = budget.read_bench(args.measured) if args.measured else None
    card = budget.card_of(args.gpu, args.tflops, args.memory, bench)
    hours = budget.budget(args.hours, args.dollars, args.price)
    mfu = budget.mfu_range(args.mfu)
    options = {name: getattr(args, name) for name in (*AXES, "depth_lr")}
    if not any(options.values()):  # the study's own plan
        options["protocol"] = ["paper"]
    runs = [cell.run for cell in cells(options, _say, order=args.order)]
    progress = Progress(None)
    rows = budget.what_fits(
        runs, card, hours, mfu, args.price, bench=bench,
        say=lambda line: progress.due() and progress.move(line),
    )  # fmt: skip
    progress.close()
    within = None if hours is None else f"{hours:g}"
    command = budget.command(
        options, order=args.order, hours=within, measured=within and args.measured
    )
    notes = budget.told(rows, card, hours, mfu)
    if args.json:
        return _json(
            {
                "gpu": asdict(card),
                "hours": hours,
                "price": args.price,
                "mfu": mfu,
                "order": args.order,
                "rows": rows,
                "notes": notes,
                "command": command,
            }
        )
    _aligned(budget.table(rows), "lrrrrrrrlr")
    for line in notes:
        print(line)
    print(f"train them: {command}")


def _place(error: Exception, own: str) -> str:
    """Where in a reader's own rule an error arose, or which rule was running when it did."""
    path = Path(own.partition(".py:")[0] + ".py").resolve()
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if Path(frame.filename).resolve() == path:
            return f"{path.name}, line {frame.lineno}"
    return f"with the rule {own}"


def _sample(args) -> None:
    import torch

    from .training.run_folder import load

    for name, least in (("tokens", 1), ("top_k", 1), ("temperature", 0), ("seed", 0)):
        if not getattr(args, name) >= least:
            raise RRError(f"{name} is {getattr(args, name)}: at least {least} is accepted")
    if args.seed >= 2**63:
        raise RRError(f"seed is {args.seed}: a whole number below 2**63 is accepted")
    try:
        args.prompt.encode()
    except UnicodeEncodeError:
        raise RRError("the prompt is not UTF-8 text") from None
    with _own_rules(*args.rule):
        model, _, vocabulary = load(
            args.run, loops=args.loops, keep_scale=args.keep_scale, allow_rule=args.rule
        )
        ids = [vocabulary.eot, *vocabulary.encode(args.prompt)]
        if len(ids) >= model.config.seq_len:
            fit = model.config.seq_len
            raise RRError(f"the prompt has {len(ids)} tokens: fewer than {fit} fit")
        source = torch.Generator().manual_seed(args.seed)
        start = torch.tensor([ids], device=model.token.weight.device)
        made = model.generate(
            start, args.tokens, args.temperature, args.top_k, source, stop=vocabulary.eot
        )[0, 1:].tolist()
    print(vocabulary.decode(i for i in made if i != vocabulary.eot).strip())


def _log_options(sub: Parser) -> None:
    """Which runs a table is of, and where other trainers' logs say what they are."""
    sub.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="folder of runs; with --loss, logs: CSV, TSV, JSONL, W&B's or TensorBoard's export, "
        "or a folder of event files",
    )
    sub.add_argument("--loss", metavar="COLUMN", help="logs: column or tag of the loss")
    sub.add_argument("--arm", metavar="COLUMN", help="logs: column that names the arm")
    sub.add_argument("--seed", metavar="COLUMN", help="logs: column of the seed")
    sub.add_argument(
        "--step", metavar="COLUMN", help="logs: column of the step; the last one of all is compared"
    )
    sub.add_argument(
        "--run",
        metavar="PATTERN",
        help="logs whose runs' names hold arm and seed, as '{arm}-s{seed}', instead of columns",
    )
    sub.add_argument("--figure", metavar="FILE.svg", help="logs: draw the differences, too")
    _design_options(sub, "logs: ")


def _design_options(sub: Parser, of: str = "") -> None:
    design = sub.add_mutually_exclusive_group()
    for name, word, help in (
        ("paired", "paired", "runs of one seed saw the same data in the same order"),
        ("unpaired", "independent", "runs of one seed share nothing"),
    ):
        design.add_argument(
            f"--{name}", dest="design", action="store_const", const=word, help=of + help
        )


def _power_options(sub: Parser) -> None:
    sub.add_argument(
        "--sd",
        type=float,
        required=True,
        help="spread: of the differences (paired), of an arm's losses over seeds (unpaired)",
    )
    sub.add_argument("--effect", type=float, help="true difference to find, in the unit of --sd")
    sub.add_argument("--seeds", type=int, metavar="N", help="seeds per arm that can be trained")
    sub.add_argument(
        "--comparisons", type=int, default=1, metavar="M", help="tests in the study (default: 1)"
    )
    sub.add_argument("--json", action="store_true", help="one JSON value on stdout")
    _design_options(sub)


def _power(args) -> None:
    from .stats.command import power_in_words, power_of_plan

    rows = power_of_plan(args.sd, args.effect, args.seeds, args.design, args.comparisons)
    if args.json:
        return _json(rows)
    print(power_in_words(rows))


def _table(args) -> None:
    from .stats import csv_text, markdown, read_results, render, render_against, table
    from .stats.command import table_of_logs

    columns = {name: getattr(args, name) for name in ("loss", "arm", "seed", "step", "run")}
    if args.loss is not None:
        rows = table_of_logs(args.paths, args.design, args.baseline, args.figure, **columns)
        text = render_against(rows, pipes=args.markdown)
    else:
        if len(args.paths) > 1 or not Path(args.paths[0]).is_dir():
            raise RRError(
                f"{' '.join(args.paths)} is no folder: a folder of runs is accepted, or logs with "
                "--loss COLUMN"
            )
        if any(columns.values()) or args.design or args.figure:
            raise RRError("a folder of runs names its own arms: for logs, give --loss COLUMN")
        rows = table(read_results(args.paths[0]), args.baseline)
        text = markdown(rows) if args.markdown else render(rows, more=True)
    if args.json:
        return _json(rows)
    print(csv_text(rows) if args.csv else text)


def _bench(args) -> None:
    from .perf.benchmark import bench, table

    names = ("steps", "repeats", "batch", "micro_batch", "threads", "device", "ablate", "peers")
    found = bench(
        args.rung, args.rule, args.paths, log=_say, **{name: getattr(args, name) for name in names}
    )
    if args.json:
        return _json(found)
    _aligned(table(found), "lllrrrrrr")
    for row in found["over_the_standard"]:
        print(
            f"{row['rung']} {row['path']}: a step of {row['rule']} takes {row['time']:.3f} "
            f"({row['least']:.3f}–{row['most']:.3f}) of the standard arm's time"
        )
    for row in found["ablated"]:
        print(
            f"{row['rung']} {row['rule']} {row['path']}: {row['speed']:.3f} "
            f"({row['least']:.3f}–{row['most']:.3f}) of the speed of {row['over']}"
        )
    for name in found["absent"]:
        print(f"{name} is not installed and was not measured")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
