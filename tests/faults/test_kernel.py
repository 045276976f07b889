"""The kernel of a cell's notebook dies: the sweep tries again, and the run is as if it had not."""

import os
import signal
import subprocess
import time

import pytest
from workers import only, outcome, started

STEPS = 400


@pytest.mark.slow
def test_a_kernel_that_dies(workers, command, home, tmp_path, undisturbed, counts):
    pytest.importorskip("papermill")
    psutil = pytest.importorskip("psutil")
    alone, out = tmp_path / "alone", tmp_path / "out"
    assert workers.rr(*command(alone, steps=STEPS)).code == 0
    run = only(alone).name
    words = ["sweep", *command(out, steps=STEPS, **{"save-every": 0.1})[1:]]
    pipes = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL}
    sweep = started(["-m", "rrstudy.cli", *words], home, **pipes)
    try:
        until = time.monotonic() + 300
        while not list(out.glob("*/checkpoint/0*/meta.json")):
            assert time.monotonic() < until and sweep.poll() is None, "no checkpoint was made"
            time.sleep(0.02)
        below = psutil.Process(sweep.pid).children(recursive=True)
        kernels = [p for p in below if "ipykernel" in " ".join(p.cmdline())]
        assert len(kernels) == 1
        os.kill(kernels[0].pid, signal.SIGKILL)
        _, err = sweep.communicate(timeout=400)
    finally:
        sweep.kill()
        sweep.wait()
    assert sweep.returncode == 0, err
    assert "crashed" in err and "resuming from step" in err, err
    assert outcome(out / run) == outcome(only(alone))
    assert (out / run / "report.ipynb").is_file()
    counts["SIGKILLs of a notebook's kernel"] += 1
    counts["runs identical"] += 1
