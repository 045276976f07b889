"""A sweep on a real Ray cluster of two nodes, one of which is killed while both train."""

import json
import os
import subprocess
import sys
import time

import pytest
from nursery import ROOT, outcome

LIMIT = 1800.0  # seconds: ends what hangs, never what is slow


@pytest.fixture
def cluster(monkeypatch):
    """A head node and a second one, a core each, as processes of their own on this machine."""
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_worker_niceness", "0")  # 15 gets nothing beside the other tests
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 1, "object_store_memory": 100 << 20}
    for left in (2, 1, 0):
        found = Cluster()
        try:
            found.add_node(**small, include_dashboard=False)
            found.second = found.add_node(**small)
            break
        except Exception:  # a crowded machine takes longer than the 30 s that Ray waits for a node
            found.shutdown()
            if not left:
                raise
    yield found
    found.shutdown()


def wait_for(condition, process) -> None:
    until = time.monotonic() + LIMIT
    while not condition():
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.05)


def test_a_lost_nodes_cell_goes_on_elsewhere(
    nursery, command, cluster, tmp_path, monkeypatch, capsys
):
    rules = ("standard", "review")
    steps = 600  # both workers must train at once, though one may start seconds later
    options = command(tmp_path / "ray", steps=steps, **{"save-every": 0.2})[1:]
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "RR_CACHE": str(tmp_path / "cache"),
        "OMP_NUM_THREADS": "1",
    }
    words = [
        sys.executable,
        "-m",
        "rr.cli",
        "sweep",
        *options,
        "--rule",
        *rules,
        "--runner",
        "direct",
        "--engine",
        "ray",
        "--address",
        cluster.address,
    ]
    said = tmp_path / "said"
    with open(said, "w") as file:
        process = subprocess.Popen(words, env=env, cwd=ROOT, stdout=file, stderr=file)
    try:
        both = lambda: len(list((tmp_path / "ray").glob("*/checkpoint/0*"))) >= 2  # noqa: E731
        wait_for(
            lambda: both() and len(list((tmp_path / "ray").glob("*/checkpoint"))) == 2, process
        )
        done = list((tmp_path / "ray").glob("*/result.json"))
        cluster.remove_node(cluster.second, allow_graceful=False)  # SIGKILL to its raylet
        assert process.wait(LIMIT) == 0, said.read_text()
    finally:
        process.kill()
    assert not done  # both cells were still training
    logs = [path.read_text() for path in (tmp_path / "ray" / ".logs").iterdir()]
    resumed = sum("resuming from step" in log for log in logs)
    assert resumed >= 1, logs
    # the same runs, undisturbed, one after the other on this machine
    for rule in rules:
        alone = nursery.rr(*command(tmp_path / "alone", steps=steps), "--rule", rule)
        assert alone.code == 0, alone.err
    results = {}
    for folder in sorted((tmp_path / "alone").iterdir()):
        told = json.loads((folder / "result.json").read_text())
        results[told["rule"]] = told["weights_sha256"]
        assert outcome(tmp_path / "ray" / folder.name) == outcome(folder)
    assert len(results) == 2
    with capsys.disabled():
        print(f"\nray: 2 nodes, 1 killed, {resumed} of 2 cells went on from a checkpoint, 0 lost")
