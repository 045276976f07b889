"""Tables of runs: what is paired with what, what is marked, and what is said of damaged files."""

import csv
import io
import itertools
import json

import pytest
import scipy.stats

import rr
from rr.errors import RRError
from rr.io import sealed, write_record
from rr.options import options_of
from rrstudy.stats import as_rows, compare, holm, paired, read_results, scan, spread
from rrstudy.stats import render as rendered
from rrstudy.stats.results import UNASKED


def table(runs, baseline="standard"):
    return as_rows(compare(runs, baseline))


def render(runs, form="text"):
    return rendered(compare(runs, "standard"), form)


DESIGN = {
    "values": "own", "lr": 1e-3, "rung": "nano", "protocol": "clean", "corpus": "fables",
    "tokenizer": "bpe:1024", "loops": 1, "steps": 300, "flavour": "gpt2", "precision": "fp32",
    "batch": 8, "eval_shortened": False,
}  # fmt: skip


def run(rule, seed, loss, **other):
    name = "-".join(map(str, (rule, seed, *other.items())))
    fields = {"id": name, "rule": rule, "seed": seed, "val_loss": loss}
    fields["status"] = "diverged" if loss is None else "finished"
    return DESIGN | fields | other


RUNS = [
    *(run("standard", seed, loss) for seed, loss in enumerate([3.0, 3.2, 3.4])),
    *(run("review", seed, loss) for seed, loss in enumerate([2.9, 3.0, 3.1])),
    run("highway", 0, 3.1),
    run("highway", 1, None),
    run("highway", 2, 3.3),
    run("constant:c=0.5", 0, 3.05),
]


def by_arm(rows):
    return {row["arm"]: row for row in rows}


def test_table_pairs_by_seed_and_drops_nothing():
    rows = table(RUNS[::-1])
    assert [row["arm"] for row in rows] == ["standard", "constant:c=0.5", "highway", "review"]
    arms = by_arm(rows)
    expected = paired([2.9, 3.0, 3.1], [3.0, 3.2, 3.4])
    review = arms["review"]
    assert (review["n"], review["pairs"], review["missing"]) == (3, [0, 1, 2], [])
    recorded = (review["difference"], review["lo"], review["hi"], review["p"])
    assert recorded == (expected.mean, expected.lo, expected.hi, expected.p)
    assert review["mean"] == pytest.approx(3.0) and arms["standard"]["mean"] == pytest.approx(3.2)
    highway = arms["highway"]
    assert (highway["n"], highway["diverged"], highway["pairs"]) == (2, [1], [0, 2])
    assert highway["missing"] == []  # it was run at every seed; one of them diverged
    assert highway["difference"] == pytest.approx(0.0)
    constant = arms["constant:c=0.5"]
    assert constant["missing"] == [1, 2] and constant["difference"] is None
    assert "fewer than two pairs" in constant["notes"][0]
    # each of the nine runs is in the table once, finished or diverged
    assert sum(row["n"] + len(row["diverged"]) for row in rows) == len(RUNS)
    json.dumps(rows, allow_nan=False)


@pytest.mark.parametrize(
    ("changed", "title"),
    [
        ({"steps": 600}, "600 steps"),
        ({"eval_shortened": True}, "shortened evaluation"),
        ({"flavour": "llama"}, "flavour llama"),
        ({"rung": "mini"}, "mini · clean"),
        ({"corpus_id": "sha256 " + "a" * 64}, "aaaaaaaaaaaa"),  # another text of the same name
    ],
)
def test_groups_are_never_mixed_and_titles_tell_them_apart(changed, title):
    here = [one | {"corpus_id": "sha256 " + "b" * 64} for one in RUNS]
    other = [run(rule, s, 2.0, **changed) for rule in ("standard", "review") for s in (0, 1)]
    rows = table(here + other + other)  # a run read twice counts once
    assert sorted(row["n"] for row in rows if row["arm"] == "review") == [2, 3]
    assert render(here + other).count(title) == 1 and title not in render(here)


def test_several_learning_rates_are_separate_arms():
    fast = [run(rule, s, 2.5, lr=3e-3) for rule in ("standard", "review") for s in (0, 1)]
    arms = by_arm(table(RUNS + fast))
    for lr in (0.003, 0.001):
        assert arms[f"review (lr {lr})"]["baseline"] == f"standard (lr {lr})"
    # highway has one rate, 0.001: it is compared at that one
    assert arms["highway"]["baseline"] == "standard (lr 0.001)"


def test_one_seed_run_twice_is_not_paired():
    review = by_arm(table([*RUNS, run("review", 1, 2.0, tokens=3)]))["review"]
    assert review["pairs"] == [0, 2] and review["n"] == 4
    assert "seed 1 was run more than once" in review["notes"][0]


def test_one_run_with_two_results_is_not_paired():
    """As of two machines: neither of the two replaces the other in silence."""
    other = [one | {"val_loss": 9.0} for one in RUNS if (one["rule"], one["seed"]) == ("review", 1)]
    for rows in ([*RUNS, *other], [*other, *RUNS]):
        review = by_arm(table(rows))["review"]
        assert review["pairs"] == [0, 2] and review["n"] == 4
        assert "seed 1 was run more than once" in review["notes"][0]


def test_a_baseline_is_a_spec_as_rr_train_takes_it():
    half = [run("constant", seed, 3.1 + seed, id=f"half{seed}") for seed in (0, 1)]
    both = [run("constant", s, 3.0 + s, values="constant", id=f"both{s}") for s in (0, 1)]
    rows = [*RUNS, *half, *both]
    assert table(rows, "constant:c=0.5") == table(rows, "constant")
    named = "constant + constant"
    assert table(rows, "constant:c=0.5 + constant:lam=2") == table(rows, named)
    with pytest.raises(RRError, match="no baseline 'constant:c=0.25'"):
        table(rows, "constant:c=0.25")
    tidy = [{"arm": a, "seed": s, "loss": 1.0 + s} for a in ("constant", "x") for s in (0, 1)]
    with pytest.raises(RRError, match="no baseline 'constant:c=0.5'"):  # another's arms are text
        compare(tidy, "constant:c=0.5", value="loss")


def test_a_baseline_is_named_as_the_table_prints_it():
    mixed = [run("standard", s, 3.1 + s, values="constant", id=f"mixed{s}") for s in (0, 1)]
    rows = [*RUNS, *mixed]
    assert "standard + constant-resformer" in render(rows)
    assert table(rows, "standard + constant-resformer") == table(rows, "standard + constant")


def test_headings_say_the_level_and_the_power():
    text = rendered(compare(RUNS, "standard", level=0.9))
    assert "90 % interval" in text and "95 %" not in text
    tidy = [{"arm": row["rule"], **{k: row[k] for k in ("seed", "val_loss")}} for row in RUNS]
    text = rendered(compare(tidy, "standard", power=0.95))
    assert "found by 95 %:" in text and "with 95 % power" in text and "80 %" not in text


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"status": "crashed"}, "status must be one of finished, .*, got 'crashed'"),
        ({"val_loss": "3.1"}, "val_loss must be a number, .*, got '3.1'"),
        ({"values": ...}, "a run without 'values': "),
        ({"rule": ...}, "a run without 'arm': "),
        ({"val_loss": ...}, "a run without 'val_loss': "),
    ],
)
def test_a_row_that_cannot_be_compared_is_refused(change, says):
    row = {name: x for name, x in (RUNS[0] | change).items() if x is not ...}
    for call in (lambda rows: compare(rows, "standard"), lambda rows: spread(rows, "paired")):
        with pytest.raises(RRError, match=says):
            call([*RUNS[1:], row])


# ---- The spread that a plan needs ----------------------------------------------------------------


def test_a_run_found_twice_is_no_second_run_of_a_spread():
    whole = [row for row in RUNS if row["rule"] in ("standard", "review")]
    for design in ("paired", "independent"):
        assert spread(whole * 2, design) == spread(whole, design)


def test_a_spread_is_of_runs_that_can_be_compared():
    longer = [row | {"id": f"{row['id']}/600", "steps": 600, "val_loss": 2 * row["val_loss"]}
              for row in RUNS if row["val_loss"]]  # fmt: skip
    with pytest.raises(RRError, match="the runs differ in their steps: give those of one group"):
        spread([*RUNS, *longer], "paired")


def test_pairs_that_share_no_seed_have_fewer_degrees_of_freedom():
    """Of each arm and each seed one level is fitted: a layout of 2 × 3 leaves two, of 4 × 3 six."""
    losses = iter([3.0, 3.3, 3.1, 2.9, 3.05, 3.2, 2.8, 3.4, 3.15, 3.25, 2.95, 3.35])
    apart = [run(rule, seed, next(losses))
             for rules, seeds in (("ab", (0, 1, 2)), ("cd", (3, 4, 5)))
             for rule in rules for seed in seeds]  # fmt: skip
    assert spread(apart, "paired")[1] == 4
    together = [row | {"id": f"{i}", "seed": row["seed"] % 3} for i, row in enumerate(apart)]
    assert spread(together, "paired")[1] == 6


def test_a_plan_counts_the_runs_that_the_test_has():
    """Seeds that were run twice are in neither Welch's test nor the seeds that it needs."""
    once = [run("standard", seed, loss) for seed, loss in enumerate([3.0, 3.2, 3.4, 3.1])]
    once += [run("review", seed, loss) for seed, loss in enumerate([2.9, 3.0, 3.1])]
    twice = [run("review", 7, loss, id=f"{loss}") for loss in (2.95, 3.05, 3.0)]
    plain, more = (
        by_arm(as_rows(compare(rows, "standard", design="independent")))["review"]
        for rows in (once, [*once, *twice])
    )
    assert (plain["n"], more["n"]) == (3, 6) and "tested" not in more
    for name in ("p", "detectable", "needed_lo", "needed_hi"):
        assert plain[name] == more[name], name


def test_an_unknown_column_to_group_by_is_refused():
    with pytest.raises(RRError, match="no column 'stepz' to group by: did you mean steps"):
        compare(RUNS, "standard", by="stepz")


def test_group_without_baseline_says_so_and_unknown_baseline_fails(tmp_path):
    alone = run("review", 0, 1.0, rung="mini")
    (row,) = [row for row in table([*RUNS, alone]) if row["rung"] == "mini"]
    assert row["difference"] is None and row["notes"] == ["no baseline to compare with"]
    with pytest.raises(RRError, match="did you mean standard"):
        table(RUNS, baseline="standart")
    with pytest.raises(RRError, match="no readable result.json"):
        read_results(tmp_path)
    with pytest.raises(RRError, match="no folder"):
        read_results(tmp_path / "absent")


# ---- Every test of a comparison, against SciPy and by hand ---------------------------------------

LOSSES = {
    "standard": [3.00, 3.20, 3.40, 3.10],
    "review": [2.90, 3.02, 3.33, 2.95],
    "highway": [2.97, 3.21, 3.38, 3.05],
    "constant": [3.01, 3.19, 3.45, 3.12],
}


def all_runs(losses=None):
    return [
        run(rule, seed, loss)
        for rule, result in (losses or LOSSES).items()
        for seed, loss in enumerate(result)
    ]


def test_a_row_holds_both_tests_both_intervals_and_their_corrections():
    arms = by_arm(table(all_runs()))
    others = [name for name in LOSSES if name != "standard"]
    for name in others:
        row, a, b = arms[name], LOSSES[name], LOSSES["standard"]
        pair = scipy.stats.ttest_rel(a, b)
        assert (row["paired_t"], row["p"]) == pytest.approx((pair.statistic, pair.pvalue), rel=1e-9)
        span = pair.confidence_interval(0.95)
        assert (row["lo"], row["hi"]) == pytest.approx((span.low, span.high), rel=1e-9)
        apart = scipy.stats.ttest_ind(a, b, equal_var=False)
        assert row["welch_p"] == pytest.approx(apart.pvalue, rel=1e-9)
        assert row["welch_df"] == pytest.approx(apart.df, rel=1e-9)
        # four pairs have 256 resamples: all of them, drawn out
        gaps = [x - y for x, y in zip(a, b, strict=True)]
        means = sorted(sum(drawn) / 4 for drawn in itertools.product(gaps, repeat=4))
        for end, share in ((row["bootstrap_lo"], 0.025), (row["bootstrap_hi"], 0.975)):
            near = means[round(share * 255) - 2], means[round(share * 255) + 2]
            assert near[0] - 1e-9 <= end <= near[1] + 1e-9
        assert row["comparisons"] == 3
    for test, corrected in (("p", "holm"), ("welch_p", "welch_holm")):
        expected = holm([arms[name][test] for name in others])
        assert [arms[name][corrected] for name in others] == expected
    assert arms["standard"]["comparisons"] is None and arms["standard"]["holm"] is None


def test_a_comparison_that_diverged_still_counts_in_the_correction():
    alone = by_arm(table(all_runs()))["review"]
    lost = by_arm(table([*all_runs(), run("post", 0, None), run("post", 1, None)]))
    assert lost["post"]["p"] is None and lost["post"]["diverged"] == [0, 1]
    # review has the smallest p of both tables: times 3, then times 4
    assert alone["holm"] == pytest.approx(3 * alone["p"])
    assert lost["review"]["holm"] == pytest.approx(4 * alone["p"])
    # an arm of one seed was never a comparison
    once = by_arm(table([*all_runs(), run("post", 0, 3.0)]))
    assert once["review"]["holm"] == alone["holm"] and once["post"]["comparisons"] is None


def test_unequal_seeds_and_a_diverged_baseline_are_told():
    losses = LOSSES | {"review": [2.90, 3.02, 3.33]}
    review = by_arm(table([*all_runs(losses), run("review", 7, 3.0)]))["review"]
    assert (review["pairs"], review["missing"]) == ([0, 1, 2], [3])
    assert "seed 7 not run by standard" in review["notes"]
    assert review["difference"] == pytest.approx((-0.1 - 0.18 - 0.07) / 3)
    # the unpaired test takes every seed
    apart = scipy.stats.ttest_ind([*losses["review"], 3.0], LOSSES["standard"], equal_var=False)
    assert review["welch_p"] == pytest.approx(apart.pvalue)
    rows = by_arm(table(all_runs(LOSSES | {"standard": [3.0, None, 3.4, 3.1]})))
    assert "standard diverged at seed 1" in rows["review"]["notes"]
    assert rows["review"]["pairs"] == [0, 2, 3] and rows["standard"]["diverged"] == [1]


NOTHING = ("p", "holm", "lo", "hi", "paired_t", "sign_p", "bootstrap_lo",
           "bootstrap_hi", "detectable", "needed")  # fmt: skip


@pytest.mark.parametrize("dust", [0.0, 1e-14])
def test_a_spread_of_zero_is_no_evidence(dust):
    pairs = {"standard": [3.0, 3.5, 3.7], "review": [2.75, 3.25 + dust, 3.45]}
    review = by_arm(table(all_runs(pairs)))["review"]
    assert review["difference"] == pytest.approx(-0.25) and review["sd"] == 0.0
    assert all(review[name] is None for name in NOTHING)
    assert review["notes"] == ["all 3 differences are equal: no test"]
    json.dumps(table(all_runs(pairs)), allow_nan=False)


@pytest.mark.parametrize("design", ["paired", "independent"])
def test_seeds_that_changed_nothing_are_asked_about(design):
    """Copies of a run are no sample, whatever the other arm does."""
    losses = {"standard": [3.0, 3.5, 3.7], "review": [2.75, 2.75 + 1e-15, 2.75]}
    rows = by_arm(as_rows(compare(all_runs(losses), "standard", design=design)))
    same = "all seeds of review gave the same loss: was the seed used?"
    assert rows["review"]["notes"] == [same] and rows["standard"]["notes"] == []
    assert all(rows["review"][name] is None for name in (*NOTHING, "welch_p", "mean_lo"))
    rows = by_arm(as_rows(compare(all_runs(losses), "review", design=design)))
    assert rows["standard"]["notes"] == rows["review"]["notes"] == [same]
    assert rows["standard"]["p"] is None and rows["standard"]["mean_lo"] is not None


def test_a_tuned_arm_meets_the_baseline_at_the_baselines_own_rate():
    tried = [run(rule, 100, 4.0, lr=lr) for rule in ("standard", "review") for lr in (1e-3, 3e-3)]
    main = [run("standard", s, 3.0 + s, lr=1e-3) for s in range(3)]
    main += [run("review", s, 2.9 + s * 1.01, lr=3e-3) for s in range(3)]
    rows = by_arm(table([*tried, *main]))
    tuned = rows["review (lr 0.003)"]
    assert tuned["baseline"] == "standard (lr 0.001)" and tuned["pairs"] == [0, 1, 2, 100]
    # with one seed at each, arms meet at one rate
    assert rows["review (lr 0.001)"]["baseline"] == "standard (lr 0.001)"


def test_runs_of_another_warm_up_are_another_group(tmp_path):
    for rule, seed, warmup in itertools.product(("standard", "review"), (0, 1), (7, 30)):
        folder = tmp_path / f"{rule}{seed}{warmup}"
        folder.mkdir()
        row = run(rule, seed, 3.0 + seed * warmup, id=folder.name)
        write_record(folder / "result.json", row)
        described = {"id": folder.name, "run": {"recipe": {"warmup": warmup}}}
        write_record(folder / "run.json", described)
    runs = read_results(tmp_path)
    assert [(row["warmup"], row["n"]) for row in table(runs)] == [(30, 2)] * 2 + [(7, 2)] * 2
    assert "· warmup 7\n" in render(runs) and "· warmup 30\n" in render(runs)


def test_runs_whose_settings_no_option_gives_are_a_group_of_their_own(tmp_path):
    """The same command of `rr train` would name both: run.json alone knows."""
    usual = {"warmup": 7, "clip": 1.0, "betas": [0.9, 0.95]}
    for rule, seed in itertools.product(("standard", "review"), (0, 1)):
        folder = tmp_path / f"{rule}{seed}"
        folder.mkdir()
        write_record(folder / "result.json", run(rule, seed, 3.0 + seed, id=folder.name))
        recipe = usual | ({"clip": 0.5, "schedule": "cosine"} if rule == "review" else {})
        described = {"id": folder.name, "run": {"recipe": recipe, "model": {"tied": True}}}
        write_record(folder / "run.json", described)
    runs = read_results(tmp_path)
    assert all(row["difference"] is None for row in table(runs))
    assert runs.settings.notna().sum() == 2
    assert "· settings clip=0.5, schedule=cosine\n" in render(runs)


def test_what_a_protocol_sets_is_no_setting_of_one_s_own(tmp_path):
    spec = rr.plan("nano", protocol="paper", steps=60).spec()
    for seed, recipe in enumerate((spec["recipe"], spec["recipe"] | {"clip": 0.5})):
        folder = tmp_path / str(seed)
        folder.mkdir()
        row = run("review", seed, 3.0, id=folder.name) | {"protocol": "paper"}
        write_record(folder / "result.json", row)
        described = {"id": folder.name, "run": spec | {"recipe": recipe}}
        write_record(folder / "run.json", described)
    assert list(read_results(tmp_path).settings.fillna("")) == ["", "clip=0.5"]


@pytest.mark.parametrize("protocol", UNASKED)
def test_what_no_option_gives_is_all_that_options_leave_out(protocol):
    """With the values that a run of the protocol has."""
    spec = rr.plan("nano", protocol=protocol, steps=60).spec()
    left = {name: x for name, x in spec["recipe"].items() if name not in options_of(rr.Recipe)}
    left |= {name: spec["model"][name] for name in ("tied", "pad_vocab")}
    assert json.loads(json.dumps(left)) == UNASKED[protocol]


def test_a_comparison_of_unequal_sizes_says_so(tmp_path):
    runs = [run(rule, seed, 3.0 + 0.1 * seed * len(rule), params=params) for seed in (0, 1, 2)
            for rule, params in (("standard", 1000), ("review", 1020), ("gtrxl", 1430),
                                 ("delta", 800))]  # fmt: skip
    notes = {row["arm"]: row["notes"] for row in table(runs)}
    assert notes["gtrxl"] == ["43 % more parameters"] and notes["review"] == []
    assert notes["delta"] == ["20 % fewer parameters"]


def test_a_result_beside_another_run_s_settings_is_named(tmp_path):
    for name, warmup in (("a", 1), ("b", 8)):
        (tmp_path / name).mkdir()
        described = {"id": name, "run": {"recipe": {"warmup": warmup}}}
        write_record(tmp_path / name / "run.json", described)
        write_record(tmp_path / name / "result.json", run("review", 0, 3.0, id="a"))
    found = scan(tmp_path)
    assert list(found.warmup) == [1]
    (corrupt,) = found.attrs["corrupt"]
    assert corrupt[0].parent.name == "b" and "it is the result of run a" in corrupt[1]


def test_a_run_behind_a_link_is_read_once(tmp_path):
    """A run moved to another disk counts; two ways to one folder, and a circle, add nothing."""
    runs, disk = tmp_path / "runs", tmp_path / "disk"
    for seed in (0, 1):
        (disk / str(seed)).mkdir(parents=True)
        write_record(disk / str(seed) / "result.json", run("review", seed, 3.0))
    runs.mkdir()
    (runs / "far").symlink_to(disk / "0")
    (runs / "same").symlink_to(disk / "0")
    (disk / "1").rename(runs / "1")
    (runs / "circle").symlink_to(runs)
    assert sorted(read_results(runs).seed) == [0, 1]


def test_every_kind_of_damage_is_named(tmp_path, capsys):
    def whole(row):
        return json.dumps(sealed(row)).encode()

    good = whole(RUNS[0]).decode()
    files = {
        "good": good.encode(),
        "empty": b"",
        "zeroed": bytes(len(good)),
        "cut": good[:-9].encode(),
        "deep": b"[" * 100_000,
        "huge": good.replace("3.0", "1" + "0" * 400).encode(),
        "infinite": good.replace("3.0", "Infinity").encode(),
        "status": whole(RUNS[0] | {"status": "running"}),
        "seal": good.replace("finished", "diverged").encode(),
        "unsealed": json.dumps(RUNS[0]).encode(),
        "budget": whole(RUNS[0] | {"budgets": [{"steps": 9, "val_loss": None}]}),
        "lossless": whole(RUNS[0] | {"val_loss": None}),
        "stepless": whole(RUNS[0] | {"budgets": [{"val_loss": 3.0, "status": "finished"}]}),
        "sizeless": whole(RUNS[0] | {"params": "many"}),
        "markup": whole(RUNS[0] | {"rung": "<script>alert(1)</script>"}),
        "quoted": whole(RUNS[0] | {"rule": "a`b"}),
        "list": b"[]",
        "fieldless": whole({k: v for k, v in RUNS[0].items() if k != "seed"}),
    }
    for name, data in files.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_bytes(data)
    (tmp_path / "folder" / "result.json").mkdir(parents=True)
    (tmp_path / "waiting").mkdir()
    (tmp_path / "waiting" / "run.json").write_text("{}")
    result = scan(tmp_path)
    damaged = {*files, "folder"} - {"good"}
    assert {path.parent.name for path, _ in result.attrs["corrupt"]} == damaged
    assert list(result.id) == [RUNS[0]["id"]] and read_results(tmp_path).equals(result)
    *named, corrupt, waiting = capsys.readouterr().err.splitlines()
    assert len(named) == len(damaged)
    assert all(any(f"{name}/result.json" in line for line in named) for name in damaged)
    assert "18 corrupt of 19" in corrupt and "1 of 20 runs have no result yet" in waiting


# ---- The forms -----------------------------------------------------------------------------------


def test_csv_reads_back_as_the_rows():
    rows = table(RUNS)
    back = list(csv.DictReader(io.StringIO(render(RUNS, "csv"))))
    for line, row in zip(back, rows, strict=True):
        assert list(line) == list(row)
        for name, value in row.items():
            if isinstance(value, float):
                assert float(line[name]) == value
            elif isinstance(value, str | int | None):
                assert line[name] == ("" if value is None else str(value))
        assert [float(word) for word in line["differences"].split()] == row["differences"]
        assert line["notes"] == "; ".join(row["notes"])


def test_markdown_has_a_cell_for_every_column():
    runs = [*RUNS, *(run("my|rule", seed, 3.0 + seed / 7) for seed in range(3))]
    rows, text = table(runs), render(runs, "markdown")
    lines = [line.replace(r"\|", "/") for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in lines} == {12} and len(lines) == 2 + len(rows)
    review = by_arm(rows)["review"]
    shown = next(line for line in lines if "| review" in line)
    assert f"{review['holm']:.4f}" in shown and f"{review['welch_p']:.4f}" in shown
