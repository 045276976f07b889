"""The plan of a sweep: which cells, in which order, by which commands, and what is refused."""

import csv
import json
import shlex
from collections import Counter

import pytest
import yaml

from rr.errors import RRError
from rr.model.costs import flops_per_token
from rr.options import Request, options_of
from rr.specs import RUN_OPTIONS
from rr.training.planning import plan
from rrstudy import cli
from rrstudy.sweep import Runner, cells, commands, notebook, sweep

TINY = "nano:n_layer=1,d_model=16,n_head=2,seq_len=16"
SOURCE = "rung = ''\nrule = ''\nseed = 0\nprotocol = ''\ncorpus = ''\nout = ''\n"


@pytest.fixture
def command(tmp_path):
    """command(source, **options) -> words of a cell's command, of a notebook with parameters."""

    def call(source, **options):
        cell = {"cell_type": "code", "metadata": {"tags": ["parameters"]}, "source": source}
        path = tmp_path / "n.ipynb"
        path.write_text(json.dumps({"cells": [cell], "metadata": {}}))
        (words,) = commands(cells(options, print), Runner("papermill", tmp_path, {}, 1, str(path)))
        return words

    return call


@pytest.fixture
def dry(capsys, tmp_path, monkeypatch):
    """dry(*words) -> (exit code, lines of stdout, stderr) of a dry run in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        code = cli.main(["sweep", "--dry-run", *map(str, words)])
        out, err = capsys.readouterr()
        return code, out.splitlines(), err

    return call


def told_words(words: list[str]) -> list[str]:
    """A papermill command without the folder, the kernel, and the engine of the book."""
    words = words[words.index("papermill") :]
    words = words[:-2] if words[-2:] == ["--engine", "plain"] else words
    kernel = ["-k", "python3", "-l", "python"]  # of a notebook that names none
    return words[:-4] if words[-4:] == kernel else words


def test_protocol_paper_alone_is_the_published_plan(dry, root, tmp_path):
    code, lines, _ = dry("--protocol", "paper")
    assert code == 0 and len(lines) == 42
    recorded = Counter()
    for line in lines:
        words = told_words(shlex.split(line))
        assert words[0] == "papermill" and words[1].endswith("book/rrbook/reports/run.ipynb")
        given = dict(zip(words[4::3], words[5::3], strict=True))
        assert set(words[3::3]) == {"-p"}
        assert (given["protocol"], given["corpus"]) == ("paper", "tinystories")
        assert words[2] == f"{given['out']}/{words[2].split('/')[1]}/report.ipynb"
        recorded[given["rung"], given["rule"], given["seed"]] += 1
    with open(root / "data" / "published" / "review_residuals.csv") as file:
        published = Counter((row["rung"], row["arm"], row["seed"]) for row in csv.DictReader(file))
    assert recorded == published
    assert len({shlex.split(line)[2] for line in lines}) == 42
    assert not list(tmp_path.iterdir())  # a dry run leaves nothing


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"learning_rate": [1e-3]}, "unknown option 'learning_rate'"),
        ({"depth_lr": [False, True]}, "depth_lr must be True or False, got .False, True."),
        ({"budgets": [2, 4]}, "budgets must be a list of numbers of steps, got 2"),
    ],
)
def test_an_option_is_taken_as_it_is_meant_or_refused(options, line):
    with pytest.raises(RRError, match=line):
        cells({"rung": [TINY], **options}, print)


def test_an_unknown_word_of_the_machine_is_refused(tmp_path):
    with pytest.raises(RRError, match="unknown option 'thread' of machine: did you mean threads"):
        plan = cells({"rung": [TINY]}, print)
        sweep(plan, tmp_path / "out", runner="direct", machine={"thread": 1})
    assert not (tmp_path / "out").exists()


def test_small_models_come_first_and_arms_of_a_seed_together():
    options = {"rung": ["mini", "nano"], "rule": ["review", "standard"], "seed": [1, 0]}
    wanted = [(rung, seed, rule) for rung in ("nano", "mini") for seed in (0, 1)
              for rule in ("standard", "review")]  # fmt: skip
    assert [(c.run.rung, c.run.seed, c.run.rule) for c in cells(options, print)] == wanted


def test_a_cell_counts_the_flop_of_its_steps():
    options = {"rung": ["nano", "60M", "mini"], "steps": [50, 100], "corpus": ["tinystories"]}
    for cell in cells(options, print):
        recipe = cell.run.recipe
        tokens = recipe.steps * recipe.batch * 256
        assert cell.flops == flops_per_token(cell.run.model) * tokens
    (cell,) = cells({"budgets": [[100, 200]]}, print)  # branches count: from 80 to 100 again
    assert cell.flops == flops_per_token(cell.run.model) * (200 + 20) * 8 * 256


def test_one_run_named_twice_is_run_once():
    printed, options = [], {"rule": ["standard", "constant", "constant:c=0.5"], "seed": [0, 1, 0]}
    result = cells(options, printed.append)
    arms = [("constant", 0), ("constant", 1), ("standard", 0), ("standard", 1)]
    assert sorted((c.run.rule, c.run.seed) for c in result) == arms
    assert printed == ["5 of 9 combinations are the same run as another: run once"]
    result = cells({"rule": ["standard", "review"], "lr": [1e-3, 2e-3], "steps": [10]}, print)
    assert {c.name for c in result} == {  # what differs
        f"{rule} lr={lr} seed 0" for rule in ("standard", "review") for lr in (0.001, 0.002)
    }


def test_the_direct_command_plans_the_same_run(dry, tiny_corpus):
    options = {"rung": [TINY], "rule": ["review:groups=2"], "budgets": [[4, 8]], "lr": [3e-4],
               "depth_lr": True, "corpus": [tiny_corpus], "tokenizer": ["bpe:300"],
               "seed": [3]}  # fmt: skip
    typed = ["--rung", TINY, "--rule", "review:groups=2", "--budgets", "4,8", "--lr", "3e-4",
             "--depth-lr", "--corpus", tiny_corpus, "--tokenizer", "bpe:300", "--seed", "3",
             "--runner", "direct", "--out", "a b", "--threads", 2]  # fmt: skip
    (cell,) = cells(options, print)
    code, (line,), err = dry(*typed)
    assert code == 0 and err == "" and line.startswith("rr ")
    args = vars(cli.parser().parse_args(shlex.split(line)[1:]))
    assert (args["out"], args["threads"]) == ("a b", 2)
    assert plan(**{name: args[name] for name in RUN_OPTIONS}).id == cell.id


def test_several_processes_a_cell_go_through_torchrun(dry):
    code, (line,), _ = dry("--runner", "direct", "--processes", 4, "--parallel", "fsdp")
    assert code == 0
    assert line.startswith("torchrun --standalone --nproc-per-node 4 -m rr.cli train --rung nano")
    assert "--parallel fsdp" in line


@pytest.mark.parametrize("runner", ["papermill", "direct"])
def test_every_run_of_a_sweep_draws_its_curves(dry, runner):
    """Dry, where the packages need not be: the commands may run elsewhere."""
    code, lines, err = dry("--seed", 0, 1, "--runner", runner, "--charts", "tensorboard,wandb")
    flag = ["-p", "charts"] if runner == "papermill" else ["--charts"]
    assert code == 0 and len(lines) == 2, err
    for line in lines:
        assert shlex.join([*flag, "tensorboard,wandb"]) in line
    assert "charts" not in " ".join(dry("--runner", runner)[1])


def test_the_report_is_the_plain_edition_where_the_book_is_installed(
    command, tmp_path, monkeypatch
):
    installed = tmp_path / "lib" / "a_book-0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Name: a-book\nVersion: 0\n")
    (installed / "entry_points.txt").write_text("[papermill.engine]\nplain = a:B\n")
    monkeypatch.setattr("sys.path", [str(installed.parent)])
    assert command(SOURCE)[-2:] == ["--engine", "plain"]
    monkeypatch.setattr("sys.path", [])
    assert "--engine" not in command(SOURCE)


def test_papermill_reads_back_what_was_told(command, tmp_path):
    """Its own reading of the words is the value that was meant, with its type."""
    click_guess = pytest.importorskip("papermill.cli")._resolve_type
    more = "lr = 0.0\nbudgets = []\ndepth_lr = False\ntokenizer = ''"
    words = command(SOURCE + more, lr=[1], budgets=[[10, 20]], depth_lr=True)
    recorded, words = {}, iter(told_words(words)[3:])
    for flag in words:
        if flag == "-y":
            recorded |= yaml.safe_load(next(words))
        else:
            name, word = next(words), next(words)
            recorded[name] = {"-p": click_guess, "-r": str}[flag](word)
    assert recorded["lr"] == 1.0 and isinstance(recorded["lr"], float)
    assert (
        recorded["budgets"] == [10, 20] and recorded["depth_lr"] is True and recorded["seed"] == 0
    )
    assert "tokenizer" not in recorded  # not chosen
    # a folder called 2026 stays a word
    braces = notebook.papermill(tmp_path / "n.ipynb", tmp_path / "a{rule}b" / "r.ipynb", {})
    assert braces[2] == str(tmp_path / "a{{rule}}b" / "r.ipynb")  # as papermill formats it
    words = notebook.papermill(tmp_path / "n.ipynb", tmp_path / "r.ipynb", {"out": "2026"})
    assert told_words(words)[3:] == ["-r", "out", "2026"]


@pytest.mark.parametrize(
    ("source", "options", "line"),
    [
        (SOURCE.replace("seed = 0\n", ""), {}, "no parameter 'seed'"),
        (SOURCE, {"lr": [1e-3]}, "no parameter 'lr'"),
        (SOURCE.replace("seed = 0", "seed = 'x'"), {}, "parameter seed must be str .*'x', got 0"),
        (SOURCE + "depth_lr = 0", {"depth_lr": True}, "depth_lr must be int .* 0, got True"),
        ("x = f(1)", {}, "cannot be read as a notebook"),
    ],
)
def test_a_parameter_the_notebook_lacks_is_refused(command, source, options, line):
    with pytest.raises(RRError, match=line):
        command(source, **options)


def test_the_notebooks_own_choice_is_overruled_where_none_was_made(command):
    assert "steps" in command(SOURCE + "steps = 0.5", steps=[3])  # a whole number is a float, too
    words = told_words(command(SOURCE + "steps = 7\nflavour = 'llama'"))
    recorded = dict(zip(words[4::3], words[5::3], strict=True))
    assert (recorded["steps"], recorded["flavour"]) == ("0", "gpt2")


def test_the_stored_notebook_takes_every_option(root):
    known = notebook.parameters(notebook.find(None))
    every = {"rung": ["60M"], "rule": ["review"], "values": ["learnable"], "loops": [2],
             "flavour": ["llama"], "corpus": ["fables"], "tokenizer": ["bpe:300"],
             "protocol": ["clean"], "seed": [1], "budgets": [[10, 20]], "warmup": [2],
             "lr": [1e-3], "batch": [4], "eval_batches": [1], "precision": ["fp32"],
             "depth_lr": True}  # fmt: skip
    machine = {"threads": 1, "device": "cpu", "micro_batch": 2, "backend": "eager",
               "save_every": 5.0, "charts": "tensorboard"}  # fmt: skip
    (cell,) = cells(every, print)
    assert set(notebook.arguments(cell, root, machine, root, known)) == {*every, *machine, "out"}
    # in several processes a run has no notebook
    wanted = (RUN_OPTIONS | options_of(Request)).keys() - {"parallel"}
    assert not wanted - known.keys(), "options that the notebook does not take"
    written = json.loads(notebook.find(None).read_text())["cells"]
    (cell,) = ("".join(each["source"]) for each in written if each["id"] == "train")
    kept = {name for name in wanted - {"rung", "rule"} if f" {name}={name}," not in cell}
    assert not kept, "options that the notebook takes and does not hand on in its cell train"


BAD = [
    (["--rule", "revue"], "unknown rule 'revue'"),
    (["--hours", "nan"], "hours must be a finite number > 0"),
    (["--measured", "x.json"], "--measured needs --hours"),
    (["--hours", "1", "--measured", "x.json"], "cannot read x.json"),
    (["--seed", "x"], "invalid int value: 'x'"),
    (["--seed"], "expected at least one argument"),
    (["--lr", "0.1", "-1"], "lr must be a finite number > 0"),
    (["--corpus", "file:nowhere"], "nowhere"),
    (["--runner", "jupyter"], "unknown runner 'jupyter'"),
    (["--runner", "direct", "--notebook", "x.ipynb"], "needs --runner papermill"),
    (["--notebook", "x.ipynb"], "no notebook x.ipynb"),
    (["--processes", "2"], "need --runner direct"),
    # what a dry run refuses, too: its commands would fail one by one wherever they are run
    (["--engine", "slurm"], "unknown engine 'slurm'"),
    (["--device", "tpu"], "unknown device 'tpu'"),
    (["--backend", "slow"], "unknown backend 'slow'"),
    (["--micro-batch", "0"], "micro-batch must be"),
    (["--parallel", "pipeline", "--runner", "direct"], "unknown parallel strategy 'pipeline'"),
    (["--save-every", "0"], "save-every must be"),
    (["--charts", "tensorbord"], "unknown logger 'tensorbord': did you mean tensorboard"),
    (["--address", "auto"], "needs --engine ray"),
]
# of the machine that runs them
BAD_HERE = [
    (["--jobs", "0"], "jobs must be an integer ≥ 1"),
    (["--out", "/dev/null/runs"], "cannot write to /dev/null/runs"),
]


@pytest.mark.parametrize(
    "words, line",
    [
        *((["--dry-run", *words], line) for words, line in BAD),
        *((["--runner", "direct", *words], line) for words, line in BAD_HERE),
    ],
)
def test_bad_words_are_one_line_and_leave_nothing(refuses, tmp_path, monkeypatch, words, line):
    monkeypatch.chdir(tmp_path)
    assert line in refuses("sweep", *words)
    assert not list(tmp_path.iterdir())


def test_without_jupyter_the_way_out_is_named(refuses, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    err = refuses("sweep", "--out", tmp_path / "runs")
    assert "papermill and ipykernel not installed" in err and "--runner direct" in err
    assert not list(tmp_path.iterdir())
