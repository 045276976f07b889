"""`rr eval`: score a trained run on downstream tasks, by EleutherAI's lm-evaluation-harness."""

import importlib.util
import math
from pathlib import Path

from rr.cli.output import add_json, locate_errors, print_columns, print_json
from rr.cli.sample import add_own_rules
from rr.errors import RRError, install, positive


def add_arguments(parser) -> None:
    parser.add_argument("run", help="folder of the run")
    parser.add_argument(
        "--tasks", nargs="+", required=True, metavar="TASK", help="names of the harness's tasks"
    )
    parser.add_argument(
        "--include", metavar="FOLDER", help="folder with task files (YAML) of your own"
    )
    parser.add_argument(
        "--fewshot",
        type=int,
        metavar="N",
        help="solved examples per question (default: the task's)",
    )
    parser.add_argument("--limit", type=int, metavar="N", help="questions per task (default: all)")
    parser.add_argument("--batch", type=int, default=8, help="texts at once (default: 8)")
    parser.add_argument("--device", help="auto (cuda, else cpu), cpu, cuda or mps (default: auto)")
    add_own_rules(parser)
    add_json(parser)


def run(args) -> None:
    positive("batch", args.batch)
    if args.limit is not None:
        positive("limit", args.limit)
    if args.fewshot is not None and args.fewshot < 0:
        raise RRError(f"fewshot must be an integer ≥ 0, got {args.fewshot}")
    if importlib.util.find_spec("lm_eval") is None:
        raise RRError(f"rr eval needs lm-evaluation-harness: {install('eval')}")
    from rr.training.loading import load
    from rr.training.run_folder import finished
    from rrstudy.harness import evaluate

    if (finished(Path(args.run)) or {}).get("status") == "diverged":
        raise RRError(f"{args.run} diverged: its weights are not a trained model")
    with locate_errors(*args.rule):
        model, _, vocabulary = load(args.run, args.device, allow_rule=args.rule)
        results = evaluate(model, vocabulary, args.tasks, include=args.include,
                           fewshot=args.fewshot, limit=args.limit, batch=args.batch)  # fmt: skip
    if args.json:
        print_json({task: _numbers(row) for task, row in results.items()})
        return
    rows = [("task", "metric", "value")]
    for task, row in results.items():
        for metric, value in _numbers(row).items():
            rows.append((task, metric, "–" if value is None else f"{value:.4f}"))
    print_columns(rows, "llr")


def _numbers(row) -> dict[str, float | None]:
    """A task's metrics, without standard errors; `acc,none` becomes `acc`. None: no number."""
    numbers = {}
    for name, value in row.items():
        metric, comma, _ = name.partition(",")
        if comma and isinstance(value, int | float) and not metric.endswith("_stderr"):
            numbers[name.removesuffix(",none")] = value if math.isfinite(value) else None
    return numbers
