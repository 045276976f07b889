"""Try the whole project with the versions that Colab has, as far as the package index holds them.

    python book/tools/colab.py         # `make colab`

In a new environment (_build/colab; CUDA's libraries come with torch: about 6 GB, some minutes) with
Colab's own versions: run a notebook's first cell as it stands, on this checkout's last commit; see
that pip replaced nothing; then every unit test, every lab, and all notebooks against their stored
outputs. What came of it is kept with that of `versions.py`. Not seen: Colab itself, its front end,
its other packages, a GPU.

    python book/tools/colab.py versions     # `make colab-versions`: has Colab moved on?

PIP_TORCH holds options for pip when it installs torch, as for `make`. PYTHON names a Python 3.13.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

import bootstrap
import home
import versions
from nbkit import BUILD, ROOT, environment

# as of August 2026
PYTHON = "3.13"
VERSIONS = {
    "torch": "2.11.0",
    "numpy": "2.1.3",
    "pandas": "2.2.3",
    "ipython": "7.34.0",
    "ipykernel": "6.17.1",
    "ipywidgets": "7.7.1",
    "transformers": "5.15.0",
}
# what Colab's runtime has, in the form of `pip freeze`
LIST = "https://raw.githubusercontent.com/googlecolab/backend-info/main/pip-freeze.txt"
FOLDER = BUILD / "colab"
FOREIGN = FOLDER / "venv" / "bin" / "python"
CHECKS = {
    "unit tests": ["tests/unit"],
    "labs": ["tests/colab"],
    "all chapters": ["notebooks", *versions.NBVAL],
}
# what torch, Colab's front end and its transformers choose by themselves
OTHERS = (
    "triton",
    "setuptools",
    "widgetsnbextension",
    "jupyterlab_widgets",
    "jedi",
    "traitlets",
    "huggingface_hub",
    "tokenizers",
    "typer",
)


def alone() -> dict[str, str]:
    """The environment of what must not see this checkout's rr."""
    return {name: value for name, value in environment().items() if name != "PYTHONPATH"}


def installed() -> dict[str, str]:
    """Name and version of every package of the environment."""
    code = (
        "from importlib.metadata import distributions\n"
        "for one in distributions():\n"
        "    print(one.metadata['Name'].lower().replace('_', '-'), one.version)"
    )
    done = subprocess.run([FOREIGN, "-c", code], check=True, capture_output=True, text=True)
    return dict(line.split() for line in done.stdout.splitlines())


def python() -> str:
    """A Python of Colab's version; ends with one line where there is none."""
    name = os.environ.get("PYTHON") or f"python{PYTHON}"
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([name, "-c", code], capture_output=True, text=True)
    except OSError:
        done = None
    if done is None or done.returncode:
        raise SystemExit(f"colab: {name} does not run: give PYTHON=... of a Python {PYTHON}")
    if done.stdout.strip() != PYTHON:
        raise SystemExit(f"colab: {name} is Python {done.stdout.strip()}, Colab has {PYTHON}")
    return name


def make() -> None:
    """The environment with Colab's versions; made once."""
    ready = FOLDER / "ready"
    wanted = repr((PYTHON, VERSIONS))
    if ready.exists() and ready.read_text() == wanted:
        return
    own = python()
    shutil.rmtree(FOLDER, ignore_errors=True)
    subprocess.run([own, "-m", "venv", FOLDER / "venv"], check=True)
    pip = [FOREIGN, "-m", "pip", "install", "-q"]
    more = shlex.split(os.environ.get("PIP_TORCH", ""))
    subprocess.run([*pip, *more, f"torch=={VERSIONS['torch']}"], check=True)
    others = [f"{name}=={version}" for name, version in VERSIONS.items() if name != "torch"]
    subprocess.run([*pip, *others], check=True)
    ready.write_text(wanted)


def test_packages() -> None:
    """Add what the tests need, at our versions where Colab has none of its own."""
    chosen = FOLDER / "constraints.txt"
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    left_out = {*VERSIONS, *OTHERS}
    kept = [line for line in lines if line.partition("==")[0].lower() not in left_out]
    kept += [f"{name}=={version}" for name, version in VERSIONS.items()]
    chosen.write_text("\n".join(kept) + "\n")
    command = [FOREIGN, "-m", "pip", "install", "-q", "-c", chosen, "-e", ".[book,test,hub]"]
    subprocess.run([*command, "-e", "book"], cwd=ROOT, check=True)


def first_cell(content: Path) -> list[str]:
    """Run the bootstrap cell in an empty folder; what pip replaced of what was there."""
    subprocess.run([FOREIGN, "-m", "pip", "uninstall", "-q", "-y", "review-residuals"], check=True)
    before = installed()
    (content / "cell.py").write_text(bootstrap.source(str(ROOT), home.version() or "HEAD"))
    subprocess.run([FOREIGN, "cell.py"], cwd=content, env=alone(), check=True)
    after = installed()
    return [
        f"{name} {version} became {after.get(name, 'none')}"
        for name, version in sorted(before.items())
        if after.get(name) != version
    ]


def listed(text: str) -> dict[str, str]:
    """Name and version of each package in a list of `pip freeze`, without a build's suffix."""
    pinned = re.findall(r"^([\w.-]+)==([^\s+;]+)", text, re.M)
    built = re.findall(r"^([\w.-]+) @ \S+/[\w.]+-(\d[\w.]*?)(?:%2B[\w.]+)?-\S+\.whl", text, re.M)
    return {name.lower().replace("_", "-"): version for name, version in pinned + built}


def moved() -> int:
    """Whether Colab has other versions now than those that are tried here; needs the network."""
    try:
        with urllib.request.urlopen(LIST, timeout=60) as answer:
            now = listed(answer.read().decode())
    except OSError as error:
        print(f"colab: this needs the network: {LIST} does not answer ({error})")
        return 1
    other = {name: now.get(name) for name, ours in VERSIONS.items() if now.get(name) != ours}
    for name, theirs in other.items():
        print(f"colab: {name} is {theirs or 'gone'} on Colab, {VERSIONS[name]} in colab.py")
    print(f"colab: {len(VERSIONS) - len(other)} of {len(VERSIONS)} versions are Colab's own")
    return 1 if other else 0


def main() -> int:
    if sys.argv[1:] == ["versions"]:
        return moved()
    make()
    with tempfile.TemporaryDirectory() as content:  # outside this checkout, as on Colab
        replaced = first_cell(Path(content))
    for line in replaced:
        print(f"colab: REPLACED by pip: {line}", flush=True)
    test_packages()
    row = versions.try_set(versions.COLAB, str(FOREIGN), CHECKS, environment())
    versions.keep(row)
    print(f"colab: {row['checks']}", flush=True)
    return 1 if replaced or versions.failures(row) else 0


if __name__ == "__main__":
    sys.exit(main())
