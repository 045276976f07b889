"""The pages of *Take it home*: their code in the projects' own files, and their numbers.

litgpt, torchtitan and OLMo-core are fetched from the package index, without what else they need to
train. nanochat is on no index: a small model with its names and signatures stands in for it.
"""

import ast
import importlib
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import types
from pathlib import Path
from types import SimpleNamespace as Config

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch
import torch.distributed.fsdp
from filelock import FileLock
from test_readme_results import held, undecided
from torch import nn
from torch.nn import functional as F

import rr
from rr.residual import RULES
from rrstudy import cli

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "book" / "recipes"
sys.path.insert(0, str(ROOT / "book" / "tools"))
from known import number  # noqa: E402

FENCE = re.compile(r"^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
PLACE = re.compile(r"^(?P<indent> *)# < (?P<place>[^\n]+)\n.*?^ *# >\n", re.MULTILINE | re.DOTALL)
VOCAB, D, L, H = 11, 8, 3, 2
IDS = torch.arange(10).reshape(2, 5)

# the versions that the pages name, and what their models import beside what the tests have
PACKAGES = {
    "litgpt": "litgpt==0.5.13",
    "torchtitan": "torchtitan==0.3.0",
    "olmo_core": "ai2-olmo-core==3.0.0",
}
NEEDED = (
    "spmd_types==0.2.3",
    "tyro==1.0.17",
    "docstring_parser==0.18.0",
    "dataclass-extensions==0.5.0",
    "bettermap==1.3.1",
    "importlib_resources==7.1.0",
)
# of packages that are not here: what the projects' models import and never call
ABSENT = {
    "litgpt.scripts.convert_hf_checkpoint": {"qkv_reassemble": None},
    "cached_path": {"cached_path": None},
    "cached_path.schemes": {
        "S3Client": type("S3Client", (), {"recoverable_errors": ()}),
        "SchemeClient": object,
        "add_scheme_client": lambda client: None,
    },
}


def litgpt() -> nn.Module:
    from litgpt.config import Config
    from litgpt.model import GPT

    shape = {"n_embd": D, "n_layer": L, "n_head": H, "padded_vocab_size": VOCAB}
    return GPT(Config(**shape, block_size=16, parallel_residual=False))


def torchtitan() -> nn.Module:
    from torchtitan.models import llama3
    from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm
    from torchtitan.models.common.attention import ScaledDotProductAttention

    # what its own sizes are built by; flex attention, its default, needs masks
    llama3.get_attention_config = lambda name: ScaledDotProductAttention.Config()
    shape = {"n_layers": L, "dim": D, "n_heads": H, "hidden_dim": 2 * D}
    rope = ComplexRoPE.Config(dim=D // H, max_seq_len=16)
    embedding, head = llama3._EMBEDDING_INIT, llama3._output_linear_init(D)
    return llama3.Llama3Model.Config(
        dim=D,
        vocab_size=VOCAB,
        tok_embeddings=Embedding.Config(
            num_embeddings=VOCAB, embedding_dim=D, param_init=embedding
        ),
        norm=RMSNorm.Config(normalized_shape=D, param_init=llama3._NORM_INIT),
        lm_head=Linear.Config(in_features=D, out_features=VOCAB, param_init=head),
        layers=llama3._build_llama3_layers(**shape, rope=rope, attn_backend=""),
    ).build()


def olmo_core() -> nn.Module:
    from olmo_core.nn.transformer import TransformerConfig

    config = TransformerConfig.llama_like(d_model=D, vocab_size=VOCAB, n_layers=L, n_heads=H)
    return config.build(init_device=str(torch.get_default_device()))


def nanochat() -> nn.Module:
    shape = Config(n_embd=D, n_layer=L, n_head=H, vocab=VOCAB)
    return sys.modules["nanochat"].GPT(shape, "cpu")


# project: how a model is made, the import name of the shared file
PROJECTS = {
    "litgpt": (litgpt, "litgpt.residual_rule"),
    "torchtitan": (torchtitan, "torchtitan.models.llama3.residual_rule"),
    "olmo_core": (olmo_core, "olmo_core.nn.transformer.residual_rule"),
    "nanochat": (nanochat, None),
}
SHARDED = [*PACKAGES]


def blocks_of(page: str, language: str) -> list[str]:
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    return [match["text"] for match in FENCE.finditer(text) if match["language"] == language]


def pieces(page: str) -> dict[str, str]:
    """The Python of a page by its first line, which names a file and a place in it."""
    by_place = {}
    for code in blocks_of(page, "python"):
        first, _, text = code.partition("\n")
        by_place[first.removeprefix("# ")] = text
    return by_place


def by_short_place(page: str) -> dict[str, str]:
    """The same, by the place in the file alone."""
    return {place.rpartition(": ")[2]: code for place, code in pieces(page).items()}


def edited(text: str, place: str, code: str) -> str:
    """A project's file after one step of a recipe."""
    name, method, where = re.fullmatch(r"(?:class )?(\w+)(?:\.(\w+))?, (.+)", place).groups()
    (owner,) = (n for n in ast.parse(text).body if isinstance(n, ast.ClassDef) and n.name == name)
    methods = {n.name: n for n in owner.body if isinstance(n, ast.FunctionDef)}
    indent, lines, last = " " * 8, text.splitlines(keepends=True), None
    if where == "new methods":
        indent, first = " " * 4, owner.end_lineno
    elif where == "instead of forward":
        indent, first = " " * 4, methods["forward"].lineno - 1
        last = methods["forward"].end_lineno
    elif where == "last":
        first = methods[method].end_lineno
    else:
        (loop,) = (node for node in methods[method].body if isinstance(node, ast.For))
        first = loop.lineno - 1 if "before" in where else loop.end_lineno
    rest = lines[last or first :]
    return "".join([*lines[:first], "\n", textwrap.indent(code, indent), "\n", *rest])


@pytest.fixture(scope="session")
def fetched():
    """The projects' packages, from the package index once for all test runs."""
    folder = ROOT / "_build" / "projects"
    done = folder / ".done"
    wanted = " ".join([*PACKAGES.values(), *NEEDED])
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        if not done.exists() or done.read_text() != wanted:
            command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--upgrade"]
            words = [*command, "--target", folder, *wanted.split()]
            answer = subprocess.run(words, capture_output=True, text=True)
            if answer.returncode:
                pytest.skip(f"the projects cannot be fetched: {answer.stderr.strip()[-200:]}")
            done.write_text(wanted)
    return folder


def emptied(folder: Path, monkeypatch) -> None:
    """A folder as the place where the projects are imported from, none of them imported yet."""
    for name in [*sys.modules]:
        if name.partition(".")[0] in (*PROJECTS, "cached_path"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(folder)
    for name, content in ABSENT.items():
        absent = types.ModuleType(name)
        absent.__dict__.update(content, __path__=[])
        monkeypatch.setitem(sys.modules, name, absent)
    package = types.ModuleType("litgpt")  # whose own start imports all that it can do
    package.__path__ = [str(folder / "litgpt")]
    monkeypatch.setitem(sys.modules, "litgpt", package)


@pytest.fixture(scope="session")
def followed(fetched, tmp_path_factory):
    """A copy of the projects in which the recipes were followed."""
    folder = tmp_path_factory.mktemp("projects")
    for part in fetched.iterdir():
        (folder / part.name).symlink_to(part)
    for name in PACKAGES:
        (folder / name).unlink()
        shutil.copytree(fetched / name, folder / name)
        for place, code in pieces(name).items():
            file, _, place = place.rpartition(": ")
            path = folder / file.removeprefix("src/")
            path.write_text(edited(path.read_text(encoding="utf-8"), place, code), encoding="utf-8")
        shared = folder.joinpath(*PROJECTS[name][1].split("."))
        shared.with_suffix(".py").write_text(pieces("index")["residual_rule.py (new)"])
    return folder


def module(name: str, text: str) -> types.ModuleType:
    made = types.ModuleType(name)
    exec(compile(text, name, "exec"), made.__dict__)
    return made


@pytest.fixture
def project(monkeypatch, request):
    """Makes a project importable as it is; with a rule, after the recipe was followed."""

    def load(name: str, rule: str | None = None) -> types.ModuleType:
        if name == "torchtitan" and not hasattr(torch.distributed.fsdp, "DataParallelMeshDims"):
            pytest.skip(f"{PACKAGES[name]} needs a newer torch than {torch.__version__}")
        if name == "nanochat":
            monkeypatch.setitem(sys.modules, name, nanochat_after(rule))
        else:
            folder = request.getfixturevalue("followed" if rule else "fetched")
            emptied(folder, monkeypatch)
            if rule:
                importlib.import_module(PROJECTS[name][1]).RULE = rule
        return sys.modules.get(name)

    return load


def nanochat_after(rule: str | None) -> types.ModuleType:
    text = Path(__file__).with_name("nanochat_stub.py").read_text(encoding="utf-8")
    if rule is not None:
        steps = by_short_place("nanochat")
        assert {match["place"] for match in PLACE.finditer(text)} == set(steps)
        text = PLACE.sub(lambda m: textwrap.indent(steps[m["place"]], m["indent"]), text)
        text = re.sub(r'RULE = ".*"', f'RULE = "{rule}"', text)
    return module("nanochat", text)


def rules_of(model) -> list[nn.Parameter]:
    """Parameters of the rules in a model: nanochat's is no module, but it holds one."""
    modules = (model if isinstance(model, nn.Module) else model.residuals).modules()
    return [p for rule in modules if isinstance(rule, rr.Rule) for p in rule.parameters()]


def made(name: str):
    """A model with weights that are not the project's own start, so that every branch writes."""
    model = PROJECTS[name][0]()
    if hasattr(model, "init_states"):
        model.init_states()
    every = dict(model.named_parameters()) if isinstance(model, nn.Module) else model.params
    own = [name for name in sorted(every) if not re.search("rule|residuals|lambda", name)]
    with torch.no_grad():
        if "backout_lambda" in every:  # which no rule has
            every["backout_lambda"].zero_()
        for i, name in enumerate(own):
            generator = torch.Generator().manual_seed(i)
            every[name].copy_(torch.randn(every[name].shape, generator=generator) / 2)
    return model


def control(name: str) -> str:
    """The rule that changes nothing there: nanochat's as its recipe has it."""
    if name != "nanochat":
        return "standard"
    (rule,) = re.findall(r'RULE = "(.*)"', "".join(by_short_place(name).values()))
    return rule


@pytest.mark.parametrize("name", PROJECTS)
def test_a_neutral_rule_gives_the_project_s_own_output(name, project):
    """In nanochat the neutral rule is that of its own scales, as they start there."""
    outputs = []
    for rule in (None, control(name), "constant:c=0.5"):
        loaded = project(name, rule)
        if name == "nanochat":
            loaded.COMPUTE_DTYPE = torch.float32  # else its own stream is rounded
        outputs.append(made(name)(IDS))
    expected, got, other = outputs
    torch.testing.assert_close(got, expected)
    assert (other - expected).abs().max() > 0.3


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        *(("nanochat", rule) for rule in RULES),  # whose model is no module
        *((name, rule) for name in SHARDED for rule in ("review", "hyper-connections", "attnres")),
    ],
)
def test_every_rule_trains_there(name, rule, project):
    project(name, rule)
    model = made(name)
    rules = rules_of(model)
    expected = rr.Residuals(rule, D, L, H, norm=False).costs()["params"]
    assert sum(p.numel() for p in rules) == expected
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        losses.append(F.cross_entropy(model(IDS).flatten(0, 1), IDS.roll(1).flatten()))
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < losses[0] - 0.1
    assert all(p.grad is not None and p.grad.isfinite().all() for p in rules)


def test_nanochat_s_optimiser_holds_every_parameter_once(project):
    project("nanochat", "review")
    model = made("nanochat")
    groups = model.setup_optimizer()
    held = [id(p) for group in groups for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in model.parameters())
    keys = {frozenset(group) for group in groups if group["kind"] == "adamw"}
    assert len(keys) == 1
    muon = [p for group in groups if group["kind"] == "muon" for p in group["params"]]
    assert all(p.ndim == 2 for p in muon)


def test_nanochat_s_neutral_control_trains_its_scales_at_nanochat_s_rates(project):
    """The rule as the recipe has it: λ at 0.005, μ at 0.5 (codebase of 3 July 2026)."""
    project("nanochat", control("nanochat"))
    model = made("nanochat")
    names = {id(p): name for name, p in model.residuals.named_parameters()}
    rates = {
        names[id(p)].rpartition(".")[2]: group["lr"]
        for group in model.setup_optimizer()
        for p in group["params"]
        if id(p) in names
    }
    assert rates == pytest.approx({"scales": 0.005, "mu": 0.5})


@pytest.mark.parametrize("rule", ["review", "x0-scales:start=nanochat"])
def test_nanochat_s_checkpoint_gives_the_same_model_and_trains_on(rule, project):
    """The rules' parameters are the tensors of the dict, wherever these come from."""
    stub = project("nanochat", rule)
    first = made("nanochat")
    saved = {name: p.detach().clone() for name, p in first.state_dict().items()}
    again = stub.GPT(first.config, "cpu", params=saved)
    assert torch.equal(again(IDS), first(IDS))
    assert {id(p) for p in rules_of(again)} <= {id(p) for p in again.parameters()}
    again(IDS).sum().backward()
    assert all(p.grad is not None for p in again.parameters())


def test_nanochat_s_forward_compiles_in_one_graph(project):
    """With the rules among the buffers, and a list that grows."""
    project("nanochat", "attnres")
    model = made("nanochat")
    compiled = torch.compile(model.__call__, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(IDS), model(IDS))
    compiled(IDS).sum().backward()
    assert all(p.grad is not None for p in rules_of(model))


def branches(dim: int) -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Sequential(nn.RMSNorm(dim), nn.Linear(dim, dim)) for _ in range(2 * L)]


def after_gates(modules, x, parts):
    for module, branch in zip(modules, parts, strict=True):
        x = module(x, branch(x))
    return x


def after_hyper_connections(modules, x, parts):
    streams = x.unsqueeze(-2).repeat(1, 1, 4, 1)
    for module, branch in zip(modules, parts, strict=True):
        streams = module(streams, branch)
    return streams.sum(-2)


def after_depth_attention(modules, x, parts):
    updates = [x]
    for module, branch in zip(modules[:-1], parts, strict=True):
        updates = [*updates, branch(module(updates))]
    return modules[-1](updates)


def pasted_text(name: str) -> str:
    """A module to paste, which every recipe shows."""
    text = (PAGES / "paste" / f"{name}.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 40 and "rr" not in re.findall(r"import (\w+)", text)
    for page in PROJECTS:
        assert f"paste/{name}.py" in (PAGES / f"{page}.md").read_text(encoding="utf-8")
    return text


@pytest.mark.parametrize(
    ("name", "spec", "make", "forward"),
    [
        ("review", "review", lambda pasted, i: pasted.Review(D), after_gates),
        ("state_gate", "state-gate", lambda pasted, i: pasted.StateGate(D), after_gates),
        (
            "mhc",
            "hyper-connections:sinkhorn=1",
            lambda pasted, i: pasted.ManifoldConnection(D, i),
            after_hyper_connections,
        ),
        (
            "hyper_connections",
            "hyper-connections",
            lambda pasted, i: pasted.HyperConnection(D, i),
            after_hyper_connections,
        ),
        ("attnres", "attnres", lambda pasted, i: pasted.DepthAttention(D), after_depth_attention),
    ],
)
def test_a_module_to_paste_is_the_rule(name, spec, make, forward):
    """Six sublayers at the rule's parameters, and both start alike."""
    text = pasted_text(name)
    stack = rr.Residuals(spec, D, L, H, norm=False)
    rules = [*stack.rules, stack.final] if name == "attnres" else stack.rules
    modules = [make(module(name, text), i) for i in range(len(rules))]
    x, parts = torch.randn(2, 5, D), branches(D)
    for moved in (0, 1 / 3):
        with torch.no_grad():
            for pasted, rule in zip(modules, rules, strict=True):
                for p in rule.parameters():
                    p.add_(moved * torch.randn(p.shape))
                if moved:
                    pasted.load_state_dict(rule.state_dict())
        state = stack.open(x)
        for i, branch in enumerate(parts):
            state = stack[i](state, branch)
        expected = stack.close(state)
        torch.testing.assert_close(forward(modules, x, parts), expected, rtol=1e-5, atol=1e-5)


def test_a_mix_of_blocks_to_paste_is_the_rule():
    """At the start, where it changes nothing, and at other weights."""
    stack, parts = rr.Residuals("denseformer:dynamic=1", D, L, H, norm=False), branches(D)
    rules = [rule for rule in stack.rules if [*rule.parameters()]]
    mixes = [module("mudd", pasted_text("mudd")).DepthMix(D, i) for i in range(1, L + 1)]
    x = torch.randn(2, 5, D)
    for moved in (0, 1 / 3):
        state, h, outputs = stack.open(x), x, [x]
        for mix, rule in zip(mixes, rules, strict=True):
            with torch.no_grad():
                for p in rule.parameters():
                    p.add_(moved * torch.randn(p.shape))
            if moved:
                mix.load_state_dict(rule.state_dict())
        for i, part in enumerate(parts):
            state = stack[i](state, part)
        for i, mix in enumerate(mixes):
            for part in parts[2 * i : 2 * i + 2]:
                h = h + part(h)
            outputs = [*outputs, h]
            h = mix(outputs)
        torch.testing.assert_close(h, stack.close(state), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("blocks", [4, 5])
def test_skips_to_paste_are_the_rule(blocks):
    """At the start and at other weights; of five blocks the third has no partner."""
    skips = module("unet", pasted_text("unet")).Skips(blocks)
    stack = rr.Residuals("unet", D, blocks, H, norm=False)
    late = [rule for rule in stack.rules if [*rule.parameters()]]
    assert len(late) == blocks // 2 == skips.weight.numel()
    torch.manual_seed(0)
    parts = [nn.Sequential(nn.RMSNorm(D), nn.Linear(D, D)) for _ in range(2 * blocks)]
    x = torch.randn(2, 5, D)
    for weights in (torch.ones(blocks // 2), torch.randn(blocks // 2)):
        state, h, left = stack.open(x), x, []
        with torch.no_grad():
            skips.weight.copy_(weights)
            for rule, weight in zip(reversed(late), weights, strict=True):
                rule.weight.copy_(weight)
        for i, part in enumerate(parts):
            state = stack[i](state, part)
        for i in range(blocks):
            h = skips(i, h, left)
            h = h + parts[2 * i](h)
            h = h + parts[2 * i + 1](h)
        assert left == []
        torch.testing.assert_close(h, stack.close(state), rtol=1e-5, atol=1e-5)


def test_values_to_paste_are_the_rule():
    """The values of three blocks, and the gradient that block 1 gets from all of them."""
    with_first = module("values", pasted_text("constant_resformer")).with_first
    config = rr.ModelConfig(VOCAB, n_layer=L, n_head=H, d_model=D, d_ff=D)
    make, given = rr.residual.resolve("constant-resformer:lam=2", "values")
    rules = [make(rr.residual.Site("attn", b, L, D, H), config, **given) for b in range(1, L + 1)]
    both = []
    for mix in ([rule.values for rule in rules], [with_first] * L):
        torch.manual_seed(0)
        every = [torch.randn(2, H, 5, D // H, requires_grad=True) for _ in range(L)]
        first, mixed = None, []
        for one, v in zip(mix, every, strict=True):
            out, first = one(v, first)
            mixed.append(out)
        torch.stack(mixed).sum().backward()
        both.append([*mixed, every[0].grad])
    torch.testing.assert_close(*both)
    assert (both[0][-1] == 1 + 2 * (L - 1)).all()


@pytest.mark.parametrize("rule", ["review:bias=3", "highway", "x0-scales:x0=0.2", "attnres"])
@pytest.mark.parametrize("name", ["torchtitan", "olmo_core"])
def test_rules_made_on_meta_and_sharded_start_as_they_should(name, rule, process, project):
    from torch.distributed.fsdp import fully_shard

    project(name, rule)
    with torch.device("meta"):
        model = PROJECTS[name][0]()
    blocks = model.layers if name == "torchtitan" else model.blocks
    for block in blocks.values():
        fully_shard(block)
    fully_shard(model)
    if name == "torchtitan":
        model.verify_module_protocol()
        model.to_empty(device="cpu")
        model.init_states()
    else:
        model.init_weights(device=torch.device("cpu"))
    expected = rr.Residuals(rule, D, L, H, norm=False)
    pairs = [nn.ModuleList(pair) for pair in expected.pairs]
    rules = [block.rules for block in blocks.values()]
    for mine, theirs in zip([*rules, model.final_rule], [*pairs, expected.final], strict=True):
        for got, wanted in zip(mine.parameters(), theirs.parameters(), strict=True):
            assert type(got).__name__ == "DTensor" and torch.equal(got.full_tensor(), wanted)
    model(IDS).sum().backward()


@pytest.mark.parametrize("name", SHARDED)
def test_in_bfloat16_gates_work_under_autocast_and_stop_without(name, project):
    project(name, "review")
    model = made(name).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        assert model(IDS).isfinite().all()
    with pytest.raises(RuntimeError, match="dtype"):
        model(IDS)


# ---- the index -----------------------------------------------------------------------------------


def test_the_six_lines_are_a_network():
    (code,) = (text for place, text in pieces("index").items() if place.startswith("your model"))
    parts = branches(64)[:4]
    blocks = [Config(attn=parts[i], mlp=parts[i + 1]) for i in (0, 2)]
    x = standard = torch.randn(2, 3, 64)
    exec(code, names := {"x": x, "blocks": blocks})
    assert names["x"].shape == x.shape
    for part in parts:
        standard = standard + part(standard)
    exec(code.replace("hyper-connections", "standard"), names := {"x": x, "blocks": blocks})
    torch.testing.assert_close(names["x"], standard)


def test_the_lines_for_transformers_run(tiny_gpt2, monkeypatch, tmp_path):
    code = by_short_place("index")
    monkeypatch.chdir(tmp_path)
    exec(code["any script with transformers"], names := {})
    ids = torch.randint(32, (2, 16), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        first, second = (names[name].eval()(ids).logits for name in ("model", "again"))
    assert torch.equal(first, second)
    names["ids"] = ids
    exec(code["the same script"], names)
    sublayers = 2 * 2
    assert [len(names[name]) for name in ("norms", "slopes")] == [sublayers + 1] * 2
    start = torch.sigmoid(torch.tensor(7.0))
    torch.testing.assert_close(names["gates"].r, start.expand(sublayers, 2, 15, 16))
    torch.testing.assert_close(names["written"], start.expand(sublayers))


def test_the_commands_run(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    rows = [
        f"{rule},{seed},{step},{4 - step / 10 + (seed + 1) * gain}\n"
        for rule, gain in (("standard", 0.01), ("review", -0.02))
        for seed in range(3)
        for step in (1, 2)
    ]
    Path("tidy.csv").write_text("".join(["arm,seed,step,loss\n", *rows]))
    Path("data").symlink_to(ROOT / "data")
    text = "".join(blocks_of("index", "bash")).replace("\\\n", " ")
    commands = [shlex.split(line)[1:] for line in text.splitlines()]
    assert {command[0] for command in commands} == {"table", "power"}
    for command in commands:
        assert cli.main(command) in (0, None), command
        assert re.search(r"seeds|review", capsys.readouterr().out), command


def test_the_two_houses_by_scipy_and_what_the_page_says_of_them():
    folder = rr.DATA / "measured" / "attached_nano"
    logged = pd.read_csv(folder / "attached.csv").dropna()
    assert (logged.step == 150).all() and len(logged) == 6
    gaps = []
    for rows in (pd.read_parquet(folder / "runs.parquet"), logged):
        loss = rows.pivot(index="seed", columns="rule", values="val_loss")
        gaps.append(loss["review"] - loss["constant"])
    inside, attached = gaps
    assert (pd.concat(gaps) < 0).all()  # "lower in both, in every seed"
    assert number("attached_nano: review - constant") == held(inside)
    assert number("attached_nano/attached.csv: review - constant") == held(attached)
    assert number("review - constant, attached less rr") == held(attached - inside)
    assert not undecided(inside)
    assert undecided(attached) and undecided(attached - inside)  # "its interval includes zero"


# ---- the threads ---------------------------------------------------------------------------------


def test_the_threads_by_a_second_method():
    """Signs counted by hand over the file, their test by SciPy."""
    folder = rr.DATA / "published"
    rows = pd.concat([pd.read_csv(folder / "threads.csv"), pd.read_csv(folder / "others.csv")])
    trial = ["paper", "size", "setting"]
    both = rows.merge(rows[rows.arm == "baseline"], on=[*trial, "metric"], suffixes=("", "_of"))
    for method, expected in {"attn_residuals": [6, 2, 1], "mhc": [2, 0, 1]}.items():
        trials = both[both.arm == method].groupby(trial, dropna=False)
        signs = [set(one.value < one.value_of) for _, one in trials]
        lower, higher, mixed = (signs.count(one) for one in ({True}, {False}, {True, False}))
        assert [lower, higher, mixed] == expected
        counts = re.findall(r"\d+", number(f"threads: {method}"))
        assert [int(n) for n in counts] == [len(signs), *expected]
        p = scipy.stats.binomtest(lower, lower + higher).pvalue
        assert float(number(f"threads: {method}, p")) == round(p, 2)


def test_what_the_page_says_of_luck():
    spread, detectable = (float(number(f"threads: {name}")) for name in ("spread", "found"))
    seeds = [1.12196, 1.12107, 1.11967]
    assert spread == pytest.approx(np.std(seeds, ddof=1), abs=5e-5)
    assert number("threads: seeds") == "1"
    trials = re.findall(r"threads: attn_residuals, (?!p`)[^`]+", (PAGES / "index.md").read_text())
    moved = [number(name) for name in trials]
    bits = [float(m.split()[0].replace("−", "-")) for m in moved if "bits per byte" in m]
    assert len(bits) == 4 and all(abs(b) > detectable for b in bits)
    assert min(bits) < 0 < max(bits)  # "in both directions"
