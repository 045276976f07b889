"""Other trainers' logs: three shapes, one table; what is asked, marked and refused."""

import csv
import io
import json
import math
import re
import statistics
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pandas as pd
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from rr import cli
from rr.config import RRError
from rr.stats import as_rows, compare, forest, read_logs, render


def against(runs, baseline, design, level=0.95):
    return as_rows(compare(runs, baseline, design=design, level=level))


LOSSES = {
    "base": {0: 3.00, 1: 3.20, 2: 3.40, 3: 3.10},
    "gate": {0: 2.90, 1: 3.02, 2: 3.33, 3: 2.95},
    "wide": {0: 2.97, 1: 3.21, 2: 3.38, 3: math.nan},
}
CURVE = [(100, 0.5), (200, 0.0)]  # step, and what the loss there lies above its last
COLUMNS = {"loss": "val/loss", "arm": "model", "seed": "seed", "step": "step"}
NAMED = {"loss": "val/loss", "run": "{arm}-s{seed}"}


def measured():
    """(arm, seed, step, loss) of every measurement."""
    return [
        (arm, seed, step, loss + more)
        for arm, losses in LOSSES.items()
        for seed, loss in losses.items()
        for step, more in CURVE
    ]


def write_csv(path, head, lines):
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([head, *lines])
    return path


@pytest.fixture
def long_csv(tmp_path):
    return write_csv(tmp_path / "long.csv", ["model", "seed", "step", "val/loss"], measured())


def jsonl(folder):
    lines = [
        {"model": arm, "seed": seed, "step": step, "val/loss": loss, "lr": 1e-3}
        for arm, seed, step, loss in measured()
    ]
    lines.append({"model": "base", "seed": 0, "step": 150, "lr": 1e-3})  # no loss at this step
    path = folder / "runs.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return [path], COLUMNS


def wandb(folder):
    """A chart's export: a column per run, its least and its largest beside it."""
    runs = [(arm, seed) for arm, losses in LOSSES.items() for seed in losses]
    names = [f"{arm}-s{seed} - val/loss" for arm, seed in runs]
    head = ["Step", *(name + end for name in names for end in ("", "__MIN", "__MAX"))]
    lines = []
    for step, more in CURVE:
        found = [LOSSES[arm][seed] + more for arm, seed in runs]
        lines.append([step, *(cell for x in found for cell in (x, x, x))])
    lines.append([150, *[""] * 3 * len(runs)])  # where another chart was logged
    return [write_csv(folder / "wandb.csv", head, lines)], NAMED


def tensorboard_csv(folder):
    head = ["Wall time", "Step", "Value"]
    paths = [
        write_csv(
            folder / f"{arm}-s{seed}.csv", head, [[1.7e9, at, loss + more] for at, more in CURVE]
        )
        for arm, losses in LOSSES.items()
        for seed, loss in losses.items()
    ]
    return paths, {"loss": "Value", "step": "Step", "run": "{arm}-s{seed}"}


def tensorboard_events(folder):
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    for arm, seed, step, loss in measured():
        with SummaryWriter(folder / "events" / arm / f"seed{seed}") as writer:
            writer.add_scalar("val/loss", loss, step)
    return [folder / "events"], {"loss": "val/loss", "run": "{arm}/seed{seed}"}


@pytest.mark.parametrize("shape", [jsonl, wandb, tensorboard_csv, tensorboard_events])
def test_every_shape_of_log_says_the_same(shape, long_csv, tmp_path):
    expected = as_rows(read_logs([long_csv], **COLUMNS))
    paths, columns = shape(tmp_path)
    found = as_rows(read_logs(paths, **columns))
    for row, wanted in zip(
        *(sorted(rows, key=lambda r: (r["arm"], r["seed"])) for rows in (found, expected)),
        strict=True,
    ):
        # an event file holds float32
        losses = [told.pop("val_loss") or math.nan for told in (row, wanted)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-6, nan_ok=True)
        assert row == wanted
    assert {row["step"] for row in found} == {200}
    (lost,) = (row for row in found if row["status"] != "finished")
    assert (lost["arm"], lost["seed"], lost["status"]) == ("wide", 3, "diverged")


def test_paired_by_scipy(long_csv):
    base, gate, wide = against(read_logs([long_csv], **COLUMNS), "base", "paired")
    a, b = list(LOSSES["gate"].values()), list(LOSSES["base"].values())
    test = scipy.stats.ttest_rel(a, b)
    span = test.confidence_interval(0.95)
    assert (gate["p"], gate["lo"], gate["hi"]) == pytest.approx((test.pvalue, *span), rel=1e-9)
    assert gate["holm"] == pytest.approx(2 * test.pvalue) and gate["pairs"] == [0, 1, 2, 3]
    assert gate["differences"] == pytest.approx([-0.1, -0.18, -0.07, -0.15])
    assert wide["diverged"] == [3] and wide["pairs"] == [0, 1, 2] and wide["notes"] == []
    mean = scipy.stats.t.interval(0.95, 3, sum(b) / 4, scipy.stats.sem(b))
    assert (base["mean_lo"], base["mean_hi"]) == pytest.approx(mean, rel=1e-9)
    assert base["difference"] is None and base["baseline"] is None


def test_unpaired_by_scipy(long_csv):
    rows = against(read_logs([long_csv], **COLUMNS), "base", "independent")
    for row in rows[1:]:
        a = [x for x in LOSSES[row["arm"]].values() if math.isfinite(x)]
        test = scipy.stats.ttest_ind(a, list(LOSSES["base"].values()), equal_var=False)
        span = test.confidence_interval(0.95)
        found = row["p"], row["lo"], row["hi"]
        assert found == pytest.approx((test.pvalue, *span), rel=1e-9)
        assert row["pairs"] == row["differences"] == []
    assert (
        rows[1]["p"]
        > 0.3
        > 0.02
        > against(read_logs([long_csv], **COLUMNS), "base", "paired")[1]["p"]
    )  # the noise that seeds share hides the same difference


@pytest.mark.parametrize("design", ["paired", "independent"])
def test_the_seeds_needed_find_the_observed_difference_that_often(long_csv, design):
    """By simulation of t tests on fresh normal losses."""
    import numpy as np

    row = against(read_logs([long_csv], **COLUMNS), "base", design)[1]
    gap, sd, source = row["difference"], row["sd"], np.random.default_rng(0)

    def share(n):
        if design == "paired":
            drawn = source.normal(gap, sd, (20_000, n))
            return (scipy.stats.ttest_1samp(drawn, 0, axis=1).pvalue < 0.05).mean()
        drawn = source.normal(0, sd, (2, 20_000, n))
        return (scipy.stats.ttest_ind(drawn[0] + gap, drawn[1], axis=1).pvalue < 0.05).mean()

    assert share(row["needed"]) > 0.79 and share(row["needed"] - 1) < 0.81
    assert row["needed_lo"] <= row["needed"] <= row["needed_hi"]
    assert row["needed_corrected"] > row["needed"]


def test_a_run_that_ended_early_decides_the_step_unless_another_is_given(tmp_path):
    lines = [line for line in measured() if line[:3] != ("gate", 1, 200)]
    path = write_csv(tmp_path / "short.csv", ["model", "seed", "step", "val/loss"], lines)
    runs = read_logs([path], **COLUMNS)
    assert {row["step"] for row in as_rows(runs) if row["status"] == "finished"} == {100}
    (note,) = runs.attrs["notes"]
    assert "compared at step 100" in note and "base seed 0 (to 200)" in note and "--at" in note
    assert "compared at step 100" in render(compare(runs, "base"))
    runs = read_logs([path], **COLUMNS, at=200)
    rows = against(runs, "base", "paired")
    assert (rows[1]["unfinished"], rows[1]["pairs"]) == ([1], [0, 2, 3])
    text = render(compare(runs, "base"))
    assert "unfinished: seed 1" in text and "3 ✗1" in text and "diverged: seed 3" in text
    with pytest.raises(RRError, match="no run has a loss at step 150"):
        read_logs([path], **COLUMNS, at=150)


def table(argv, capsys):
    code = cli.main(["table", *map(str, argv)])
    told = capsys.readouterr()
    assert code == 0, told.err
    return told.out


OPTIONS = "--loss val/loss --arm model --seed seed --step step --baseline base".split()


def test_the_command_in_every_form(long_csv, tmp_path, capsys):
    words = [long_csv, *OPTIONS, "--paired"]
    rows = json.loads(table([*words, "--json"], capsys))
    assert [row["arm"] for row in rows] == ["base", "gate", "wide"]
    lines = list(csv.DictReader(io.StringIO(table([*words, "--csv"], capsys))))
    assert [float(line["difference"]) for line in lines[1:]] == [r["difference"] for r in rows[1:]]
    piped = [line for line in table([*words, "--markdown"], capsys).splitlines() if "|" in line]
    assert len(piped) == 2 + 3 and {line.count("|") for line in piped} == {12}
    figure = tmp_path / "found.svg"
    table([*words, "--figure", figure], capsys)
    drawn = ElementTree.fromstring(figure.read_text())
    marks = [e.get("class") for e in drawn.iter() if (e.get("class") or "").startswith("mark")]
    assert len(marks) == 2 and [m == "mark sure" for m in marks] == [
        r["holm"] < 0.05 for r in rows[1:]
    ]
    dots = [e for e in drawn.iter() if e.get("class") == "seed"]
    assert len(dots) == sum(len(row["differences"]) for row in rows)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ([], "--paired"),
        (["--paired", "--loss", "valloss"], "no column 'valloss'.*val/loss"),
        (["--paired", "--arm", "arms"], "no column 'arms'.*model"),
        (["--paired", "--baseline", "bas"], "did you mean base"),
        (["--paired", "--at", "7"], "no run has a loss at step 7"),
        (["--paired", "--figure", "x.png"], "svg"),
        (["--paired", "--run", "{arm}"], "--arm and --seed"),
    ],
)
def test_bad_words_are_one_line(more, says, long_csv, capsys):
    assert cli.main(["table", str(long_csv), *OPTIONS, *more]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and re.search(says, told)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["a,0,3.0", "a,0,3.1", "b,0,2.9"], "two losses: .*--step"),
        (["a,0,3.0", "a,1,oops", "b,0,2.9"], "line 3: 'loss' .* got 'oops'"),
        (["a,0,3.0", ",1,3.0"], "line 3: 'arm' is empty"),
        ([], "with a loss"),
    ],
)
def test_tables_that_cannot_be_compared(lines, says, tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(["arm,seed,loss", *lines]))
    with pytest.raises(RRError, match=says) as told:
        against(read_logs([path], loss="loss", arm="arm", seed="seed"), "a", "paired")
    assert "\n" not in str(told.value)


def test_names_of_runs_that_do_not_say_arm_and_seed(tmp_path):
    path = write_csv(tmp_path / "w.csv", ["Step", "first - loss"], [[1, 3.0]])
    with pytest.raises(RRError, match="'first' does not fit"):
        read_logs([path], loss="loss", run="{arm}-s{seed}")
    with pytest.raises(RRError, match="--run"):
        read_logs([path], loss="loss")
    with pytest.raises(RRError, match="once"):
        read_logs([path], loss="loss", run="{arm}")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RRError, match="no runs, event files or tables"):
        read_logs([tmp_path / "empty"], **NAMED)
    broken = tmp_path / "x.jsonl"
    broken.write_text('{"a": 1}\n[1]')
    with pytest.raises(RRError, match="line 2 is not a JSON object"):
        read_logs([broken], **NAMED)


@pytest.mark.parametrize(
    ("lines", "notes"),
    [
        (["a,0,3.0", "b,0,3.1"], ["fewer than two pairs: no test"]),
        (["a,0,3.0", "a,1,3.1"], None),
        (["a,0,nan", "a,1,", "b,0,3.0", "b,1,3.1"],
         ["a diverged at seed 0", "a is unfinished at seed 1", "fewer than two pairs: no test"]),
        (["a,0,3.0", "a,1,3.1", "b,5,3.0", "b,6,3.1"],
         ["seed 5, 6 not run by a", "fewer than two pairs: no test"]),
        (["a,0,3.0", "a,1,3.1", "b,0,3.2", "b,1,3.3"], ["all 2 differences are equal: no test"]),
        (["a,0,3.0", "a,1,3.1", "b,0,3.0", "b,1,3.1"], ["all 2 differences are equal: no test"]),
    ],
)  # fmt: skip
def test_where_there_is_no_test_the_means_stand(lines, notes, tmp_path, capsys):
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(["arm,seed,loss", *lines, ""]))
    rows = json.loads(table([path, "--paired", "--baseline", "a", "--json"], capsys))
    for row in rows[1:]:
        assert row["p"] is row["lo"] is row["needed"] is row["detectable"] is None
        assert row["notes"] == notes and row["mean"] is not None
    assert len(rows) == (1 if notes is None else 2)
    assert "b" in table([path, "--paired", "--baseline", "a"], capsys)


def test_another_level_is_named_in_table_and_figure(long_csv):
    rows = compare(read_logs([long_csv], **COLUMNS), "base", level=0.9)
    assert "90 % intervals" in forest(rows) and "95 %" not in forest(rows)
    text = render(rows)
    assert "90 % interval" in text and "p < 0.1." in text and "95 %" not in text


def test_power_beforehand(capsys):
    """d = 2/3, two-sided 5 %, 80 %: 20 pairs, or 37 a group, as published tables have it."""
    assert cli.main(["power", "--sd", "0.015", "--effect", "0.01", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["design"], row["needed"]) for row in rows] == [("paired", 20), ("independent", 37)]
    words = ["power", "--sd", "0.015", "--effect", "0.01", "--seeds", "20", "--paired"]
    assert cli.main([*words, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    drawn = scipy.stats.norm.rvs(0.01, 0.015, size=(20_000, 20), random_state=0)
    share = (scipy.stats.ttest_1samp(drawn, 0, axis=1).pvalue < 0.05).mean()
    assert row["power"] == pytest.approx(share, abs=0.01) and row["detectable"] <= 0.01
    assert cli.main(words) == 0 and "20 seeds" in capsys.readouterr().out
    assert cli.main([*words, "--comparisons", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["alpha"] == 0.0125


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--sd 1", "--effect, --seeds"),
        ("--sd -1 --seeds 3", "sd must be"),
        ("--seeds 3", "--sd"),
        ("--sd 1 --seeds 3 --loss x", "--from LOG"),
        ("--sd 1 --seeds 1", "integer ≥ 2"),
        ("--sd 1 --effect 0", "gap must not be 0"),
        ("--sd 1 --seeds 3 --comparisons 0", "comparisons must be"),
    ],
)
def test_a_plan_without_sense_is_one_line(words, says, capsys):
    assert cli.main(["power", *words.split()]) == 2
    told = capsys.readouterr().err
    assert says in told and told.count("\n") == 1


# ---- The rows of tests/reports.md ----------------------------------------------------------------

HEAD = "arm,seed,loss\n"
FOUR = [("a", 0, 3.1), ("a", 1, 3.25), ("b", 0, 2.9), ("b", 1, 3.0)]
LONG = "".join(f"{arm},{seed},{loss}\n" for arm, seed, loss in FOUR)


def put(folder, name, content):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def losses(runs):
    return {(row["arm"], row["seed"]): row["val_loss"] for row in as_rows(runs)}


WANTED = {(arm, seed): loss for arm, seed, loss in FOUR}


def with_steps(steps, delimiter=",", head="arm,seed,step,loss"):
    """A long table; steps: arm -> {step: loss above the last}."""
    lines = [head]
    for arm, seed, loss in FOUR:
        lines += [f"{arm},{seed},{at},{loss + more}" for at, more in steps[arm].items()]
    return "\n".join(lines).replace(",", delimiter) + "\n"


def refused(paths, says, **options):
    with pytest.raises(RRError, match=says) as told:
        read_logs(paths, **options)
    assert "\n" not in str(told.value)


def test_1_a_column_that_is_there_twice_is_named(tmp_path):
    path = put(tmp_path, "x.csv", "arm,seed,loss,loss\na,0,3.1,9.9\nb,0,3.0,9.8\n")
    refused([path], "2 columns 'loss'", loss="loss")
    refused([put(tmp_path, "y.csv", "arm,seed,loss, loss\na,0,3.1,9.9\n")], "2 columns 'loss'")
    refused([put(tmp_path, "z.jsonl", '{"arm": "a", "seed": 0, "loss": 1, "loss": 2}\n')], "2 col")
    # one that is not read may be there twice
    whole = "arm,seed,loss,x,x\n" + LONG.replace("\n", ",1,2\n")
    assert losses(read_logs([put(tmp_path, "w.csv", whole)])) == WANTED


def test_2_jsonl_breaks_at_newlines_alone(tmp_path):
    lines = [
        json.dumps({"arm": a, "seed": s, "loss": x, "text": "one\u2028two\x85"}, ensure_ascii=False)
        for a, s, x in FOUR
    ]
    assert losses(read_logs([put(tmp_path, "x.jsonl", "\n".join(lines))])) == WANTED


def test_3_a_huge_cell_is_read(tmp_path):
    text = "arm,seed,note,loss\n" + "".join(f"{a},{s},{'x' * 140_000},{x}\n" for a, s, x in FOUR)
    assert losses(read_logs([put(tmp_path, "x.csv", text)])) == WANTED


def test_4_a_step_without_a_value_is_no_step_and_nan_at_the_end_is_divergence(tmp_path):
    nan = math.nan
    steps = {"a": {0: nan, 10: 1.0, 20: 0.0}, "b": {0: nan, 10: 1.0, 20: 0.0}}
    path = put(tmp_path, "x.csv", with_steps(steps))
    assert losses(read_logs([path])) == WANTED
    steps["b"] = {0: nan, 10: 1.0, 20: nan}
    rows = as_rows(read_logs([put(tmp_path, "y.csv", with_steps(steps))]))
    assert [row["status"] for row in rows] == ["finished"] * 2 + ["diverged"] * 2
    assert {row["step"] for row in rows[:2]} == {20}
    steps["b"] = {0: nan, 10: math.inf}
    rows = as_rows(read_logs([put(tmp_path, "z.csv", with_steps(steps))]))
    assert [row["status"] for row in rows[2:]] == ["diverged"] * 2
    # a table that holds NaN wherever another thing was logged
    steps = dict.fromkeys("ab", {5: nan, 10: 1.0, 15: nan, 20: 0.0, 25: nan})
    assert losses(read_logs([put(tmp_path, "w.csv", with_steps(steps))])) == WANTED


def test_4_a_last_line_that_is_cut_is_said_to_be(tmp_path):
    path = put(tmp_path, "x.csv", HEAD + LONG + "b,2")
    runs = read_logs([path], loss="loss")
    assert losses(runs) == WANTED and "line 6 is cut off" in runs.attrs["notes"][0]
    lines = [json.dumps({"arm": a, "seed": s, "loss": x}) for a, s, x in FOUR]
    path = put(tmp_path, "x.jsonl", "\n".join([*lines, '{"arm": "b", "se']))
    runs = read_logs([path], loss="loss")
    assert losses(runs) == WANTED and "line 5 is cut off" in runs.attrs["notes"][0]
    rows = as_rows(read_logs([put(tmp_path, "y.csv", HEAD + "c,0\n" + LONG)]))
    assert (rows[0]["arm"], rows[0]["status"], rows[0]["val_loss"]) == ("c", "unfinished", None)
    # a number that is shorter than all others may be the start of one
    refused([put(tmp_path, "z.csv", HEAD + "a,0,3.11\na,1,3.12\nb,0,3.1")], "was cut off")
    runs = read_logs([put(tmp_path, "w.csv", HEAD + LONG.rstrip())], loss="loss")
    assert losses(runs) == WANTED and "no line break" in runs.attrs["notes"][0]
    runs = read_logs([put(tmp_path, "v.csv", "loss,seed,arm\n3.1,0,long\n3,0,lo")], loss="loss")
    assert set(runs.arm) == {"long", "lo"} and "no line break" in runs.attrs["notes"][0]


def test_5_runs_that_end_at_different_steps_meet_at_the_last_common_one(tmp_path):
    steps = {"a": {500: 0.0, 999: 7.0}, "b": {500: 0.0, 1000: 8.0}}
    runs = read_logs([put(tmp_path, "x.csv", with_steps(steps))])
    assert losses(runs) == WANTED
    assert any("step 500" in n and "a seed 0 (to 999)" in n for n in runs.attrs["notes"])
    wide = "Step,a-s0 - loss,b-s0 - loss\n1,3.1,2.9\n2,3.0,2.8\n3,,2.7\n"
    runs = read_logs([put(tmp_path, "w.csv", wide)], run="{arm}-s{seed}")
    assert losses(runs) == {("a", 0): 3.0, ("b", 0): 2.8}
    steps = {"a": {999: 7.0}, "b": {1000: 8.0, 1001: 9.0}}
    refused([put(tmp_path, "y.csv", with_steps(steps))], "no step at which every run has a loss")


def test_6_a_resumed_run_logs_steps_again(tmp_path):
    lines = with_steps({"a": {1: 1.0, 2: 5.0}, "b": {1: 1.0, 2: 0.0}}).splitlines()
    lives = "\n".join([*lines, "a,0,2,3.1", "a,1,2,3.25"]) + "\n"
    runs = read_logs([put(tmp_path, "x.csv", lives)])
    assert losses(runs) == WANTED
    assert any("the last counts" in note for note in runs.attrs["notes"])
    first = read_logs([tmp_path / "x.csv"], duplicates="first")
    assert losses(first)["a", 0] == pytest.approx(8.1)
    refused([tmp_path / "x.csv"], "--duplicates first", duplicates="error")
    # an order that shows no life of its own decides nothing
    rows = lives.splitlines()
    shuffled = "\n".join([rows[0], "a,0,2,3.1", *rows[1:-2], rows[-1]]) + "\n"
    refused([put(tmp_path, "y.csv", shuffled)], "--duplicates")
    # equal values are one
    runs = read_logs([put(tmp_path, "z.csv", with_steps({"a": {1: 0.0}, "b": {1: 0.0}}) * 2)])
    assert losses(runs) == WANTED


DIALECTS = {  # beside those that are drawn below
    "excel": "sep=;\r\n" + (HEAD + LONG).replace(",", ";").replace("\n", "\r\n"),
    "blanks": "arm , seed, loss\n" + LONG.replace(",", ", "),
    "utf-16 unmarked": (HEAD + LONG).encode("utf-16-le"),
    "comments": "# of today\n#\n" + HEAD + LONG[:8] + "# a remark\n" + LONG[8:],
    "two headers": HEAD + LONG[:8] + HEAD + LONG[8:],
    "array": json.dumps([{"arm": a, "seed": s, "loss": x} for a, s, x in FOUR]),
    "blank lines": HEAD + "\n" + LONG + ",,\n\n",
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_7_dialects(dialect, tmp_path):
    name = "x.json" if dialect == "array" else "x.csv"
    assert losses(read_logs([put(tmp_path, name, DIALECTS[dialect])])) == WANTED


def test_7_thousands_where_the_mark_is_known(tmp_path):
    steps = dict.fromkeys("ab", {'"1,000"': 1.0, '"2,000"': 0.0})
    runs = read_logs([put(tmp_path, "x.csv", with_steps(steps))])
    assert losses(runs) == WANTED and {row["step"] for row in as_rows(runs)} == {2000}
    assert any("'1,000' is read as 1000" in note for note in runs.attrs["notes"])
    german = HEAD.replace(",", ";") + "a;0;3,125\na;1;3,250\n"
    refused([put(tmp_path, "y.csv", german)], "'3,250' may be 3250 or 3.250: give --decimal")
    assert losses(read_logs([tmp_path / "y.csv"], decimal=",")) == {("a", 0): 3.125, ("a", 1): 3.25}
    assert losses(read_logs([tmp_path / "y.csv"], decimal="."))["a", 0] == 3125
    mixed = HEAD.replace(",", ";") + "a;0;3,12\na;1;3.25\n"
    refused([put(tmp_path, "z.csv", mixed)], "--decimal")
    refused([put(tmp_path, "w.csv", HEAD + "a,0,3,1\n")], "line 2 has 4 cells, the header 3")


@pytest.mark.parametrize("design", ["--paired", "--unpaired"])
def test_8_seeds_that_gave_one_loss_are_no_evidence(design, tmp_path, capsys):
    path = put(tmp_path, "x.csv", HEAD + "a,0,3.1\na,1,3.1\nb,0,2.9\nb,1,2.9\n")
    printed = table([path, "--baseline", "a", design], capsys)
    assert printed.count("gave the same loss: was the seed used?") == 3 and "1e-4" not in printed
    words = ["power", "--from", str(path), "--effect", "0.1", design]
    assert cli.main(words) == 2 and "was the seed used?" in capsys.readouterr().err


def test_10_and_11_event_files_of_several_lives_and_of_the_new_style(tmp_path):
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    for arm, seed, loss in FOUR:
        folder = tmp_path / f"{arm}-s{seed}"
        for life in ((10, 20), (10, 20, 30)):
            with SummaryWriter(folder, filename_suffix=f".{life[-1]}") as writer:
                for at in life:
                    value = loss + (30 - at) / 10 + (1 if life[-1] == 20 else 0)
                    writer.add_scalar("loss", value, at, new_style=arm == "b")
    runs = read_logs([tmp_path], run="{arm}-s{seed}")
    assert losses(runs) == pytest.approx(WANTED) and {r["step"] for r in as_rows(runs)} == {30}
    assert any("the last counts" in note for note in runs.attrs["notes"])
    early = losses(read_logs([tmp_path], run="{arm}-s{seed}", at=20))
    assert early == pytest.approx({key: loss + 1 for key, loss in WANTED.items()})


def test_12_logs_of_trainers_one_file_per_run(tmp_path):
    for arm, seed, loss in FOUR:
        log = [{"loss": 9.0, "step": 5}, {"eval_loss": loss + 1, "step": 10, "epoch": 1.0}]
        log += [{"eval_loss": loss, "step": 20, "epoch": 2.0}, {"train_loss": 8.0, "step": 20}]
        for cut in (3, 4):
            at = 10 * (cut - 2)
            text = json.dumps({"log_history": log[:cut], "best_metric": None}, indent=1)
            put(tmp_path, f"hf/{arm}-s{seed}/checkpoint-{at}/trainer_state.json", text)
        lightning = (
            f"epoch,step,train_loss,val_loss\n0,9,9.5,\n0,10,,{loss + 1}\n1,20,,{loss}\n1,21,7,\n"
        )
        put(tmp_path, f"pl/{arm}-s{seed}/version_0/metrics.csv", lightning)
        put(
            tmp_path,
            f"keras/{arm}-s{seed}.csv",
            f"epoch,loss,val_loss\n0,9,{loss + 1}\n1,8,{loss}\n",
        )
    pattern = "{arm}-s{seed}"
    for folder, loss in (("hf", "eval_loss"), ("pl", "val_loss"), ("keras", "val_loss")):
        assert losses(read_logs([tmp_path / folder], loss, run=pattern)) == WANTED
        refused([tmp_path / folder], "which column is the loss\\? give --loss", run=pattern)
        files = sorted(file for file in (tmp_path / folder).rglob("*") if file.is_file())
        assert losses(read_logs(files, loss, run=pattern)) == WANTED
    both = put(tmp_path, "x.csv", "arm,seed,step,global_step,loss\na,0,1,8,3\na,0,2,16,3.1\n")
    refused([both], "which column is the step\\? give --step 'step' or --step 'global_step'")


def test_13_the_spread_of_the_runs_at_hand(tmp_path, capsys):
    def planned(text, *words):
        path = put(tmp_path, "x.csv", HEAD + text)
        assert cli.main(["power", "--from", str(path), "--seeds", "5", "--json", *words]) == 0
        return json.loads(capsys.readouterr().out)

    (row,) = planned("a,0,3.1\na,1,3.2\n")  # the baseline run twice
    assert row["design"] == "independent" and row["df"] == 1 and row["of"] == "2 runs of a"
    assert row["sd"] == pytest.approx(0.1 / math.sqrt(2))
    paired, apart = planned(LONG)
    gaps = [3.1 - 2.9, 3.25 - 3.0]
    assert paired["sd"] == pytest.approx(statistics.stdev(gaps)) and paired["df"] == 1
    within = (statistics.variance([3.1, 3.25]) + statistics.variance([2.9, 3.0])) / 2
    assert apart["sd"] == pytest.approx(math.sqrt(within)) and apart["df"] == 2
    for text, design in (
        (HEAD + "a,0,3.1\nb,0,3.0\n", "--paired"),
        (HEAD + "a,0,1\n", "--unpaired"),
    ):
        path = str(put(tmp_path, "y.csv", text))
        assert cli.main(["power", "--from", path, "--seeds", "5", design]) == 2
        assert "needs them" in capsys.readouterr().err


# ---- Any dialect, and any damage -----------------------------------------------------------------

MARKS = st.sampled_from([(",", "."), (";", ","), (";", "."), ("\t", "."), ("\t", ","), ("|", ".")])
ENCODINGS = st.sampled_from(["utf-8", "utf-8-sig", "utf-16"])
ENDINGS = st.sampled_from(["csv", "csv.gz", "csv.bz2", "csv.xz", "csv.zip"])
NUMBERS = st.floats(0.01, 20).map(lambda x: round(x, 7) + 1e-8)


@st.composite
def tables(draw):
    runs = [(arm, seed) for arm in ("a", "b, c", 'd;"e') for seed in (0, 1, 2)]
    rows = [(*run, at, draw(NUMBERS), "x;y, z\n|") for run in runs for at in (10, 2000)]
    frame = pd.DataFrame(rows, columns=["arm", "seed", "step", "loss", "other words"])
    frame = frame.sample(frac=1, random_state=draw(st.integers(0, 99)))
    return frame[draw(st.permutations(list(frame)))]


@settings(max_examples=60, deadline=None)
@given(tables(), MARKS, ENCODINGS, ENDINGS, st.sampled_from([0, 1, 2]), st.sampled_from(["", " "]))
def test_a_table_reads_back_the_same_in_any_dialect(frame, marks, encoding, ending, quoting, blank):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"x.{ending}")
        shown = frame.rename(columns=lambda name: f"{name}{blank}")
        options = {"sep": marks[0], "decimal": marks[1], "encoding": encoding, "quoting": quoting}
        shown.to_csv(path, index=False, **options)
        found = losses(read_logs([path], loss="loss"))
    last = frame[frame.step == 2000].set_index(["arm", "seed"]).loss
    assert found == last.to_dict()


@settings(max_examples=150, deadline=None)
@given(tables(), ENDINGS, st.integers(0, 999), st.integers(0, 255), st.booleans())
def test_a_damaged_file_gives_numbers_of_its_table_or_one_line(frame, ending, at, byte, cut):
    """A file that was cut loses lines, and may lose the end of its last number: it says so."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"x.{ending}")
        frame.to_csv(path, index=False, lineterminator="\n")
        data = path.read_bytes()
        place = at * (len(data) - 1) // 999
        damaged = data[:place] if cut else data[:place] + bytes([byte]) + data[place + 1 :]
        path.write_bytes(damaged)
        try:
            runs = read_logs([path], loss="loss", arm="arm", seed="seed", step="step")
            table = render(compare(runs, as_rows(runs)[0]["arm"]))
        except RRError as error:
            assert "\n" not in str(error)
            return
        assert table
        if not cut and ending == "csv":
            return  # another digit is another number, which nothing can tell
        told = "no line break" in " ".join(runs.attrs["notes"])
        known = {(*row[:3],): row[3] for row in frame[["arm", "seed", "step", "loss"]].to_numpy()}
        for row in as_rows(runs):
            if row["status"] == "finished" and not told:
                assert row["val_loss"] == known[row["arm"], row["seed"], row["step"]]
