"""Other trainers' logs: three shapes, one table; what is asked, marked and refused."""

import csv
import io
import json
import math
import re
import xml.etree.ElementTree as ElementTree

import pytest
import scipy.stats

from rr import cli
from rr.config import RRError
from rr.stats import against, forest, read_logs, render_against

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
    expected = read_logs([long_csv], **COLUMNS)
    paths, columns = shape(tmp_path)
    found = read_logs(paths, **columns)
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
    assert wide["diverged"] == [3] and wide["pairs"] == [0, 1, 2] and wide["notes"] == ["3 pairs"]
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


def test_a_run_that_ended_early_is_marked_and_not_compared(tmp_path):
    lines = [line for line in measured() if line[:3] != ("gate", 1, 200)]
    path = write_csv(tmp_path / "short.csv", ["model", "seed", "step", "val/loss"], lines)
    rows = against(read_logs([path], **COLUMNS), "base", "paired")
    assert (rows[1]["unfinished"], rows[1]["pairs"]) == ([1], [0, 2, 3])
    text = render_against(rows)
    assert "unfinished: seed 1" in text and "3 ✗1" in text and "diverged: seed 3" in text


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
        (["a,0,3.0", "a,1,3.1", "b,5,3.0", "b,6,3.1"], "shares two finished seeds.*--unpaired"),
        (["a,0,3.0", "b,0,3.1"], "two finished seeds"),
        (["a,0,3.0", "a,1,3.1"], "only arm"),
        (["a,0,nan", "a,1,", "b,0,3.0", "b,1,3.0"], "two finished seeds"),
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
    with pytest.raises(RRError, match="no event files"):
        read_logs([tmp_path / "empty"], **NAMED)
    broken = tmp_path / "x.jsonl"
    broken.write_text('{"a": 1}\n[1]')
    with pytest.raises(RRError, match="line 2 is not a JSON object"):
        read_logs([broken], **NAMED)


def test_equal_arms_have_no_p_and_a_figure_all_the_same(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("arm,seed,loss\n" + "".join(f"{a},{s},3.{s}\n" for a in "ab" for s in (0, 1)))
    rows = against(read_logs([path], loss="loss", arm="arm", seed="seed"), "a", "paired")
    assert (rows[1]["difference"], rows[1]["p"], rows[1]["needed"]) == (0.0, None, None)
    ElementTree.fromstring(forest(rows))
    assert "b" in render_against(rows)


def test_another_level_is_named_in_table_and_figure(long_csv):
    rows = against(read_logs([long_csv], **COLUMNS), "base", "paired", level=0.9)
    assert "90 % intervals" in forest(rows) and "95 %" not in forest(rows)
    text = render_against(rows)
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
        ("--sd 1 --seeds 1", "integer ≥ 2"),
        ("--sd 1 --effect 0", "gap must not be 0"),
        ("--sd 1 --seeds 3 --comparisons 0", "comparisons must be"),
    ],
)
def test_a_plan_without_sense_is_one_line(words, says, capsys):
    assert cli.main(["power", *words.split()]) == 2
    told = capsys.readouterr().err
    assert says in told and told.count("\n") == 1
