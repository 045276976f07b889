"""Other trainers' logs: three shapes, one table; what is asked, marked and refused."""

import csv
import itertools
import json
import math
import re
import statistics
import tempfile
from pathlib import Path

import pandas as pd
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from rr import cli
from rr.config import RRError
from rr.stats import as_rows, compare, read_logs, render


def against(runs, baseline, design, level=0.95):
    return as_rows(compare(runs, baseline, design=design, level=level))


LOSSES = {
    "base": [3.00, 3.20, 3.40, 3.10],
    "gate": [2.90, 3.02, 3.33, 2.95],
    "wide": [2.97, 3.21, 3.38, math.nan],
}
RUNS = [(arm, seed, loss) for arm, losses in LOSSES.items() for seed, loss in enumerate(losses)]
CURVE = [(100, 0.5), (200, 0.0)]  # step, and what the loss there lies above its last
MEASURED = [(arm, seed, step, loss + more) for arm, seed, loss in RUNS for step, more in CURVE]
COLUMNS = {"loss": "val/loss", "arm": "model", "seed": "seed", "step": "step"}
NAMED = {"loss": "val/loss", "run": "{arm}-s{seed}"}


def write_csv(path, head, lines):
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([head, *lines])
    return path


@pytest.fixture
def long_csv(tmp_path):
    return write_csv(tmp_path / "long.csv", ["model", "seed", "step", "val/loss"], MEASURED)


def put(folder, name, content):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def refused(paths, says, **options):
    with pytest.raises(RRError, match=says) as recorded:
        read_logs(paths, **options)
    assert "\n" not in str(recorded.value)


def jsonl(folder):
    lines = [
        {"model": arm, "seed": seed, "step": step, "val/loss": loss, "lr": 1e-3}
        for arm, seed, step, loss in MEASURED
    ]
    lines.append({"model": "base", "seed": 0, "step": 150, "lr": 1e-3})  # no loss at this step
    return [put(folder, "runs.jsonl", "\n".join(map(json.dumps, lines)))], COLUMNS


def wandb(folder):
    """A chart's export: a column per run, its least and its largest beside it."""
    names = [f"{arm}-s{seed} - val/loss" for arm, seed, _ in RUNS]
    head = ["Step", *(name + end for name in names for end in ("", "__MIN", "__MAX"))]
    lines = []
    for at, more in CURVE:
        cells = [[loss + more] * 3 for *_, loss in RUNS]
        lines.append([at, *itertools.chain(*cells)])
    lines.append([150, *[""] * 3 * len(RUNS)])  # where another chart was logged
    return [write_csv(folder / "wandb.csv", head, lines)], NAMED


def tensorboard_csv(folder):
    head, paths = ["Wall time", "Step", "Value"], []
    for arm, seed, loss in RUNS:
        lines = [[1.7e9, at, loss + more] for at, more in CURVE]
        paths.append(write_csv(folder / f"{arm}-s{seed}.csv", head, lines))
    return paths, {"loss": "Value", "step": "Step", "run": "{arm}-s{seed}"}


def tensorboard_events(folder):
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    for arm, seed, step, loss in MEASURED:
        with SummaryWriter(folder / "events" / arm / f"seed{seed}") as writer:
            writer.add_scalar("val/loss", loss, step)
    return [folder / "events"], {"loss": "val/loss", "run": "{arm}/seed{seed}"}


@pytest.mark.parametrize("shape", [jsonl, wandb, tensorboard_csv, tensorboard_events])
def test_every_shape_of_log_says_the_same(shape, long_csv, tmp_path):
    expected = as_rows(read_logs([long_csv], **COLUMNS))
    paths, columns = shape(tmp_path)
    result = as_rows(read_logs(paths, **columns))
    for row, wanted in zip(
        *(sorted(rows, key=lambda r: (r["arm"], r["seed"])) for rows in (result, expected)),
        strict=True,
    ):
        # an event file holds float32
        losses = [recorded.pop("val_loss") or math.nan for recorded in (row, wanted)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-6, nan_ok=True)
        assert row == wanted
    assert {row["step"] for row in result} == {200}
    (lost,) = (row for row in result if row["status"] != "finished")
    assert (lost["arm"], lost["seed"], lost["status"]) == ("wide", 3, "diverged")


def test_unpaired_by_scipy(long_csv):
    """Paired tests of the same rows are held to SciPy in test_tables."""
    runs = read_logs([long_csv], **COLUMNS)
    rows = against(runs, "base", "independent")
    for row in rows[1:]:
        a = [x for x in LOSSES[row["arm"]] if math.isfinite(x)]
        test = scipy.stats.ttest_ind(a, LOSSES["base"], equal_var=False)
        span = test.confidence_interval(0.95)
        assert (row["p"], row["lo"], row["hi"]) == pytest.approx((test.pvalue, *span), rel=1e-9)
        assert row["pairs"] == row["differences"] == []
    # the noise that seeds share hides the same difference
    assert rows[1]["p"] > 0.3 > 0.02 > against(runs, "base", "paired")[1]["p"]


def test_a_run_that_ended_early_decides_the_step_unless_another_is_given(tmp_path):
    lines = [line for line in MEASURED if line[:3] != ("gate", 1, 200)]
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
    apart = put(tmp_path, "y.csv", "arm,seed,step,loss\na,0,999,3.0\nb,0,1000,3.0\nb,0,1001,3.0\n")
    refused([apart], "no step at which every run has a loss")


OPTIONS = "--loss val/loss --arm model --seed seed --step step --baseline base".split()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("table LOG", "--paired"),
        ("table LOG --paired --loss valloss", "no column 'valloss'.*val/loss"),
        ("table LOG --paired --baseline bas", "did you mean base"),
        ("table LOG --paired --run {arm}", "--arm and --seed"),
        ("power --sd 1", "--effect, --seeds"),
        ("power --sd 1 --seeds 3 --loss x", "--from LOG"),
        ("power --sd 1 --seeds 3 --comparisons 0", "comparisons must be"),
    ],
)
def test_bad_words_are_one_line(words, says, long_csv, capsys):
    verb, *more = words.replace("LOG", str(long_csv)).split()
    given = [*more[:1], *OPTIONS, *more[1:]] if verb == "table" else more
    assert cli.main([verb, *given]) == 2
    recorded = capsys.readouterr().err
    assert recorded.count("\n") == 1 and re.search(says, recorded)


@pytest.mark.parametrize(
    ("name", "text", "options", "says"),
    [
        ("a.csv", "arm,seed,loss\na,0,3.0\na,0,3.1\n", {}, "two losses: .*--step"),
        ("a.csv", "arm,seed,loss\na,0,3.0\na,1,oops\n", {}, "line 3: 'loss' .* got 'oops'"),
        ("a.csv", "arm,seed,loss\na,0,3.0\n,1,3.0\n", {}, "line 3: 'arm' is empty"),
        ("a.csv", "arm,seed,loss\n", {}, "with a loss"),
        ("a.csv", "arm,seed,loss,loss\na,0,3.1,9.9\n", {}, "2 columns 'loss'"),  # row 1
        ("a.jsonl", '{"arm": "a", "seed": 0, "loss": 1, "loss": 2}\n', {}, "2 columns"),
        ("a.jsonl", '{"a": 1}\n[1]', {}, "line 2 is not a JSON object"),
        ("a.csv", "Step,first - loss\n1,3.0\n", {"run": "{arm}-s{seed}"}, "'first' does not fit"),
        ("a.csv", "Step,first - loss\n1,3.0\n", {}, "--run"),
    ],
)
def test_logs_that_cannot_be_read_are_one_line(name, text, options, says, tmp_path):
    refused([put(tmp_path, name, text)], says, loss="loss", **options)


def test_power_beforehand(capsys):
    """d = 2/3, two-sided 5 %, 80 %: 20 pairs, or 37 a group, as published tables have it."""
    words = ["power", "--sd", "0.015", "--effect", "0.01", "--json"]
    assert cli.main(words) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["design"], row["needed"]) for row in rows] == [("paired", 20), ("independent", 37)]
    assert cli.main([*words, "--seeds", "20", "--paired", "--comparisons", "4"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["alpha"] == 0.0125 and row["power"] < 0.8 and row["detectable"] > 0.01


# ---- The rows of tests/reports.md ----------------------------------------------------------------

HEAD = "arm,seed,loss\n"
FOUR = [("a", 0, 3.1), ("a", 1, 3.25), ("b", 0, 2.9), ("b", 1, 3.0)]
LONG = "".join(f"{arm},{seed},{loss}\n" for arm, seed, loss in FOUR)


def losses(runs):
    return {(row["arm"], row["seed"]): row["val_loss"] for row in as_rows(runs)}


WANTED = {(arm, seed): loss for arm, seed, loss in FOUR}


def with_steps(steps):
    """A long table; steps: arm -> {step: loss above the last}."""
    lines = ["arm,seed,step,loss"]
    for arm, seed, loss in FOUR:
        lines += [f"{arm},{seed},{at},{loss + more}" for at, more in steps[arm].items()]
    return "\n".join(lines) + "\n"


def test_4_a_step_without_a_value_is_no_step_and_nan_at_the_end_is_divergence(tmp_path):
    nan = math.nan
    steps = {"a": {0: nan, 10: 1.0, 20: 0.0}, "b": {0: nan, 10: 1.0, 20: 0.0}}
    path = put(tmp_path, "x.csv", with_steps(steps))
    assert losses(read_logs([path])) == WANTED
    steps["b"] = {0: nan, 10: 1.0, 20: nan}
    rows = as_rows(read_logs([put(tmp_path, "y.csv", with_steps(steps))]))
    assert [row["status"] for row in rows] == ["finished"] * 2 + ["diverged"] * 2
    assert {row["step"] for row in rows[:2]} == {20}
    # a table that holds NaN wherever another thing was logged
    steps = dict.fromkeys("ab", {5: nan, 10: 1.0, 15: nan, 20: 0.0, 25: nan})
    assert losses(read_logs([put(tmp_path, "w.csv", with_steps(steps))])) == WANTED


def test_5_a_run_without_a_loss_at_any_step_is_unfinished(tmp_path):
    lines = [{"arm": a, "seed": 0, "step": t, "loss": x}
             for a, x in (("a", 3.0), ("b", None)) for t in (1, 2)]  # fmt: skip
    lines.append({"step": 3, "learning_rate": 1e-3})  # of no run
    text = "\n".join(map(json.dumps, lines))
    rows = as_rows(read_logs([put(tmp_path, "x.jsonl", text)]))
    assert [(row["arm"], row["status"]) for row in rows] == [("a", "finished"), ("b", "unfinished")]


def test_4_a_last_line_that_is_cut_is_said_to_be(tmp_path):
    path = put(tmp_path, "x.csv", HEAD + LONG + "b,2")
    runs = read_logs([path], loss="loss")
    assert losses(runs) == WANTED and "line 6 is cut off" in runs.attrs["notes"][0]
    rows = as_rows(read_logs([put(tmp_path, "y.csv", HEAD + "c,0\n" + LONG)]))
    assert (rows[0]["arm"], rows[0]["status"], rows[0]["val_loss"]) == ("c", "unfinished", None)
    # a number that is shorter than all others may be the start of one
    refused([put(tmp_path, "z.csv", HEAD + "a,0,3.11\na,1,3.12\nb,0,3.1")], "was cut off")
    runs = read_logs([put(tmp_path, "w.csv", HEAD + LONG.rstrip())], loss="loss")
    assert losses(runs) == WANTED and "no line break" in runs.attrs["notes"][0]


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


ROWS = [{"arm": arm, "seed": seed, "loss": loss} for arm, seed, loss in FOUR]
MARKED = [json.dumps(row | {"text": "one\u2028two\x85"}, ensure_ascii=False) for row in ROWS]
DIALECTS = {  # beside those that are drawn below; by the rows of tests/reports.md
    "1 a repeated column, not read": "arm,seed,loss,x,x\n" + LONG.replace("\n", ",1,2\n"),
    "2 lines end at newlines alone": "\n".join(MARKED),
    "3 a huge cell": "arm,seed,loss,note\n" + LONG.replace("\n", f",{'x' * 140_000}\n"),
    "7 excel": "sep=;\r\n" + (HEAD + LONG).replace(",", ";").replace("\n", "\r\n"),
    "7 blanks": "arm , seed, loss\n" + LONG.replace(",", ", "),
    "7 utf-16 unmarked": (HEAD + LONG).encode("utf-16-le"),
    "7 comments": "# of today\n#\n" + HEAD + LONG[:8] + "# a remark\n" + LONG[8:],
    "7 two headers": HEAD + LONG[:8] + HEAD + LONG[8:],
    "7 array": json.dumps(ROWS),
    "7 blank lines": HEAD + "\n" + LONG + ",,\n\n",
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_dialects(dialect, tmp_path):
    ending = {"2 lines end at newlines alone": "jsonl", "7 array": "json"}.get(dialect, "csv")
    assert losses(read_logs([put(tmp_path, f"x.{ending}", DIALECTS[dialect])])) == WANTED


def test_7_thousands_where_the_mark_is_known(tmp_path):
    steps = dict.fromkeys("ab", {'"1,000"': 1.0, '"2,000"': 0.0})
    runs = read_logs([put(tmp_path, "x.csv", with_steps(steps))])
    assert losses(runs) == WANTED and {row["step"] for row in as_rows(runs)} == {2000}
    assert any("'1,000' is read as 1000" in note for note in runs.attrs["notes"])
    german = HEAD.replace(",", ";") + "a;0;3,125\na;1;3,250\n"
    refused([put(tmp_path, "y.csv", german)], "'3,250' may be 3250 or 3.250: give --decimal")
    assert losses(read_logs([tmp_path / "y.csv"], decimal=",")) == {("a", 0): 3.125, ("a", 1): 3.25}
    refused([put(tmp_path, "w.csv", HEAD + "a,0,3,1\n")], "line 2 has 4 cells, the header 3")


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
        keras = f"epoch,loss,val_loss\n0,9,{loss + 1}\n1,8,{loss}\n"
        put(tmp_path, f"keras/{arm}-s{seed}.csv", keras)
    pattern = "{arm}-s{seed}"
    for folder, loss in (("hf", "eval_loss"), ("pl", "val_loss"), ("keras", "val_loss")):
        assert losses(read_logs([tmp_path / folder], loss, run=pattern)) == WANTED
        refused([tmp_path / folder], "which column is the loss\\? give --loss", run=pattern)
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
    path = str(put(tmp_path, "y.csv", HEAD + "a,0,3.1\nb,0,3.0\n"))
    assert cli.main(["power", "--from", path, "--seeds", "5", "--paired"]) == 2
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


@settings(max_examples=25, deadline=None)
@given(tables(), MARKS, ENCODINGS, ENDINGS, st.sampled_from([0, 1, 2]), st.sampled_from(["", " "]))
def test_a_table_reads_back_the_same_in_any_dialect(frame, marks, encoding, ending, quoting, blank):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"x.{ending}")
        shown = frame.rename(columns=lambda name: f"{name}{blank}")
        options = {"sep": marks[0], "decimal": marks[1], "encoding": encoding, "quoting": quoting}
        shown.to_csv(path, index=False, **options)
        result = losses(read_logs([path], loss="loss"))
    last = frame[frame.step == 2000].set_index(["arm", "seed"]).loss
    assert result == last.to_dict()


@settings(max_examples=60, deadline=None)
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
        recorded = "no line break" in " ".join(runs.attrs["notes"])
        known = {(*row[:3],): row[3] for row in frame[["arm", "seed", "step", "loss"]].to_numpy()}
        for row in as_rows(runs):
            if row["status"] == "finished" and not recorded:
                assert row["val_loss"] == known[row["arm"], row["seed"], row["step"]]
