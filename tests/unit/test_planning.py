"""Plans by hand: hours from FLOPs and a rate, what a budget takes in, and what it must refuse."""

import json
import math
import shlex

import pytest

from rr.errors import RRError
from rr.model import costs
from rr.model import sizes as rungs
from rr.options import Request
from rr.training import planning
from rrstudy import cli
from rrstudy.perf import budget, rates
from rrstudy.perf.budget import disk_of
from rrstudy.sweep import cells
from rrstudy.sweep.grid import AXES, place

CARD = budget.GPUSpec("a card", 1e14, 1e11)
NAMES = {"corpus": "a text", "tokenizer": "its tokens", "vocab_size": 500}


@pytest.fixture(autouse=True)
def fresh_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RR_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def roomy(monkeypatch):
    """Any run takes a gigabyte: nothing is traced to find how much it takes."""
    monkeypatch.setattr(budget.memory, "stacked", lambda *a: 10**9)


def by_size(runs):
    return sorted(runs, key=place)


def trained(row):
    """Hours of the row that the card computes."""
    parts = [row["parts"][name] for name in ("training", "evaluation")]
    return tuple(map(sum, zip(*parts, strict=True)))


def bench_file(path, device, *rows):
    path.write_text(json.dumps({"made_by": {"device": device}, "rows": rows}))
    return path


UNCOMPILED = {"path": "eager", "choices": {"compile": "none"}}


def bench_row(run, **more):
    """Steps of 1, 2 and 4 seconds, of 2,048 tokens each."""
    return {
        "rung": run.rung,
        "rule": run.rule,
        "path": "compiled",
        "choices": {"compile": "layer"},
        "failed": None,
        "precision": "bf16",
        "tokens_per_step": 2048,
        "step_ms": [1000, 2000, 4000],
        "flops_per_token": costs.flops_per_token(run.model),
        "tokens_per_second": 1024,
    } | more


def one(rung="nano", rule="review", seed=0, **more):
    return planning.specify(rung, rule, seed=seed, **NAMES, **more)


def pairs(rung, **more):
    """Review and standard at two seeds."""
    arms = [(rule, seed) for seed in (0, 1) for rule in ("review", "standard")]
    return [one(rung, rule, seed, **more) for rule, seed in arms]


def test_hours_by_hand(roomy, tmp_path):
    """tokens · FLOPs a token over peak · MFU; scoring costs a third of training; the rest apart."""
    given = {"mfu": (0.1, 0.4), "price": 3.0, "records": tmp_path}
    (row,) = budget.what_fits([one(eval_batches=2)], CARD, **given)
    each, window = costs.flops_per_token(rungs.arm("nano", "review", 500)), 8 * 256
    assert row["tokens"] == 150 * window
    assert row["scored_tokens"] == 4 * 2 * window  # at the end and three times on the way
    flops = each * (150 + 8 / 3) * window
    assert trained(row) == pytest.approx((flops / 4e13 / 3600, flops / 1e13 / 3600))
    written = 12 * row["params"]  # once, at the end: weights and two moments in float32
    training = each * 150 * window / 1e13
    rest = {
        "start-up": (20, 90),
        "compilation": (20, 120),
        "checkpoints": (written / 1e9, written / 1e8 + 0.05 * training),
    }
    for name, seconds in rest.items():
        assert row["parts"][name] == pytest.approx([s / 3600 for s in seconds]), name
    assert row["hours"] == pytest.approx([sum(p[i] for p in row["parts"].values()) for i in (0, 1)])
    assert row["cost"] == pytest.approx([3 * h for h in row["hours"]])


def test_branches_are_trained_and_paid_for(roomy):
    """2,000 to 4,000 steps: the longer budget, and the shorter's last fifth again."""
    (row,) = budget.what_fits([one(budgets=[2000, 4000])], CARD)
    assert row["tokens"] == (4000 + 400) * 8 * 256


def test_pairs_are_complete_and_small_rungs_first(roomy, tmp_path):
    plan = by_size(pairs("mini") + pairs("nano"))
    given = {"mfu": (0.005, 0.005), "records": tmp_path}
    whole = budget.what_fits(plan, CARD, **given)
    assert [(row["rung"], row["seed"], row["rule"]) for row in whole] == [
        (rung, seed, rule)
        for rung in ("nano", "mini")
        for seed in (0, 1)
        for rule in ("standard", "review")
    ]
    least, until = whole[2]["until"]  # in the midst of the second pair; by the slower estimate
    assert whole[3]["until"][0] < until
    short = budget.what_fits(plan, CARD, until, **given)
    assert [row["fits"] for row in short][:4] == ["yes"] * 2 + ["perhaps"] * 2
    least = budget.what_fits(plan, CARD, least, **given)
    assert [row["fits"] for row in least][2:] == ["no"] * 6


def test_the_studys_arms_are_a_pair_though_they_are_of_other_widths(roomy, tmp_path):
    """Protocol paper widens the standard arm; TF32 has half of the 16-bit peak."""
    plan = by_size(pairs("nano", protocol="paper"))
    assert plan[0].model.d_model > plan[1].model.d_model
    rows = budget.what_fits(plan, CARD, mfu=(0.5, 0.5), records=tmp_path)
    arms = [(row["seed"], row["rule"]) for row in rows]
    assert arms == [(seed, rule) for seed in (0, 1) for rule in ("standard", "review")]
    flops = costs.flops_per_token(plan[0].model) * 64 * 256 * (150 + 80 / 3)
    assert trained(rows[0])[0] == pytest.approx(flops / 2.5e13 / 3600)
    assert "tf32 has half" in " ".join(budget.notes(rows, CARD, None, (0.5, 0.5)))


def test_what_does_not_fit_the_memory_is_said_to_and_takes_no_hours(tmp_path):
    card = budget.GPUSpec("a small card", 1e12, 6e8)  # less than a driver takes
    tiny = one("nano:n_layer=1,d_model=16,n_head=2,seq_len=16", batch=1)
    (row,) = budget.what_fits([tiny], card, records=tmp_path)
    assert (row["fits"], row["micro_batch"], row["until"]) == ("memory", None, None)


def test_a_record_of_that_card_is_used_with_its_spread(roomy, tmp_path):
    """Steps of 1, 2 and 4 seconds: the rate is the record's, not an assumption."""
    (tmp_path / "gpu").mkdir()
    bench_file(tmp_path / "gpu" / "nano.json", "NVIDIA L4", bench_row(one()))
    (result,) = budget.what_fits([one()], budget.gpu("L4"), records=tmp_path)
    steps = 150 + result["scored_tokens"] / 2048 / 3
    assert trained(result) == pytest.approx((steps / 3600, 4 * steps / 3600))
    assert result["measured"] == "gpu/nano.json"
    (other,) = budget.what_fits([one()], budget.gpu("T4"), records=tmp_path)
    assert other["measured"] is None and other["precision"] == "fp16"


def test_products_asked_for_in_tf32_are_fp32_on_a_card_without():
    """`rr bench` records what was asked for."""
    run, t4 = one(precision="tf32"), budget.gpu("T4")
    row = {**row_of(run, 1e12), "record": "x.json", "precision": "tf32"}
    assert rates.measured(run, t4, [row]).low == pytest.approx(1e12)
    h200 = rates.Source(budget.gpu("H200"), [row])  # which has TF32
    assert rates.rate(run, t4, None, [h200]) == rates.rate(one(precision="fp32"), t4, None, [])


def row_of(run, rate, **more):
    """A row of a GPU that reached `rate` FLOP/s on this run."""
    each = costs.flops_per_token(run.model)
    ms = 1000 * 2048 * each / rate
    return bench_row(run, params=costs.count(run.model), step_ms=[ms], **more)


def test_another_gpu_is_a_range_between_the_ratios_of_the_sheets(roomy, tmp_path):
    """An H200 has an H100's peak and 1.43 times its bandwidth; a B200 2.28 times its peak."""
    run = one("60M")
    bench_file(tmp_path / "x.json", "NVIDIA H200", row_of(run, 2e14))
    rate = {
        name: rates.rate(
            run, budget.gpu(name), None, rates.sources(budget.gpu(name), None, tmp_path)
        )
        for name in ("H200", "H100", "B200", "A100", "T4")
    }
    assert (rate["H200"].low, rate["H200"].source) == (pytest.approx(2e14), "x.json")
    assert (rate["H100"].low, rate["H100"].high) == pytest.approx((2e14 * 3.35 / 4.8, 2e14))
    assert (rate["B200"].low, rate["B200"].high) == pytest.approx((2e14, 2e14 * 2250 / 989))
    # as many launches as an H200, were it not for the largest MFU that is assumed
    assert (rate["A100"].low, rate["A100"].high) == pytest.approx((2e14 * 312 / 989, 0.45 * 312e12))
    assert rate["A100"].scaled == "H200: 60M" and rate["H200"].scaled is None
    assert rate["T4"] == rates.Rate(0.2 * 65e12, 0.45 * 65e12)  # fp16: nothing was measured in it


def test_a_size_between_two_measured_ones_lies_between_their_rates(roomy, tmp_path):
    sizes = {"60M": 2e14, "320M": 3e14}
    rows = [row_of(one(name), rate) for name, rate in sizes.items()]
    bench_file(tmp_path / "x.json", "NVIDIA H200", *rows)
    card = budget.gpu("H200")
    known = rates.sources(card, None, tmp_path)
    between = rates.rate(one("150M"), card, None, known)
    assert (between.low, between.high) == pytest.approx((2e14, 3e14))
    assert (between.source, between.scaled) == (None, "H200: 60M, 320M")
    for name in ("mini", "590M"):  # beyond what was measured: assumed
        assert rates.rate(one(name), card, None, known).high == pytest.approx(0.45 * 989e12)
    given = rates.rate(one("150M"), card, (0.3, 0.3), known)
    assert given.low == given.high == pytest.approx(0.3 * 989e12)
    plan = [one(name) for name in ("60M", "150M", "590M")]
    told = " ".join(budget.notes(budget.what_fits(plan, card, records=tmp_path), card, None))
    assert "measured on H200: 1 of 3 runs" in told and "not measured: 1 of 3 runs" in told
    assert "scaled: 1 of 3 runs, from sizes measured on H200" in told
    assert "another GPU" not in told


def test_the_study_on_an_h200_is_measured(roomy, capsys):
    """By data/measured/gpu_h200: three of five rungs; none of Review's rows, which are void."""
    assert cli.main(["plan", "--gpu", "H200", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    by = {"60M", "320M", "1B"}
    assert {row["rung"] for row in rows if row["measured"] == "gpu_h200/steps.json"} == by
    assert {row["rung"] for row in rows if row["scaled"]} == {"150M", "590M"}
    for row in rows:
        low, high = row["parts"]["training"]
        assert high / low < (1.4 if row["rung"] in by else 2)


def test_the_verb(capsys):
    words = ["plan", "--gpu", "T4", "--rung", "nano", "--rule", "review", "standard"]
    assert cli.main([*words, "--dollars", "6", "--price", "3", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["hours"] == 2 and len(result["rows"]) == 2
    assert cli.main([*words, "--hours", "1"]) == 0
    out = capsys.readouterr().out
    assert "not measured" in out and "assumed MFU of 0.2–0.45" in out and "dollars" not in out
    assert "predicted for --backend eager on 16 GB" in out  # what a run on a T4 takes
    assert out.endswith("rr sweep --rung nano --rule review standard --hours 1\n")


@pytest.mark.parametrize(("words", "why"), [
    (["--gpu", "H101"], "unknown GPU"), (["--gpu", "Mine", "--tflops", "5"], "unknown GPU"),
    (["--gpu", "T4", "--hours", "-1"], "hours must"),
    (["--gpu", "T4", "--dollars", "60"], "need a price"),
    (["--gpu", "T4", "--dollars", "6", "--price", "1", "--hours", "2"], "both hours"),
    (["--gpu", "T4", "--price", "0"], "price must"), (["--gpu", "T4", "--mfu", "0.5-0.3"], "mfu"),
    (["--gpu", "T4", "--memory", "0"], "memory must"), ([], "--gpu"),
    (["--measured", "/no/such.json"], "cannot read /no/such.json"),
])  # fmt: skip
def test_bad_words_are_one_line(words, why, refuses):
    assert why in refuses("plan", *words)


def test_budgets():
    assert budget.budget(None, 60, 2.5) == 24
    assert budget.mfu_range("0.3-0.5") == (0.3, 0.5) and budget.mfu_range("0.4") == (0.4, 0.4)
    with pytest.raises(RRError):
        budget.budget(float("inf"), None, None)
    assert budget.gpu("h100").memory == 80e9 and budget.gpu("A100", memory_gb=80).memory == 8e10


def test_a_file_of_this_machine_is_believed_first(roomy, tmp_path, capsys):
    """Its rates, its compilation and its card; what it does not hold stays an estimate."""
    bench_file(tmp_path / "gpu.json", "NVIDIA L4", bench_row(one(), step_ms=[8000]))
    mine = bench_file(tmp_path / "mine.json", "NVIDIA L4", bench_row(one(), warm_seconds=33.0))
    read = budget.read_bench(str(mine))
    (row,) = budget.what_fits([one()], budget.gpu("L4"), records=tmp_path, bench=read)
    assert row["parts"]["training"] == pytest.approx((150 / 3600, 600 / 3600))
    assert row["parts"]["compilation"] == pytest.approx((33 / 3600, 33 / 3600))
    assert row["measured"] == str(mine)
    words = ["plan", "--measured", str(mine), "--rung", "nano", "mini", "--hours", "3", "--json"]
    assert cli.main(words) == 0
    out, err = capsys.readouterr()
    recorded = json.loads(out)  # one value, and nothing else
    assert recorded["gpu"]["name"] == "L4" and "plan: 1 of 2 runs" in err
    assert [r["measured"] for r in recorded["rows"]] == [str(mine), None]
    assert recorded["rows"][0]["path"] == "compiled"
    command = "rr sweep --rung nano mini --hours 3 --measured"
    assert recorded["command"] == f"{command} {shlex.quote(str(mine))}"


def test_a_step_with_other_values_counts_only_where_there_is_no_better(roomy):
    """Steps of own values, of 2V₁ + V_n, and of a record that has no column for them."""
    own, mixed = one(), one(values="constant-resformer")
    slow = bench_row(
        mixed, values="constant", step_ms=[9000], tokens_per_second=2048 / 9, record="x"
    )
    for before in (bench_row(own, record="x"), bench_row(own, values="own", record="x")):
        each = [rates.measured(run, budget.gpu("L4"), [before, slow]) for run in (own, mixed)]
        apart = [rates.measured(own, budget.gpu("L4"), [row]) for row in (before, slow)]
        assert each == apart and each[0] != each[1]


def test_what_a_benchmark_expects_of_a_run(tmp_path):
    """At most: 600 s of steps, the rest by hand; nothing for a rung that it does not hold."""
    run, other = one(eval_batches=1, precision="fp32"), one("mini")
    row = bench_row(run, **UNCOMPILED, precision="fp32")
    file = bench_file(tmp_path / "cpu.json", "cpu", row)
    seconds = budget.expected(budget.read_bench(str(file)), [run, other])
    saved = 12 * costs.count(run.model) / 1e8 + 0.05 * 600
    # nothing is compiled; 90 s of start-up, 120 s of the report
    assert seconds(run) == pytest.approx(600 + 4 * 4 / 3 + 90 + 120 + saved)
    assert seconds(other) is None


def test_a_benchmark_of_other_runs_is_an_error_that_says_which(roomy, tmp_path):
    run = one("60M", protocol="paper")
    file = bench_file(tmp_path / "x.json", "NVIDIA H100 80GB HBM3", bench_row(run))
    measured = budget.read_bench(str(file))
    with pytest.raises(RRError, match="none of these runs: it has 60M in bf16, they are 60M in tf"):
        budget.what_fits([run], budget.gpu("H100"), bench=measured)


@pytest.mark.parametrize("bf16", [True, False])
def test_a_cpu_without_bf16_was_measured_in_what_its_runs_take(bf16, roomy, tmp_path, refuses,
                                                               monkeypatch):  # fmt: skip
    """In fp32, as `rr bench` and `rr train` do there; a sweep refuses the other, as a plan does."""
    monkeypatch.setattr("rr.training.device._has_bf16", lambda: bf16)
    taken, other = ("bf16", "fp32") if bf16 else ("fp32", "bf16")
    words = ["--rung", "nano", "--rule", "review", "--hours", "1", "--measured"]
    card = ["--gpu", "mine", "--tflops", "1", "--memory", "16"]
    assert one().recipe.precision == "bf16"
    file = bench_file(tmp_path / "x.json", "cpu", bench_row(one(), precision=taken, **UNCOMPILED))
    assert cli.main(["plan", *words, str(file), *card]) == 0
    assert cli.main(["sweep", *words, str(file), "--dry-run"]) == 0
    bench_file(file, "cpu", bench_row(one(), precision=other, **UNCOMPILED))
    says = f"none of these runs: it has nano in {other}, they are nano in {taken}: run rr bench"
    assert says in refuses("sweep", *words, file, "--dry-run")


def test_the_disk_of_a_plan_is_what_stays_and_the_largest_while_it_trains(roomy):
    plan = [one("nano"), one("mini")]
    small, large = (costs.count(run.model) for run in plan)
    by_hand = 4 * (small + large) + 3 * 12 * large
    assert budget.disk_of_rows(budget.what_fits(plan, CARD)) == disk_of(plan) == by_hand
    kept = disk_of(plan, stay=budget.staying(Request(keep_checkpoints=True)))
    assert kept == 2 * 12 * (small + large) + 3 * 12 * large
    assert budget.staying(Request()) == 4


def of_l4(**row):
    return json.dumps({"made_by": {"device": "NVIDIA L4"}, "rows": [row]})


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "is not the output of rr bench --json"),
        ("[1]", "is not the output"),
        (of_l4(failed=None), "is not the output"),
        (of_l4(failed="x"), "no case"),
        (of_l4(**bench_row(one(), step_ms=[0])), "is not the output"),
        (of_l4(**bench_row(one(), step_ms=[math.inf])), "is not the output"),
        (of_l4(**bench_row(one(), tokens_per_step=0)), "is not the output"),
        (of_l4(**bench_row(one(), flops_per_token=-1)), "is not the output"),
        (of_l4(**bench_row(one(), warm_seconds="x")), "is not the output"),
        (of_l4(**bench_row(one(), values=[])), "is not the output"),
    ],
)
def test_a_wrong_file_is_one_line(content, why, tmp_path, refuses):
    file = tmp_path / "file.json"
    file.write_text(content)
    for verb in (["plan"], ["sweep", "--dry-run", "--hours", "1"]):
        assert why in refuses(*verb, "--rung", "nano", "--measured", file)


def test_a_file_of_another_card_is_refused(tmp_path):
    for device, card, words in (
        ("NVIDIA L4", "H100", "was measured on NVIDIA L4, not on H100"),
        ("cpu", None, "add --gpu"),  # a sweep needs no card
    ):
        file = bench_file(tmp_path / "x.json", device, bench_row(one()))
        with pytest.raises(RRError, match=words):
            budget.chosen_gpu(card, None, None, budget.read_bench(str(file)))


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--budgets", "50,100", "20", "--lr", "3e-4", "--depth-lr"],
        ["--rung", "mini", "nano", "--seed", "1", "0"],
    ],
)
def test_plan_and_sweep_have_one_order(words, capsys, roomy):
    """The command that plan prints, read by the real parser, is the plan: cell by cell."""
    assert cli.main(["plan", "--gpu", "H100", "--hours", "8", "--json", *words]) == 0
    recorded = json.loads(capsys.readouterr().out)
    args = vars(cli.parser().parse_args(shlex.split(recorded["command"])[1:]))
    options = {name: args[name] for name in (*AXES, "depth_lr")}
    listed = [cell.id for cell in cells(options, print)]
    assert listed == [row["id"] for row in recorded["rows"]] and args["hours"] == 8
    if not words:
        assert [row["rung"] for row in recorded["rows"]][:1] == ["60M"] and len(listed) == 42
    # and what a sweep would run, line by line
    typed = shlex.split(recorded["command"])[1:]
    assert cli.main([*typed, "--dry-run", "--runner", "direct"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == len(listed) and "rr plan estimates which" in err
    for line, row in zip(out.splitlines(), recorded["rows"], strict=True):
        given = shlex.split(line)
        named = {name: given[given.index(f"--{name}") + 1] for name in ("rung", "rule", "seed")}
        assert named == {name: str(row[name]) for name in named}


def test_the_largest_micro_batch_is_found(monkeypatch):
    """Against trying all: memory by the window, and more of it without recomputation."""

    def need(run, path, micro, device):
        return micro * (10 if path.recompute == "none" else 4)

    monkeypatch.setattr(budget.memory, "stacked", need)
    again = ":recompute=layer"
    sizes = (64, 32, 16, 8, 4, 2, 1)
    ways = [(10 * m, m, "compiled") for m in sizes]
    ways += [(4 * m, m, f"compiled{again}") for m in sizes]
    for room in (3, 4, 10, 31, 32, 79, 80, 159, 400, 639, 640):
        card = budget.GPUSpec("a card", 1e12, (room + 0.5) / (1 - budget.SPARE))
        (row,) = budget.what_fits([one(batch=64)], card)
        fitting = [way[1:] for way in ways if way[0] <= room] + [(None, f"compiled{again}")]
        assert (row["micro_batch"], row["path"]) == fitting[0], room


def test_rates_come_from_the_path_with_the_best_median():
    run, here = one(), {"record": "here"}
    slow = bench_row(run, **UNCOMPILED, step_ms=[9000], tokens_per_second=200, warm_seconds=1.0)
    rows = [slow | here, bench_row(run, warm_seconds=7.0) | here]
    rate = rates.measured(run, budget.gpu("L4"), rows)
    work = 2048 * costs.flops_per_token(run.model)
    assert (rate.low, rate.high, rate.compile) == (work / 4, work, (7.0, 7.0))
