"""Runs and machines, as people reported them to other projects; see tests/reports.md."""

import importlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from filelock import SoftFileLock
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny import TINY, train

import rr
from rr import io
from rr.errors import EXTRAS, RRError, RunFailed
from rr.training.checkpoint import Checkpoints
from rrstudy import cli
from rrstudy.stats.records import read_record
from rrstudy.sweep import notebook, ray_engine
from rrstudy.sweep.process import Process
from rrstudy.sweep.ray_engine import RayEngine

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def asked(monkeypatch):
    """(a model of a window of 16, what `rr eval` answers lm-eval), lm-eval being a stand-in."""
    if importlib.util.find_spec("lm_eval") is None:
        for name in ("", ".api", ".api.instance", ".api.model", ".tasks", ".utils"):
            monkeypatch.setitem(sys.modules, f"lm_eval{name}", MagicMock(TemplateLM=object))
    config = rr.ModelConfig(64, n_layer=1, n_head=1, d_model=8, d_ff=16, seq_len=16)
    model = rr.model.initialise(rr.Model(config), seed=0).eval()
    harness = importlib.import_module("rrstudy.harness")
    scores = harness.Harness(model, SimpleNamespace(eot=0))
    scores.cache_hook = SimpleNamespace(add_partial=lambda *_: None)
    yield model, scores._loglikelihood_tokens
    sys.modules.pop("rrstudy.harness", None)


@pytest.mark.parametrize("size", [3, 24])
def test_a_choice_is_scored_at_its_own_tokens_where_the_prompt_is_cut(asked, size):
    """The window is 16 tokens: the prompt loses its beginning, a longer choice its own."""
    model, answers = asked
    prompt, choice = list(range(1, 21)), [i % 50 + 7 for i in range(size)]
    ((got, _),) = answers([(("p", "c"), prompt, choice)])
    whole, kept = [*prompt, *choice], choice[-16:]
    logp = model(torch.tensor([whole[-17:-1]])).log_softmax(-1)[0]
    wanted = sum(logp[16 - len(kept) + i, token].item() for i, token in enumerate(kept))
    assert got == pytest.approx(wanted, rel=1e-4)
    with pytest.raises(RRError, match="empty text is after 'Is it[?] '"):
        answers([(("p", "c"), prompt, choice), (("Is it? ", ""), [0, 1], [])])


def test_import_rr_costs_no_torch_and_no_module_needs_what_only_unix_has():
    """Windows has no fcntl, and no resource: neither may be imported where a module begins."""
    packages = sorted(path.parent.name for path in Path(rr.__file__).parent.glob("*/__init__.py"))
    code = (
        "import sys\n"
        "for name in ('fcntl', 'resource', 'pwd', 'grp', 'termios'): sys.modules[name] = None\n"
        "import rr; assert 'torch' not in sys.modules\n"
        f"for name in {[name for name in packages if name != 'cli']}: getattr(rr, name)\n"
        "for name in rr.__all__: getattr(rr, name)\n"
        "from rrstudy.cli import VERBS, parser\n"
        "import rrstudy.sweep.schedule, rr.training.trainer, rrstudy.perf.doctor\n"
        "[parser([verb]) for verb in VERBS]"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    # filelock itself says what it does without fcntl
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", [*EXTRAS, "nowhere"])
def test_a_missing_package_is_installed_by_the_extra_that_has_it(package, monkeypatch, refuses):
    def fails(*given):
        raise ModuleNotFoundError(f"No module named {package!r}", name=f"{package}.part")

    monkeypatch.setattr(rr.cli, "parser", fails)
    line = refuses("rules")
    assert f"package {package}, which is missing" in line
    extra = EXTRAS.get(package)
    assert f"pip install {f'-e .[{extra}]' if extra else package}" in line.replace("'", "")
    if extra:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        held = [
            words.lower().replace("-", "_") for words in project["optional-dependencies"][extra]
        ]
        assert any(words.startswith(package.lower()) for words in held)


# flock that always succeeds; where a system has none, filelock takes a file, which a kill leaves
@pytest.mark.parametrize("kind", [lambda *given, **more: MagicMock(), SoftFileLock])
def test_a_file_system_without_locks_is_refused(kind, tmp_path, monkeypatch):
    lock = io.try_lock(tmp_path / "a")
    assert lock and io.try_lock(tmp_path / "a") is None
    lock.release()
    monkeypatch.setattr(io, "FileLock", kind)
    with pytest.raises(RRError, match="locks do not work there.*local folder"):
        io.try_lock(tmp_path / "b")


def test_a_notebooks_kernel_is_the_interpreter_that_runs_rr(tmp_path, monkeypatch):
    """Though a python3 in the user's folder, or in JUPYTER_PATH, is another one; reports say so.

    The notebook was saved on another machine, with a kernel that is not here.
    """
    nbformat = pytest.importorskip("nbformat")
    for data in (tmp_path / "user", tmp_path / "path"):
        spec = data / "kernels" / "python3"
        spec.mkdir(parents=True)
        words = {"argv": ["/bin/false"], "display_name": "Other", "language": "python"}
        (spec / "kernel.json").write_text(json.dumps(words))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "user"))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "path"))
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "0")
    parameters = nbformat.v4.new_code_cell("seed = 0", metadata={"tags": ["parameters"]})
    code = "from rrbook import reports\nprint(seed, reports.made_by())"
    book = nbformat.v4.new_notebook(cells=[parameters, nbformat.v4.new_code_cell(code)])
    spec = {"name": "my_env", "display_name": "Mine", "language": "python"}
    book.metadata = nbformat.from_dict({"kernelspec": spec})
    path, report = tmp_path / "a.ipynb", tmp_path / "report.ipynb"
    nbformat.write(book, path)
    words = notebook.papermill(path, report, {"seed": 7})
    process = Process(["-m", *words, "--no-progress-bar"], tmp_path / "log", {})
    assert process.process.wait(120) == 0, (tmp_path / "log").read_text()
    printed = nbformat.read(report, 4).cells[-1].outputs[0].text.strip()
    assert printed.startswith("7 report made by Python 3.") and printed.endswith(
        f", {sys.executable}"
    )


@pytest.mark.parametrize(
    ("device", "fraction", "cells", "asks"),
    [(None, None, 1, 1.0), ("cpu", None, 4, 0.0), (None, 0.5, 2, 0.5)],
)
def test_cells_on_the_cpu_ask_a_cluster_for_no_gpu(monkeypatch, device, fraction, cells, asks):
    size, ray = {"CPU": 4.0, "GPU": 1.0}, MagicMock()
    ray.cluster_resources.return_value = size
    ray.nodes.return_value = [{"Alive": True, "Resources": size}]
    monkeypatch.setitem(sys.modules, "ray", ray)
    engine = RayEngine(None, fraction, None, None, 1, print, device=device)
    assert engine.free_slots == cells
    assert ray.remote.return_value.options.call_args.kwargs["num_gpus"] == asks
    engine.close()


def test_a_node_without_the_folder_of_runs_trains_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log = tmp_path / "elsewhere" / "runs" / ".logs" / "id.log"
    with pytest.raises(FileNotFoundError, match="runs is not there on this node: share the folder"):
        ray_engine._run(["-c", "raise SystemExit"], str(log), {}, str(tmp_path))
    assert not (tmp_path / "elsewhere").exists()


@pytest.fixture
def engine_on(monkeypatch):
    """engine_on(gpus, fraction, cpus, processes) -> the engine on one node with these GPUs."""
    opened = []

    def start(gpus=1, fraction=None, cpus=None, processes=1):
        size, ray = {"CPU": 64.0, "GPU": float(gpus)}, MagicMock()
        ray.cluster_resources.return_value = size
        ray.nodes.return_value = [{"Alive": True, "Resources": size}]
        monkeypatch.setitem(sys.modules, "ray", ray)
        opened.append(RayEngine(None, fraction, cpus, None, processes, print))
        return opened[-1]

    yield start
    for engine in opened:
        engine.close()


@pytest.mark.parametrize(
    ("gpus", "fraction", "cells"),
    [(1, 0.2, 5), (1, 0.1, 10), (8, 0.2, 40), (2, 0.6, 2), (8, 0.7, 8), (3, 1 / 3, 9), (8, 2, 4)],
)
def test_a_share_is_of_one_gpu_and_is_counted_exactly(engine_on, gpus, fraction, cells):
    assert engine_on(gpus, fraction).free_slots == cells


@pytest.mark.parametrize("fraction", [1.5, 0.00001])
def test_a_share_that_ray_would_refuse_is_refused_first(engine_on, fraction):
    with pytest.raises(RRError, match="gpu-fraction must be from 0.0001 to 1, or whole"):
        engine_on(1, fraction)


def test_the_processes_of_a_cell_share_its_cores(engine_on):
    assert engine_on(0, cpus=4, processes=4).threads == 1
    assert engine_on(0, cpus=4, processes=1).threads == 4


def test_why_the_cluster_could_not_start_a_cell_is_in_its_log(engine_on, tmp_path):
    class Refused(Exception):
        pass

    engine = engine_on()
    engine.ray.exceptions.RayError = Refused
    engine.ray.exceptions.TaskCancelledError = type("Cancelled", (Refused,), {})
    engine.ray.wait.return_value = (["ready"], [])
    engine.ray.get.side_effect = Refused("Traceback\nModuleNotFoundError: No module named 'rr'")
    task = engine.start(["-m", "rr.cli"], tmp_path / ".logs" / "cell.log", {})
    assert task.poll() == 1
    said = (tmp_path / ".logs" / "cell.log").read_text()
    assert said == "rr: on the cluster: ModuleNotFoundError: No module named 'rr'\n"


def test_a_compilers_cache_that_cannot_be_written_is_one_line(tmp_path, tiny_corpus):
    (tmp_path / "file").touch()
    place = tmp_path / "file" / "cache"  # also root cannot write there
    words = f"train --rung {TINY} --corpus {tiny_corpus} --tokenizer bpe:300 --steps 2 --device cpu"
    command = [sys.executable, "-m", "rrstudy.cli", *words.split(), "--out", str(tmp_path / "runs")]
    env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(place)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 3 and "Traceback" not in done.stderr
    assert f"rr: cannot write in {place}" in done.stderr.splitlines()[-1]


def test_a_killed_run_gives_the_same_curve_in_its_export(planned, tmp_path, monkeypatch, cut_off):
    """Killed between two saves, and resumed; W&B keeps each life, without steps that fall back."""
    lives, save = [], Checkpoints.save

    def log(scalars, step):
        if not lives[-1] or step >= lives[-1][-1][0]:
            lives[-1].append((step, scalars))

    def few(self, done, state):
        if done in (5, 20):
            save(self, done, state)

    def init(**given):
        lives.append([])
        return SimpleNamespace(log=log, finish=lambda: None)

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init, __spec__=True))
    monkeypatch.setattr(Checkpoints, "save", few)
    run, how = planned(steps=20), {"save_every": 1e-9, "charts": "wandb"}
    with cut_off(10):
        train(run, tmp_path, **how)
    folder = train(run, tmp_path, **how)
    logged = [(step, stated["loss"]) for life in lives for step, stated in life if "loss" in stated]
    kept = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    recorded = [(line["step"], line["loss"]) for line in kept if "loss" in line]
    assert len(logged) == len(recorded) + 5 and dict(logged) == dict(recorded)


FILES = ("run.json", "result.json", "metrics.jsonl")


@pytest.fixture
def sealed(planned, tmp_path):
    return train(planned(), tmp_path / "runs")


def contents(folder: Path) -> list:
    record = read_record(folder)
    return [record.object("run.json"), record.object("result.json"), record.curve()]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(FILES),
    st.integers(0, 999),
    st.sampled_from(["byte", "cut", "twice", "line"]),
    st.integers(0, 255),
)
def test_a_damaged_record_is_the_same_or_one_line(sealed, tmp_path, name, place, kind, byte):
    whole = contents(sealed)
    for file in FILES:
        shutil.copy(sealed / file, tmp_path / file)
    data = bytearray((sealed / name).read_bytes())
    at = place * len(data) // 1000
    if kind == "byte":
        data[at] = byte
    elif kind == "cut":
        del data[at:]
    elif kind == "twice":
        data[at:at] = data[at : at + 40]
    else:  # a line is lost
        lines = bytes(data).splitlines(keepends=True)
        del lines[place * len(lines) // 1000]
        data = bytearray(b"".join(lines))
    (tmp_path / name).write_bytes(data)
    try:
        assert contents(tmp_path) == whole
    except RunFailed as error:
        assert name in str(error) or name == "result.json"  # which holds the hash of the curve


def test_the_lines_of_a_dry_run_run_as_they_stand(tmp_path, monkeypatch, capsys):
    """In an empty folder, with a stand-in for papermill that writes its report."""
    monkeypatch.chdir(tmp_path)
    bin = tmp_path / "bin"
    bin.mkdir()
    (bin / "papermill").write_text('#!/bin/sh\necho done > "$2"\n')
    (bin / "papermill").chmod(0o755)
    assert cli.main(["sweep", "--dry-run", "--seed", "0", "1", "--out", "my runs"]) == 0
    out, err = capsys.readouterr()
    assert "create" not in err
    path = f"{bin}{os.pathsep}{os.environ['PATH']}"
    for line in out.splitlines():
        subprocess.run(["bash", "-c", line], check=True, env={**os.environ, "PATH": path})
    assert len(list((tmp_path / "my runs").glob("*/report.ipynb"))) == 2
