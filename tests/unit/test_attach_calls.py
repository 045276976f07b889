"""How an attached model is called: by threads, replicas and compiled code; and what is refused."""

import sys
import threading
from functools import partial

import pytest
import torch
from test_attach import IDX, hf, scrambled
from test_attach import tiny as decoder
from test_reported_models import Int8
from torch import nn

import rr
from rr.model.attach import HOOKS

replication = sys.modules["torch.nn.parallel.replicate"]  # the package's name is the function's
tiny = partial(decoder, "Llama", num_hidden_layers=3)
ARMS = [("review", "learnable-plus"), ("hyper-connections", None), ("attnres", "identity")]


def ids(seed: int, *shape: int) -> torch.Tensor:
    return torch.randint(3, 60, shape, generator=torch.Generator().manual_seed(seed))


def in_threads(*calls) -> None:
    """Each call in a thread of its own; the first of their errors is raised here."""
    errors = []

    def guarded(call):
        try:
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.parametrize(("rule", "values"), ARMS)
def test_four_threads_call_one_model(rule, values):
    """300 calls, of inputs of two shapes; the state of each is its own."""
    model = scrambled(rr.attach(tiny(), rule, values=values))
    inputs = [ids(n, 2, 30 + n % 2) for n in range(4)]
    with torch.no_grad():
        wanted = [model(x).logits for x in inputs]

    def calls(n: int) -> None:
        for _ in range(75):
            with torch.no_grad():
                assert torch.equal(model(inputs[n]).logits, wanted[n])

    in_threads(*(partial(calls, n) for n in range(4)))


@pytest.mark.parametrize("rule", ["review", "hyper-connections", "attnres", "denseformer"])
def test_an_early_exit_reads_the_state_of_the_block_that_it_leaves(rule):
    """The model is its own assistant: its first blocks, then the norm, for a state of any size."""
    model = scrambled(rr.attach(decoder("Llama", num_hidden_layers=4), rule))
    how = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    text = model.generate(IDX[:1], **how)
    assert torch.equal(model.generate(IDX[:1], assistant_early_exit=2, **how), text)


def test_sequences_of_several_requests_in_one_row():
    """As servers pack them: positions begin again, and the body is called without a dictionary."""
    model = scrambled(rr.attach(tiny(), "hyper-connections", values="identity"))
    row = torch.cat([IDX[:1, :5], IDX[1:, :4]], 1)
    how = {"position_ids": torch.tensor([[*range(5), *range(4)]]), "use_cache": False}
    logits = model(row, **how).logits
    for place, alone in ((slice(5), IDX[:1, :5]), (slice(5, 9), IDX[1:, :4])):
        torch.testing.assert_close(logits[:, place], model(alone).logits)
    embedded = model.get_input_embeddings()(row)
    (states,) = model.model(inputs_embeds=embedded, return_dict=False, **how)
    torch.testing.assert_close(model.lm_head(states), logits)


def test_more_tokens_after_attaching(tmp_path):
    model = scrambled(rr.attach(tiny(), "review"))
    model.resize_token_embeddings(70)
    logits = model(IDX).logits
    model.save_pretrained(tmp_path)
    again = hf.AutoModelForCausalLM.from_pretrained(tmp_path)
    rr.attach(again, "review", weights=tmp_path)
    assert logits.shape[-1] == 70 and torch.equal(again(IDX).logits, logits)


@pytest.mark.slow
def test_an_attached_model_is_exported_with_its_rule():
    model = scrambled(rr.attach(decoder("Llama"), "review"))
    program = torch.export.export(model, (), {"input_ids": IDX, "use_cache": False})
    logits = program.module()(input_ids=IDX, use_cache=False).logits
    torch.testing.assert_close(logits, model(IDX).logits)


@pytest.mark.slow
def test_continuous_batching_serves_what_the_plain_model_serves():
    model, how = tiny(), {"max_new_tokens": 6, "do_sample": False, "eos_token_id": 2}
    if not hasattr(model, "generate_batch"):
        pytest.skip("transformers without continuous batching")
    config = hf.GenerationConfig(pad_token_id=0, **how)

    def served():
        answers = model.generate_batch(inputs=IDX.tolist(), generation_config=config)
        return [list(answer.generated_tokens) for answer in answers.values()]

    plain = served()
    rr.attach(model, "review:bias=20")
    assert served() == plain and all(plain)


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing_enable:FutureWarning")
@pytest.mark.parametrize("checkpointing", [False, True])
def test_two_threads_train_one_model_with_the_gradients_of_one(checkpointing):
    """The backward pass computes blocks again in its own thread."""
    model = scrambled(rr.attach(tiny(), "review", values="identity")).train()
    inputs = [ids(n, 2, 20) for n in range(2)]
    own = list(model.rr_residuals.parameters())
    wanted = [torch.autograd.grad(model(x, labels=x).loss, own) for x in inputs]
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})

    def calls(n: int) -> None:
        for _ in range(5):
            got = torch.autograd.grad(model(inputs[n], labels=inputs[n]).loss, own)
            for mine, theirs in zip(got, wanted[n], strict=True):
                assert torch.equal(mine, theirs)

    in_threads(*(partial(calls, n) for n in range(2)))


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing_enable:FutureWarning")
@pytest.mark.parametrize("values", [None, "learnable-plus"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_blocks_are_computed_again_in_the_thread_of_the_backward_pass(reentrant, values):
    """On a GPU that is a thread of its own, and Transformers calls no hook on the block there."""
    model = scrambled(rr.attach(tiny(), "review", values=values)).train()
    x, own = ids(0, 2, 20), list(model.rr_residuals.parameters())
    wanted = torch.autograd.grad(model(x, labels=x).loss, own)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    in_threads(model(x, labels=x).loss.backward)
    assert all(torch.equal(p.grad, theirs) for p, theirs in zip(own, wanted, strict=True))


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing_enable:FutureWarning")
def test_checkpointing_keeps_one_block_that_was_computed_again_not_all():
    """Torch ends such a computation at the last tensor that it needs, within the last hook."""
    model = rr.attach(tiny(), "review").train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    x = ids(0, 2, 20)
    model(x, labels=x).loss.backward()
    held = {id(calls.now.local.state) for calls in vars(model)[HOOKS].calls}
    assert len(vars(model)[HOOKS].calls) == 3 and len(held) == 1


# ---- replicas of nn.DataParallel, here of two CPUs


def replicas(model: nn.Module, monkeypatch) -> list:
    """Two replicas, as `nn.DataParallel` makes them for two devices: with copied parameters."""
    monkeypatch.setattr(replication, "_get_device_index", lambda device, optional: 0)
    monkeypatch.setattr(
        replication,
        "_broadcast_coalesced_reshape",
        lambda tensors, devices, detach=False: [[t.clone() for t in tensors] for _ in devices],
    )
    return replication.replicate(model, [0, 1])


def apply(copies: list, inputs: list) -> list:
    """The logits of each replica, in a thread of its own."""
    logits = {}

    def call(n: int) -> None:
        logits[n] = copies[n](inputs[n]).logits

    in_threads(*(partial(call, n) for n in range(len(copies))))
    return [logits[n] for n in range(len(copies))]


@pytest.mark.parametrize(("rule", "values"), ARMS)
def test_replicas_compute_with_their_own_rules(rule, values, monkeypatch):
    model = scrambled(rr.attach(tiny(dtype=torch.bfloat16), rule, values=values)).train()
    inputs = [ids(n, 2, 12) for n in range(2)]
    wanted = [model(x).logits for x in inputs]
    own = list(model.rr_residuals.parameters())
    slopes = torch.autograd.grad(sum(y.float().square().sum() for y in wanted), own)
    copies = replicas(model, monkeypatch)
    got = apply(copies, inputs)
    again = torch.autograd.grad(sum(y.float().square().sum() for y in got), own)
    for mine, theirs in zip(got, wanted, strict=True):
        assert torch.equal(mine, theirs)
    for mine, theirs in zip(again, slopes, strict=True):  # through the copies, to the originals
        torch.testing.assert_close(mine, theirs, rtol=1e-2, atol=1e-3)
    with torch.no_grad():
        for part in copies[1].rr_residuals.modules():
            for p in part._former_parameters.values():
                p.add_(0.3)
    changed = apply(copies, inputs)
    assert torch.equal(changed[0], wanted[0]) and not torch.equal(changed[1], wanted[1])


@pytest.mark.parametrize("norms", [["input_layernorm"], ["post_attention_layernorm", "norm"]])
def test_replicas_find_the_rules_beside_norms_that_peft_exchanged(norms, monkeypatch):
    peft = pytest.importorskip("peft")
    model, inputs = rr.attach(tiny(), "review"), [ids(n, 2, 12) for n in range(2)]
    config = peft.LNTuningConfig(
        task_type="CAUSAL_LM", target_modules=norms, modules_to_save=["rr_residuals"]
    )
    trained = peft.get_peft_model(model, config).train()
    for now in (trained, lambda: trained.merge_and_unload().train()):
        now = now if isinstance(now, nn.Module) else now()
        wanted = [now(x).logits for x in inputs]
        got = apply(replicas(now, monkeypatch), inputs)
        assert all(map(torch.equal, got, wanted))


def test_a_replica_that_is_called_below_the_attached_model_is_one_line(monkeypatch):
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = rr.attach(tiny(), "review")

        def forward(self, x):
            return self.inside.model(x).last_hidden_state

    head = Head()
    assert head(IDX).isfinite().all()
    with pytest.raises(rr.RRError, match="DataParallel calls a part of LlamaForCausalLM"):
        replicas(head, monkeypatch)[0](IDX)


# ---- compiled before


@pytest.fixture
def fresh():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize(
    "way",
    [
        "in place",
        "block by block",
        *(pytest.param(f"wrapped{what}", marks=pytest.mark.slow) for what in ("", " blocks")),
    ],
)
def test_what_was_compiled_before_is_compiled_again(way, fresh):
    model = called = decoder("Llama")
    if way == "in place":
        model.compile(backend="eager")
    elif way == "wrapped":
        called = torch.compile(model, backend="eager")
    for i, block in enumerate(model.model.layers):
        if way == "block by block":
            block.compile(backend="eager")
        elif way == "wrapped blocks":
            model.model.layers[i] = torch.compile(block, backend="eager")
    plain = called(IDX).logits
    rule = rr.attach(decoder("Llama"), "review:bias=1")
    assert rr.attach(called, "review:bias=1") is called
    torch.testing.assert_close(called(IDX).logits, rule(IDX).logits)
    assert not torch.allclose(called(IDX).logits, plain)
    assert rr.detach(called) is called
    assert not hasattr(called, "rr_residuals")
    torch.testing.assert_close(called(IDX).logits, plain)


# ---- norms without weights


@pytest.mark.parametrize("family", ["Olmo", "NanoChat"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms_without_weights(family, dtype):
    model = decoder(family, dtype=dtype, eos_token_id=2)
    logits = model(IDX).logits
    assert torch.equal(rr.attach(model, "standard")(IDX).logits, logits)
    rr.detach(model)
    scrambled(rr.attach(model, "hyper-connections"))
    assert {p.dtype for p in model.rr_residuals.parameters()} == {torch.float32}
    assert model(IDX).logits.dtype == dtype and model(IDX).logits.isfinite().all()


def test_norms_without_weights_among_quantised_weights():
    """Then no parameter of a block says in which precision it computes."""
    model = decoder("Olmo", dtype=torch.bfloat16)
    for block in model.model.layers:
        for part in (block.self_attn, block.mlp):
            for name, child in list(part.named_children()):
                if isinstance(child, nn.Linear):
                    setattr(part, name, Int8(child))
    logits = model(IDX).logits
    rr.attach(model, "review:bias=20")
    torch.testing.assert_close(model(IDX).logits, logits, rtol=0.02, atol=0.01)


def test_a_rule_attached_and_called_in_inference_mode_can_be_trained():
    model = tiny()
    with torch.inference_mode():
        rr.attach(model, "review", values="learnable")
        model(IDX)
    model.train()(IDX, labels=IDX).loss.backward()
    assert all(p.grad is not None for p in model.rr_residuals.parameters())


# ---- files


def test_the_rule_of_a_part_is_found_in_the_files_of_the_whole(tmp_path):
    model = tiny()
    scrambled(rr.attach(model.model, "review"))
    logits = model(IDX).logits
    model.save_pretrained(tmp_path)
    again = hf.AutoModelForCausalLM.from_pretrained(tmp_path)
    rr.attach(again.model, "review", weights=tmp_path)
    assert torch.equal(again(IDX).logits, logits)
    whole = hf.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(rr.attach(whole, "review", weights=tmp_path)(IDX).logits, logits)


def test_a_file_with_a_variant_is_named(tmp_path):
    rr.attach(tiny(), "review").save_pretrained(tmp_path, variant="fp16")
    with pytest.raises(rr.RRError, match=r"has no model\.safetensors, but .*fp16\.safetensors"):
        rr.attach(tiny(), "review", weights=tmp_path)


# ---- refused, and nothing is changed


class Attention(nn.Linear):
    def forward(self, x, scale):
        return super().forward(x) * scale


class Block(nn.Module):
    """Of a pre-norm decoder by hand; its attention may look at the stream itself."""

    def __init__(self, looks: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(8), nn.LayerNorm(8)
        self.attn, self.mlp, self.looks = Attention(8, 8), nn.Linear(8, 8), looks

    def forward(self, h):
        h = h + self.attn(self.norm1(h), h.mean() if self.looks else 1)
        return h + self.mlp(self.norm2(h))


class Decoder(nn.Module):
    """Two such blocks, with something between them."""

    def __init__(self, looks: bool = False, between=lambda x: x) -> None:
        super().__init__()
        self.config = hf.GPT2Config(n_head=2)
        self.embed, self.norm = nn.Embedding(60, 8), nn.LayerNorm(8)
        self.blocks, self.between = nn.ModuleList([Block(looks), Block(looks)]), between

    def forward(self, input_ids, **given):
        first, second = self.blocks
        return (self.norm(second(self.between(first(self.embed(input_ids))))),)


def test_a_decoder_by_hand_is_attached():
    model = Decoder()
    before = model(IDX)[0]
    torch.testing.assert_close(rr.attach(model, "review:bias=20")(IDX)[0], before)


def partitioned(model: nn.Module) -> nn.Module:
    """As DeepSpeed's ZeRO-3 leaves parameters: marked, and empty."""
    for p in model.parameters():
        p.ds_id, p.data = 0, torch.empty(0)
    return model


def test_parameters_that_are_partitioned_are_named():
    with pytest.raises(rr.RRError, match="sharded already.* DeepSpeed"):
        rr.attach(partitioned(tiny()), "review")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", ["FSDP", "DDP"])
def test_wrappers_of_several_processes_are_named(how, process):
    from torch.distributed.fsdp import FullyShardedDataParallel

    if how == "FSDP":
        given = {"use_orig_params": True, "device_id": torch.device("cpu")}
        model, words = FullyShardedDataParallel(tiny(), **given), "sharded already"
    else:
        model = nn.parallel.DistributedDataParallel(tiny())
        words = "DistributedDataParallel wraps this model"
    with pytest.raises(rr.RRError, match=words):
        rr.attach(model, "review")
    assert not hasattr(model, "rr_residuals")


REFUSED = {
    "DataParallel wraps": lambda: nn.DataParallel(tiny()),
    "gives other logits once": lambda: Decoder(looks=True),
    "block 1 of Decoder does not read what block 0 returns": lambda: Decoder(between=torch.tanh),
    "2 norm, 1 attention, 1 MLP, 1 parameter": lambda: with_own_parameter(Decoder()),
}


def with_own_parameter(model: nn.Module) -> nn.Module:
    for block in model.blocks:
        block.residual = nn.Parameter(torch.ones(8))
    return model


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_attached_is_left_as_it_was(words):
    model = REFUSED[words]()
    names, hooks = list(model.state_dict()), [len(m._forward_hooks) for m in model.modules()]
    logits = model(IDX)[0]
    with pytest.raises(rr.RRError, match=words):
        rr.attach(model, "review")
    assert list(model.state_dict()) == names and torch.equal(model(IDX)[0], logits)
    assert [len(m._forward_hooks) for m in model.modules()] == hooks
