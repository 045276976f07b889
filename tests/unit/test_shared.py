"""What somebody else made is data: nothing in it is run, and no claim of size is believed.

The attacks are whole: a run is changed and then sealed, hashed and named again with rr's own code,
so that nothing but the rule that it names is wrong with it.
"""

import hashlib
import json
import os
import shlex
import shutil
import sys

import pytest
import torch
from tiny import TINY, train

import rr
import rrstudy
from rr import io
from rr.errors import RRError, RunFailed
from rr.model import Model
from rr.specs import ModelConfig, Run
from rr.training import loading
from rr.training.checkpoint import Checkpoints
from rrbook import reports as report
from rrstudy import cli, command_line

RULE = """
import sys
from pathlib import Path
Path({mark!r}).touch()
sys.modules["evil"] = sys
import rr
from rr.residual.values import ValueRule
class Evil(rr.Rule):
    equation, source = "h + u", "a test"
    def write(self, state, u):
        return state + u
class EvilValues(ValueRule):
    pass
"""


class Foreign:
    """What a stranger sent: a folder, and a file that leaves a mark where it is imported."""

    def __init__(self, home, genuine):
        self.home, self.genuine, self.mark = home, genuine, home / "imported"
        self.folder = home / "shared"
        self.folder.mkdir(parents=True)

    def code(self, path, name="Evil", more=""):
        path.write_text(RULE.format(mark=str(self.mark)) + more)
        return f"{path}:{name}"

    def run(self, kind="rule", rule=None, content=None, **model):
        """A finished run that names `rule`, by default a file inside its folder."""
        aside = self.folder / "aside"
        shutil.copytree(self.genuine, aside)
        record = io.read_sealed(aside / "run.json")
        spec = record["run"]
        if rule is not None:
            spec[kind] = spec["model"][kind] = rule
            spec[f"{kind}_content"] = content
        spec["model"] |= model
        spec |= {"loops": spec["model"]["n_loops"], "flavour": spec["model"]["flavour"]}
        try:
            name = Run.from_spec(spec).id
        except RRError:  # no run of rr's, but somebody can write it all the same
            name = record["id"]
        io.write_record(aside / "run.json", {**record, "id": name})
        result = io.read_sealed(aside / "result.json")
        io.write_record(aside / "result.json", {**result, "id": name, kind: spec[kind]})
        self.checkpoint(aside, name)
        return aside.rename(self.folder / name)

    def checkpoint(self, folder, name, change=None):
        """Name and hash the last checkpoint again, with what `change` makes of its state."""
        checkpoints = Checkpoints(folder, name)
        step = checkpoints.steps()[-1]
        where = checkpoints.path(step)
        if change is not None:
            state = change(checkpoints.read(step))
            (where / "state.pt").unlink()  # its tensors are still read from there
            torch.save(state, where / "state.pt")
        meta = {"run": name, "step": step}
        meta["sha256"] = Checkpoints.digest_of(meta, where)
        io.write_json(where / "meta.json", meta)

    def held_back(self):
        return not self.mark.exists() and "evil" not in sys.modules


@pytest.fixture(scope="module")
def genuine(planned, tmp_path_factory):
    plan = planned(rule="standard", steps=3)
    return train(plan, tmp_path_factory.mktemp("runs"), keep_checkpoints=True)


@pytest.fixture
def foreign(genuine, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield Foreign(tmp_path / "from afar", genuine)
    sys.modules.pop("evil", None)


@pytest.fixture
def model(genuine, foreign):
    pytest.importorskip("huggingface_hub")
    pytest.importorskip("safetensors")
    return rrstudy.save_pretrained(genuine, foreign.folder / "model")


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def refused(call, *words, kind=RRError):
    """The one line with which `call` is refused."""
    with pytest.raises(kind) as error:
        call()
    line = str(error.value)
    assert "\n" not in line, line
    for word in words:
        assert word in line, line
    return line


# ---- a rule in a file ----------------------------------------------------------------------------

WAYS = ["inside", "relative", "up", "absolute", "symlink", "gone"]


def placed(foreign, way, name="Evil"):
    """(rule, its file) as a foreign run or model may name it."""
    path = foreign.folder / "evil.py"
    rule = foreign.code(path, name)
    if way == "relative":
        rule = os.path.relpath(rule)
    elif way == "up":
        (foreign.folder / "deeper").mkdir()
        rule = f"{foreign.folder}/deeper/../evil.py:{name}"
    elif way == "absolute":
        path = path.rename(foreign.home / "evil.py")
        rule = f"{path}:{name}"
    elif way == "symlink":
        (foreign.folder / "fine.py").symlink_to(path)
        rule = f"{foreign.folder}/fine.py:{name}"
    return rule, path


def sample(folder, *words):
    return cli.main(["sample", str(folder), "--tokens", "2", *words])


VERBS = [rr.load, report.read, "sample", "report"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("kind", ["rule", "values"])
def test_a_foreign_run_imports_nothing(foreign, refuses, way, verb, kind):
    rule, path = placed(foreign, way, "Evil" if kind == "rule" else "EvilValues")
    content = sha256(path)
    folder = foreign.run(kind, rule, content)
    if way == "gone":
        path.unlink()
    elif way == "up":
        path.write_text(path.read_text() + "# changed since\n")
    there = [content] if way == "gone" else [sha256(path), content]
    words = [rule, rule.partition(":")[0], *there, "--rule ", f"allow_rule={rule!r}"]
    if isinstance(verb, str):
        line = refuses(verb, folder)
        assert all(word in line for word in words), line
    else:
        refused(lambda: verb(folder), *words)
    assert foreign.held_back()


def test_folders_are_read_without_their_rules(foreign, capsys):
    rule, path = placed(foreign, "inside")
    folder = foreign.run("rule", rule, sha256(path))
    assert cli.main(["table", str(foreign.folder), "--baseline", rule]) == 0
    assert "evil.py:Evil" in capsys.readouterr().out
    here = report.survey(foreign.folder, seeds=[0, 1], baseline=rule)
    assert [row["id"] for row in here.results] == [folder.name]
    assert report.shown(here) and report.cost_by_arm(here) and report.points(here)
    (line,) = report.command(here)
    assert rule in line and "--seed 1" in line
    # a command to be copied would run it: that is said, with what it is
    (note,) = here.notes
    assert rule in note and sha256(path) in note
    assert foreign.held_back()


def test_a_model_whose_rule_is_not_its_run_s_or_has_no_content_is_refused(foreign):
    """The run's id is of the run's own rule: what its model names was not in it."""
    rule, _ = placed(foreign, "inside")
    says = repr(rule), "without the file's SHA-256"
    refused(lambda: rr.load(foreign.run("rule", rule, "")), *says)
    folder = foreign.run(rule=None)
    record = io.read_sealed(folder / "run.json")
    record["run"]["model"]["rule"] = rule
    io.write_record(folder / "run.json", record)
    refused(lambda: rr.load(folder), "its model has another rule", kind=RunFailed)
    assert foreign.held_back()


@pytest.mark.parametrize("way", ["\x1b[2Jevil", "evil\u202e", "evil\nfine"])
def test_a_name_that_a_terminal_would_obey_is_not_printed(foreign, way):
    path = foreign.folder / f"{way}.py"
    line = refused(lambda: rr.load(foreign.run("rule", foreign.code(path), sha256(path))))
    assert line.isprintable() and "--rule" not in line and foreign.held_back()


@pytest.mark.parametrize("rule", [5, ["review"]])
def test_a_specification_of_other_types_is_one_line(foreign, rule):
    refused(lambda: rr.load(foreign.run("rule", rule)), "is corrupt", kind=RunFailed)


def test_a_given_rule_has_to_be_the_run_s(foreign, tmp_path):
    rule, path = placed(foreign, "inside")
    folder = foreign.run("rule", rule, sha256(path))
    other = foreign.code(tmp_path / "other.py", more="# longer\n")
    got = other, sha256(tmp_path / "other.py"), sha256(path)
    refused(lambda: rr.load(folder, allow_rule=other), *got, "restore the file")
    refused(lambda: rr.load(folder, allow_rule=f"{path}:Other"), "read the file, then allow it")
    refused(lambda: rr.load(folder, allow_rule=f"{rule}:c=1"), "expected path.py:Class")
    refused(lambda: rr.load(folder, allow_rule="nowhere.py:Evil"), "no file 'nowhere.py'")
    refused(lambda: rr.load(foreign.genuine, allow_rule=rule), f"names no rule {rule}", "standard")
    assert foreign.held_back()


def test_a_rule_that_is_allowed_is_imported_from_where_the_caller_says(foreign, capsys, tmp_path):
    rule, path = placed(foreign, "inside")
    folder = foreign.run("rule", rule, sha256(path))
    path.rename(tmp_path / "read.py")
    foreign.code(path, more="raise SystemExit  # another now, which nobody has read\n")
    mine = f"{tmp_path / 'read.py'}:Evil"
    assert sample(folder) == 2 and foreign.held_back()
    capsys.readouterr()
    assert sample(folder, "--rule", mine) == 0 and foreign.mark.exists()
    assert capsys.readouterr().out.strip()
    model, run, _ = rr.load(folder, "cpu", allow_rule=mine)
    assert (run.rule, run.model.rule, run.id) == (mine, mine, folder.name)
    idx = torch.arange(8)[None]
    with torch.no_grad():
        assert torch.equal(model(idx), rr.load(foreign.genuine, "cpu")[0](idx))
    ended = report.read(folder, allow_rule=mine)
    verb, *line = shlex.split(command_line.sample_command(ended.run, folder.parent))
    assert verb == "rr" and cli.main(line) == 0
    assert report.look(ended).score is not None and dict(report.cost(ended))["parameters"]


def test_both_rules_can_be_allowed(foreign):
    one, two = foreign.folder / "one.py", foreign.folder / "two.py"
    rule, values = foreign.code(one), foreign.code(two, "EvilValues", "# another file\n")
    foreign.genuine = foreign.run("rule", rule, sha256(one))
    folder = foreign.run("values", values, sha256(two))
    refused(lambda: rr.load(folder, allow_rule=rule), values)
    refused(lambda: rr.load(folder, allow_rule=values), rule)
    assert foreign.held_back()
    assert rr.load(folder, allow_rule=[values, rule])[1].values == values


def test_a_shape_that_names_a_file_is_not_resolved_until_it_is_allowed(foreign):
    rule, path = placed(foreign, "inside")
    shape = ModelConfig(64, 1, 1, 8, 8, 8, rule=rule)
    refused(lambda: Model(shape), rule, sha256(path), f"rr.allow_rule({rule!r})")
    assert foreign.held_back()
    rr.allow_rule(rule)
    assert foreign.held_back()  # it may be, and is not yet
    assert Model(shape) and foreign.mark.exists()


# ---- a caller's own rule, in a folder that is anybody's ------------------------------------------


@pytest.mark.parametrize("verb", ["train", "sweep"])
def test_a_folder_does_not_choose_which_file_is_run(foreign, tmp_path, tiny_corpus, verb):
    """Its run.json has the id and the content of the caller's rule, and another file's path."""
    mine = tmp_path / "mine.py"
    mine.write_text(
        "import rr\nclass Evil(rr.Rule):\n    equation, source = 'h + u', 'here'\n"
        "    def write(self, state, u):\n        return state + u\n"
    )
    given = {"rung": TINY, "rule": f"{mine}:Evil", "corpus": tiny_corpus, "tokenizer": "bpe:300"}
    given |= {"batch": 4, "steps": 3, "threads": 1, "out": foreign.folder}
    words = [str(word) for name, value in given.items() for word in (f"--{name}", value)]
    assert cli.main(["train", *words]) == 0
    (folder,) = [path.parent for path in foreign.folder.rglob("run.json")]
    before = io.read_sealed(folder / "result.json")
    (folder / "result.json").unlink()  # one that was begun
    record = io.read_sealed(folder / "run.json")
    rule = foreign.code(foreign.folder / "evil.py")
    record["run"]["rule"] = record["run"]["model"]["rule"] = rule
    assert Run.from_spec(record["run"]).id == folder.name
    io.write_record(folder / "run.json", record)
    more = ["--runner", "direct", "--device", "cpu"] if verb == "sweep" else []
    assert cli.main([verb, *words, *more]) == 0
    again = io.read_sealed(folder / "result.json")
    assert again["weights_sha256"] == before["weights_sha256"] and foreign.held_back()


def test_what_runs_is_what_was_planned(tmp_path, tiny_corpus):
    """An edit while a run is trained changes neither the run nor what it records of itself."""
    path = tmp_path / "mine.py"
    text = "import rr\nclass Mine(rr.Rule):\n    def write(self, state, u):\n        return {}\n"
    given = {"corpus": tiny_corpus, "tokenizer": "bpe:300", "batch": 4, "steps": 3}
    path.write_text(text.format("state + u"))
    run = rr.plan(TINY, f"{path}:Mine", **given)
    path.write_text(text.format("state - u"))
    folder = train(run, tmp_path / "runs")
    assert loading.load(folder)[1].id == run.id == folder.name
    assert rr.plan(TINY, f"{path}:Mine", **given).id != run.id
    refused(lambda: train(run, tmp_path / "runs"), "has changed since the run was planned")


# ---- a shared model ------------------------------------------------------------------------------


def edited(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["rule", "values"])
@pytest.mark.parametrize("place", ["folder", "hub"])
def test_a_shared_model_imports_nothing(foreign, model, monkeypatch, way, kind, place):
    from rrstudy import hub

    rule, path = placed(foreign, way, "Evil" if kind == "rule" else "EvilValues")
    got = sha256(path)
    if way == "gone":
        path.unlink()
    edited(model, **{kind: rule})
    name = model
    if place == "hub":
        name = "somebody/model"
        monkeypatch.setattr(hub, "hf_hub_download", lambda name, file, **_: str(model / file))
    there = [] if way == "gone" else [got]
    refused(lambda: rrstudy.from_pretrained(name), str(name), rule, *there, f"allow_rule={rule!r}")
    assert foreign.held_back()
    if way != "gone":
        loaded = rrstudy.from_pretrained(name, allow_rule=f"{path}:{rule.rpartition(':')[2]}")
        assert foreign.mark.exists()
        idx = torch.arange(8)[None]
        with torch.no_grad():
            assert torch.equal(loaded(idx), rr.load(foreign.genuine, "cpu")[0](idx))


def test_a_run_of_a_rule_in_a_file_is_not_shared(foreign):
    pytest.importorskip("huggingface_hub")
    rule, path = placed(foreign, "inside")
    folder = foreign.run("rule", rule, sha256(path))
    refused(lambda: rrstudy.save_pretrained(folder, foreign.home / "to"), "is not part of rr")
    assert foreign.held_back()


# ---- sizes ---------------------------------------------------------------------------------------

CLAIMS = [
    {"n_layer": 5000}, {"d_model": 2**30}, {"vocab_size": 2**30}, {"seq_len": 2**30},
    {"n_loops": 5000}, {"n_layer": 1}, {"rule": "review:per_pass=1", "n_loops": 1000},
    {"rule": f"review:rank={2**62}"}, {"rule": "hyper-connections"}, {"values": "svformer"},
    {"n_kv_head": 1}, {"flavour": "llama"},
]  # fmt: skip


@pytest.fixture
def no_room(monkeypatch):
    """A model of more than a few blocks, or one that has bytes, is not made."""
    made = Model.__init__

    def init(self, config):
        assert torch.get_default_device().type == "meta", "memory was asked for"
        assert config.n_layer * config.n_loops < 100, "a million modules take memory, too"
        made(self, config)

    monkeypatch.setattr(Model, "__init__", init)


@pytest.mark.parametrize("claim", CLAIMS, ids=str)
def test_the_sizes_of_a_model_and_of_a_run_are_those_of_the_weights(model, foreign, no_room, claim):
    edited(model, **claim)
    refused(lambda: rrstudy.from_pretrained(model), str(model), "is not a model of rr")
    claim = dict(claim)
    rules = {kind: claim.pop(kind) for kind in ("rule", "values") if kind in claim}
    ((kind, rule),) = rules.items() or [("rule", None)]
    folder = foreign.run(kind, rule, "", **claim)
    refused(lambda: rr.load(folder), str(folder), "cannot be loaded", kind=RunFailed)


def with_weights(change):
    return lambda state: state | {"model": change(state["model"])}


@pytest.mark.parametrize(
    "change",
    [
        with_weights(lambda weights: weights | {"layers.0.more": torch.zeros(3)}),
        with_weights(lambda weights: dict(list(weights.items())[1:])),
        with_weights(lambda weights: {"token.weight": 5}),
        lambda state: [state],
    ],
)
def test_weights_that_are_no_model_s_are_one_line(foreign, no_room, change):
    folder = foreign.run()
    foreign.checkpoint(folder, folder.name, change)
    refused(lambda: rr.load(folder), kind=RunFailed)


def test_one_number_is_not_shown_as_a_large_model(foreign, no_room):
    """A tensor of stride 0 has any shape and one number: its copy would have the shape's bytes."""
    folder = foreign.run(d_model=2**16, n_head=1, d_ff=2**16)
    config = rr.Run.from_spec(io.read_sealed(folder / "run.json")["run"]).model
    with torch.device("meta"):
        shapes = {name: t.shape for name, t in Model(config).state_dict().items()}
    wide = {name: torch.zeros(1).expand(shape) for name, shape in shapes.items()}
    foreign.checkpoint(folder, folder.name, with_weights(lambda weights: wide))
    assert next(folder.rglob("state.pt")).stat().st_size < 2**20
    refused(lambda: rr.load(folder), kind=RunFailed)


# ---- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["run.json", "result.json", "meta.json"])
def test_the_json_of_a_run_has_a_size(foreign, file, capsys):
    folder = foreign.run()
    (path,) = folder.rglob(file)
    path.write_bytes(path.read_bytes() + b" " * 2**22)
    line = refused(lambda: (report.read(folder), rr.load(folder)), kind=RunFailed)
    assert f"{file} is larger than" in line + capsys.readouterr().err


@pytest.mark.parametrize("file", ["config.json", "merges.txt"])
def test_the_files_of_a_shared_model_have_a_size_and_an_end(model, file):
    os.truncate(model / file, 2**26 + 1)
    refused(lambda: rrstudy.from_pretrained(model), str(model), f"{file} is larger than")
    (model / file).unlink()
    os.mkfifo(model / file)
    refused(lambda: rrstudy.from_pretrained(model), str(model), "not a regular file")


def test_the_tokenizer_of_a_shared_model_is_its_own(model):
    vocab = json.loads((model / "vocab.json").read_text())
    (model / "vocab.json").write_text(json.dumps(vocab | {"one more": len(vocab)}))
    refused(lambda: rrstudy.from_pretrained(model), "its tokenizer has 301 tokens")
