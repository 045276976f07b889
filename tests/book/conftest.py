"""The site, rendered once from the stored outputs, a server for it, and a browser to look at it."""

import fcntl
import functools
import http.server
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from drawings import FLAGS, chromium

from tests.conftest import ROOT

SITE = ROOT / "_build" / "test-site"


def is_chapter(page: str) -> bool:
    return page.startswith("notebooks/")


@pytest.fixture(scope="session")
def site() -> Path:
    """The rendered book, made once for all of pytest-xdist's processes; no warning is let pass."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    rendered = SITE.with_suffix(".json")  # the run that rendered last, and what came of it
    SITE.parent.mkdir(exist_ok=True)
    with open(SITE.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        told = json.loads(rendered.read_text()) if rendered.exists() else {}
        if told.get("run") != run:
            command = [sys.executable, "book/tools/render.py", "--site", str(SITE)]
            result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
            told = {"run": run, "code": result.returncode, "said": result.stdout + result.stderr}
            rendered.write_text(json.dumps(told))
    assert told["code"] == 0, f"the book does not render:\n{told['said']}"
    return SITE


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args) -> None:
        pass


@pytest.fixture(scope="session")
def server(site: Path):
    """The address of a server for the site, on this machine only."""
    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


@pytest.fixture(scope="module")
def browser():
    """Chromium, ended with the module: two drivers cannot run in one thread at a time."""
    from playwright.sync_api import sync_playwright

    path = chromium()
    assert path, "RR_REQUIRE_BROWSER=1, but no Chromium is installed"
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield running
        running.close()
