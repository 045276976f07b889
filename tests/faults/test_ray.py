"""A sweep on a real Ray cluster of two nodes, one of which is killed while both train."""

import contextlib
import time

import psutil
import pytest
from workers import outcome, started

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
        nodes = Cluster()
        try:
            nodes.add_node(**small, include_dashboard=False)
            nodes.second = nodes.add_node(**small)
            break
        except Exception:  # a crowded machine takes longer than the 30 s that Ray waits for a node
            nodes.shutdown()
            if not left:
                raise
    yield nodes
    nodes.shutdown()


def wait_for(condition, process) -> None:
    until = time.monotonic() + LIMIT
    while not condition():
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.05)


def lose(cluster, node) -> None:
    """End all of a node's processes at once, as a power cut does; Ray alone takes its time."""
    (raylet,) = node.all_processes["raylet"]
    raylet = psutil.Process(raylet.process.pid)
    for process in [raylet, *raylet.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    cluster.remove_node(node, allow_graceful=False)


def cells_with_a_checkpoint(out) -> set[str]:
    """Those that would resume; a checkpoint being written is not named by its step alone."""
    return {path.parts[-3] for path in out.glob("*/checkpoint/*") if path.name.isdigit()}


def test_a_lost_nodes_cell_goes_on_elsewhere(workers, command, cluster, tmp_path):
    rules = ("standard", "review")
    steps = 1500  # both workers must train at once, though one may start seconds later
    options = command(tmp_path / "ray", steps=steps, **{"save-every": 0.2})[1:]
    words = ["sweep", *options, "--rule", *rules, "--runner", "direct"]
    words += ["--engine", "ray", "--address", cluster.address]
    log = tmp_path / "log"
    with open(log, "w") as file:
        process = started(
            ["-m", "rrstudy.cli", *words], tmp_path / "cache", stdout=file, stderr=file
        )
    try:
        wait_for(lambda: len(cells_with_a_checkpoint(tmp_path / "ray")) == 2, process)
        done = list((tmp_path / "ray").glob("*/result.json"))
        lose(cluster, cluster.second)
        assert process.wait(LIMIT) == 0, log.read_text()
    finally:
        process.kill()
    assert not done  # both cells were still training
    logs = [path.read_text() for path in (tmp_path / "ray" / ".logs").iterdir()]
    assert any("resuming from step" in log for log in logs), logs
    # the same runs, undisturbed, one after the other on this machine
    for rule in rules:
        alone = workers.rr(*command(tmp_path / "alone", steps=steps), "--rule", rule)
        assert alone.code == 0, alone.err
    for folder in (tmp_path / "alone").iterdir():
        assert outcome(tmp_path / "ray" / folder.name) == outcome(folder)
    assert len(list((tmp_path / "alone").iterdir())) == 2
