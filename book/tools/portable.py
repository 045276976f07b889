"""Run the unit tests and the notebooks' outputs as other machines would; end with one table.

    python book/tools/portable.py                                   (or: make portable; hours)
    python book/tools/portable.py --only plain                      # one column of the matrix
    python book/tools/portable.py --only plain --only mkl 06 13     # two, these notebooks alone
    python book/tools/portable.py tests/unit/test_ops.py            # these tests alone

Each column is a Python, a number of threads and the kernels that an older CPU would choose. Every
Python gets a virtual environment of its own under _build/portable/. PYTHONS="/a/python3.12 ..."
names the interpreters; without it python3.11, 3.12 and 3.13 are looked for on PATH. One that is
missing stands in the table as not here. PIP_TORCH chooses another build of torch, as in `make`.
"""

import argparse
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field

from nbkit import BUILD, ROOT, environment, sources
from suite import NBVAL, TWO

PLACE = BUILD / "portable"
PARTS = ("unit", "notebooks: outputs")


@dataclass(frozen=True)
class Column:
    python: str
    threads: int
    kernels: dict[str, str] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(self.threads))
        # threads that wait must not take the cores of the others
        return {**environment(), **threads, **self.kernels, "OMP_WAIT_POLICY": "PASSIVE"}


# between them every setting once
MATRIX = {
    "avx512": Column("3.11", 1, {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}),
    "aten": Column("3.11", 3, {"ATEN_CPU_CAPABILITY": "default"}),
    "avx2": Column("3.12", 1, {"ONEDNN_MAX_CPU_ISA": "AVX2"}),
    "mkl": Column("3.12", 3, {"MKL_CBWR": "COMPATIBLE"}),
    "plain": Column("3.13", 1, {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "AVX2",
                                "MKL_CBWR": "COMPATIBLE"}),
}  # fmt: skip


def interpreters() -> dict[str, str]:
    """version -> a Python of that version that runs."""
    wanted = sorted({column.python for column in MATRIX.values()})
    named = os.environ.get("PYTHONS", "").split() or [f"python{version}" for version in wanted]
    found = {}
    for path in filter(None, map(shutil.which, named)):
        ask = [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        done = subprocess.run(ask, capture_output=True, text=True)
        if done.returncode == 0:  # a pyenv shim is there even where its Python is not
            found.setdefault(done.stdout.strip(), path)
    return found


def prepare(version: str, python: str) -> str:
    """The interpreter of that version's virtual environment, made anew where it is out of date."""
    home = PLACE / f"py{version}"
    made_of = b"".join((ROOT / name).read_bytes() for name in ("constraints.txt", "pyproject.toml"))
    mark, wanted = home / ".ready", hashlib.sha256(made_of).hexdigest()
    inside = str(home / "bin" / "python")
    if mark.exists() and mark.read_text() == wanted:
        return inside
    print(f"portable: a virtual environment for Python {version} in {home}", flush=True)
    shutil.rmtree(home, ignore_errors=True)
    pip = [inside, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    torch = shlex.split(os.environ.get("PIP_TORCH", ""))
    for command in (
        [python, "-m", "venv", str(home)],
        [*pip, *torch, "-c", "constraints.txt", "torch", "setuptools"],
        [*pip, "-c", "constraints.txt", "--no-build-isolation", "-e", ".[book,test,hub]"],
    ):
        subprocess.run(command, cwd=ROOT, check=True)
    mark.write_text(wanted)
    return inside


def commands(python: str, tests: list[str], notebooks: list[str]) -> dict[str, list[str]]:
    """Part -> its command; picked tests or notebooks leave out the part that none was picked of."""
    pytest, every = [python, "-m", "pytest", "-q"], not (tests or notebooks)
    found = {}
    if tests or every:
        found[PARTS[0]] = [
            *pytest,
            *(tests or ["tests/unit"]),
            "-m",
            "not slow",
            "-p",
            "no:cacheprovider",
            *TWO,
            "loadfile",
        ]
    if notebooks or every:
        paths = map(str, sources(*notebooks))
        found[PARTS[1]] = [*pytest, *NBVAL, *TWO, "loadscope", *paths]
    return found


def run(name: str, part: str, command: list[str], env: dict[str, str]) -> str:
    """One cell of the table: what came of the command; its whole output is kept in a file."""
    log = PLACE / f"{name}-{part.partition(':')[0]}.log"
    print(f"portable: {name}, {part} (output: {log})", flush=True)
    began = time.monotonic()
    with open(log, "w") as file:
        code = subprocess.run(command, cwd=ROOT, env=env, stdout=file, stderr=file).returncode
    text = log.read_text()
    minutes = f"{(time.monotonic() - began) / 60:.0f} min"
    if code == 0:
        return f"passed, {minutes}"
    lines = re.findall(r"^(?:FAILED|ERROR) .*", text, re.M) or text.splitlines()[-15:]
    print("\n".join(f"  {line}" for line in lines), flush=True)
    return f"FAILED, {len(lines)} lines, {minutes}"


def table(rows: list[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="a notebook's number or part of its name, or tests/...; all without",
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=MATRIX,
        metavar="COLUMN",
        help=f"one of {', '.join(MATRIX)}; may be given again",
    )
    args = parser.parse_args()
    picked = args.only or list(MATRIX)
    tests = [name for name in args.names if name.startswith("tests/")]
    notebooks = [name for name in args.names if not name.startswith("tests/")]

    PLACE.mkdir(parents=True, exist_ok=True)
    here, rows = interpreters(), [("column", "Python", "threads", "kernels", *PARTS)]
    for name in picked:
        column, told = MATRIX[name], dict.fromkeys(PARTS, "not asked")
        if column.python in here:
            python = prepare(column.python, here[column.python])
            for part, command in commands(python, tests, notebooks).items():
                told[part] = run(name, part, command, column.environment())
        else:
            told = dict.fromkeys(PARTS, "not here")
        kernels = " ".join(f"{key}={value}" for key, value in column.kernels.items())
        rows.append((name, column.python, str(column.threads), kernels, *told.values()))
    print(f"\n{table(rows)}")
    cells = " ".join(" ".join(row[4:]) for row in rows)
    for version in sorted({MATRIX[name].python for name in picked} - here.keys()):
        print(f"Python {version} is not here: put python{version} on PATH, or name it in PYTHONS")
    verdict = "FAILED" if "FAILED" in cells else "passed" if "passed" in cells else "nothing ran"
    print(f"make portable: {verdict}")
    return 0 if verdict == "passed" else 1


if __name__ == "__main__":
    sys.exit(main())
