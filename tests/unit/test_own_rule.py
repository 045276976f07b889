"""A reader's own rule: what it computes is in the run's id, and nothing else changes that id."""

import itertools
import json
import linecache
import os
import re
import subprocess
import sys

import new_rule
import pytest
import torch
from tiny import TINY, train

import rr
from rr.analysis import rule_checks
from rr.errors import RRError, RunFailed
from rr.residual import REGISTRY, Option, content
from rr.specs import Run
from rr.training import loading
from rrstudy import stats

pytestmark = pytest.mark.usefixtures("registry")  # each registers rules

CLASS = """
import torch
import rr
from rr.residual.values import ValueRule
{before}
@rr.register("mine")
class Mine(rr.Rule):
    equation, source = "h + c u", "a test"
    {attributes}

    def write(self, state, u):
        {write}
"""


DATACLASS = """
from __future__ import annotations
from dataclasses import dataclass
import rr

@dataclass
class Scale:
    half: float = 0.5

@rr.register("scaled-by-a-dataclass")
class Mine(rr.Rule):
    equation, source = "h + u/2", "a test"

    def write(self, state, u):
        return state + Scale().half * u
"""


CELLS = itertools.count()


def run_cell(code, module="__main__"):
    """Run a notebook's cell that registers "mine": its source can be read, as Jupyter sees to."""
    name = f"<cell {next(CELLS)}>"
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    space = {"__name__": module}
    exec(compile(code, name, "exec"), space)
    return space["Mine"]


def define(write="return state + 0.5 * u", before="", attributes="", module="__main__"):
    return run_cell(CLASS.format(write=write, before=before, attributes=attributes), module)


def plan(rule="mine", **options):
    return rr.plan(TINY, rule, steps=2, batch=2, **options)


# ---- what counts, and what does not --------------------------------------------------------------

CHANGES = {
    "the text of a method": dict(write="return state + 0.25 * u"),
    "an attribute": dict(attributes="scale = 2.0"),
    "a list": dict(attributes="scales = [1, {'a': 2}]"),
    "a tensor": dict(attributes="scale = torch.ones(2)"),
    "an option": dict(attributes="options = {'c': rr.residual.Option(1.0, 'coefficient')}"),
    "a static method": dict(attributes="kept = staticmethod(lambda h, u: 0.5)"),
    "a property": dict(attributes="half = property(lambda self: 0.5)"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_class_computes_is_in_the_id(change):
    define()
    before = plan().id
    define(**CHANGES[change])
    assert plan().id != before
    define()
    assert plan().id == before


@pytest.mark.parametrize(
    ("before", "write"),
    [
        ("c = {}", "return state + c * u"),
        ("def f(u): return {} * u", "return state + f(u)"),
        ("k = {}\ndef f(u): return k * u", "return state + f(u)"),
        ("class A:\n    c = {}", "return state + A.c * u"),
        ("k = {}\ndef f(u, c=k): return c * u", "return state + f(u)"),
        ("def f(c): return lambda u: c * u\ng = f({})", "return state + g(u)"),
    ],
)
def test_what_a_method_takes_from_its_notebook_is_in_the_id(before, write):
    define(write, before.format(1))
    first = plan().id
    define(write, before.format(2))
    assert plan().id != first


def test_a_variable_with_the_name_of_an_attribute_is_not_in_the_id():
    """Nor is it refused where an id could not hold it, as an optimiser that is called opt."""
    write = "return state + self.site.d_model * u"
    define(write, "d_model = 1")
    first = plan().id
    define(write, "d_model, site = 2, object()")
    assert plan().id == first


def test_the_class_that_it_derives_from_is_in_the_id():
    ids = []
    for c in (1, 2):
        run_cell(
            "import rr\nclass Base(rr.Rule):\n    equation = source = 'x'\n"
            f"    def write(self, state, u):\n        return state + {c} * u\n"
            "@rr.register('mine')\nclass Mine(Base):\n"
            "    def write(self, state, u):\n        return super().write(state, u)\n"
        )
        ids.append(plan().id)
    shipped = type("Mine", (REGISTRY["residual"]["review"],), {"__module__": "__main__"})
    rr.register("mine")(shipped)
    assert len({*ids, plan().id}) == 3


def test_what_it_does_not_use_does_not_count():
    define(before="unused = 1")
    first = plan().id
    define(before="unused = 2  # a comment\n")
    assert plan().id == first
    define(module="another_file")
    assert plan().id == first


def test_what_an_id_cannot_name_is_refused():
    define("return state + next(turns) * u", "turns = iter([1.0])")
    with pytest.raises(RRError, match="'mine' uses 'turns', a list_iterator"):
        plan()
    exec(CLASS.format(write="return u", before="", attributes=""), {"__name__": "__main__"})
    with pytest.raises(RRError, match="'mine' uses 'write', whose source text cannot be found"):
        plan()


@pytest.mark.parametrize(
    ("before", "write"),
    [("from besides import mix", "return mix(state, u)"),
     ("import besides", "return besides.mix(state, u)")],
)  # fmt: skip
def test_a_file_that_an_id_does_not_see_is_refused(tmp_path, monkeypatch, before, write):
    """A change of it would be taken for the old rule, and its old result for the new one."""
    (tmp_path / "besides.py").write_text("def mix(h, u):\n    return h + 0.5 * u\n")
    monkeypatch.syspath_prepend(tmp_path)
    define(write, before)
    said = "uses '(mix|besides)' of .*besides.py, which a run's id does not see"
    with pytest.raises(RRError, match=f"^rule 'mine' {said}"):
        plan()
    path = tmp_path / "mine.py"
    path.write_text(CLASS.format(write=write, before=before, attributes=""))
    with pytest.raises(RRError, match=said):
        plan(f"{path}:Mine")
    sys.modules.pop("besides")


def test_options_count_by_their_defaults_and_not_by_their_words():
    ids = {}
    for default, meaning in ((1.0, "one"), (1.0, "another"), (2.0, "one")):
        define(attributes=f"options = {{'c': rr.residual.Option({default}, {meaning!r})}}")
        ids[default, meaning] = plan().id
    assert ids[1.0, "one"] == ids[1.0, "another"] != ids[2.0, "one"]
    # a default that an heir of a shipped rule changes is its own
    for bias in (0.0, -3.0):
        run_cell(
            "import rr\nReview = rr.residual.REGISTRY['residual']['review']\n"
            "@rr.register('mine')\nclass Mine(Review):\n"
            f"    options = Review.options | {{'bias': rr.residual.Option({bias}, 'b')}}"
        )
        ids[bias] = plan().id
    assert ids[0.0] != ids[-3.0]


def test_an_id_does_not_depend_on_the_process(tmp_path):
    names = "names = frozenset(['x', 'y', 'z'])"
    code = CLASS.format(write="return state", before="", attributes=names)
    code += f"\nprint(rr.plan({TINY!r}, 'mine', steps=2, batch=2).id)"
    (tmp_path / "mine.py").write_text(code)
    command = [sys.executable, tmp_path / "mine.py"]
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"  # another than in this process
    env = {"PYTHONHASHSEED": seed, "PATH": "", "HOME": "/"}
    other = subprocess.check_output(command, env=env, text=True)
    define("return state", attributes=names)
    assert other.strip() == plan().id


def test_rules_that_ship_keep_their_ids_and_their_names():
    assert all(content(name, kind) == "" for kind, names in REGISTRY.items() for name in names)
    with pytest.raises(RRError, match="'review' is part of rr"):
        rr.register("review")(define())


def test_a_value_rule_counts_like_a_residual_rule():
    ids = []
    for lam in (0.5, 0.25):
        run_cell(
            "import rr\nfrom rr.residual.values import Mixed\n"
            "@rr.register('mine')\nclass Mine(Mixed):\n"
            f"    equation = source = 'x'\n    def lambdas(self):\n        return {lam}, 1.0\n"
        )
        ids.append(plan("standard", values="mine").id)
    assert ids[0] != ids[1] and plan("standard").values_content == ""


# ---- runs ----------------------------------------------------------------------------------------


def trained(out, tiny_corpus, rule="mine", seed=0):
    return train(plan(rule, corpus=tiny_corpus, tokenizer="bpe:300", seed=seed), out)


def test_a_changed_rule_is_another_run_and_the_old_one_says_so(tmp_path, tiny_corpus):
    define()
    old = trained(tmp_path, tiny_corpus)
    assert trained(tmp_path, tiny_corpus) == old
    assert loading.load(old)[1].rule == "mine"
    stale = plan(corpus=tiny_corpus, tokenizer="bpe:300")
    define(write="return state - u")
    new = trained(tmp_path, tiny_corpus)
    assert new != old
    with pytest.raises(RunFailed, match="mine has changed since the run was planned"):
        loading.load(old)
    with pytest.raises(RRError, match="mine has changed since the run was planned"):
        train(stale, tmp_path)
    del REGISTRY["residual"]["mine"]
    with pytest.raises(RunFailed, match="cannot be loaded: unknown rule 'mine'"):
        loading.load(old)
    # what the folder holds can still be read, and checked against its id
    assert Run.from_spec(json.loads((old / "run.json").read_text())["run"]).id == old.name


def test_the_table_names_it_and_tells_two_of_one_name_apart(tmp_path, tiny_corpus):
    path = tmp_path / "folder" / "mine.py"
    path.parent.mkdir()
    text = "import rr\nclass Mine(rr.Rule):\n    def write(self, state, u):\n        return {}\n"
    path.write_text(text.format("state + 0.5 * u"))
    for rule in ("standard", f"{path}:Mine"):
        for seed in (0, 1):
            trained(tmp_path / "runs", tiny_corpus, rule, seed)
    table = stats.compare(stats.read_results(tmp_path / "runs"), "standard")
    rows, shown = stats.as_rows(table), stats.render(table)
    assert [row["arm"] for row in rows] == ["standard", "mine.py:Mine"]
    assert rows[1]["pairs"] == [0, 1] and not rows[1]["notes"]
    assert "mine.py:Mine" in shown and str(tmp_path) not in shown
    path.write_text(text.format("state + 0.4 * u"))
    trained(tmp_path / "runs", tiny_corpus, f"{path}:Mine")
    rows = stats.as_rows(stats.compare(stats.read_results(tmp_path / "runs"), "standard"))
    assert len({row["arm"] for row in rows}) == len(rows) == 3
    assert sorted(len(row["pairs"]) for row in rows[1:]) == [1, 2]
    # a baseline that changed is not compared with as if it were one
    rows = stats.as_rows(stats.compare(stats.read_results(tmp_path / "runs"), f"{path}:Mine"))
    (standard,) = [row for row in rows if row["rule"] == "standard"]
    assert "several" in standard["notes"][0] and standard["difference"] is None


def test_a_file_may_end_python_and_is_still_one_line(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("import sys\nsys.exit(0)")
    with pytest.raises(RRError, match="cannot be imported: SystemExit"):
        plan(f"{path}:Mine")
    with pytest.raises(RRError, match="no file 'a\\\\x00b.py'"):
        plan("a\0b.py:Mine")


# ---- make new-rule -------------------------------------------------------------------------------


def test_a_new_rule_holds_to_every_check_and_says_what_comes_next(tmp_path, capsys):
    words = ["--to", str(tmp_path / "rules"), "half-step"]
    assert new_rule.main(words) == 0
    recorded = capsys.readouterr().out
    path = tmp_path / "rules" / "half_step.py"
    rule = f"{path}:HalfStep"
    assert set(rule_checks.check(rule).values()) == {None}
    # what test_printed_commands runs, by the paths of this environment's programs
    commands = [line for line in recorded.splitlines()[1:] if line and line[0] != "#"]
    assert len(commands) == 3 and all(rule in command for command in commands[:2])
    for command in commands:
        program = re.search(r"\S*/(?:rr|pytest) ", command)[0].strip()
        assert (new_rule.ROOT / program).exists()
    # it is what it says: the constant rule, written by hand
    h, u = torch.randn(2, 2, 3, 16).unbind()
    made, constant = (rule_checks.model_of(name).rules[0] for name in (rule, "constant"))
    assert torch.equal(made.write(h, u), constant.write(h, u))
    assert new_rule.main(words) == 2
    recorded, err = capsys.readouterr()
    assert "exists already" in err and err.count("\n") == 1 and recorded == ""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "a name is needed"),
        ("svformer", "'svformer' is a values rule that ships"),
        ("2fast", "small letters, digits, - and _, got '2fast'"),
        ("a/b", "got 'a/b'"),
    ],
)
def test_a_bad_name_is_one_line(tmp_path, capsys, name, words):
    assert new_rule.main(["--to", str(tmp_path / "rules"), "--", name]) == 2
    recorded, err = capsys.readouterr()
    assert recorded == "" and err.count("\n") == 1 and words in err
    assert not (tmp_path / "rules").exists()


def test_an_option_that_is_true_can_be_switched_off(tmp_path):
    options = "options = {'on': rr.residual.Option(True, 'on or off', 'True or False')}"
    path = tmp_path / "mine.py"
    path.write_text(CLASS.format(write="return state", before="", attributes=options))
    rr.allow_rule(f"{path}:Mine")
    ids = {word: plan(f"{path}:Mine:on={word}").id for word in ("True", "1", "False", "0")}
    assert ids["True"] == ids["1"] == plan(f"{path}:Mine").id
    assert ids["False"] == ids["0"] != ids["True"]
    with pytest.raises(RRError, match="on must be True or False, got off"):
        plan(f"{path}:Mine:on=off")


def test_options_of_a_rule_in_a_file_are_held_to_what_it_declares(tmp_path):
    path = new_rule.new_rule("half-step", tmp_path)
    assert plan(f"{path}:HalfStep:c=0.25").rule == f"{path}:HalfStep:c=0.25"
    assert plan(f"{path}:HalfStep:c=0.5").id == plan(f"{path}:HalfStep").id
    for given, words in (
        ("c=often", "HalfStep: c must be a finite number, got often"),
        ("k=1", "rule 'HalfStep' has no option 'k'"),
    ):
        with pytest.raises(RRError, match=words):
            plan(f"{path}:HalfStep:{given}")
    with pytest.raises(
        RRError, match="no values rule named 'HalfStep': expected .*:Class, a subclass"
    ):
        plan("standard", values=f"{path}:HalfStep")
    # the same file elsewhere is the same run
    other = tmp_path / "elsewhere.py"
    other.write_bytes(path.read_bytes())
    assert plan(f"{other}:HalfStep").id == plan(f"{path}:HalfStep").id


def test_a_file_may_hold_dataclasses_whose_annotations_are_text(tmp_path):
    """dataclasses look for the module of a class in sys.modules."""
    path = tmp_path / "torch.py"  # the name of a module that is there already
    path.write_text(DATACLASS)
    rule = f"{path}:Mine"
    rr.allow_rule(rule)
    model = rule_checks.model_of(rule)
    assert sys.modules["torch"] is torch
    assert type(model.rules[0]).__module__ in sys.modules


def test_a_file_that_fails_leaves_no_module(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("raise ValueError('broken')")
    before = set(sys.modules)
    rr.allow_rule(f"{path}:Mine")
    with pytest.raises(RRError, match="ValueError: broken"):
        rule_checks.model_of(f"{path}:Mine")
    assert not [name for name in set(sys.modules) - before if name.startswith("broken")]


@pytest.mark.parametrize("name", ["rate", "per_pass"])
def test_an_option_of_every_rule_is_not_redefined(name):
    with pytest.raises(RRError, match=f"every rule has {name}="):

        class Mine(rr.Rule):
            equation, source = "h + u", "a test"
            options = {name: Option(0.1, "mine")}
