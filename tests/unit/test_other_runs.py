"""The page *Runs of another trainer*: its own code, on files as each trainer writes them."""

import json
import math
import re
from pathlib import Path

import pandas as pd
import pytest

from rr.errors import RRError
from rrstudy import cli
from rrstudy.stats import as_rows, read_table

PAGE = Path(__file__).parents[2] / "book" / "recipes" / "other_runs.md"
# section -> its block of Python
CODE = {
    part.partition("\n")[0]: re.findall(r"^```python\n(.*?)^```$", part, re.M | re.S)[0]
    for part in PAGE.read_text().split("\n## ")
    if "```python" in part
}
RUNS = {  # arm, seed -> the loss at the last of the steps 10, 20, 30, 40
    (arm, seed): 3 + gap + 0.01 * seed * slope
    for arm, gap, slope in (("standard", 0.0, 1), ("review", -0.1, 2))
    for seed in range(3)
}
STEPS = (10, 20, 30, 40)


def at(run, step):
    return RUNS[run] + 1 / step - 1 / STEPS[-1]


def wandb():
    rows = [
        {"Name": f"{arm}-s{seed}", "State": "finished", "Runtime": 3600, "_step": 40, "val_loss": x}
        for (arm, seed), x in RUNS.items()
    ]
    pd.DataFrame(rows).to_csv("wandb.csv", index=False, quoting=1)  # as it quotes them


def trainer(loss=lambda run, step: at(run, step)):
    for run in RUNS:
        for last in (20, 40):
            log = [{"loss": 9.0, "grad_norm": 1.0, "step": 5}]
            log += [{"eval_loss": loss(run, s), "step": s} for s in STEPS if s <= last]
            log += [{"train_loss": 8.0, "train_runtime": 1.0, "step": last}]
            place = Path(f"out/{run[0]}-s{run[1]}/checkpoint-{last}")
            place.mkdir(parents=True)
            text = json.dumps({"global_step": last, "log_history": log}, indent=2)
            (place / "trainer_state.json").write_text(text)


def lives(*of_run):
    """Event files; (writer's options, loss above its own, steps) of each life of review, seed 0."""
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    for arm, seed in RUNS:
        mine = of_run if of_run and (arm, seed) == ("review", 0) else [({}, 0.0, STEPS)]
        for number, (options, more, steps) in enumerate(mine):
            place = Path(f"events/{arm}-s{seed}")
            with tensorboard.SummaryWriter(place, filename_suffix=".new", **options) as writer:
                for step in steps:
                    when = 1.7e9 + 1000 * number + step
                    writer.add_scalar("val/loss", at((arm, seed), step) + more, step, when)
                    writer.add_scalar("train/loss", 9.0, step, when)
            (new,) = place.glob("*.new")
            new.rename(place / f"events.out.tfevents.{1_700_000_000 + number}.host")


def lightning():
    for run in RUNS:
        place = Path(f"logs/{run[0]}-s{run[1]}/version_0")
        place.mkdir(parents=True)
        lines = [f"0,{step},9.5,\n0,{step},,{at(run, step)}\n" for step in STEPS]
        (place / "metrics.csv").write_text("epoch,step,train_loss,val_loss\n" + "".join(lines))


def jsonl():
    Path("logs").mkdir()
    for run in RUNS:
        lines = [
            {"split": split, "step": step, "loss": at(run, step) - (split == "train")}
            for step in STEPS
            for split in ("train", "validation")
        ]
        lines.append({"split": "validation", "summary": "done"})
        text = "".join(json.dumps(line) + "\n" for line in lines)
        Path(f"logs/{run[0]}-s{run[1]}.jsonl").write_text(text)


FILES = {
    "Weights & Biases": wandb,
    "Hugging Face's Trainer": trainer,
    "TensorBoard": lives,
    "Lightning": lightning,
    "JSON Lines": jsonl,
}


@pytest.fixture(autouse=True)
def empty_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def made(section, change=lambda code: code):
    exec(change(CODE[section]), {})
    return read_table("tidy.csv")


@pytest.mark.parametrize("section", FILES)
def test_the_code_of_the_page_makes_the_tidy_table(section, capsys):
    FILES[section]()
    runs = made(section)
    losses = {(row["arm"], row["seed"]): row["val_loss"] for row in as_rows(runs)}
    assert losses == pytest.approx(RUNS, rel=1e-6)  # an event file holds float32
    assert set(runs.status) == {"finished"} and set(runs.step) == {40}
    bash = re.findall(r"^```bash\n(.*?)^```$", PAGE.read_text(), re.M | re.S)[0]
    for command in bash.splitlines():
        assert cli.main(command.split()[1:]) == 0
    exec(next(iter(CODE.values())), {})  # the page's first block, on the same table
    assert capsys.readouterr().out.count("−0.0900") == 2


def test_every_section_is_tried():
    assert set(CODE) == {next(iter(CODE)), *FILES, "A run that diverged"}


def test_a_run_can_be_said_to_have_diverged():
    lightning()
    path = Path("logs/review-s2/version_0/metrics.csv")
    path.write_text("".join(path.read_text().splitlines(True)[:-2]))  # the last loss was NaN
    with pytest.raises(RRError):
        made("Lightning")
    runs = made("A run that diverged")
    lost = runs[runs.status == "diverged"]
    assert list(zip(lost.arm, lost.seed, strict=True)) == [("review", 2)] and len(runs) == 6


def test_wandbs_crashed_run_is_marked_and_a_run_twice_is_refused():
    wandb()
    frame = pd.read_csv("wandb.csv")
    frame.loc[frame.Name == "review-s1", ["State", "_step", "val_loss"]] = ["crashed", 10, 4.41]
    frame.to_csv("wandb.csv", index=False)
    (lost,) = [row for row in as_rows(made("Weights & Biases")) if row["status"] != "finished"]
    assert (lost["arm"], lost["seed"], lost["val_loss"]) == ("review", 1, None)
    frame.assign(State="finished").to_csv("wandb.csv", index=False)
    with pytest.raises(RRError, match="end at different steps"):
        made("Weights & Biases")
    pd.concat([frame, frame[frame.Name == "review-s2"]]).to_csv("wandb.csv", index=False)
    with pytest.raises(RRError, match="two rows of arm 'review', seed 2"):
        made("Weights & Biases")


@pytest.mark.parametrize(("last", "says"), [(0.0, "exactly 0"), (math.nan, None), (math.inf, None)])
def test_a_trainers_overflow_is_no_best_loss(last, says):
    lost = ("review", 1)
    trainer(lambda run, step: last if run == lost and step == 40 else at(run, step))
    if says:
        with pytest.raises(RRError, match=says):
            made("Hugging Face's Trainer")
        return
    rows = {(row["arm"], row["seed"]): row for row in as_rows(made("Hugging Face's Trainer"))}
    assert rows[lost]["status"] == "diverged" and rows["review", 0]["status"] == "finished"


def test_tensorboards_restarted_run():
    """Died at 40 and begun again at 20, to 30: the step that was given up is compared nowhere."""
    lives(({}, 0.8, STEPS), ({"purge_step": 20}, 0.0, (20, 30)))
    with pytest.raises(RRError, match="end at different steps, .*'review', seed 0 at 30"):
        made("TensorBoard")
    frame = pd.read_csv("tidy.csv")
    runs = as_rows(read_table(frame[frame.step <= 30]))
    losses = {(row["arm"], row["seed"]): row["val_loss"] for row in runs}
    assert losses == pytest.approx({run: at(run, 30) for run in RUNS}, rel=1e-6)


def test_tensorboards_restart_that_the_writer_was_not_told():
    lives(({}, 0.8, (10, 20, 30)), ({}, 0.0, (20, 30, 40)))
    with pytest.raises(RRError, match="two rows of arm 'review', seed 0 at step 20"):
        made("TensorBoard")
    frame = pd.read_csv("tidy.csv").drop_duplicates(["arm", "seed", "step"], keep="last")
    assert {row["status"] for row in as_rows(read_table(frame))} == {"finished"}


def test_lightnings_restarts_and_a_loss_that_was_nan():
    lightning()
    path = Path("logs/review-s0/version_0/metrics.csv")
    path.write_text(path.read_text().replace(f",,{at(('review', 0), 40)}\n", ",,nan\n"))
    with pytest.raises(RRError, match="end at different steps"):
        made("Lightning")
    again = Path("logs/review-s0/version_1")
    again.mkdir()
    (again / "metrics.csv").write_text(path.read_text())
    with pytest.raises(RRError, match="two rows of arm 'review', seed 0 at step 10"):
        made("Lightning", lambda code: code.replace("version_0", "version_*"))


def test_two_splits_are_two_losses_and_a_cut_line_is_an_error():
    jsonl()
    everything = 'run = run.dropna(subset="loss")'
    with pytest.raises(RRError, match="two rows of arm .* at step 10: keep one"):
        made("JSON Lines", lambda code: re.sub(r'run = run\[run\["split"\].*', everything, code))
    path = Path("logs/review-s0.jsonl")
    path.write_text(path.read_text()[:-12])
    with pytest.raises(ValueError):
        made("JSON Lines")
