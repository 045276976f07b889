"""Which rule should I use? A row for each rule: cost, claim, measurement, who ships it.

Costs, reads and writes come from the registry; differences from records. What papers claim is
text, of their abstracts. Without scripts the page shows every row.
"""

import json
import re
from html import escape

import rr
from rr.model.costs import flops_per_token
from rr.options import written
from rr.residual.table import describe
from rrbook.anatomy import anatomy
from rrbook.stats import field
from rrbook.stats.emergence import TUNING
from rrstudy import stats

from . import kit, poster

NANO = rr.DATA / "measured" / "04_field_guide"
MINI = rr.DATA / "measured" / "e1_rates"
NORMS = rr.DATA / "measured" / "g5_norms"
VERDICTS = {
    "use": "lower than both baselines, at most a tenth longer",
    "try": "lower than one of them, or lower and costlier",
    "skip": "higher than one of them, at a rate of its own that suits it",
    "open": "our runs cannot tell",
    "baseline": "what the others are compared with",
}
BASELINES = (("residual", "standard"), ("residual", "constant"), ("values", "own"))
NOT_MEASURED = "not measured"

# (kind, name) -> what its paper claims; a rule that is not here says so in its row
CLAIMS = {
    ("residual", "standard"): "the baseline",
    ("residual", "constant"): "nothing: a control",
    ("residual", "scaled"): "one learning rate for every number of passes",
    ("residual", "rezero"): "deep networks without norms; 56 % fewer steps on enwik8",
    ("residual", "layerscale"): "deeper vision transformers",
    ("residual", "fixup"): "deep residual networks without norms",
    ("residual", "deepnorm"): "1,000 layers with post-norm",
    ("residual", "denseformer"): "the perplexity of a deeper network",
    ("residual", "attnres"): "the loss of 1.25 times the compute",
    ("residual", "highway"): "nothing: a baseline of the Review study",
    ("residual", "state-gate"): "nothing: a control",
    ("residual", "update-gate"): "nothing: a control",
    ("residual", "review"): "lower loss than both baselines at 590M and 1B (short runs)",
    ("residual", "review-convex"): "fails when deep",
    ("residual", "highway-carry"): "networks of 100 layers and more",
    ("residual", "gtrxl"): "stable reinforcement learning",
    ("residual", "orthogonal"): "higher accuracy on images",
    ("residual", "parallel"): "faster steps at scale",
    ("residual", "x0-scales"): "speedrun records",
    ("residual", "unet"): "speedrun records",
    ("residual", "scales-skips"): "the speedruns' baseline",
    ("residual", "hyper-connections"): "lower loss with four streams",
    ("residual", "gated-residual"): "none published",
    ("residual", "keel"): "more than 1,000 layers with post-norm",
    ("residual", "delta"): "lower loss than addition",
    ("residual", "norm-place"): "steadier training of large models",
    ("residual", "lanes"): "a speedrun record",
    ("values", "own"): "the baseline",
    ("values", "identity"): "lower loss at 82M to 468M",
    ("values", "constant"): "lower loss than `identity`",
    ("values", "sparse"): "lower loss than `constant`",
    ("values", "learnable"): "lower loss than `identity`",
    ("values", "learnable-plus"): "the lowest loss of its paper",
    ("values", "dense"): "worse than the first block alone",
    ("values", "svformer"): "nearly half the cache of keys and values",
    ("values", "neutreno"): "less over-smoothing",
    ("values", "gated-attention"): "better performance, weaker attention sinks",
    ("values", "embeddings"): "speedrun records",
}

COLUMNS = ("our verdict, small networks", "rule − standard", "rule − constant ½", "cost",
           "who ships it", "it reads", "parameters per block", "its paper claims")  # fmt: skip
FORMS = (
    "Other networks of the study of 22. <code>scales-skips:attnres=1</code>: scales and skips, and "
    "each block attends over earlier updates. <code>attnres:block=2</code>: only the first of two "
    "sublayers attends over depth. One wider stream: the standard residual, 216 channels wide, "
    "at the rate that its search chose, and again at the best one that it had tried."
)
SCROLLING = "<div class='pst-scrollable-table-container' tabindex='0' style='overflow-x: auto'>"
# Nine columns beside the sidebar of a window of 1,280 pixels. On a phone a row is a card, in which
# each cell names its column (book/_static/custom.css).
WIDTHS = (13, 13, 9, 9, 13, 12, 10, 10, 11)  # percent


def spec(kind: str, name: str, ours: dict | None) -> str:
    """What `--rule` or `--values` takes for the form of a rule that was measured."""
    return written(ours["ran"] if ours and "ran" in ours else name, kind)


def verdicts(results: dict[tuple[str, str], dict]) -> dict[tuple[str, str], str]:
    """Our verdict on each rule, by (kind, name); results as `measured` gives them."""
    taken, said = steps(), {}
    for row in describe():
        key = row["kind"], row["name"]
        ours = results.get(key, {"rows": {}})
        timed = ours.get("time", taken.get(key))
        said[key] = verdict(
            ours["rows"], timed["time"] if timed else None, ours.get("misfit", False)
        )
    return said | dict.fromkeys(BASELINES, "baseline")


def measured(of_field: list[dict] | None = None) -> dict[tuple[str, str], dict]:
    """By (kind, name): differences from both baselines, and the verdict they allow.

    At `mini` where each arm had a rate of its own (five seeds), else at `nano` at one rate for all
    (three seeds); places of the norm from the standard residual alone. Each study is one Holm
    family; of a rule in several the last one counts. `time` is what F2's runs take at equal size
    over the standard network's, `rate` its learning rate over that network's; `misfit` is whether
    its start does not suit it, or its rate was not its own. of_field: F2's rows, by
    `field.against_both`, where they are at hand.
    """
    if of_field is None:
        of_field = field.against_both(field.read_runs())
    mini = stats.read_results(MINI)
    mini = mini[(mini.rung == "mini") & (mini.seed < TUNING)]
    norms = stats.read_results(NORMS)
    norms = norms[norms.seed < TUNING]
    of_norms = [row for row in stats.as_rows(stats.compare(norms, "standard")) if row["baseline"]]
    results = {}
    for words, rows, times, rates in (
        (
            "nano, three seeds, one rate for all",
            field.against_both(stats.read_results(NANO)),
            None,
            {},
        ),
        ("mini, five seeds, own rates", field.against_both(mini), None, field.rates(mini, "rule")),
        (
            "mini, five new seeds, own rates",
            of_field,
            field.times(),
            field.rates(field.read_runs()),
        ),
        (
            "mini, five seeds, again at the best rate tried",
            field.again_against_both(),
            field.times(),
            field.rates(field.mended()),
        ),
        ("mini, five seeds, own rates, fp32", of_norms, None, field.rates(norms, "rule")),
    ):
        arms, of_study = {row["arm"] for row in rows}, {}
        for row in rows:
            if name := field.rule_of(row["arm"], arms):
                form = "" if row["arm"].endswith(name[1]) else f", as {row['arm']}"
                misfit = rows is of_norms and name[1] == "norm-place"
                if misfit:
                    form = "; Gemma starts from embeddings √d times as large"
                of_rule = of_study.setdefault(
                    name,
                    {
                        "study": words + form,
                        "ran": row["arm"].rpartition(" + ")[2],
                        "misfit": misfit or not rates,
                        "rate": rates.get(row["arm"]),
                        "rows": {},
                    },
                )
                of_rule["rows"][row["baseline"]] = row
                if times is not None:
                    of_rule["time"] = times.loc[row["arm"]].to_dict()
        results |= of_study
    return results


def steps() -> dict[tuple[str, str], dict]:
    """By (kind, name): time and memory of a measured step over those of the standard network."""
    record = json.loads((NANO / "steps.json").read_text(encoding="utf-8"))
    return {(row["kind"], row["name"]): row for row in record["rows"]}


def forms(of_field: list[dict]) -> str:
    """HTML: F2's arms that fill no row above, other forms of a rule and the wider stream."""
    arms, rows = {row["arm"] for row in of_field}, {}
    for study, word in ((of_field, ""), (field.again_against_both(), ", again")):
        for row in study:
            if field.rule_of(row["arm"], arms) is None:
                rows.setdefault(row["arm"] + word, {})[row["baseline"]] = _signed(row)
    head = "".join(f"<th scope='col'>{words}</th>" for words in ("form", *COLUMNS[1:3]))
    body = "".join(
        f"<tr><th scope='row'><code>{escape(arm)}</code></th>"
        + "".join(f"<td>{cells[base]}</td>" for base in field.BASELINES)
        + "</tr>"
        for arm, cells in rows.items()
    )
    return (
        f"<p>{FORMS}</p>{SCROLLING}<table class='table'><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


def verdict(rows: dict[str, dict], time: float | None, misfit: bool = False) -> str:
    """use, try, skip or open, from one rule's differences and its time over the standard's.

    time: None where it was not measured, so that a rule cannot be "use". misfit: its start
    does not suit the rule, or the rate is one for all. That only makes it look worse.
    """
    significant = [row for row in rows.values() if row["holm"] is not None and row["holm"] < 0.05]
    if any(row["difference"] > 0 for row in significant):
        return "open" if misfit else "skip"
    if len(significant) == 2 and time is not None and time <= 1.1:
        return "use"
    return "try" if significant else "open"


def styled() -> str:
    """The style of a table of rules."""
    return f"<style>{kit.style()} {kit.style('poster.css')} {kit.style('which.css')}</style>"


def cost(kind: str, name: str) -> float:
    """FLOPs per token of a `mini` network with this rule, over those of the standard one."""
    standard = field.network("residual", "standard")
    return flops_per_token(field.network(kind, name)) / flops_per_token(standard)


def table() -> str:
    """HTML of the page: four questions, and a row for each registered rule."""
    of_field = field.against_both(field.read_runs())
    results, taken, rows = measured(of_field), steps(), []
    judged = verdicts(results)
    for row in describe():
        key = (row["kind"], row["name"])
        facts = anatomy(row["name"], row["kind"])
        ours = results.get(key, {"study": NOT_MEASURED, "rows": {}})
        rows.append((row, facts, ours, cost(*key), judged[key], taken.get(key)))
    order = list(VERDICTS)
    rows.sort(key=lambda one: (order.index(one[4]), *_place(one[2]["rows"])))
    controls = poster.questions()
    listed = {name: name for name in VERDICTS}
    controls.append(kit.choice("verdict", "our verdict", {**poster.ANY, **listed}, ""))
    meant = "; ".join(f"<b>{name}</b>: {words}" for name, words in VERDICTS.items())
    controls.append('<button type="reset">all rules</button>')
    cells = "".join(
        f"<th scope='col' style='width: {width}%'>{words}</th>"
        for width, words in zip(WIDTHS, ("rule", *COLUMNS), strict=True)
    )
    return "\n".join(
        [
            '<div class="rr-poster rr-which">',
            styled(),
            '<div class="rr-explorable rr-part" hidden>',
            f'<form autocomplete="off">{"".join(controls)}</form><p aria-live="polite"></p></div>',
            f"<p>{meant}.</p>",
            SCROLLING,
            f"<table class='table'><thead><tr>{cells}</tr></thead><tbody>",
            *(_row(*one) for one in rows),
            "</tbody></table></div>",
            forms(of_field),
            f"<script>\n{kit.script_of('poster.js')}\n</script>",
            "</div>",
        ]
    )


def _place(rows: dict[str, dict]) -> tuple[bool, float]:
    """Within a verdict: the lowest from the standard residual first, the unmeasured last."""
    gap = rows["standard"]["difference"] if "standard" in rows else None
    return gap is None, gap or 0.0


def _row(row: dict, facts: dict, ours: dict, flops: float, judged: str, step: dict | None) -> str:
    answers = poster.answers(row, facts) | {"verdict": judged}
    data = "".join(f' data-{name}="{key}"' for name, key in answers.items())
    option = "--rule" if row["kind"] == "residual" else "--values"
    differences = [
        _signed(ours["rows"][base]) if base in ours["rows"] else "–"
        for base in ("standard", "constant")
    ]
    key = row["kind"], row["name"]
    study = ours["study"] if ours["rows"] or judged != "baseline" else ""
    if ours.get("rate") and judged != "baseline":
        study += f"; rate × {ours['rate']:.2f}"
    cells = (
        f"<b>{judged}</b><br>{escape(study)}",
        *differences,
        _cost(flops, step, ours.get("time")),
        escape(row["shipped"] or "–"),
        poster.READS[answers["reads"]] + _gate(facts.get("gate")),
        escape(row["cost"]["params_per_block"]).replace("-", "−"),
        re.sub("`(.+?)`", r"<code>\1</code>", escape(CLAIMS.get(key, "not noted"))),
    )
    ran = spec(*key, ours).replace(":", ":<wbr>")
    name = f"<code>{option}</code> <code style='white-space: nowrap'>{ran}</code>"
    inside = "".join(
        f'<td data-column="{column}">{cell}</td>'
        for column, cell in zip(COLUMNS, cells, strict=True)
    )
    return f'<tr class="rr-rule"{data}><th scope="row">{name}</th>{inside}</tr>'


def _cost(flops: float, step: dict | None, runs: dict | None) -> str:
    """Time of a whole run at equal size, where there are runs; then FLOPs, time and memory of a
    step of a network that is not widened: each over that of the standard network, a line each."""
    ratios = ["not widened:", f"FLOPs × {flops:.2f}"]
    if step is None:
        ratios += ["time and memory", NOT_MEASURED]
    else:
        # the baselines ran against themselves: what is not 1 there is error
        again = ["timed again:"] if step["name"] in ("standard", "own") else []
        ratios += [*again, f"time × {step['time']:.2f}", f"memory × {step['memory']:.2f}"]
    if runs:  # three digits, since a verdict turns on a tenth
        between = f"({runs['least']:.2f} to {runs['most']:.2f})"
        ratios = [f"<b>run × {runs['time']:.3f}</b>", between, *ratios]
    return "<br>".join(ratio.replace(" ", "\u00a0") for ratio in ratios)


def _gate(reads: dict[str, str] | None) -> str:
    """What a gate that scales the update is computed from, in brackets; "" without a gate."""
    if not reads:
        return ""
    raw = ", not normalised" if "raw" in reads.values() else ""
    return f" (its gate: {' and '.join(reads)}{raw})"


def _signed(row: dict) -> str:
    if row["difference"] is None:
        return "diverged"
    gap, *ends = (f"{row[key]:+.3f}".replace("-", "−") for key in ("difference", "lo", "hi"))
    gap = f"<b>{gap}</b>" if row["holm"] is not None and row["holm"] < 0.05 else gap
    return f"{gap}<br>({ends[0]} to {ends[1]})"
