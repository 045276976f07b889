"""Shared by all tests: where things are, and what a machine must have for a test to run on it."""

import contextlib
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a test that reaches for the hub fails at once
with contextlib.suppress(ImportError):  # in this process alone: notebooks' kernels draw inline
    import matplotlib

    matplotlib.use("agg")


def pytest_configure(config: pytest.Config) -> None:
    """Only `pytest -m gpu` sees a GPU: all other tests are of a machine without one.

    Else a run that names no device would take the GPU, where its path, its precision and its bits
    are others. Processes that a test starts see none, either.
    """
    if config.getoption("markexpr", "") != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what this machine cannot run, and order the rest for pytest-xdist's --dist=loadgroup.

    A file is one group, since its tests share fixtures; the pages have groups of their own. One
    process renders the site while the others do what needs none; its pages come last.
    """
    browser = any(item.get_closest_marker("browser") for item in items) and _browser()
    for item in items:
        if not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(item.path.name))
        if item.get_closest_marker("gpu") and not _cuda():
            item.add_marker(pytest.mark.skip(reason="no CUDA device, or not run by -m gpu"))
        if item.get_closest_marker("browser") and not browser:
            item.add_marker(pytest.mark.skip(reason="no Chromium (RR_REQUIRE_BROWSER=1 insists)"))
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    if "site" not in getattr(item, "fixturenames", ()):
        return 1
    return 0 if item.path.stem == "test_site" else 2  # those of test_site are in one process


def _browser() -> bool:
    from drawings import chromium  # needs packages that a rented GPU's machine lacks

    return bool(chromium()) or os.environ.get("RR_REQUIRE_BROWSER") == "1"


def _cuda() -> bool:
    import torch

    return torch.cuda.is_available()


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT
