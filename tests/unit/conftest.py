"""What the unit tests share: a cache of their own, and a corpus small enough to train on."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import rr
from rr.errors import RRError
from rr.residual import REGISTRY

# Inductor compiles in the test's process: its pool of processes would import torch once each.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")


def pytest_configure(config: pytest.Config) -> None:
    """Hypothesis draws the same cases everywhere, and keeps none."""
    if config.pluginmanager.hasplugin("hypothesispytest"):  # Colab's packages do without it
        from hypothesis import settings
        from hypothesis.configuration import set_hypothesis_home_dir

        set_hypothesis_home_dir(Path(tempfile.gettempdir(), "hypothesis"))
        settings.register_profile("same", derandomize=True, deadline=None, database=None)
        settings.load_profile("same")


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """Tests neither find nor leave anything in the user's cache, unless RR_CACHE names one.

    pytest-xdist's processes share theirs, so that the built-in corpus is made once.
    """
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    os.environ.setdefault("RR_CACHE", str(base / "cache"))


@pytest.fixture(scope="session", autouse=True)
def one_line():
    """Whatever is refused, in any test and whoever catches it, is refused in one line.

    But for a message of somebody else's that it passes on.
    """
    begin = RRError.__init__

    def checked(self, *words):
        text, passed_on = " ".join(map(str, words)), str(sys.exc_info()[1])
        assert "\n" not in text or "\n" in passed_on, words
        begin(self, *words)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(RRError, "__init__", checked)
        yield


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request) -> torch.device:
    """Each test that takes it runs on the CPU and, by `pytest -m gpu`, on the GPU."""
    return torch.device(request.param)


@pytest.fixture
def kept_threads():
    """Torch's number of threads after the test is what it was before."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny_corpus(tmp_path_factory) -> str:
    """Four hundred short documents of a tiny language, as a --corpus name."""
    folder = tmp_path_factory.mktemp("corpus")
    who, did = "Ada Ben Cleo Dov".split(), "sees finds wants".split()
    what = ["a red kite", "the sea", "bread"]
    lines = []
    for i in range(400):
        name = who[i * 7 % 4]
        lines.append(
            f"{name} {did[i * 5 % 3]} {what[i * 11 % 3]}. Then {name} sleeps for {i % 13} nights."
        )
    path = folder / "tiny.txt"
    path.write_text("\n<|endoftext|>\n".join(lines))
    return f"file:{path}"


@pytest.fixture
def refuses(capsys):
    """refuses(*words) -> the one line with which `rr …` ends, and nothing else, with code 2."""
    from rrstudy import cli

    def call(*words):
        capsys.readouterr()
        assert cli.main([str(word) for word in words]) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.startswith("rr: ") and err.count("\n") == 1, err
        return err

    return call


@pytest.fixture
def cut_off(monkeypatch):
    """cut_off(n): a block in which training ends, as if killed, before it draws batch n, from 0."""
    from rr.training import trainer

    @contextlib.contextmanager
    def at(batch: int):
        draw, drawn = trainer.batch_starts, []

        def cut(*args):
            if len(drawn) == batch:
                raise KeyError("cut off")
            drawn.append(draw(*args))
            return drawn[-1]

        with monkeypatch.context() as patched, pytest.raises(KeyError, match="cut off"):
            patched.setattr(trainer, "batch_starts", cut)
            yield

    return at


@pytest.fixture
def steppers(monkeypatch) -> list:
    """Every `OptimizerStep` that is made from now on: a model with its optimiser."""
    from rr.training import step

    made, build = [], step.OptimizerStep.__init__

    def kept(self, *args, **options):
        build(self, *args, **options)
        made.append(self)

    monkeypatch.setattr(step.OptimizerStep, "__init__", kept)
    return made


@pytest.fixture(autouse=True)
def no_figures_left():
    """A test finds no open figure, and leaves none to the next."""
    yield
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close("all")


@pytest.fixture
def script(tmp_path):
    """script(name, function, *calls) -> what a function of an explorable's script returns, by call.

    calls: lists of arguments. The script is loaded, but mounted nowhere. Numbers that JSON does not
    have come as words ("Infinity").
    """
    node = Path(pytest.importorskip("playwright").__file__).parent / "driver" / "node"

    def ask(name: str, function: str, *calls: list) -> list:
        from rrbook.explorables.kit import HERE

        source = (HERE / "kit.js").read_text(encoding="utf-8")
        if name != "kit":
            source += (HERE / f"{name}.js").read_text(encoding="utf-8").partition("mount(")[0]
        file = tmp_path / "all.js"
        file.write_text(
            f"{source}\n"
            "const calls = JSON.parse(require('fs').readFileSync(0));\n"
            "const plain = (key, x) => typeof x === 'number' && !isFinite(x) ? String(x) : x;\n"
            f"console.log(JSON.stringify(calls.map(call => {function}(...call)), plain));\n",
            encoding="utf-8",
        )
        asked = subprocess.run(
            [node, str(file)], input=json.dumps(calls), capture_output=True, text=True, check=True
        )
        return json.loads(asked.stdout)

    return ask


@pytest.fixture
def process(tmp_path):
    """One process of a group, so that modules can be sharded."""
    from torch import distributed

    distributed.init_process_group("gloo", f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.fixture
def tiny_gpt2(monkeypatch):
    """A tiny random GPT-2, which `from_pretrained("gpt2")` gives instead of the real one's weights.

    Folders are loaded as ever.
    """
    transformers = pytest.importorskip("transformers")
    shape = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 32, "n_positions": 16}
    ends = dict.fromkeys(("bos_token_id", "eos_token_id"))
    torch.manual_seed(0)
    tiny = transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape, **ends)).eval()
    load = transformers.AutoModelForCausalLM.from_pretrained
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained",
                        lambda name: tiny if name == "gpt2" else load(name))  # fmt: skip
    return tiny


@pytest.fixture(scope="session")
def planned(tiny_corpus):
    """Plans a run of six steps on the tiny corpus; named settings are changed."""

    def make(**changes):
        given = {
            "rung": "nano:n_layer=2,d_model=16,n_head=2,seq_len=16",
            "corpus": tiny_corpus,
            "tokenizer": "bpe:300",
            "batch": 4,
            "steps": 6,
            "precision": "fp32",
        } | changes
        return rr.plan(**given)

    return make


@pytest.fixture
def registry() -> Iterator[None]:
    """The lists of rules are as they were, afterwards."""
    kept = {kind: dict(rules) for kind, rules in REGISTRY.items()}
    yield
    for kind, rules in REGISTRY.items():
        rules.clear()
        rules.update(kept[kind])
