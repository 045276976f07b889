"""`rr power`: how many seeds a difference needs, before anything is trained."""

from math import isfinite

from rr.cli.output import add_json, log, print_json
from rr.errors import RRError, check_number, positive

from .options import add_design
from .table import runs_of


def add_arguments(parser) -> None:
    spread = parser.add_mutually_exclusive_group(required=True)
    spread.add_argument(
        "--sd",
        type=float,
        help="spread: of the differences (paired), of an arm's losses over seeds (unpaired)",
    )
    spread.add_argument(
        "--from",
        dest="path",
        metavar="PATH",
        help="take the spread from a folder of runs or a tidy table, as rr table reads them, one "
        "for each group of comparable runs; also from one arm run twice",
    )
    parser.add_argument("--effect", type=float, help="true difference to find, in the unit of --sd")
    parser.add_argument("--seeds", type=int, metavar="N", help="seeds per arm that can be trained")
    parser.add_argument(
        "--comparisons", type=int, default=1, metavar="M", help="tests in the study (default: 1)"
    )
    add_json(parser)
    add_design(parser)


def run(args) -> None:
    if args.effect is None and args.seeds is None:
        raise RRError("nothing to compute: give --effect, --seeds, or both")
    positive("comparisons", args.comparisons)
    if args.sd is not None:
        check_number("sd", args.sd, "a finite number > 0", lambda sd: 0 < sd < float("inf"))
    if args.effect is not None:
        wanted = "a finite number other than 0"
        check_number("effect", args.effect, wanted, lambda x: x and isfinite(x))
    if args.seeds is not None and args.seeds < 2:
        raise RRError(f"seeds must be at least 2, got {args.seeds}")
    rows = [_plan(args, **spread) for spread in _spreads(args)]
    if args.json:
        print_json(rows)
    else:
        print(_in_words(rows))


def _spreads(args) -> list[dict]:
    """Standard deviation and its source, of each design that is planned and each group of runs."""
    from rrstudy import stats
    from rrstudy.stats.effects import DESIGNS
    from rrstudy.stats.show import grouped

    designs = [args.design] if args.design else list(DESIGNS)
    if args.sd is not None:
        return [{"design": design, "sd": args.sd} for design in designs]
    runs = stats.as_rows(runs_of(args.path))
    out, failed = [], []
    for title, group in grouped(runs) if "rung" in runs[0] else [("", runs)]:
        for design in designs:
            try:
                sd, df, source = stats.spread(group, design)
            except RRError as error:  # one arm has no differences, one run no spread
                failed.append(f"{title or args.path}, {design}: {error}")
                continue
            lo, hi = stats.sd_interval(sd, df)
            out.append({"design": design, "sd": sd, "sd_lo": lo, "sd_hi": hi, "df": df,
                        "of": source, "group": title})  # fmt: skip
    if not out:
        raise RRError(failed[0])
    for line in failed:
        log(f"rr: left out {line}")
    return out


def _plan(args, design: str, sd: float, **source) -> dict:
    """A planned study with this spread; alpha is 0.05 over the comparisons (Bonferroni)."""
    from rrstudy import stats

    alpha = 0.05 / args.comparisons
    row = {
        "design": design,
        "sd": sd,
        **source,
        "effect": args.effect,
        "seeds": args.seeds,
        "comparisons": args.comparisons,
        "alpha": alpha,
        "needed": None,
        "power": None,
        "detectable": None,
    }
    if args.effect is not None:
        row["needed"] = stats.seeds_needed(args.effect, sd, 0.8, alpha, design)
    if args.seeds is not None:
        row["detectable"] = stats.detectable_gap(args.seeds, sd, 0.8, alpha, design)
    if args.effect is not None and args.seeds is not None:
        row["power"] = stats.power(args.effect, sd, args.seeds, alpha, design)
    return row


def _in_words(rows: list[dict]) -> str:
    """A paragraph per design."""
    headings = {
        "paired": "paired, sd {sd:.4g} of the differences between runs of one seed",
        "independent": "unpaired, sd {sd:.4g} of one arm over its seeds",
    }
    blocks = []
    for row in rows:
        lines = [headings[row["design"]].format(**row)]
        if row.get("group"):
            lines.insert(0, "{group}")
        if "of" in row:
            lines.append("from {of}; 95 % interval of the sd {sd_lo:.3g} to {sd_hi:.3g}")
        if row["needed"] is not None:
            lines.append("{needed} seeds per arm find a difference of {effect:g} with 80 % power")
        if row["power"] is not None:
            lines.append(
                "{seeds} seeds per arm find a difference of {effect:g} with {power:.1%} power"
            )
        if row["detectable"] is not None:
            lines.append(
                "{seeds} seeds per arm find a difference of {detectable:.3g} with 80 % power"
            )
        blocks.append("\n  ".join(line.format(**row) for line in lines))
    level = "p < {alpha:.3g}, two-sided t test".format(**rows[0])
    tests = rows[0]["comparisons"]
    if tests > 1:
        level += f", 0.05 over {tests} comparisons"
    return "\n".join([*blocks, f"({level}; normal noise with this sd is assumed)"])
