"""`rr.attach` and `rr.detach` on small random decoders of `transformers`; nothing is downloaded."""

import copy
import json
import math

import pytest
import torch
from torch.nn import functional as F

import rr
from rr.analysis.rule_checks import model_of
from rr.residual import REGISTRY, RULES, ValueRule

hf = pytest.importorskip("transformers")

IDX = torch.randint(60, (2, 9), generator=torch.Generator().manual_seed(0))
KINDS = ["review", "hyper-connections", "attnres"]  # one for each kind of state
# Without one norm of its own in each sublayer, as a block of `transformers` has it.
OTHER_NORMS = ("rezero", "fixup", "deepnorm", "parallel", "gated-residual", "keel")
NORMED = [rule for rule in RULES if rule not in OTHER_NORMS]
ARMS = [(rule, None) for rule in KINDS] + [("standard", "learnable-plus"), ("denseformer", "dense")]


def tiny(family: str = "GPT2", **more):
    """A decoder of two blocks with random weights and no dropout, in evaluation mode."""
    torch.manual_seed(1)
    shape = dict(vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
    shape |= dict(bos_token_id=1, eos_token_id=2, pad_token_id=None)
    if family == "GPT2":
        shape |= dict(attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0)
    else:
        shape |= dict(intermediate_size=48, max_position_embeddings=64, num_key_value_heads=2)
    if family == "Qwen3":
        shape |= dict(head_dim=16)  # not d / H
    config = getattr(hf, f"{family}Config")(**(shape | more))
    return hf.AutoModelForCausalLM.from_config(config).eval()


FAMILIES = ["GPT2", "Llama", "Mistral", "Qwen2", "Qwen3"]


def scrambled(model):
    """The attached rules' parameters, moved off their initial values."""
    source = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in model.rr_residuals.parameters():
            p += 0.2 * torch.randn(p.shape, generator=source)
    return model


def gradients(model) -> dict:
    model.zero_grad()
    model(IDX, labels=IDX).loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def same_gradients(mine: dict, theirs: dict, **how) -> None:
    assert mine.keys() == theirs.keys()
    for name in theirs:
        torch.testing.assert_close(mine[name], theirs[name], msg=name, **how)


def test_a_model_of_the_same_config_is_told_how_to_begin():
    """A whole model and a part of it share theirs, too, and are saved by it."""
    config = tiny("GPT2").config
    first, second = (type(tiny("GPT2"))(config) for _ in range(2))
    rr.attach(first, "review")
    with pytest.raises(rr.RRError, match="or shares its config with a model that has it: .* copy"):
        rr.attach(second, "standard")
    second.config = copy.deepcopy(config)
    del second.config.rr_residuals
    rr.attach(second, "standard")
    assert first.config.rr_residuals["rule"] == "review"


def test_a_gate_per_channel_needs_heads_of_the_models_width():
    """As those of the small Qwen3 are not: 16 heads of 128 for a width of 1,024."""
    shape = tiny("Qwen3").config
    shape.head_dim = 2 * shape.hidden_size // shape.num_attention_heads
    model = rr.attach(type(tiny("Qwen3"))(shape), "standard", values="gated-attention")
    with pytest.raises(rr.RRError, match="heads of .*: use granularity=head$"):
        model(IDX)
    values = "gated-attention:granularity=head"
    assert rr.attach(rr.detach(model), "standard", values=values)(IDX).logits.isfinite().all()


@pytest.mark.parametrize("family", FAMILIES)
def test_standard_is_the_untouched_model_to_the_bit_and_so_is_a_detached_one(family):
    model = tiny(family)
    names, logits, slopes = list(model.state_dict()), model(IDX).logits, gradients(model)
    config = model.config.to_dict()
    assert rr.attach(model, "standard") is model
    assert model.config.rr_residuals == {"rule": "standard", "values": "own"}
    assert torch.equal(model(IDX).logits, logits)
    same_gradients(gradients(model), slopes)
    rr.detach(model)
    scrambled(rr.attach(model, "review", values="identity"))
    assert any(name.startswith("rr_residuals.") for name in model.state_dict())
    assert not torch.allclose(model(IDX).logits, logits)
    assert rr.detach(model) is model
    assert torch.equal(model(IDX).logits, logits)
    assert list(model.state_dict()) == names and model.config.to_dict() == config


def test_hooks_on_the_rules_see_every_write():
    model, seen = scrambled(rr.attach(tiny("Mistral"), "review")), []
    for rule in model.rr_residuals.rules:
        rule.register_forward_hook(lambda rule, args, out: seen.append((rule, *args, out)))
    states = model(IDX, output_hidden_states=True).hidden_states
    assert [rule.site.sublayer for rule, *_ in seen] == [1, 2, 3, 4]
    assert torch.equal(states[0], F.pad(seen[0][1], (32, 0)))  # as the first block receives it
    assert torch.equal(states[1], seen[1][-1]) and len(states) == 3
    for rule, h, u, out in seen:
        torch.testing.assert_close(out, h + rule.gate(h, u) * u)


def as_llama(model: rr.Model, **more):
    """The same weights in a Llama of `transformers`; its norms hold the gains of the rules."""
    c = model.config
    other = tiny(
        "Llama",
        vocab_size=c.vocab_size,
        hidden_size=c.d_model,
        intermediate_size=c.d_ff,
        num_hidden_layers=c.n_layer,
        num_attention_heads=c.n_head,
        num_key_value_heads=c.kv_heads,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
    )
    body = other.model
    with torch.no_grad():
        body.embed_tokens.weight.copy_(model.token.weight[: c.vocab_size])
        body.norm.weight.copy_(model.final_rule.gain)
        for mine, layer in zip(model.layers, body.layers, strict=True):
            parts = mine.attn.qkv.weight.split(list(mine.attn.parts.values()))
            for name, weight in zip(mine.attn.parts, parts, strict=True):
                getattr(layer.self_attn, f"{name}_proj").weight.copy_(weight)
            layer.self_attn.o_proj.weight.copy_(mine.attn.out.weight)
            gate, up = mine.mlp.up.weight.chunk(2)
            layer.mlp.gate_proj.weight.copy_(gate)
            layer.mlp.up_proj.weight.copy_(up)
            layer.mlp.down_proj.weight.copy_(mine.mlp.down.weight)
            layer.input_layernorm.weight.copy_(mine.attn_rule.gain)
            layer.post_attention_layernorm.weight.copy_(mine.mlp_rule.gain)
    rr.attach(other, c.rule, values=c.values)
    held = other.rr_residuals
    attached = [*held.rules, held.final, *held.value_rules]
    ours = [*model.rules, model.final_rule, *(block.attn.rule for block in model.layers)]
    for theirs, mine in zip(attached, ours, strict=False):
        theirs.load_state_dict({k: v for k, v in mine.state_dict().items() if k != "gain"})
    return other


@pytest.mark.filterwarnings("ignore:.*cache still holds the values of every block")
@pytest.mark.parametrize(
    ("rule", "values"),
    [
        *((rule, "own") for rule in [*NORMED, "rezero:norm=pre", "parallel:norm=own"]),
        *(("standard", values) for values in REGISTRY["values"] if values != "embeddings"),
        ("review", "identity"),
        ("hyper-connections:sinkhorn=1", "svformer"),
        ("attnres", "learnable-plus"),
        ("standard", "neutreno:residual=1"),
    ],
)
def test_an_attached_llama_is_the_model_of_the_same_weights(rule, values):
    """`rr.Model` and `transformers` share no code."""
    shape = {} if values.startswith("neutreno") else {"n_kv_head": 1}
    model = model_of(rule, values, scramble=True, n_layer=3, flavour="llama", **shape)
    other, idx = as_llama(model), IDX[:, :8] % 50
    expected, got = model(idx), other(idx).logits
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=5e-5)  # 1.4e-5 on a CPU with AMX
    F.cross_entropy(expected.flatten(0, 1), idx.roll(1).flatten()).backward()
    F.cross_entropy(got.flatten(0, 1), idx.roll(1).flatten()).backward()
    how = {"rtol": 1e-3, "atol": 1e-5}
    for theirs, mine in zip(other.rr_residuals.rules, model.rules, strict=True):
        slopes = dict(mine.named_parameters())
        for name, p in theirs.named_parameters():
            torch.testing.assert_close(p.grad, slopes[name].grad, **how)
    body = other.model
    torch.testing.assert_close(body.embed_tokens.weight.grad, model.token.weight.grad[:50], **how)
    for mine, layer in zip(model.layers, body.layers, strict=True):
        down = layer.mlp.down_proj.weight.grad
        torch.testing.assert_close(down, mine.mlp.down.weight.grad, **how)


@pytest.mark.parametrize("rule", [*KINDS, *OTHER_NORMS])
def test_an_attached_gpt2_is_its_blocks_on_a_stack_by_hand(rule):
    model = scrambled(rr.attach(tiny(), rule))
    body = tiny().transformer
    stack = rr.Residuals(rule, 32, 2, n_head=4, norm=False)
    stack.load_state_dict(model.rr_residuals.state_dict())
    state = stack.open(body.wte(IDX) + body.wpe(torch.arange(IDX.shape[1])))
    for i, block in enumerate(body.h):
        state = stack[2 * i](state, lambda x, block=block: block.attn(block.ln_1(x))[0])
        state = stack[2 * i + 1](state, lambda x, block=block: block.mlp(block.ln_2(x)))
    logits = F.linear(body.ln_f(stack.close(state)), body.wte.weight)
    torch.testing.assert_close(model(IDX).logits, logits)
    slopes = gradients(model)
    F.cross_entropy(logits[:, :-1].flatten(0, 1), IDX[:, 1:].flatten()).backward()
    for name, p in stack.named_parameters():
        torch.testing.assert_close(slopes[f"rr_residuals.{name}"], p.grad)
    torch.testing.assert_close(slopes["transformer.wte.weight"], body.wte.weight.grad)


@pytest.mark.parametrize("family", ["GPT2", "Llama"])
def test_review_starts_within_the_stated_distance_of_standard(family):
    """At bias B each write lacks 1 − σ(B) < e^(−B) of its update; at 20 that is 0 in float32."""
    model = tiny(family)
    expected, apart = model(IDX).logits, {}
    for bias in (4, 8, 20):
        rr.attach(model, f"review:bias={bias}")
        apart[bias] = ((model(IDX).logits - expected).norm() / expected.norm()).item()
        rr.detach(model)
        assert bias == 20 or apart[bias] < 4 * math.exp(-bias)  # of 4 sublayers
    assert 0 < apart[8] < apart[4] / 30 and apart[20] == 0  # e⁴ is about 55


@pytest.mark.parametrize(
    ("family", "rule"),
    [("GPT2", "review:bias=3"), ("Llama", "attnres"), ("Qwen2", "hyper-connections")],
)
def test_an_attached_model_trains_saves_loads_and_generates(family, rule, tmp_path):
    model = rr.attach(tiny(family), rule, values="learnable")
    own = {id(p) for p in model.rr_residuals.parameters()}
    groups = [
        *model.rr_residuals.parameter_groups(0.1),
        {"params": [p for p in model.parameters() if id(p) not in own]},
    ]
    optimizer, losses = torch.optim.AdamW(groups, lr=1e-2), []
    before = copy.deepcopy(model.rr_residuals.state_dict())
    for _ in range(50):
        optimizer.zero_grad()
        losses.append(model(IDX, labels=IDX).loss)
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < losses[0] - 1
    assert any(not torch.equal(v, before[k]) for k, v in model.rr_residuals.state_dict().items())
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    again = hf.AutoModelForCausalLM.from_pretrained(tmp_path)
    with pytest.raises(rr.RRError, match="saved with .* attached"):
        rr.attach(again, rule, values="learnable")
    rr.attach(again, rule, values="learnable", weights=tmp_path)
    assert torch.equal(again(IDX).logits, model(IDX).logits)
    how = dict(max_new_tokens=12, do_sample=False, attention_mask=torch.ones_like(IDX))
    assert torch.equal(again.generate(IDX, **how), model.generate(IDX, use_cache=False, **how))


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing_enable:FutureWarning")
@pytest.mark.parametrize(("rule", "values"), ARMS)
@pytest.mark.parametrize(("family", "reentrant"), [("GPT2", True), ("Llama", False)])
def test_gradient_checkpointing_changes_nothing(family, rule, values, reentrant):
    model = scrambled(rr.attach(tiny(family), rule, values=values)).train()
    expected = gradients(model)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    same_gradients(gradients(model), expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("rule", "values"),
    [ARMS[2], *(pytest.param(*arm, marks=pytest.mark.slow) for arm in (*ARMS[:2], ARMS[3]))],
)
def test_a_compiled_model_computes_the_same(rule, values):
    model = scrambled(rr.attach(tiny("Llama"), rule, values=values))
    expected = gradients(model)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    model.zero_grad()
    compiled(IDX, labels=IDX, use_cache=False).loss.backward()
    same_gradients({name: p.grad for name, p in model.named_parameters()}, expected)


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
@pytest.mark.parametrize(("rule", "values"), ARMS[:4])
def test_an_attached_model_can_be_sharded_and_a_sharded_one_is_refused(rule, values, process):
    from torch.distributed.fsdp import fully_shard

    def sharded(model):
        for block in model.model.layers:
            fully_shard(block)
        return fully_shard(model)

    model = scrambled(rr.attach(tiny("Llama"), rule, values=values))
    logits, expected = model(IDX).logits, gradients(model)
    sharded(model)
    assert torch.equal(model(IDX).logits, logits)
    whole = {name: g.full_tensor() for name, g in gradients(model).items()}
    same_gradients(whole, expected)
    with pytest.raises(rr.RRError, match="before fully_shard"):
        rr.attach(sharded(tiny("Llama")), rule)


def test_beside_a_model_in_bfloat16_the_rules_are_float32():
    model = tiny("Qwen3", dtype=torch.bfloat16)
    logits = model(IDX).logits
    assert torch.equal(rr.attach(model, "standard")(IDX).logits, logits)
    rr.detach(model)
    for rule in ("review", "highway", "gtrxl", "hyper-connections", "attnres"):
        scrambled(rr.attach(model, rule))
        assert {p.dtype for p in model.rr_residuals.parameters()} == {torch.float32}
        assert model(IDX).logits.dtype == torch.bfloat16
        assert all(g.isfinite().all() for g in gradients(model).values())
        rr.detach(model)
    rr.attach(model, "review").to(torch.bfloat16)
    with pytest.raises(rr.RRError, match="must be float32"):
        model(IDX)
    model.rr_residuals.float()
    assert model(IDX).logits.isfinite().all()


def test_svformer_says_that_the_cache_stays_as_large():
    with pytest.warns(UserWarning, match="cache still holds the values of every block"):
        model = rr.attach(tiny("Llama"), "standard", values="svformer")
    values = model(IDX, use_cache=True).past_key_values
    first, second = (values.layers[i].values for i in range(2))
    assert torch.equal(first, second)  # V' = V₁, and held twice
    with torch.no_grad():  # the projection of the second block is not asked
        logits = model(IDX).logits
        model.model.layers[1].self_attn.v_proj.weight.mul_(3)
        assert torch.equal(model(IDX).logits, logits)


@pytest.mark.parametrize(
    ("family", "more", "words"),
    [
        ("GPTNeoX", {}, "parallel"),
        ("Gemma2", {"head_dim": 8}, "4 norm"),
        ("Olmo2", {}, "no norm reads the stream first"),
        ("Granite", {"residual_multiplier": 0.5}, "second norm does not read stream"),
        ("Falcon", {}, "found"),
        ("Bert", {"is_decoder": True, "pad_token_id": 0}, "found"),
    ],
)
def test_architectures_without_pre_norm_blocks_are_refused_in_one_line(family, more, words):
    model = tiny(family, **more).train()
    mode = [module.training for module in model.modules()]
    with pytest.raises(rr.RRError, match=words) as error:
        rr.attach(model, "review")
    assert "rr.Residuals" in str(error.value)
    assert [module.training for module in model.modules()] == mode
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def attached():
    return rr.attach(tiny(), "review")


def neox():
    return tiny("GPTNeoX", use_parallel_residual=False)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: rr.attach(attached(), "standard"), "attached already: rr.detach"),
        (lambda: rr.attach("gpt2", "review"), "must be a module, got 'gpt2'"),
        (lambda: rr.attach(tiny(), "standard", "nosuch"), "unknown value rule"),
        (lambda: rr.attach(tiny(), "standard", "embeddings"), "by token ids"),
        (lambda: rr.attach(tiny("Llama"), "standard", "neutreno"), "n_kv_head = n_head"),
        (
            lambda: rr.attach(neox(), "standard", "identity"),
            "a value projection .* query_key_value",
        ),
        (lambda: rr.detach(tiny()), "no residual rule is attached"),
    ],
)
def test_bad_input_gets_one_line(call, words):
    with pytest.raises(rr.RRError, match=words):
        call()


@pytest.mark.parametrize(
    ("saved", "rule", "blocks", "words"),
    [
        (None, "review", 2, "not a folder of save_pretrained"),
        (tiny, "review", 2, "saved without a rule"),
        (attached, "constant", 2, "saved with rule 'review', not 'constant'"),
        (attached, "review", 3, "does not hold the rules' weights"),
        (attached, "review", 2, "is corrupt"),
    ],
)
def test_weights_that_do_not_fit_are_refused(saved, rule, blocks, words, tmp_path):
    if saved:
        saved().save_pretrained(tmp_path)
    if "corrupt" in words:
        path = tmp_path / "model.safetensors"
        path.write_bytes(path.read_bytes()[:100])
    model = tiny(num_hidden_layers=blocks)
    with pytest.raises(rr.RRError, match=words):
        rr.attach(model, rule, weights=tmp_path)
    assert not hasattr(model, "rr_residuals")
    rr.attach(model, "standard")  # nothing is left behind


def test_a_rule_in_a_file_is_imported_only_where_it_was_allowed(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "import rr\nclass Mine(rr.Rule):\n    equation, source = 'h + u / 4', 'a reader'\n"
        "    def write(self, state, u):\n        return state + u / 4\n"
    )
    spec = f"{path}:Mine"
    with pytest.raises(rr.RRError, match="none of its code was run"):
        rr.attach(tiny(), spec)
    rr.allow_rule(spec)
    model, other = rr.attach(tiny(), spec), rr.attach(tiny(), "constant:c=0.25")
    torch.testing.assert_close(model(IDX).logits, other(IDX).logits)
    model.save_pretrained(tmp_path / "saved")
    recorded = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert recorded["rr_residuals"]["rule"] == spec


def test_a_value_rule_that_adds_to_the_values_is_refused():
    """Attention of another library has no place for it, and it would do nothing in silence."""

    class Added(ValueRule):
        equation, source = "v + 1", "a test"

        def added(self, v, x, vstate):
            return v + 1

    Added.name = "added-one"
    REGISTRY["values"]["added-one"] = Added
    try:
        with pytest.raises(rr.RRError, match="adds to them"):
            rr.attach(tiny(), "standard", "added-one")
    finally:
        del REGISTRY["values"]["added-one"]


# ---- what a reading of other decoders found


def test_a_parallel_block_that_makes_zeros_is_seen_all_the_same():
    model = tiny("GPTNeoX")
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "attention.dense" in name or "dense_4h_to_h" in name:
                p.zero_()
    with pytest.raises(rr.RRError, match="not pre-norm as looked for"):
        rr.attach(model, "review")


def test_a_pre_norm_block_that_makes_zeros_is_attached_to():
    model = tiny("Llama")
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "o_proj" in name or "down_proj" in name:
                p.zero_()
    before = model(IDX).logits
    assert torch.equal(rr.attach(model, "standard")(IDX).logits, before)


@pytest.mark.parametrize("rule", ["review:bias=7", "highway:bias=7"])
def test_a_gate_that_begins_near_one_learns_in_bfloat16(rule):
    """Whose largest number below 1 is 0.996; σ(7) is 0.999."""
    model = rr.attach(tiny(), rule).train()
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(IDX, labels=IDX).loss
    loss.backward()
    slopes = [p.grad for name, p in model.rr_residuals.named_parameters() if "bias" in name]
    assert slopes and all(slope.abs().sum() > 0 for slope in slopes)


def test_hidden_states_are_one_state_wide_also_where_they_were_asked_for_before():
    model = tiny("Llama")
    model(IDX, output_hidden_states=True)
    rr.attach(model, "review")
    states = model(IDX, output_hidden_states=True).hidden_states
    assert {state.shape[-1] for state in states[1:]} == {32}  # the first is what block 0 receives


def test_a_rule_in_a_part_of_what_was_saved_is_found(tmp_path):
    """As the text part of a model for images and text is, whose config holds that part's."""
    model = scrambled(rr.attach(tiny(), "review"))
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["text_config"] = {"rr_residuals": config.pop("rr_residuals")}
    (tmp_path / "config.json").write_text(json.dumps(config))
    again = rr.attach(tiny(), "review", weights=tmp_path)
    mine, theirs = (m.rr_residuals.state_dict() for m in (again, model))
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_values_of_another_width_than_the_config_says_are_refused():
    model = tiny("Llama")
    for layer in model.model.layers:
        layer.self_attn.v_proj = torch.nn.Linear(32, 32, bias=False)  # four heads, not two
        layer.self_attn.forward = lambda hidden_states, **more: (hidden_states, None)
    with pytest.raises(rr.RRError, match="needs 2 heads of values of one size"):
        rr.attach(model, "standard", "identity")


def test_a_config_in_which_each_block_has_its_own_heads_is_refused():
    class Own(type(tiny("Llama").config)):
        @property
        def num_attention_heads(self):
            raise RuntimeError("ambiguous: per layer")

    model = tiny("Llama")
    model.config.__class__ = Own
    with pytest.raises(rr.RRError, match="no config with one num_attention_heads"):
        rr.attach(model, "review")
