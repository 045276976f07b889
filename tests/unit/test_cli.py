"""The command line: every bad word is one line and leaves nothing; --json is JSON and no more."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rrstudy import cli
from rrstudy.stats.records import RUNS

ROOT = Path(__file__).resolve().parents[2]
TINY = "nano:n_layer=1,d_model=16,n_head=2,seq_len=16"


@pytest.fixture
def rr(capsys, kept_threads):
    """rr(*words) -> (exit code, stdout, stderr), in this process."""

    def call(*words):
        capsys.readouterr()
        code = cli.main([str(word) for word in words])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture(scope="module")
def training(tiny_corpus):
    """training(out, **changes) -> the words of a run of a few steps, its text already tokenised."""
    prepare = ["prepare", "--corpus", str(tiny_corpus), "--tokenizer", "bpe:300"]
    assert cli.main(prepare) == 0

    def words(out, **changes):
        given = {"rung": TINY, "corpus": tiny_corpus, "tokenizer": "bpe:300", "out": out}
        given |= {"batch": 2, "steps": 4, "threads": 1, "eval-batches": 2} | changes
        return ["train", *(word for key, value in given.items() for word in (f"--{key}", value))]

    return words


@pytest.fixture(scope="module")
def runs(training, tmp_path_factory):
    """A folder with four finished runs: two arms at two seeds."""
    out = tmp_path_factory.mktemp("runs")
    for rule, seed in (("standard", 0), ("review", 0), ("standard", 1), ("review", 1)):
        assert cli.main([str(w) for w in training(out, rule=rule, seed=seed)]) == 0
    return out


def one_line(result, *words, code=2):
    """Nothing on stdout, one line on stderr that names what was wrong, the right exit code."""
    got, out, err = result
    assert got == code, err
    assert out == ""
    assert err.startswith("rr: ") and err.count("\n") == 1, err
    for word in words:
        assert word in err, err


# -- bad words ----------------------------------------------------------------------------------

BAD = [
    # option, value, what the line must say
    ("budgets", "2000,x", ["budgets must be", "'2000,x'"]),
    ("warmup", "0", ["warmup", "0"]),
    ("rule", "revue", ["unknown rule 'revue'", "did you mean review"]),
    ("rule", "standard:c=1", ["no option 'c'"]),
    ("rule", "constant:c=nan", ["c must be", "got nan"]),
    ("rule", "constant:c", ["name:key=value"]),
    ("rule", "constant:c=1,c=2", ["twice"]),
    ("rule", "nowhere.py:Mine", ["nowhere.py"]),
    ("values", "others", ["unknown value rule 'others'", "own"]),
    ("rung", "nano:depth=3", ["no option 'depth'", "n_layer"]),
    ("rung", "nano:n_layer=-1", ["n_layer must be", "got -1"]),
    ("rung", "nano:d_model=15,n_head=2", ["15", "2 heads"]),
    ("rung", "nano:n_layer=20000", ["at most 10000, got 20000"]),
    ("loops", "2147483647", ["at most 10000"]),
    ("tokenizer", "gpt3", ["unknown tokenizer 'gpt3'"]),
    ("tokenizer", "~no-such-user/x", ["unknown tokenizer '~no-such-user/x'"]),
    ("corpus", "file:~no-such-user/x", ["no file or folder ~no-such-user/x"]),
    ("tokenizer", "bpe:60000", ["bpe:60000", "choose N from 257"]),
    ("protocol", "dirty", ["unknown protocol 'dirty'", "clean, paper"]),
    ("precision", "fp8", ["unknown precision 'fp8'", "bf16, fp16, fp32, tf32"]),
    ("device", "gpu", ["unknown device 'gpu'", "auto, cpu, cuda"]),
    ("flavour", "llama2", ["unknown flavour 'llama2'", "gpt2"]),
    ("seed", str(2**32), ["below 2**32"]),
    ("steps", "1.5", ["--steps", "'1.5'"]),
    ("steps", str(10**30), ["below 2**31"]),
    ("batch", "-3", ["batch must be"]),
    ("lr", "nan", ["lr must be", "finite", "nan"]),
    ("loops", "0", ["n_loops must be"]),
    ("eval-batches", "0", ["eval-batches must be"]),
    ("threads", "99999", ["from 1 to 1024"]),
    ("save-every", "nan", ["save-every must be"]),
]
if not torch.cuda.is_available():
    BAD.append(("device", "cuda", ["'cuda' is not available", "cpu"]))


@pytest.mark.parametrize("verb", [["plan", "--gpu", "H100"], ["doctor", "--quick"], ["bench"]])
def test_a_faulty_rule_of_ones_own_is_one_line(rr, tmp_path, verb):
    own = tmp_path / "mine.py"
    own.write_text(
        "from rr import Rule\nclass Mine(Rule):\n def build(self, site, config):\n"
        "  nothing.at_all\n def write(self, state, u):\n  return state\n"
    )
    words = ["--rung", "nano", "--rule", f"{own}:Mine"]
    one_line(rr(*verb, *words), "mine.py, line 4", "NameError")


@pytest.mark.parametrize(("option", "value", "words"), BAD, ids=[f"{o} {v}" for o, v, _ in BAD])
def test_a_bad_option_of_train(rr, training, tmp_path, option, value, words):
    out = tmp_path / "out"
    one_line(rr(*training(out, **{option: value})), *words)
    assert not out.exists()


def last_line(result):
    """Lines of progress (the tokenizer was trained, …) may stand before the one that complains."""
    code, out, err = result
    assert "Traceback" not in err
    return code, out, err.splitlines(keepends=True)[-1]


OWN = {
    "raises": ("raise ValueError('two\\nlines')", ["cannot be imported", "two lines"]),
    "syntax": ("def (:", ["cannot be imported", "SyntaxError"]),
    "no rule": ("class Mine: pass", ["no residual rule named 'Mine'"]),
    "no write": ("from rr import Rule\nclass Mine(Rule): pass", ["write(state, u)"]),
    "bad write": (
        "from rr import Rule\nclass Mine(Rule):\n def write(self, state, u):\n"
        "  return state.nothing",
        ["mine.py, line 4", "AttributeError"],
    ),
    "bad shape": (
        "from rr import Rule\nclass Mine(Rule):\n def write(self, state, u):\n"
        "  return state[..., :3]",
        ["with the rule", "RuntimeError"],
    ),
}


@pytest.mark.parametrize("kind", OWN)
def test_a_rule_of_ones_own_that_does_not_work(rr, training, tmp_path, kind):
    text, words = OWN[kind]
    path, out = tmp_path / "mine.py", tmp_path / "out"
    path.write_text(text)
    # in fp32: where a CPU has no bf16, a run says so in a line of its own
    one_line(rr(*training(out, rule=f"{path}:Mine", precision="fp32")), *words)
    assert not list(out.rglob("result.json"))


def test_a_rule_of_ones_own_that_works_then_changes_then_goes(rr, training, tmp_path):
    path, out = tmp_path / "mine.py", tmp_path / "out"
    text = "from rr import Rule\nclass Mine(Rule):\n def write(self, state, u):\n  return state + u"
    path.write_text(text)
    words = training(out, rule=f"{path}:Mine")
    code, recorded, err = rr(*words)
    assert code == 0, err
    (folder,) = out.iterdir()
    assert recorded == f"{folder}\n"
    assert json.loads((folder / "result.json").read_text())["id"] == folder.name
    assert rr("sample", folder, "--tokens", 3, "--rule", f"{path}:Mine")[0] == 0
    path.write_text(f"{text}  # changed")
    one_line(rr("sample", folder, "--rule", f"{path}:Mine"), "mine.py:Mine is not the rule of")
    assert rr(*words)[1] != recorded  # another rule, another run
    one_line(rr("sample", folder), "none of its code was run", f"--rule {path}:Mine")
    path.unlink()
    one_line(rr("sample", folder), "no file", "mine.py")
    one_line(rr("sample", folder, "--rule", f"{path}:Mine"), "no file", "mine.py")
    one_line(rr(*words), "mine.py")


@pytest.mark.parametrize(
    ("words", "recorded"),
    [
        ([], "required"),
        (["trian"], "'trian'"),
        (["train", "--out"], "--out"),
        (["train", "--out", "x", "--sede", "1"], "--sede"),
        (["ladder", "--protocol", "papre"], "did you mean paper"),
        (["prepare", "--corpus", "nothing"], "unknown corpus"),
        (["sample", "/nowhere"], "is no run"),
        (["table", "/nowhere"], "no file /nowhere"),
    ],
    ids=" ".join,
)
def test_bad_words_of_other_verbs(rr, words, recorded):
    one_line(rr(*words), recorded)


def test_sample_refuses(rr, training, runs, tmp_path):
    run = next(runs.iterdir())
    one_line(rr("sample", run, "--prompt", "Ada sees the sea. " * 20), "the prompt has", "16")
    bad = (
        "tokens 0",
        "top-k 0",
        "temperature -1",
        "temperature nan",
        "temperature inf",
        "temperature 1e-45",
        "seed -1",
        f"seed {2**70}",
    )
    for option, value in map(str.split, bad):
        one_line(rr("sample", run, f"--{option}", value), f"{option} must be")
    one_line(rr("sample", run, "--prompt", os.fsdecode(b"\xff")), "not UTF-8")
    unfinished = tmp_path / "out"

    def stop(*args):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:  # a run that ends before its first checkpoint
        patch.setattr("rr.training.trainer.batch_starts", stop)
        one_line(last_line(rr(*training(unfinished))), "interrupted", code=130)
    (folder,) = unfinished.iterdir()
    one_line(rr("sample", folder), "has no checkpoint yet")
    without = tmp_path / run.name  # as `rr records export` writes one
    shutil.copytree(run, without, ignore=shutil.ignore_patterns("checkpoint"))
    one_line(rr("sample", without), "has a result but no weights", "another --out")


@pytest.mark.parametrize("change", ["missing", "half", "larger"])
def test_sample_refuses_a_damaged_tokenizer(rr, runs, tmp_path, change):
    run = shutil.copytree(next(runs.iterdir()), tmp_path / "run")
    path = run / "tokenizer" / "vocab.json"
    text = path.read_text()
    path.unlink()
    if change != "missing":
        larger = json.dumps(json.loads(text) | {"more": 300})
        path.write_text(text[:100] if change == "half" else larger)
    one_line(rr("sample", run), "tokenizer", code=3)


# -- good words ---------------------------------------------------------------------------------


def value_of(result):
    """The one JSON value on stdout (NaN and Infinity are none), and nothing else there."""
    code, out, err = result
    assert code == 0, err
    return json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


def test_json_of_what_there_is(rr, tiny_corpus):
    rows = value_of(rr("rules", "--json"))
    assert all(row["equation"] and row["source"] and row["cost"] for row in rows)
    at_start = {row["name"]: row["coefficient"] for row in rows if row["kind"] == "residual"}
    assert at_start["standard"] == 1 and at_start["review"] == 0.5
    assert at_start["highway"] is None  # depends on the state
    values = {row["name"] for row in rows if row["kind"] == "values"}
    assert "own" in values and "constant-resformer" in values and "constant" not in values
    paper = value_of(rr("ladder", "--protocol", "paper", "--json"))
    first = next(row for row in paper if (row["rung"], row["rule"]) == ("60M", "review"))
    assert len(paper) == 15 and first["tokens"] == 8000 * 64 * 256
    assert first["params"] == 59_470_848 and first["gate_params"] == 8_396_800
    recorded = value_of(rr("prepare", "--corpus", tiny_corpus, "--tokenizer", "bpe:300", "--json"))
    assert recorded["tokens"] > recorded["valid_tokens"] > 0
    assert recorded["bigram_nats"] < recorded["unigram_nats"]


def test_a_value_rule_with_a_new_name_is_the_same_run_under_the_old_one(rr, training, tmp_path):
    """Its id is that of runs on record; the old name is taken with a line, the new without."""
    folders, lines = set(), []
    for name in ("constant-resformer:lam=1", "constant:lam=1"):
        _, out, err = rr(*training(tmp_path, rule="standard", values=name))
        folders.add(out.strip())
        lines.append([line for line in err.splitlines() if "is now written" in line])
    assert len(folders) == 1 and not lines[0]
    assert lines[1] == ["--values constant:lam=1 is now written constant-resformer:lam=1; "
                        "the run and its id are the same"]  # fmt: skip
    result = json.loads((Path(folders.pop()) / "result.json").read_text())
    assert result["values"] == "constant:lam=1.0"
    arm = "standard + constant-resformer:lam=1.0"
    _, out, err = rr("table", tmp_path, "--baseline", arm)
    assert arm in out, err
    misspelt = training(tmp_path, values="constant-resfomer")
    one_line(rr(*misspelt), "did you mean constant-resformer")


def test_forms_of_table(rr, runs):
    rows = value_of(rr("table", runs, "--json"))
    assert [row["arm"] for row in rows] == ["standard", "review"]
    review, losses = rows[1], {}
    for path in runs.glob("*/result.json"):
        result = json.loads(path.read_text())
        losses[result["rule"], result["seed"]] = result["val_loss"]
    differences = [losses["review", s] - losses["standard", s] for s in (0, 1)]
    assert review["difference"] == pytest.approx(sum(differences) / 2, abs=1e-12)
    assert review["lo"] < review["difference"] < review["hi"]
    code, out, err = rr("table", runs, "--csv")
    assert (code, err) == (0, "") and out.splitlines()[0] == ",".join(review)
    assert repr(review["welch_p"]) in out and out.count("\n") == 3
    code, out, err = rr("table", runs, "--markdown")
    plain = re.sub(" +", " ", out)
    assert (code, err) == (0, "") and f"| {review['p']:.4f} | {review['holm']:.4f} |" in plain
    code, out, err = rr("table", runs)
    assert (code, err) == (0, "") and f"{review['welch_p']:.4f}" in out
    one_line(rr("table", runs, "--csv", "--markdown"), "not allowed with")


def test_train_prints_its_folder_last_and_the_result_says_what_it_is_of(rr, training, tmp_path):
    code, out, err = rr(*training(tmp_path))
    assert code == 0
    folder = Path(out.splitlines()[-1])
    assert folder.parent == tmp_path and re.fullmatch("[0-9a-f]{12}", folder.name)
    result = json.loads((folder / "result.json").read_text())
    assert set(RUNS) - {"story_loss", "floor"} <= result.keys()  # as records have columns
    assert result["eval_shortened"] is True and result["status"] == "finished"
    assert result["tokens"] == 4 * 2 * 16
    provenance = json.loads((folder / "run.json").read_text())["provenance"]
    assert {"rr", "git", "packages", "processor", "cpu_kernels", "code_path"} <= provenance.keys()


def test_a_diverged_run_is_kept_and_said(rr, training, tmp_path):
    words = training(tmp_path, lr=1e30, precision="fp32", steps=8)
    for _ in range(2):  # the second call finds it finished, and still says so
        code, out, err = rr(*words)
        assert code == 3 and "diverged" in err.splitlines()[-1] and "Traceback" not in err
    (folder,) = tmp_path.iterdir()
    assert out == f"{folder}\n"


def test_sample_is_a_function_of_its_seed(rr, runs):
    words = ["sample", next(runs.iterdir()), "--prompt", "Ada", "--tokens", 8]
    texts = [rr(*words, "--seed", seed)[1] for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2] and texts[0].startswith("Ada")
    greedy = {rr(*words, "--temperature", 0, "--seed", seed)[1] for seed in (1, 2)}
    assert len(greedy) == 1


@pytest.mark.parametrize(
    ("to", "code", "lines"), [("| true; exit ${PIPESTATUS[0]}", 0, 0), ("> /dev/full", 2, 1)]
)
def test_output_that_nobody_reads_or_that_finds_no_room(runs, to, code, lines):
    command = f"{sys.executable} -m rrstudy.cli table {runs} --json {to}"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", command], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (code, lines), done.stderr
