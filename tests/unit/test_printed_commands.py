"""Every command that the documentation prints is run: collected here, made small by one table.

A command is a line of a code block, of a script or of a script's head that begins with rr,
papermill, make or torchrun, and a span of code like it in a page's prose. What is not run whole is
held to the program's own parser. Nothing is passed over: a command that the table does not make
runnable fails.
"""

import ast
import contextlib
import io
import itertools
import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import new_rule
import pytest
import torch

import rrstudy
from rr.residual import REGISTRY
from rrstudy import cli
from rrstudy.perf import doctor
from rrstudy.sweep import local

ROOT = Path(__file__).resolve().parents[2]
SHAPE = "n_layer=1,d_model=16,n_head=2,seq_len=32"
# made by `world`; OWN is a run of a reader's own rule
RUN, OWN, CORPUS = "a run's folder", "another run's folder", "a corpus"
MEASURED = "what rr bench printed"

# -- the one table: what is printed, and what is run instead ---------------------------------------

SMALL = {
    **{rung: f"{rung}:{SHAPE}" for rung in ("nano", "mini", "60M", "150M", "320M", "1B")},
    "tinystories": CORPUS,
    "bpe:4096": "bpe:300",
    "1500": "2",  # steps
    "2000,4000,8000": "2,3,4",
    "runs/ID": RUN,
    "/workspace/runs/ID": RUN,
    "runs/damped": "runs",  # where the small runs of all rules lie
    "runs/limiter": "runs",
    "mine.json": MEASURED,
    "40": "1",  # steps run again
    "/workspace/runs": "runs",
    "/shared/runs": "runs",
    "/runs/sweep": "runs",
    "in.ipynb": "notebooks/03_depth_stability.ipynb",
}
TEXT = {"--corpus": CORPUS, "--tokenizer": "bpe:300"}
TINY = {**TEXT, "--steps": "2", "--batch": "2", "--eval-batches": "2"}
NANO = {**TINY, "--rung": f"nano:{SHAPE}"}
ONE_THREAD = {"--threads": "1"}
# options that a verb is given beside the printed ones
MORE = {
    "prepare": TEXT,
    "train": TINY | ONE_THREAD,
    "sweep": NANO
    | ONE_THREAD
    | {"--rule": "review", "--seed": "0", "--runner": "direct", "--jobs": "2"},
    "plan": NANO,
    "doctor": NANO,
    "bench": ONE_THREAD
    | {"--rung": f"nano:{SHAPE}", "--backends": "eager"}
    | {"--batch": "2", "--steps": "1", "--repeats": "1"},
    "sample": {"--tokens": "5"},
}
# values kept by a verb that makes a process for each combination
FIRST = {"--rung": 1, "--rule": 1, "--seed": 1, "--backends": 1}


# -- what is printed -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Printed:
    """A command: the words after the program's name, and where it is printed."""

    where: str
    program: str
    words: tuple[str, ...]
    span: bool = False  # within prose

    def __str__(self) -> str:
        return shlex.join([self.program, *self.words])


START = re.compile(
    r"(?:[A-Z_]+=\S+ +)*(?:exec +)?(?:bash +\S+\.sh +)?(?:\.venv/bin/)?"
    r"(?P<program>rr|papermill|make|torchrun) +(?P<rest>\S.*)"
)
RAY = re.compile(r"(?:[A-Z_]+=\S+ +)*bash +\S*ray_job\.sh +(?P<rest>\S.*)")


def commands(where: str, text: str) -> Iterator[Printed]:
    """Those of a shell's text. `for` loops around a command are gone through."""
    values = {name: words.split() for name, words in re.findall(r"for (\w+) in ([^;\n]+)", text)}
    text = re.sub(r"\\\n\s*#?\s*", " ", text)
    for line in text.splitlines():
        for piece in re.split(r";|\bdo\b|&&|\|", line):
            piece = re.sub(r"^\s*(?:#\s*)?(?:Use:\s*)?", "", piece)
            if ray := RAY.match(piece):
                program, rest = "rr", f"sweep --engine ray --address auto {ray['rest']}"
            elif start := START.match(piece):
                program, rest = start["program"], start["rest"]
            else:
                continue
            words = shlex.split(rest.partition(">")[0], comments=True)
            loops = [name for name in values if f"${name}" in words]
            for chosen in itertools.product(*(values[name] for name in loops)):
                put = dict(zip((f"${name}" for name in loops), chosen, strict=True))
                yield Printed(where, program, tuple(put.get(word, word) for word in words))


def page(path: Path, text: str, prose: bool) -> Iterator[Printed]:
    """Commands of a page: in blocks of code, and where `prose` between backquotes."""
    for block in re.findall(r"^```(?:bash|sh|console)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        yield from commands(path.name, block)
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", text) if prose else ():
        for result in commands(path.name, span):
            yield Printed(result.where, result.program, result.words, span=True)


def printed() -> list[Printed]:
    result = []
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "book").glob("*.md"))]
    for path in pages:
        result += page(path, path.read_text(), prose=path.parent == ROOT)
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = json.loads(path.read_text())["cells"]
        text = "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
        result += page(path, text, prose=path.name.startswith("17_"))
    for path in sorted((ROOT / "book" / "ready").iterdir()):
        result += commands(path.name, path.read_text())
        if cell := re.search(r"^COMMAND = (\[.*?\])$", path.read_text(), re.MULTILINE | re.DOTALL):
            words = (*ast.literal_eval(cell[1]), "--out", "runs")  # as the file itself adds
            result.append(Printed(path.name, "rr", words))
    for _, command in new_rule.next_commands("my_rules/damped.py:Damped", "damped", "rr", "pytest"):
        result += commands("new_rule.py", command)
    return list(dict.fromkeys(result))


ALL = printed()


# -- made small ------------------------------------------------------------------------------------


class Cell:
    """What `rrstudy.sweep.process.Process` is, in this process: its cell has ended when it is made.

    Of real processes test_sweep_local.py and test_shared.py tell.
    """

    def __init__(self, argv, log, env) -> None:
        assert argv[:2] == ["-m", "rr.cli"]
        self.code = called(argv[2:])[0]

    def poll(self) -> int:
        return self.code


@pytest.fixture(scope="module")
def world(tmp_path_factory, tiny_corpus):
    """A folder with small runs and rules; what the table's names stand for there."""
    home, kept = tmp_path_factory.mktemp("world"), {k: dict(v) for k, v in REGISTRY.items()}
    threads = torch.get_num_threads()
    (home / "notebooks").symlink_to(ROOT / "notebooks")
    for name in ("damped", "limiter"):
        new_rule.new_rule(name, home / "my_rules")
    with contextlib.chdir(home), pytest.MonkeyPatch.context() as patched:
        patched.setattr(local, "Process", Cell)
        patched.setattr(doctor, "compile_error", lambda kind: None)  # test_run_paths.py does
        names = {CORPUS: tiny_corpus}
        own = "my_rules/damped.py:Damped"
        for rule in (own, "standard", "constant", "review"):
            words = small(Printed("", "rr", ("train", "--rung", "nano", "--rule", rule)), names)
            code, out = called([*words, "--out", "runs"])
            assert code == 0
            names[OWN if rule == own else RUN] = out.split()[-1]
        words = small(Printed("", "rr", ("bench", "--rung", "60M", "--json")), names)
        code, out = called(words)
        record = json.loads(out)
        record["made_by"]["device"] = "NVIDIA H100 80GB HBM3"  # as it is where one would rent it
        for row in record["rows"]:  # and a CPU without bf16 measures in fp32
            row["precision"] = "bf16"
        Path("mine.json").write_text(json.dumps(record))
        names[MEASURED] = "mine.json"
        tidy = [
            f"{arm},{seed},{3 + seed / 7}" for arm in ("standard", "mine") for seed in (0, 1, 2)
        ]
        Path("tidy.csv").write_text("\n".join(["arm,seed,loss", *tidy, ""]))
        assert code == 0
        yield names
    for kind, rules in REGISTRY.items():
        rules.clear()
        rules.update(kept[kind])
    torch.set_num_threads(threads)


def small(command: Printed, names: dict[str, str]) -> list[str]:
    """The words of `rr …` that are run for it."""
    verb, *words = command.words
    parts = [[verb]]  # and one for each option, with its values
    for word in words:
        parts += [[word]] if word.startswith("--") else []
        if parts[-1] != [word]:
            word = SMALL.get(word, word)
            parts[-1].append(names.get(word, word))
    if verb == "sample" and "--rule" in words:
        parts[0][1] = names[OWN]
    if "ray" in words:  # needs a cluster; tests/faults/test_ray.py has one
        parts.append(["--dry-run"])
    given = {part[0] for part in parts}
    if verb in ("sweep", "bench") and "--dry-run" not in given:
        parts = [part[: 1 + FIRST.get(part[0], len(part))] for part in parts]
    for option, value in MORE.get(verb, {}).items():
        if option not in given and not (option == "--steps" and "--budgets" in given):
            parts.append([option, names.get(value, value)])
    return list(itertools.chain(*parts))


def called(words: list[str]) -> tuple[int, str]:
    """Exit code and standard output of `rr …` in this process."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            code = cli.main(words)
        except SystemExit as stop:  # --help
            code = stop.code
    return code, out.getvalue()


@cache
def code_of(words: tuple[str, ...]) -> int:
    """The exit code of a command that is run; one that is printed in two places runs once."""
    return called(list(words))[0]


# -- and run ---------------------------------------------------------------------------------------


def make(words: list[str]) -> int:
    """Named alone: the targets run this suite, or take minutes."""
    return subprocess.run(["make", "-n", *words], cwd=ROOT, stdout=subprocess.DEVNULL).returncode


def torchrun(words: list[str], names: dict[str, str]) -> int:
    """Parsed: it needs eight GPUs; test_distributed.py runs two processes."""
    from torch.distributed.run import get_args_parser

    given = get_args_parser().parse_args(words)
    assert given.module and given.training_script == "rr.cli"
    inner = small(Printed("", "rr", tuple(given.training_script_args)), names)
    cli.parser().parse_args(inner)
    return 0


def papermill(words: list[str], monkeypatch) -> int:
    """What papermill would execute, up to the cell that checks the parameters, in this process.

    test_parameters.py runs them in a kernel.
    """
    import papermill.cli
    from IPython.core.interactiveshell import InteractiveShell
    from papermill.iorw import load_notebook_node
    from papermill.parameterize import parameterize_notebook

    asked = {}
    monkeypatch.setattr(papermill.cli, "execute_notebook", lambda **given: asked.update(given))
    papermill.cli.papermill.main([SMALL.get(word, word) for word in words], standalone_mode=False)
    notebook = load_notebook_node(asked["input_path"])
    notebook = parameterize_notebook(notebook, asked["parameters"])
    cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    (last,) = [i for i, cell in enumerate(cells) if "parameters.check(tier, " in cell]
    shell = InteractiveShell.instance()
    try:
        for cell in cells[: last + 1]:
            if not shell.run_cell(cell, store_history=True).success:
                return 1
        assert all(shell.user_ns[name] == value for name, value in asked["parameters"].items())
        return 0
    finally:
        InteractiveShell.clear_instance()


@pytest.mark.parametrize("command", ALL, ids=str)
def test_a_printed_command_is_run(command, world, monkeypatch):
    words = list(command.words)
    if command.program == "make":
        code = make(words)
    elif command.program == "torchrun":
        code = torchrun(words, world)
    elif command.program == "papermill":
        code = papermill(words, monkeypatch)
    elif command.span and len(words) == 1:  # named alone: the parser knows the verb
        code = called([*words, "--help"])[0]
    elif words[0] in ("report", "eval"):  # run by test_report.py and by test_harness.py
        cli.parser().parse_args(words)
        code = 0
    else:
        code = code_of(tuple(small(command, world)))
    assert code == 0, f"{command.where}: {command}"


def test_the_readme_s_python_is_run(world, tiny_gpt2, monkeypatch, tmp_path):
    """All of it, with a small run, a tiny GPT-2, and a hub that only counts what is sent."""
    import transformers

    import rr
    from rrstudy import hub

    pushed = []
    monkeypatch.setattr(hub, "get_token", lambda: "a token")
    monkeypatch.setattr(hub, "HfApi", lambda: SimpleNamespace(
        create_repo=lambda *given, **options: None,
        upload_folder=lambda **given: pushed.append(given["repo_id"])
        or SimpleNamespace(commit_url="address")))  # fmt: skip
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    names = {"rr": rr, "transformers": transformers, "x": torch.randn(1, 2, 512)}
    block = SimpleNamespace(attn=torch.tanh, mlp=torch.sin)
    ids = torch.arange(8)[None]
    before = tiny_gpt2(ids).logits
    run = Path(world[RUN]).resolve()
    monkeypatch.chdir(tmp_path)
    for code in blocks:
        exec(code.replace("runs/ID", str(run)), names | {"blocks": [block] * 12})
    assert len(blocks) == 3 and len(pushed) == 1
    shared, again = rrstudy.from_pretrained("my-60M"), tiny_gpt2.from_pretrained("gpt2-review")
    assert shared.config.d_model == 16
    del again.config.rr_residuals
    assert torch.equal(again(ids).logits, before)  # "to the bit"
    assert not torch.equal(tiny_gpt2(ids).logits, before)


# -- what is found, and what is not passed over ----------------------------------------------------


def test_every_place_that_prints_commands_is_read():
    result = {(c.where, c.program, c.words[0]) for c in ALL}
    assert result >= {
        ("README.md", "rr", "train"),
        ("README.md", "torchrun", "--nproc-per-node"),
        ("README.md", "papermill", "--engine"),
        ("CONTRIBUTING.md", "make", "faults"),
        ("one_gpu_day.md", "rr", "bench"),
        ("17_running_it.ipynb", "rr", "prepare"),
        ("new_rule.py", "rr", "train"),
    }
    read = {where for where, *_ in result}
    assert read >= {path.name for path in (ROOT / "book" / "ready").iterdir()}
    # lines are joined, loops gone through, comments and what follows a program left out
    text = """
A=1 rr train --seed 0 \\
    --out runs   # words
for rule in one two; do .venv/bin/rr train --rule $rule; done
#    bash /x/runpod_start.sh \\
#        rr sweep --out runs > cells.txt
"""
    assert [str(c) for c in commands("", text)] == [
        "rr train --seed 0 --out runs",
        "rr train --rule one",
        "rr train --rule two",
        "rr sweep --out runs",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "rr tarin --rung nano --out runs",
        "rr train --rung nano --sede 1 --out runs",
        "rr table runs/OTHER",
        "rr train --rung nano --rule $rule --out runs",
        "make no-such-target",
        "papermill notebooks/03_depth_stability.ipynb out.ipynb -p seeds '[0, 1]'",
    ],
)
def test_a_command_that_cannot_run_is_not_passed_over(text, world, monkeypatch):
    (command,) = commands("", text)
    with pytest.raises(AssertionError):
        test_a_printed_command_is_run(command, world, monkeypatch)
