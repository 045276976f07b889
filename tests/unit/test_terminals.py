"""Every verb prints in every encoding, on a pipe and on a terminal of 40 columns."""

import contextlib
import fcntl
import io
import json
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path

import pytest

from rr.residual import table
from rrstudy import cli

ROOT = Path(__file__).resolve().parents[2]
TINY = "nano:n_layer=1,d_model=16,n_head=2,seq_len=16"
ENCODINGS = ["utf-8", "cp1252", "ascii"]
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with a non-ASCII name, a text whose letters no code page has, logs and two runs."""
    home = tmp_path_factory.mktemp("λ − é")
    story = "".join(f"Die Füchsin №{i} sah λ und 字 – “ja”.\n<|endoftext|>\n" for i in range(200))
    (home / "text.txt").write_text(story, encoding="utf-8")
    source = "rung = ''\nrule = ''\nseed = 0\nprotocol = ''\ncorpus = ''\nsteps = 0\nout = ''\n"
    cell = {"cell_type": "code", "metadata": {"tags": ["parameters"]}, "source": source}
    words = {"cell_type": "markdown", "metadata": {}, "source": "Füchse, λ"}
    note = json.dumps({"cells": [cell, words], "metadata": {}}, ensure_ascii=False)
    (home / "note.ipynb").write_text(note, encoding="utf-8")
    rows = [f"{arm},{seed},{3 - seed / 9 - (arm == 'λ−é') / 3}" for arm in ("a", "λ−é")
            for seed in range(3)]  # fmt: skip
    log = "\n".join(["arm,seed,loss", *rows, ""])
    (home / "log.csv").write_text(log, encoding="utf-8")
    for rule in ("standard", "review"):
        words = training(home) + ["--rule", rule]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            assert cli.main(words) == 0
    (home / "run").symlink_to(next((home / "runs").iterdir()))
    return home


def training(home: Path, out: str = "runs") -> list[str]:
    options = {"rung": TINY, "corpus": f"file:{home / 'text.txt'}", "tokenizer": "bpe:300"}
    options |= {"out": home / out, "batch": 2, "steps": 4, "threads": 1, "eval-batches": 2}
    return ["train", *(str(word) for k, v in options.items() for word in (f"--{k}", v))]


SHAPE = f"--rung {TINY} --batch 2 --steps 4 --eval-batches 2 --tokenizer bpe:300"
VERBS = {
    "help": (0, "--help"),
    "rules": (0, "rules"),
    "rules as JSON": (0, "rules --json"),
    "ladder": (0, "ladder --protocol paper"),
    "prepare": (0, "prepare --corpus file:{home}/text.txt --tokenizer bpe:300"),
    "train": (0, "{train}"),
    "sample": (0, "sample {home}/run --prompt λ --tokens 40"),
    "sweep, listed": (0, f"sweep --dry-run --corpus file:{{home}}/text.txt {SHAPE} --out {{home}}"),
    "table": (0, "table {home}/runs"),
    "table of a log": (0, "table {home}/log.csv --baseline a --paired"),
    "power": (0, "power --sd 0.1 --effect 0.05"),
    "plan": (0, f"plan --corpus file:{{home}}/text.txt {SHAPE} --gpu H100 --hours 1"),
    "doctor": (0, f"doctor --quick --device cpu --corpus file:{{home}}/text.txt {SHAPE}"),
    "verify": (0, "verify {home}/run --steps 1"),
    "bench": (0, f"bench --rung {TINY} --steps 1 --repeats 1 --batch 2 --backends reference"),
    "records": (2, "records import {home}/text.txt --to {home}/λ"),
    "report": (2, "report {home}/nö"),
    "eval": (2, "eval {home}/run --tasks λ"),
    "an unknown rule": (2, "train --rule révue − --out x"),
}


class Terminal:
    """A terminal of 40 columns; `text()` is what was written to it."""

    def __init__(self, encoding: str) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
        self.stream = open(slave, "w", encoding=encoding)
        self.data = bytearray()
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # its end, when the other side is closed
            while block := os.read(self.master, 1 << 16):
                self.data += block

    def bytes(self) -> bytes:
        self.stream.close()
        self.reader.join()
        os.close(self.master)
        return bytes(self.data)


class Pipe:
    """A stream without a terminal behind it, nor a file descriptor."""

    def __init__(self, encoding: str) -> None:
        self.raw = io.BytesIO()
        self.stream = io.TextIOWrapper(self.raw, encoding, write_through=True)

    def bytes(self) -> bytes:
        return self.raw.getvalue()


@pytest.fixture(scope="module")
def counted():
    """What rules cost, counted once for all streams."""
    rows = table.describe()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(table, "describe", lambda: rows)
        yield


@pytest.mark.parametrize("made", [Pipe, Terminal])
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(
    "verb",
    [pytest.param(v, marks=[pytest.mark.slow] * (v in ("doctor", "bench"))) for v in VERBS],
)
def test_every_verb_prints(verb, encoding, made, home, counted, monkeypatch, kept_threads):
    code, words = VERBS[verb]
    given = words.split()
    if verb == "train":
        given = training(home, f"{encoding} {made.__name__}")
    given = [word.replace("{home}", str(home)) for word in given]
    streams = {name: made(encoding) for name in ("stdout", "stderr")}
    for name, one in streams.items():
        monkeypatch.setattr(sys, name, one.stream)
    got: object = None
    try:
        got = cli.main(given)
    except SystemExit as end:  # --help
        got = end.code
    finally:
        monkeypatch.undo()
        out, err = (streams[name].bytes().decode(encoding) for name in ("stdout", "stderr"))
    assert got == code, err
    assert "Traceback" not in err and (out or code)
    if code:
        assert err.count("\n") >= 1 and err.startswith("rr: ")
    if "JSON" in verb:
        assert json.loads(out)
    if made is Terminal and verb in ("train", "plan"):  # what moves fits into a line
        lines = err.replace("\r\n", "\n").split("\n")  # splitlines() would split at each \r, too
        moving = [part for line in lines for part in line.split("\r")[1:-1]]
        assert all(len(part) < 40 for part in moving), moving
    if encoding == "utf-8" and verb == "table of a log":
        assert "λ−é" in out and "−0." in out
    if encoding == "ascii" and verb == "table of a log":
        assert "\\u03bb-\\xe9" in out and "-0." in out


def test_the_marks_of_doctor_where_they_are_missing(monkeypatch):
    from rrstudy.perf import doctor

    checks = [
        doctor.Check("a", True, "≥ 1"),
        doctor.Check("b", False, "λ"),
        doctor.Check("c", None, "–"),
    ]
    monkeypatch.setattr(doctor, "examine", lambda *given: checks)
    out = Pipe("ascii")
    monkeypatch.setattr(sys, "stdout", out.stream)
    assert cli.main(["doctor", "--rung", TINY, "--steps", "4"]) == 3
    monkeypatch.undo()
    assert out.bytes() == b"+ a: >= 1\nx b: \\u03bb\n- c: -\n"


EACH = """
import sys
from rrstudy.cli import main
sys.exit(any(main(words.split("\\n")) for words in sys.argv[1:]))
"""


def test_the_environment_of_a_bare_container(home):
    """Files are read and names taken where the locale knows ASCII alone; all in one process."""
    sweep = "sweep --dry-run --rung nano --steps 3 --corpus fables --notebook {home}/note.ipynb"
    lines = [sweep, "table {home}/log.csv --baseline a --paired", "rules"]
    words = ["\n".join(line.split()).replace("{home}", str(home)) for line in lines]
    done = subprocess.run(
        [sys.executable, "-c", EACH, *words],
        env={**os.environ, **ASCII, "PYTHONPATH": str(ROOT)},
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode("ascii").count("review") > 1 and not done.stderr


class Cell:
    """What a notebook puts in the place of a stream: it takes text, and has no file behind it."""

    encoding = "UTF-8"

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        raise io.UnsupportedOperation("fileno")


def test_a_notebooks_streams(home, monkeypatch, kept_threads):
    out, err = Cell(), Cell()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    code = cli.main(training(home, "cell"))
    monkeypatch.undo()
    assert code == 0 and out.text.startswith(str(home / "cell")) and "held-out loss" in err.text


def test_a_name_that_is_no_unicode(tmp_path, monkeypatch):
    out, err = Pipe("utf-8"), Pipe("utf-8")
    monkeypatch.setattr(sys, "stdout", out.stream)
    monkeypatch.setattr(sys, "stderr", err.stream)
    path = tmp_path / os.fsdecode(b"caf\xe9.txt")
    assert cli.main(["prepare", "--corpus", f"file:{path}"]) == 2
    monkeypatch.undo()
    assert b"caf\\udce9.txt" in err.bytes()


@pytest.mark.parametrize("columns", [0, 1, 12])
def test_help_on_a_terminal_of_no_width(columns, monkeypatch, capsys):
    """As containers have it before their terminal is there."""
    monkeypatch.setattr(os, "get_terminal_size", lambda *_: os.terminal_size((columns, 0)))
    monkeypatch.delenv("COLUMNS", raising=False)
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    assert "rules" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "closed"),
    [("--sd 1 --effect 1", 0, ">&- 2>&-"), ("--sd", 2, "2>&-"), ("--sd", 2, ">&- 2>&-")],
)
def test_closed_streams(words, code, closed):
    """As a service or a program without a console has them."""
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m rrstudy.cli power {words} {closed}"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == code and "Traceback" not in done.stderr, done.stderr
