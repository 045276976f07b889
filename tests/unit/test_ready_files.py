"""The files to run `rr` elsewhere: each against stand-ins for its service, on real tiny runs."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

import rr
from rrstudy import cli

READY = Path(rr.__file__).parents[1] / "book" / "ready"
SKY = yaml.safe_load((READY / "sky.yaml").read_text())
SCRIPTS = {name: (READY / name).read_text()
           for name in ("slurm.sbatch", "runpod_start.sh", "ray_job.sh")}  # fmt: skip
SCRIPTS |= {part: SKY[part] for part in ("setup", "run")}


@pytest.fixture(scope="module")
def tiny(tiny_corpus):
    """The words of a tiny run."""
    words = "--rung nano:n_layer=2,d_model=32,seq_len=64 --batch 2 --steps 60 --eval-batches 2"
    given = ["--corpus", tiny_corpus, "--tokenizer", "bpe:300"]
    return [*words.split(), "--threads", "1", "--rule", "review", *given]


@pytest.fixture(scope="module")
def undisturbed(tiny, tmp_path_factory):
    """The fingerprint of the tiny run's weights when nothing happens."""
    folder = tmp_path_factory.mktemp("runs")
    assert cli.main(["train", *tiny, "--out", str(folder)]) in (0, None)
    return fingerprint(folder)


def tool(folder: Path, name: str, text: str) -> None:
    """A stand-in on the path."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/bash\n{text}\n")
    (folder / name).chmod(0o755)


def environment(bin: Path, **more) -> dict:
    """Where stand-ins come first, and `rr` and `python` are this Python's."""
    python = sys.executable
    root = READY.parents[1]
    tool(bin, "rr", f'PYTHONPATH="{root}" exec "{python}" -m rrstudy.cli "$@"')
    return {**os.environ, "PATH": f"{bin}:{os.environ['PATH']}", **more}


def wait_for(there, process: subprocess.Popen) -> None:
    since = time.monotonic()
    while not there():
        assert process.poll() is None and time.monotonic() - since < 120
        time.sleep(0.01)


def interrupted(command: list, env: dict, out: Path) -> str:
    """What a command printed that was stopped once the run below `out` had recorded ten steps."""
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(command, env=env, **both)

    def ten_steps():
        return any(p.read_text().count("\n") >= 10 for p in out.glob("*/metrics.jsonl"))

    wait_for(ten_steps, process)
    process.send_signal(signal.SIGTERM)
    printed = process.communicate()[0]
    assert process.returncode == 130
    return printed


def answer(command: list, env: dict) -> subprocess.CompletedProcess:
    return subprocess.run(command, env=env, capture_output=True, text=True)


def goes_on(command: list, env: dict, out: Path, undisturbed: str) -> None:
    again = answer(command, env)
    assert again.returncode == 0 and "resuming from step" in again.stderr
    assert fingerprint(out) == undisturbed


def fingerprint(out: Path) -> str:
    (path,) = out.glob("*/result.json")
    return json.loads(path.read_text())["weights_sha256"]


# ---- all of them -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_bash(name):
    commands = [["bash", "-n"]]
    if shutil.which("shellcheck"):
        commands.append(["shellcheck", "-s", "bash", "-"])
    for command in commands:
        done = subprocess.run(command, input=SCRIPTS[name], text=True, capture_output=True)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["slurm.sbatch", "runpod_start.sh", "sky.yaml"])
def test_the_sweeps_they_name_are_sweeps(name, capsys):
    text = re.sub(r"\\\n#?", " ", (READY / name).read_text())
    words = re.search(r"rr sweep (--[^>\n]*)", text)[1].split()
    cells = len(words[words.index("--rung") : words.index("--rule")]) - 1
    cells *= len(words[words.index("--rule") : words.index("--seed")]) - 1
    assert cli.main(["sweep", *words, *["--dry-run"] * ("--dry-run" not in words)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 * cells and all(line.startswith("rr train ") for line in lines)


# ---- Slurm -------------------------------------------------------------------------------------


def slurm(tmp_path: Path, task: int, tiny: list) -> tuple[list, dict]:
    """The batch script's command and environment, with stand-ins for srun and scontrol.

    Of three lines the second is a run, the third a notebook, as `rr sweep --dry-run` prints them.
    """
    bin, work = tmp_path / "bin", tmp_path / "work"
    work.mkdir(exist_ok=True)
    tool(bin, "srun", 'exec "$@"')  # as srun, it hands every signal on
    tool(bin, "scontrol", f'echo "$@" >> {tmp_path}/asked')
    (tmp_path / "venv" / "bin").mkdir(parents=True, exist_ok=True)
    (tmp_path / "venv" / "bin" / "activate").touch()
    (work / "cells.txt").write_text(
        f"rr no-such-verb\nrr train {' '.join(tiny)} --out runs\nmkdir -p a && papermill b.ipynb\n"
    )
    job = {"SLURM_SUBMIT_DIR": str(work), "SLURM_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": str(task)}
    env = environment(bin, VENV=str(tmp_path / "venv"), **job)
    return ["bash", str(READY / "slurm.sbatch")], env


@pytest.mark.slow  # a whole run in processes of its own: `make faults`
def test_a_slurm_task_that_is_stopped_saves_asks_again_and_goes_on(tmp_path, tiny, undisturbed):
    command, env = slurm(tmp_path, 2, tiny)
    out = tmp_path / "work" / "runs"
    # the signal goes to the batch shell alone, as by --signal=B:TERM@120
    assert "asking for another turn" in interrupted(command, env, out)
    assert (tmp_path / "asked").read_text() == "requeue 17\n"
    goes_on(command, env, out, undisturbed)
    assert (tmp_path / "asked").read_text() == "requeue 17\n"  # no more turns


@pytest.mark.parametrize(
    "task, words", [(1, "invalid choice"), (3, "--runner direct"), (4, "--array=1-3")]
)
def test_a_slurm_task_that_cannot_run_is_not_asked_for_again(tmp_path, tiny, task, words):
    done = answer(*slurm(tmp_path, task, tiny))
    assert done.returncode == 2 and words in done.stderr
    assert not (tmp_path / "asked").exists()


# ---- RunPod ------------------------------------------------------------------------------------


def pod(tmp_path, torch: str = "2.9.0+cu128", gpu: str = "NVIDIA A40") -> dict:
    """A pod's environment: the image's Python with that torch and GPU, and its own /start.sh."""
    bin, volume = tmp_path / "bin", tmp_path / "workspace"
    volume.mkdir()
    env = environment(
        bin, WORKSPACE=str(volume), HOME=str(tmp_path / "home"), SERVICES=str(tmp_path / "start.sh")
    )
    tool(
        bin,
        "python3",
        f"""
if [ "$1" = --version ]; then echo Python 3.12; exit; fi
if [[ "$2" == *torch.__version__* ]]; then echo "{torch}"; [ -n "{torch}" ]; exit; fi
if [[ "$2" == *get_device_name* ]]; then echo "{gpu}"; [ -n "{gpu}" ]; exit; fi
[ "$1 $2 $3" = "-m venv --system-site-packages" ] || exit 1
mkdir -p "$4/bin"; echo venv >> {tmp_path}/made; touch "$4/bin/activate"
printf '#!/bin/bash\\necho "$@" >> {tmp_path}/made\\n' > "$4/bin/python"; chmod +x "$4/bin/python"
""",
    )
    tool(bin, "nvidia-smi", "echo 535.104.05")
    # the corpus that is tokenised already: the script's own cache would begin empty
    (volume / "cache").mkdir()
    (volume / "cache" / "rr").symlink_to(env["RR_CACHE"])
    return env


@pytest.mark.slow  # a whole run in processes of its own: `make faults`
def test_a_pod_makes_its_environment_once_and_goes_on(tmp_path, tiny, undisturbed):
    env, volume, services = pod(tmp_path), tmp_path / "workspace", tmp_path / "services"
    tool(tmp_path, "start.sh", f"""
sleep 600 &
trap 'echo ended >> {services}; kill $!; exit' TERM
echo started >> {services}
wait""")  # fmt: skip
    out = volume / "runs"
    command = ["bash", str(READY / "runpod_start.sh"), "rr", "train", *tiny, "--out", str(out)]
    assert "torch 2.9.0+cu128 on NVIDIA A40" in interrupted(command, env, out)
    # ssh and Jupyter were there meanwhile, and are not left behind
    assert services.read_text() == "started\nended\n"
    (tmp_path / "start.sh").unlink()
    # pip may add, but not replace the image's torch
    assert (volume / "venv" / "image.txt").read_text() == "torch==2.9.0+cu128\n"
    goes_on(command, env, out, undisturbed)
    made = (tmp_path / "made").read_text()  # once, not a second time
    assert made.startswith("venv\n-m pip install -q -c ") and made.count("\n") == 2
    assert not (tmp_path / "home").exists()  # nothing on the container's own disk


@pytest.mark.parametrize(
    ("image", "words"),
    [
        ({"torch": ""}, "no torch for its python3"),
        ({"torch": "2.8.0+cu128"}, "has torch 2.8.0+cu128, expected >= 2.9"),
        ({"torch": "2.10.0+cu130", "gpu": ""}, "finds no GPU (driver: 535.104.05)"),
        (None, "is the network volume mounted"),
    ],
)
def test_a_pod_that_does_not_fit_is_named_before_anything_is_installed(tmp_path, image, words):
    env = pod(tmp_path, **(image or {}))
    if image is None:
        env["WORKSPACE"] = str(tmp_path / "none")
    done = answer(["bash", str(READY / "runpod_start.sh"), "true"], env)
    assert done.returncode == 2 and words in done.stderr
    assert not (tmp_path / "made").exists()


# ---- SkyPilot ----------------------------------------------------------------------------------


def test_what_a_sky_task_writes_lies_in_its_bucket():
    ((mounted, bucket),) = SKY["file_mounts"].items()
    assert bucket["mode"] == "MOUNT_CACHED" and SKY["resources"]["use_spot"] is True
    assert f"--out {mounted}/" in SKY["run"] and SKY["envs"]["RR_CACHE"].startswith(mounted)


# ---- Ray ---------------------------------------------------------------------------------------


def test_the_ray_job_submits_the_sweep_with_its_code_and_time_to_save(tmp_path):
    tool(tmp_path, "ray", 'printf "%s\\n" "$PWD" "$@"')
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "RR_CACHE": "/shared/rr"}
    command = ["bash", str(READY / "ray_job.sh"), "--rung", "60M", "--out", "/shared/runs"]
    done = answer(command, env)
    assert done.returncode != 0 and "RAY_ADDRESS" in done.stderr
    where, *words = answer(command, env | {"RAY_ADDRESS": "http://head"}).stdout.splitlines()
    assert (Path(where) / "rr" / "cli" / "__main__.py").exists()  # what travels is the project
    options, entry = words[: words.index("--")], words[words.index("--") + 1 :]
    given = json.loads(options[options.index("--runtime-env-json") + 1])
    assert given == {"env_vars": {"RR_CACHE": "/shared/rr", "RAY_JOB_STOP_WAIT_TIME_S": "630"}}
    assert options[:2] == ["job", "submit"] and "--working-dir" in options
    wanted = "python -m rrstudy.cli sweep --engine ray --address auto --rung 60M --out /shared/runs"
    assert entry == wanted.split()


# ---- Colab -------------------------------------------------------------------------------------


def colab(tmp_path: Path, machine: str, words=()) -> str:
    """The cell's text on a machine of that name; Drive is one folder for all of them."""
    text = (READY / "colab_cell.py").read_text()
    command = re.search(r"^COMMAND = (.*)$", text, re.MULTILINE)[1]
    drive = "from types import SimpleNamespace\n\ndrive = SimpleNamespace(mount=print)"
    for old, new in (
        ("from google.colab import drive", drive),
        ("/content/drive/MyDrive/rr-runs", str(tmp_path / "drive")),
        ("/content/runs", str(tmp_path / machine)),
        ("MINUTES = 12.0", "MINUTES = 0.002"),
        (command, repr([*words])),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    return text


@pytest.mark.slow  # a whole run in processes of its own: `make faults`
def test_a_colab_machine_that_is_lost_costs_what_was_not_copied(tmp_path, tiny, undisturbed):
    words, kept = ["train", *tiny, "--save-every", "0.1"], tmp_path / "drive"
    first, second = (
        [sys.executable, "-c", colab(tmp_path, machine, words)] for machine in ("first", "second")
    )
    env = {**os.environ, "PYTHONPATH": str(READY.parents[1])}
    cell = subprocess.Popen(first, start_new_session=True, env=env)
    wait_for(lambda: [*kept.glob("*/checkpoint/*/meta.json")], cell)
    os.killpg(cell.pid, signal.SIGKILL)  # the machine is gone, its disk with it
    cell.wait()
    shutil.rmtree(tmp_path / "first")
    again = answer(second, env)
    assert "resuming from step" in again.stderr and "code 0" in again.stdout
    assert re.search(r"Drive: [\d.]+ of [\d.]+ GB used, 0\.0 GB by", again.stdout)
    assert fingerprint(kept) == fingerprint(tmp_path / "second") == undisturbed
    # of the machine's two last checkpoints Drive holds the newest
    steps = sorted(p.name for p in (tmp_path / "second").glob("*/checkpoint/*"))
    assert [p.name for p in kept.glob("*/checkpoint/*")] == steps[-1:]


def cell_of(tmp_path: Path, *words: str) -> SimpleNamespace:
    """The names of the cell with that command, up to where Drive is mounted."""
    names = {}
    exec(colab(tmp_path, "machine", words).partition("drive.mount(")[0], names)
    return SimpleNamespace(**names)


def checkpoint(home: Path, step: int, *, sealed: bool = True) -> None:
    """A checkpoint of one kilobyte; without its seal, one that is being written."""
    folder = home / "id" / "checkpoint" / f"{step:08d}"
    folder.mkdir(parents=True)
    (folder / "state.pt").write_bytes(bytes(1000))
    if sealed:
        (folder / "meta.json").write_text("{}")


def test_what_is_newer_here_is_not_replaced_by_the_copy(tmp_path, capsys):
    """The last copy failed, and the cell is run again on the same machine."""
    one = cell_of(tmp_path)
    for place, content, when in ((one.KEPT, "older", 1000), (one.RUNS, "newer", 2000)):
        (place / "id").mkdir(parents=True)
        (place / "id" / "metrics.jsonl").write_text(content)
        os.utime(place / "id" / "metrics.jsonl", (when, when))
    one.mirror(one.KEPT, one.RUNS, newest=False)
    assert (one.RUNS / "id" / "metrics.jsonl").read_text() == "newer"
    one.mirror(one.RUNS, one.KEPT, one.NEWEST)
    assert (one.KEPT / "id" / "metrics.jsonl").read_text() == "newer"
    assert [path.name for path in (one.KEPT / "id").iterdir()] == ["metrics.jsonl"]


def test_a_drive_that_is_gone_for_a_while_ends_no_copying(tmp_path, monkeypatch, capsys):
    def gone(path):
        raise OSError(107, "Transport endpoint is not connected")

    one = cell_of(tmp_path, "train", "--budgets=20,40")
    assert not one.NEWEST
    monkeypatch.setattr(shutil, "disk_usage", gone)
    one.attempt.__globals__["ended"] = threading.Event()
    assert one.attempt(lambda: gone("")) is False
    assert "the next try is in" in capsys.readouterr().out


def test_a_line_that_is_written_during_the_copy_comes_with_the_next(tmp_path, monkeypatch):
    one = cell_of(tmp_path)
    (one.RUNS / "id").mkdir(parents=True)
    curve = one.RUNS / "id" / "metrics.jsonl"
    curve.write_text("step 1")
    copyfile = shutil.copyfile

    def slow(source, target):
        copyfile(source, target)
        curve.write_text("step 1, step 2")

    monkeypatch.setattr(shutil, "copyfile", slow)
    one.mirror(one.RUNS, one.KEPT, one.NEWEST)
    monkeypatch.undo()
    one.mirror(one.RUNS, one.KEPT, one.NEWEST)
    assert (one.KEPT / "id" / "metrics.jsonl").read_text() == "step 1, step 2"


def test_an_older_one_stays_until_the_newer_is_whole_and_where_a_branch_goes_back_to_it(tmp_path):
    def on_drive():
        return sorted(int(p.name) for p in one.KEPT.glob("*/checkpoint/*"))

    one = cell_of(tmp_path)
    checkpoint(one.RUNS, 10)
    one.mirror(one.RUNS, one.KEPT, one.NEWEST)
    checkpoint(one.RUNS, 20, sealed=False)
    one.mirror(one.RUNS, one.KEPT, one.NEWEST)
    checkpoint(one.KEPT, 15, sealed=False)  # a copy that was cut off
    one.tidy()
    assert on_drive() == [10]
    shutil.rmtree(one.RUNS / "id")
    one = cell_of(tmp_path, "train", "--budgets", "20,40")
    for step in (16, 20, 24):
        checkpoint(one.RUNS, step)
    one.mirror(one.RUNS, one.KEPT, one.NEWEST)
    shutil.rmtree(one.RUNS / "id" / "checkpoint" / "00000020")
    one.tidy()
    assert on_drive() == [16, 24]
