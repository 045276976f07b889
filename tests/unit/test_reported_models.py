"""`rr.attach` among other libraries, as people reported it to them; see tests/reports.md."""

import contextlib
import copy
import warnings
from functools import partial

import pytest
import torch
from test_attach import IDX, hf, scrambled
from test_attach import tiny as decoder
from torch import nn

import rr

pytestmark = [
    pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False"),
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
]
tiny = partial(decoder, num_hidden_layers=3)


def saved(model, to):
    model.save_pretrained(to)
    return to


def trained(model, steps: int = 5) -> set[str]:
    """The names of the parameters that training moves."""
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        model(input_ids=IDX, labels=IDX).loss.backward()
        optimizer.step()
    return {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}


def dispatched(model):
    """A Llama of three blocks with accelerate's hooks on each module, all on the CPU."""
    accelerate = pytest.importorskip("accelerate")
    names = [f"model.layers.{i}" for i in range(3)]
    names += ["model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head"]
    return accelerate.dispatch_model(model, dict.fromkeys(names, "cpu"), force_hooks=True)


# ---- PEFT


def with_lora(model, kind: str = "GPT2", **more):
    peft = pytest.importorskip("peft")
    targets = ["c_attn"] if kind == "GPT2" else ["q_proj", "v_proj"]
    return peft.get_peft_model(model, peft.LoraConfig(target_modules=targets, **more))


@pytest.mark.parametrize(
    ("kind", "rule", "values"),
    [
        ("GPT2", "review", None),
        ("Llama", "hyper-connections", "learnable"),
        ("GPT2", "attnres", "identity"),
        ("Llama", "standard", "learnable-plus"),
    ],
)
def test_lora_trains_the_rule_and_keeps_it(kind, rule, values, tmp_path):
    peft = pytest.importorskip("peft")
    base = rr.attach(tiny(kind), rule, values=values)
    model = with_lora(base, kind, modules_to_save=["rr_residuals"]).train()
    moved = trained(model)
    own = {n for n, p in model.named_parameters() if "rr_residuals" in n and p.requires_grad}
    # Llama's first block alone mixes no values, and attnres has one source to attend to there
    assert own and len(own - moved) <= 1 and any("lora_" in name for name in moved)
    assert not any("original_module" in name for name in moved)
    model.eval()
    logits = model(input_ids=IDX).logits
    with model.disable_adapter():  # the rule as it was before
        untrained = rr.attach(tiny(kind), rule, values=values)
        assert torch.equal(model(input_ids=IDX).logits, untrained(IDX).logits)
    assert torch.equal(model(input_ids=IDX).logits, logits)
    model.save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(untrained, str(tmp_path)).eval()
    assert torch.equal(again(input_ids=IDX).logits, logits)
    merged = model.merge_and_unload()
    torch.testing.assert_close(merged(IDX).logits, logits, rtol=1e-4, atol=1e-5)
    other = copy.deepcopy(merged)
    assert torch.equal(other(IDX).logits, merged(IDX).logits)
    rr.detach(merged)
    assert not any("rr_residuals" in name for name in merged.state_dict())


def test_lora_without_the_rule_is_said_once_and_how():
    model = with_lora(rr.attach(tiny(), "review")).train()
    with pytest.warns(UserWarning, match=r'modules_to_save=\["rr_residuals"\]') as printed:
        moved = trained(model)
    assert not any("rr_residuals" in name for name in moved)
    assert sum("frozen" in str(line.message) for line in printed) == 1
    model.rr_residuals.requires_grad_()  # the other way that the warning names
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert any("rr_residuals" in name for name in trained(model))


@pytest.mark.parametrize("rule", ["review", "standard"])
def test_nothing_is_said_of_rules_that_train_or_have_nothing_to_train(rule):
    model = rr.attach(tiny(), rule).train()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        trained(model)
        model.requires_grad_(False)  # and nothing is trained
        model(IDX)
        model.eval().transformer.requires_grad_()
        model(IDX)


def test_a_rule_after_the_adapters_is_refused_and_both_ways_out_work(tmp_path):
    """The adapters' file would not hold the rule, and nothing would say so."""
    peft = pytest.importorskip("peft")
    peft_model = with_lora(tiny())
    assert any("lora_" in name for name in trained(peft_model.train()))
    peft_model.eval().save_pretrained(tmp_path)
    logits = peft_model(input_ids=IDX).logits
    for model in (peft_model, peft_model.base_model.model):
        names = list(model.state_dict())
        with pytest.raises(rr.RRError, match="adapters of PEFT already"):
            rr.attach(model, "review:bias=20")
        assert list(model.state_dict()) == names
    assert torch.equal(peft_model(input_ids=IDX).logits, logits)
    below = peft.PeftModel.from_pretrained(rr.attach(tiny(), "review:bias=20"), str(tmp_path))
    torch.testing.assert_close(below.eval()(input_ids=IDX).logits, logits)
    merged = rr.attach(peft_model.merge_and_unload(), "review:bias=20")
    torch.testing.assert_close(merged(IDX).logits, logits, rtol=1e-4, atol=1e-5)


def test_lora_beside_accelerates_hooks():
    """PEFT's copy of a module once took the hooks of the original with it."""
    base = rr.attach(dispatched(tiny("Llama")), "review")
    model = with_lora(base, "Llama", modules_to_save=["rr_residuals"]).train()
    moved = trained(model)
    assert sum("rr_residuals.modules_to_save" in name for name in moved) == 12


@pytest.mark.parametrize("reentrant", [True, False])
def test_lora_with_gradient_checkpointing_gives_the_same_gradients(reentrant):
    """The embeddings are frozen: reentrant checkpointing needs an input that has a gradient."""
    slopes = []
    for checkpointing in (False, True):
        torch.manual_seed(3)
        model = with_lora(rr.attach(tiny(), "review"), modules_to_save=["rr_residuals"]).train()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
            model.enable_input_require_grads()
        model(input_ids=IDX, labels=IDX).loss.backward()
        slopes.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    plain, again = slopes
    assert plain.keys() == again.keys() and any("rr_residuals" in name for name in plain)
    for name, slope in plain.items():
        torch.testing.assert_close(again[name], slope, msg=name)


def test_an_adapter_has_a_rule_of_its_own_or_the_rule_as_it_was():
    peft = pytest.importorskip("peft")
    base = rr.attach(tiny(), "review")
    untrained = base(IDX).logits
    model = with_lora(base, modules_to_save=["rr_residuals"]).train()
    assert any("rr_residuals" in name for name in trained(model))
    own = peft.LoraConfig(target_modules=["c_attn"], modules_to_save=["rr_residuals"])
    model.add_adapter("second", own)
    model.add_adapter("plain", peft.LoraConfig(target_modules=["c_attn"]))  # its B is zero
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "modules_to_save.second" in name:
                p.fill_(0.3)
    logits = {}
    for name in ("default", "second", "plain", "default"):
        model.set_adapter(name)
        before = logits.get(name)
        logits[name] = model.eval()(input_ids=IDX).logits
        assert before is None or torch.equal(logits[name], before)
    assert torch.equal(logits["plain"], untrained)
    assert not torch.allclose(logits["default"], untrained)
    assert not torch.allclose(logits["second"], logits["default"])


@pytest.mark.filterwarnings("ignore:.*weights_only")
@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
def test_the_hooks_of_a_copied_model_are_its_own(way, tmp_path):
    model = scrambled(rr.attach(tiny(), "review", values="identity"))
    logits = model(IDX).logits
    if way == "pickle":
        torch.save(model, tmp_path / "model.pt")
        other = torch.load(tmp_path / "model.pt", weights_only=False)
    else:
        other = copy.deepcopy(model)
    assert torch.equal(other(IDX).logits, logits)
    scrambled(other)
    assert not torch.allclose(other(IDX).logits, logits)
    assert torch.equal(model(IDX).logits, logits)
    assert torch.equal(rr.detach(other)(IDX).logits, tiny()(IDX).logits)


def test_norms_that_peft_copies_keep_the_rules_hooks():
    model = with_lora(rr.attach(tiny(), "review"), modules_to_save=["rr_residuals", "ln_1"])
    moved = trained(model.train())
    assert sum("ln_1.modules_to_save" in name for name in moved) == 6
    assert sum("rr_residuals.modules_to_save" in name for name in moved) == 12
    merged = model.eval().merge_and_unload()
    assert merged(IDX).logits.isfinite().all()
    rr.detach(merged)  # also from the copies
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in merged.modules())


def test_a_model_in_half_precision_that_peft_prepares():
    peft = pytest.importorskip("peft")
    model = rr.attach(tiny("Llama").to(torch.bfloat16), "review")
    model.rr_residuals.float()
    model = peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    model = with_lora(model, "Llama", modules_to_save=["rr_residuals"])
    assert any("rr_residuals" in name for name in trained(model.train()))
    assert {p.dtype for n, p in model.named_parameters() if "rr_res" in n} == {torch.float32}


def test_norms_in_float32_beside_half_precision_under_autocast():
    model = rr.attach(tiny("Llama").to(torch.bfloat16), "review")
    for name, module in model.named_modules():
        if "norm" in name:
            module.float()
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(IDX, labels=IDX).loss
    loss.backward()
    own = model.rr_residuals.rules.parameters()
    assert loss.isfinite() and all(p.grad is not None for p in own)


# ---- compiled block by block


def compiled_by_block(model, how: str = "in place"):
    given, blocks = {"backend": "aot_eager", "fullgraph": True}, model.model.layers
    for i, block in enumerate(blocks):
        if how == "in place":
            block.compile(**given)
        else:
            blocks[i] = torch.compile(block, **given)
    return model


@pytest.fixture
def graphs():
    """The graphs that have been compiled so far, by the function that they begin in."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    yield lambda: counters["stats"]["unique_graphs"]
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("rule", "how"),
    [("review", "in place"), ("review", "wrapped"), ("hyper-connections", "in place")],
)
def test_twelve_blocks_compiled_one_by_one_share_their_graphs(rule, how, graphs):
    model = scrambled(rr.attach(tiny("Llama", num_hidden_layers=12), rule))
    expected = model(IDX, labels=IDX, use_cache=False).loss
    expected.backward()
    slopes = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    loss = compiled_by_block(model, how)(IDX, labels=IDX, use_cache=False).loss
    loss.backward()
    torch.testing.assert_close(loss, expected)
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.grad, slopes[name.replace("_orig_mod.", "")], msg=name)
    assert graphs() <= 4  # entering, entering the first, the block, leaving: for 12 blocks


@torch.no_grad()
@pytest.mark.parametrize("limit", [2, 3])
def test_a_state_that_grows_needs_a_graph_for_each_block(limit, graphs, monkeypatch):
    """As the documentation says: the limit must be the number of blocks."""
    monkeypatch.setattr(torch._dynamo.config, "recompile_limit", limit)
    model = scrambled(rr.attach(tiny("Llama"), "denseformer"))
    expected = model(IDX, use_cache=False).logits
    compiled_by_block(model)
    too_few = pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit)
    with too_few if limit < 3 else contextlib.nullcontext():
        torch.testing.assert_close(model(IDX, use_cache=False).logits, expected)


# ---- weights elsewhere, or not floating-point numbers


def test_a_model_without_numbers_is_refused():
    with torch.device("meta"):
        model = tiny()
    with pytest.raises(rr.RRError, match="on the meta device, without numbers"):
        rr.attach(model, "review")
    assert not hasattr(model, "rr_residuals")


@pytest.mark.parametrize("way", ["cpu_offload", "disk_offload"])
def test_an_offloaded_model_is_refused(way, tmp_path):
    offload = getattr(pytest.importorskip("accelerate"), way)
    model = tiny("Llama")
    folder = [str(tmp_path)] if way == "disk_offload" else []
    offload(model, *folder, execution_device=torch.device("cpu"))
    logits = model(IDX).logits
    with pytest.raises(rr.RRError, match="without offloading"):
        rr.attach(model, "review")
    assert torch.equal(model(IDX).logits, logits)


def test_a_model_dispatched_by_accelerate_without_offloading_is_as_before():
    model = tiny("Llama")
    logits = model(IDX).logits
    rr.attach(dispatched(model), "review:bias=20")
    assert torch.equal(model(IDX).logits, logits)
    other = copy.deepcopy(model)  # and a copy of it is a model of its own
    scrambled(other)
    assert torch.equal(model(IDX).logits, logits)
    assert not torch.allclose(other(IDX).logits, logits)


class Int8(nn.Module):
    """A linear map whose weights are integers with one scale, as quantisers store them."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        scale = linear.weight.detach().abs().max() / 127
        weight = (linear.weight.detach() / scale).round().to(torch.int8)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.register_buffer("scale", scale)

    def forward(self, x):
        return x @ (self.weight.to(x.dtype) * self.scale).T


@pytest.mark.parametrize("values", [None, "learnable"])
def test_beside_quantised_weights_the_rule_is_float32_and_trains(values):
    model = tiny("Llama")
    for block in model.model.layers:
        for part in (block.self_attn, block.mlp):
            for name, child in list(part.named_children()):
                if isinstance(child, nn.Linear):
                    setattr(part, name, Int8(child))
    logits = model.eval()(IDX).logits
    rr.attach(model, "standard")
    assert torch.equal(model(IDX).logits, logits)
    rr.detach(model)
    rr.attach(model, "review", values=values)
    assert {p.dtype for p in model.rr_residuals.parameters()} == {torch.float32}
    moved = trained(model.train())
    assert any("rr_residuals.rules" in name for name in moved)


# ---- a class of one's own


class Louder(hf.GPT2LMHeadModel):
    """GPT-2 with logits of its own, as a notebook defines it."""

    def forward(self, *args, **kwargs):
        out = super().forward(*args, **kwargs)
        out.logits = out.logits * 3
        return out


def test_a_class_of_ones_own_is_loaded_with_that_class_or_refused(tmp_path):
    model = scrambled(rr.attach(Louder(tiny().config).eval(), "review"))
    logits = model(IDX).logits
    again = Louder.from_pretrained(saved(model, tmp_path))
    rr.attach(again, "review", weights=tmp_path)
    assert torch.equal(again(IDX).logits, logits)
    other = hf.AutoModelForCausalLM.from_pretrained(tmp_path)  # GPT-2 itself: other logits
    with pytest.raises(rr.RRError, match=r"saved by Louder, .* load it with Louder\.from_pretr"):
        rr.attach(other, "review", weights=tmp_path)
    assert not hasattr(other, "rr_residuals")


def test_tied_embeddings_stay_tied_and_the_body_takes_the_weights_of_the_whole(tmp_path):
    model = scrambled(rr.attach(tiny(), "review"))
    again = hf.AutoModelForCausalLM.from_pretrained(saved(model, tmp_path))
    rr.attach(again, "review", weights=tmp_path)
    assert again.lm_head.weight is again.transformer.wte.weight
    assert torch.equal(again(IDX).logits, model(IDX).logits)
    body = hf.GPT2Model.from_pretrained(tmp_path).eval()
    rr.attach(body, "review", weights=tmp_path)
    states = body(IDX).last_hidden_state
    torch.testing.assert_close(model.lm_head(states), model(IDX).logits)
