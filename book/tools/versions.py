"""Try the project with every version of torch that pip accepts, and keep what came of it.

    python book/tools/versions.py                  # `make versions`: each minor version, in turn
    python book/tools/versions.py 2.11.0           # this one
    python book/tools/versions.py 2.11.0 --short   # its gradients and a compiled training alone

A version is installed beside this environment (_build/torch/VERSION, 1 to 7 GB, removed when it has
been tried), and comes before the environment's own; everything else stays as constraints.txt has
it. PIP_TORCH holds options for pip when it installs torch, as for `make`. What was tried goes into
data/tested_with.json, from which the page *Tested with* is made.
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from xml.etree import ElementTree

from nbkit import BUILD, ROOT, environment, sources

from rr.training.provenance import git_state, processor
from rrbook.markdown import table_row

# The first is the lower bound of pyproject.toml, the last the newest when this was written.
TORCH = ("2.9.1", "2.10.0", "2.11.0", "2.12.0", "2.13.0", "2.14.1")
COLAB = "Colab's packages"
KEPT = ROOT / "data" / "tested_with.json"
NBVAL = ["-p", "tests.notebooks.glued", "@tests/notebooks/nbval.args"]
CHECKS = {
    "gradients": ["tests/unit/test_compile_check.py"],
    "equal paths": [
        "tests/unit/test_fast_path.py",
        "tests/unit/test_run_paths.py",
        "tests/unit/test_recompute.py",
    ],
    # a network of every kind is trained, cut off and resumed
    "exact resume": ["tests/unit/test_registry.py", "-k", "broken_off"],
    "trainer": ["tests/unit/test_trainer.py", "tests/unit/test_muon.py"],
    "chapters 1, 2, 8": [*map(str, sources("01", "02", "08")), *NBVAL],
}
SHORT = {
    "gradients": [*CHECKS["gradients"], "-k", "gradients_of_every_rule or torch_2_11"],
    "equal paths": ["tests/unit/test_fast_path.py", "-k", "inductor or one_graph"],
}


def tried(python: str, checks: dict[str, list[str]], env: dict[str, str]) -> dict[str, dict]:
    """How many tests of each check passed, failed and were skipped, by pytest's own report."""
    counts = {}
    for name, arguments in checks.items():
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder, "report.xml")
            command = [python, "-m", "pytest", "-q", "-m", "not slow", f"--junitxml={report}"]
            subprocess.run([*command, *arguments], cwd=ROOT, env=env)
            counts[name] = counted(report)
    return counts


def counted(report: Path) -> dict[str, int]:
    """The counts in a report of pytest; a run without one failed as a whole."""
    if not report.exists():
        return {"passed": 0, "failed": 1, "skipped": 0}
    (suite,) = ElementTree.parse(report).getroot().iter("testsuite")
    tests, skipped = int(suite.get("tests", 0)), int(suite.get("skipped", 0))
    failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
    # a suite in which nothing passed shows nothing
    failed = failed or int(tests == skipped)
    return {"passed": max(0, tests - failed - skipped), "failed": failed, "skipped": skipped}


def kept(path: Path = KEPT) -> list[dict]:
    """The rows of the record: a fork, or a new project, has none yet."""
    return json.loads(path.read_text()) if path.exists() else []


def keep(row: dict, path: Path = KEPT) -> None:
    """Put a row into the record, in place of an earlier one of the same set."""
    rows = [other for other in kept(path) if other["set"] != row["set"]] + [row]
    rows.sort(key=lambda one: [int(n) for n in one["torch"].split("+")[0].split(".")])
    path.write_text(json.dumps(rows, indent=1) + "\n")


def versions_of(python: str, env: dict[str, str]) -> dict[str, str]:
    """Python's version, and those of the packages that a result depends on."""
    code = (
        "import platform, numpy, torch\n"
        "print(platform.python_version(), torch.__version__, numpy.__version__)"
    )
    done = subprocess.run([python, "-c", code], env=env, check=True, capture_output=True, text=True)
    return dict(zip(("python", "torch", "numpy"), done.stdout.split(), strict=True))


def try_set(name: str, python: str, checks: dict[str, list[str]], env: dict[str, str]) -> dict:
    """Try a set of packages; returns its row."""
    began = time.time()
    return {
        "set": name,
        **versions_of(python, env),
        "checks": tried(python, checks, env),
        "commit": git_state(),
        "processor": processor(),
        "date": time.strftime("%Y-%m-%d", time.gmtime(began)),
    }


def try_torch(version: str, checks: dict[str, list[str]]) -> dict:
    """Try one version of torch; the environment's own where it is that one."""
    import torch

    if torch.__version__.split("+")[0] == version:
        return try_set(f"torch {version}", sys.executable, checks, environment())
    folder = BUILD / "torch" / version
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-warn-script-location"]
    more = shlex.split(os.environ.get("PIP_TORCH", ""))
    try:
        subprocess.run([*pip, *more, "--target", folder, f"torch=={version}"], check=True)
        env = environment()
        env["PYTHONPATH"] = os.pathsep.join([str(folder), env["PYTHONPATH"]])
        env["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "kernels")
        return try_set(f"torch {version}", sys.executable, checks, env)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def failures(row: dict) -> int:
    return sum(counts["failed"] for counts in row["checks"].values())


HEAD = """(tested-with)=
# Tested with

Right where it was written is not right where it is run: torch 2.11.0 once trained four rules
without a gradient, and every test here had run with another version. So each minor version of
torch that `pyproject.toml` accepts is tried, and so are Colab's packages. `make versions` and
`make colab` wrote these rows; a run says in its `run.json` which versions it had. Take any version
in this table whose row has no failure, or that of `constraints.txt`, with which `make test` runs at
every change. Versions before the first row have no Muon, and pip refuses them.

"""
COLUMNS = ("packages", "Python", "torch", "numpy", "tried", "passed", "date", "commit")


def page(path: Path = KEPT) -> str:
    """The page *Tested with*, as Markdown."""
    lines = [table_row(COLUMNS), table_row(["---"] * len(COLUMNS))]
    rows = kept(path)
    for row in rows:
        passed = sum(counts["passed"] for counts in row["checks"].values())
        failed = failures(row)
        verdict = f"all {passed:,}" if not failed else f"{passed:,}; **{failed} failed**"
        own = [row[name] for name in ("python", "torch", "numpy")]
        tests = ", ".join(row["checks"])
        lines.append(
            table_row([row["set"], *own, tests, verdict, row["date"], str(row["commit"])[:8]])
        )
    there = {row["set"] for row in rows}
    missing = [name for name in (*map("torch {}".format, TORCH), COLAB) if name not in there]
    rest = f"\nNot tried whole yet: {', '.join(missing)}.\n" if missing else ""
    return HEAD + "\n".join(lines) + "\n" + rest


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("versions", nargs="*", default=TORCH)
    parser.add_argument("--short", action="store_true", help="gradients, one compiled training")
    given = parser.parse_args()
    bad = 0
    for version in given.versions:
        print(f"versions: torch {version}", flush=True)
        row = try_torch(version, SHORT if given.short else CHECKS)
        bad += failures(row)
        print(f"versions: torch {version}: {json.dumps(row['checks'])}", flush=True)
        if not given.short:
            keep(row)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
