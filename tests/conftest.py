"""Shared by all tests: where things are, and what a machine must have for a test to run on it."""

import contextlib
import os
from pathlib import Path

import pytest
from drawings import chromium

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    browser = chromium() or os.environ.get("RR_REQUIRE_BROWSER") == "1"
    for item in items:
        if item.get_closest_marker("gpu") and not _cuda():
            item.add_marker(pytest.mark.skip(reason="no CUDA device, or not run by -m gpu"))
        if item.get_closest_marker("browser") and not browser:
            item.add_marker(pytest.mark.skip(reason="no Chromium (RR_REQUIRE_BROWSER=1 insists)"))


def _cuda() -> bool:
    import torch

    return torch.cuda.is_available()


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT
