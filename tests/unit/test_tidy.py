"""The tidy table: what is read, marked and refused; never a number from the wrong row."""

import contextlib
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

from rr.errors import RRError
from rrstudy import cli
from rrstudy.stats import as_rows, compare, read_results, read_table, render, spread

LOSSES = {
    "base": [3.00, 3.20, 3.40, 3.10],
    "gate": [2.90, 3.02, 3.33, 2.95],
    "wide": [2.97, 3.21, 3.38, math.nan],
}
RUNS = [(arm, seed, loss) for arm, losses in LOSSES.items() for seed, loss in enumerate(losses)]
ENDS = pd.DataFrame(RUNS, columns=["arm", "seed", "loss"])
CURVES = pd.concat([ENDS.assign(step=100, loss=ENDS.loss.fillna(3) + 0.5), ENDS.assign(step=200)])


def put(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def by_run(runs):
    return {(row["arm"], row["seed"]): row["val_loss"] for row in as_rows(runs)}


WANTED = {(arm, seed): None if math.isnan(loss) else loss for arm, seed, loss in RUNS}


@pytest.mark.parametrize("frame", [ENDS, CURVES, CURVES.sample(frac=1, random_state=0)])
def test_a_frame_and_its_files_say_the_same(frame, tmp_path):
    frame.to_csv(tmp_path / "a.csv", index=False, na_rep="nan")
    frame.to_parquet(tmp_path / "a.parquet")
    lines = [json.dumps(row) + "\n" for row in frame.to_dict("records")]  # as json writes NaN
    put(tmp_path, "a.jsonl", "".join(lines))
    put(tmp_path, "marked.csv", b"\xef\xbb\xbf" + (tmp_path / "a.csv").read_bytes())  # Excel's mark
    for source in (frame, *tmp_path.iterdir()):
        runs = read_table(source)
        assert by_run(runs) == WANTED, source
        assert "step" not in runs or set(runs.step) == {200}
        (lost,) = runs[runs.status != "finished"].to_dict("records")
        assert (lost["arm"], lost["seed"], lost["status"]) == ("wide", 3, "diverged")


def test_unpaired_by_scipy():
    """Paired tests of the same rows are held to SciPy in test_tables."""
    runs = read_table(ENDS)
    rows = as_rows(compare(runs, "base", design="independent"))
    for row in rows[1:]:
        a = [x for x in LOSSES[row["arm"]] if math.isfinite(x)]
        test = scipy.stats.ttest_ind(a, LOSSES["base"], equal_var=False)
        span = test.confidence_interval(0.95)
        assert (row["p"], row["lo"], row["hi"]) == pytest.approx((test.pvalue, *span), rel=1e-9)
        assert row["pairs"] == row["differences"] == []
    # the noise that seeds share hides the same difference
    assert rows[1]["p"] > 0.3 > 0.02 > as_rows(compare(runs, "base"))[1]["p"]


def test_a_run_that_did_not_finish_is_marked_and_its_loss_is_none():
    """One that crashed at a quarter of the steps, and a pair that is missing."""
    frame = CURVES[~((CURVES.arm == "gate") & (CURVES.seed == 1) & (CURVES.step == 200))]
    frame = frame[~((frame.arm == "gate") & (frame.seed == 2))]
    with pytest.raises(RRError, match="end at different steps, arm 'gate', seed 1 at 100 and"):
        read_table(frame)
    crashed = (frame.arm == "gate") & (frame.seed == 1)
    runs = read_table(frame.assign(status=crashed.map({True: "crashed", False: "finished"})))
    _, gate, _ = as_rows(table := compare(runs, "base"))
    assert (gate["unfinished"], gate["missing"], gate["pairs"]) == ([1], [2], [0, 3])
    assert gate["difference"] == pytest.approx((2.90 + 2.95 - 3.00 - 3.10) / 2)
    text = render(table)
    assert "unfinished: seed 1" in text and "missing: seed 2" in text and "diverged: seed 3" in text


def test_pairs_of_several_baselines_name_them_and_a_column_of_groups_is_shown():
    rows = [{"arm": a, "seed": s, "loss": x + s / 10, "kind": k}
            for k in ("small", "large") for a, x in (("a", 1.0), ("b", 2.0), ("c", 3.0))
            for s in (0, 1, 2)]  # fmt: skip
    text = render(compare(rows[:9], pairs=[("a", "b"), ("a", "c")], value="loss"))
    assert "a − b" in text and "a − c" in text and "from" not in text.partition("\n\n")[2]
    text = render(compare(rows, "a", by="kind", value="loss"), "markdown")
    assert text.count("| small") == text.count("| large") == 3 and "arm − base: from a;" in text


def test_runs_without_an_id_are_runs_of_their_own():
    rows = [{"id": None if a == "b" else f"{a}{s}", "arm": a, "seed": s, "loss": 1.0 + s}
            for a in "ab" for s in (0, 1, 2)]  # fmt: skip
    (_, b) = as_rows(compare(rows, "a", value="loss"))
    assert (b["n"], b["pairs"]) == (3, [0, 1, 2])


def test_a_seed_keeps_all_its_digits(tmp_path):
    path = tmp_path / "x.csv"
    seeds = [9007199254740993, 9007199254740995]
    path.write_text(HEAD + "".join(f"{a},{s},3.0\n" for a in "ab" for s in seeds))
    assert {row["seed"] for row in as_rows(read_table(path))} == set(seeds)


HEAD = "arm,seed,loss\n"
STEPS = "arm,seed,step,loss\n"
REFUSED = [
    ("x.csv", "arm,seed,val_loss\na,0,3.0\n", "columns arm, seed, val_loss: .*and no others.*page"),
    ("x.csv", "arm,seed,loss,kind\na,0,3.0,train\n", "arm, seed, loss, kind: .*and no others"),
    ("x.csv", "arm,seed,loss,loss\na,0,3.1,9.9\n", "no others"),
    ("x.csv", "arm;seed;loss\na;0;3.14\n", "columns arm;seed;loss: "),
    ("x.csv", "arm;seed;loss\na;0;3,14\n", "cannot be read as a table"),  # decimal commas
    ("x.csv", HEAD + "a,0,3,14\nb,0,3,15\n", "cannot be read as a table"),
    ("x.csv", HEAD + 'a,0,"3,14"\n', "row 1: loss must be a number with a decimal point"),
    ("x.csv", HEAD + "a,0,3.0\na,1,oops\n", "row 2: loss must be a number .*'oops'"),
    ("x.csv", HEAD + "a,0,3.0\na,1,\n", "row 2: loss is empty: .*write nan"),
    ("x.csv", HEAD + "a,0,3.0\na,1\n", "row 2: loss is empty"),
    ("x.csv", HEAD + "a,0,3.0\n,1,3.0\n", "row 2: arm is empty"),
    ("x.csv", HEAD + "a,s0,3.0\n", "seed must be an integer, got 's0'"),
    ("x.csv", HEAD + "a,0.5,3.0\n", "seed must be an integer"),
    ("x.csv", HEAD + "a,nan,3.0\n", "seed must be a finite number"),
    ("x.csv", HEAD, "has no rows"),
    ("x.csv", "", "cannot be read"),
    ("x.csv", HEAD + "a,0,3.11\na,1,3.1", "may be cut off"),
    ("x.csv", HEAD + '"a,0,3.1\n', "cannot be read"),
    ("x.csv", (HEAD + "a,0,3.1\n").encode("utf-16"), "not UTF-8"),
    ("x.csv", (HEAD + "é,0,3.1\n").encode("latin-1"), "not UTF-8"),
    ("x.csv", HEAD + "a,0,3.0\na,0,3.1\n", "two rows of arm 'a', seed 0: keep one"),
    ("x.csv", STEPS + "a,0,1,3.0\na,0,1,3.0\n", "two rows of arm 'a', seed 0 at step 1: keep one"),
    ("x.csv", STEPS + "a,0,1,3.0\na,0,2,3.0\nb,0,1,3.0\n", "at different steps"),
    ("x.csv", STEPS + "a,0,x,3.0\n", "step must be a number"),
    ("x.csv", STEPS + "a,0,inf,3.0\n", "step must be a finite number"),
    ("x.csv", STEPS + "a,0,1,nan\na,0,2,3.0\n", "not finite and a finite one later"),
    ("x.csv", STEPS + "a,0,1,3.0\na,0,2,0.0\n", "a loss of exactly 0"),  # fp16's overflow
    ("x.csv", "arm,seed,loss,status\na,0,3.0,done\n", "status must be one of finished, "),
    ("x.csv", "arm,seed,loss,status\na,0,3.0,\n", "status is empty"),
    ("x.csv", "arm,seed,step,loss,status\na,0,1,3,finished\na,0,2,3,crashed\n", "two statuses"),
    ("x.jsonl", '{"arm": "a", "seed": 0, "loss": 1, "loss": 2}\n', "a key twice"),
    ("x.jsonl", '{"arm": "a", "seed": 0, "loss": 1}\n{"arm": "b", "seed": 0}\n', "loss is empty"),
    ("x.jsonl", '{"arm": "a", "seed": 0, "loss": true}\n', "loss must be a number"),
    ("x.jsonl", '{"arm": "a",\n "seed": 0}\n', "cannot be read"),
    ("x.jsonl", "[1]\n", "columns|cannot be read"),
    ("x.parquet", b"PAR1", "cannot be read"),
    ("x.json", "{}", "neither a folder of runs nor a .csv, .parquet or .jsonl file"),
    ("trainer_state.json", '{"log_history": []}', "shows how to make one"),
]


@pytest.mark.parametrize(("name", "content", "says"), REFUSED)
def test_anything_else_is_one_line(name, content, says, tmp_path, refuses):
    path = put(tmp_path, name, content)
    with pytest.raises(RRError, match=says):
        read_table(path)
    refuses("table", path, "--paired", "--baseline", "a")


@pytest.mark.parametrize(
    ("status", "marked"),
    [("finished", "finished"), ("Crashed", "unfinished"), ("KILLED", "unfinished"),
     ("diverged", "diverged")],
)  # fmt: skip
@pytest.mark.parametrize("loss", [2.5, 0.0, math.inf])
def test_a_status_comes_before_a_loss(status, marked, loss):
    frame = pd.DataFrame([("a", 0, loss, status)], columns=["arm", "seed", "loss", "status"])
    if marked == "finished" and not loss:
        with pytest.raises(RRError, match="exactly 0"):
            read_table(frame)
        return
    (row,) = as_rows(read_table(frame))
    expected = "diverged" if marked == "finished" and math.isinf(loss) else marked
    assert row["status"] == expected
    assert row["val_loss"] == (loss if expected == "finished" else None)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("table LOG", "--paired"),
        ("table LOG --paired --seeds 0 x", "invalid int value: 'x'"),
        ("table LOG --paired --baseline bas", "did you mean base"),
        ("table LOG --paired --loss val_loss", "unrecognized arguments: --loss"),
        ("table EMPTY --paired", "holds no runs of rr: .*Runs of another trainer"),
        ("table NOWHERE.csv --paired", "no file"),
        ("power --sd 1", "--effect, --seeds"),
        ("power --sd 1 --seeds 3 --comparisons 0", "comparisons must be"),
    ],
)
def test_bad_words_are_one_line(words, says, tmp_path, refuses):
    ENDS.to_csv(tmp_path / "log.csv", index=False, na_rep="nan")
    (tmp_path / "empty").mkdir()
    places = {"LOG": tmp_path / "log.csv", "EMPTY": tmp_path / "empty"}
    assert re.search(says, refuses(*(places.get(word, word) for word in words.split())))


def test_a_folder_of_runs_needs_no_design(root, refuses):
    folder = root / "data" / "measured" / "mini_arms"
    assert "whose seeds are paired" in refuses("table", folder, "--unpaired")


def test_the_table_of_a_campaign_is_of_the_seeds_that_are_reported(root, capsys, refuses):
    """The command of data/measured/README.md; seed 100 chose the learning rates there."""
    text = (root / "data" / "measured" / "README.md").read_text(encoding="utf-8")
    words = re.findall(r"^rr (table data/\S+[^#\n]*)#", text, re.MULTILINE)[0].split()
    folder = str(root / words[1])
    assert cli.main(["table", folder, *words[2:], "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    reported = read_results(folder).query("seed < 100")
    assert rows == as_rows(compare(reported, "standard"))
    assert {(row["n"], row["comparisons"]) for row in rows[1:]} == {(5, 7)}
    assert "no run has seed 5, 7: they have 0, 1, 2, 3, 4, 100" in refuses(
        "table", folder, "--seeds", 7, 0, 5
    )


def test_power_beforehand(capsys):
    """d = 2/3, two-sided 5 %, 80 %: 20 pairs, or 37 a group, as published tables have it."""
    words = ["power", "--sd", "0.015", "--effect", "0.01", "--json"]
    assert cli.main(words) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["design"], row["needed"]) for row in rows] == [("paired", 20), ("independent", 37)]
    assert cli.main([*words, "--seeds", "20", "--paired", "--comparisons", "4"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["alpha"] == 0.0125 and row["power"] < 0.8 and row["detectable"] > 0.01


def test_what_power_cannot_plan_is_named(refuses):
    for words, line in (
        (["--sd", "nan", "--seeds", "5"], "sd must be a finite number > 0, got nan"),
        (["--sd", "0.1", "--effect", "0"], "effect must be a finite number other than 0, got 0"),
        (["--sd", "0.1", "--seeds", "1"], "seeds must be at least 2, got 1"),
    ):
        assert line in refuses("power", *words)


def test_the_spread_of_the_runs_at_hand(tmp_path, capsys, refuses):
    def planned(text, *words):
        path = put(tmp_path, "x.csv", HEAD + text)
        assert cli.main(["power", "--from", str(path), "--seeds", "5", "--json", *words]) == 0
        return json.loads(capsys.readouterr().out)

    (row,) = planned("a,0,3.1\na,1,3.2\n")  # the baseline run twice
    assert row["design"] == "independent" and row["df"] == 1 and row["of"] == "2 runs of a"
    assert row["sd"] == pytest.approx(0.1 / math.sqrt(2))
    paired, apart = planned("a,0,3.1\na,1,3.25\nb,0,2.9\nb,1,3.0\n")
    gaps = [3.1 - 2.9, 3.25 - 3.0]
    assert paired["sd"] == pytest.approx(statistics.stdev(gaps)) and paired["df"] == 1
    within = (statistics.variance([3.1, 3.25]) + statistics.variance([2.9, 3.0])) / 2
    assert apart["sd"] == pytest.approx(math.sqrt(within)) and apart["df"] == 2
    path = put(tmp_path, "y.csv", HEAD + "a,0,3.1\nb,0,3.0\n")
    assert "needs them" in refuses("power", "--from", path, "--seeds", 5, "--paired")


def test_a_folder_of_several_groups_has_a_spread_for_each(root, capsys):
    folder = str(root / "data" / "measured" / "e2_training")
    assert cli.main(["power", "--from", folder, "--seeds", "5", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    runs = read_results(folder)
    wanted = []
    for _, some in runs.groupby(["steps", "warmup"]):
        for design in ("paired", "independent"):
            with contextlib.suppress(RRError):  # the search of a rate has one seed
                wanted.append(spread(some, design)[:2])
    assert len(wanted) >= 6
    assert sorted((row["sd"], row["df"]) for row in rows) == sorted(wanted)
    assert cli.main(["power", "--from", folder, "--seeds", "5", "--paired"]) == 0
    out = capsys.readouterr().out
    assert all(f" {steps} steps" in out for steps in set(runs.steps))


def test_a_spread_that_cannot_be_given_is_said(tmp_path, capsys):
    text = HEAD + "".join(f"{arm},{s},{3 + s / 7}\n" for arm in ("a", "b") for s in (0, 1))
    path = put(tmp_path, "x.csv", text)
    assert cli.main(["power", "--from", str(path), "--seeds", "5"]) == 0
    out, err = capsys.readouterr()
    assert "unpaired" in out and "left out" in err
    assert "x.csv, paired: all differences of a and b are equal: no spread" in err


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["csv", "parquet", "jsonl"]), st.integers(0, 999), st.booleans(),
       st.integers(0, 255))  # fmt: skip
def test_a_damaged_file_is_a_table_or_one_line(ending, at, cut, byte):
    """A file that was cut off loses runs, and never the end of a number."""
    frame = ENDS.assign(loss=ENDS.loss.fillna(2.5))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"x.{ending}")
        if ending == "csv":
            frame.to_csv(path, index=False)
        elif ending == "jsonl":
            frame.to_json(path, orient="records", lines=True)
        else:
            frame.to_parquet(path)
        data = path.read_bytes()
        place = at * (len(data) - 1) // 999
        path.write_bytes(data[:place] if cut else data[:place] + bytes([byte]) + data[place + 1 :])
        try:
            runs = read_table(path)
        except RRError:
            return
    if cut:  # another byte may be another digit, which nothing can tell
        wanted = by_run(read_table(frame))
        assert all(wanted[run] == loss for run, loss in by_run(runs).items())
