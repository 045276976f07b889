"""The kernel of a cell's notebook dies: the sweep tries again, and the run is as if it had not."""

import os
import signal
import subprocess
import sys
import time

import pytest
from nursery import ROOT, only, outcome

STEPS = 400


@pytest.mark.slow
def test_a_kernel_that_dies(nursery, command, home, tmp_path, undisturbed, counts):
    pytest.importorskip("papermill")
    psutil = pytest.importorskip("psutil")
    alone, out = tmp_path / "alone", tmp_path / "out"
    assert nursery.rr(*command(alone, steps=STEPS)).code == 0
    run = only(alone).name
    env = {**os.environ, "RR_CACHE": str(home), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    words = ["sweep", *command(out, steps=STEPS, **{"save-every": 0.1})[1:]]
    sweep = subprocess.Popen(
        [sys.executable, "-m", "rr.cli", *words],
        env=env,
        cwd=ROOT,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    try:
        until = time.monotonic() + 300
        while not list(out.glob("*/checkpoint/0*/meta.json")):
            assert time.monotonic() < until and sweep.poll() is None, "no checkpoint was made"
            time.sleep(0.02)
        below = psutil.Process(sweep.pid).children(recursive=True)
        kernels = [p for p in below if "ipykernel" in " ".join(p.cmdline())]
        assert len(kernels) == 1
        os.kill(kernels[0].pid, signal.SIGKILL)
        _, said = sweep.communicate(timeout=400)
    finally:
        sweep.kill()
        sweep.wait()
    assert sweep.returncode == 0, said
    assert "crashed" in said and "resuming from step" in said, said
    assert outcome(out / run) == outcome(only(alone))
    assert (out / run / "report.ipynb").is_file()
    counts["kills"]["a notebook's kernel", "step"] += 1
    counts["runs"]["identical"] += 1
