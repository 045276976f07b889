"""`rr.attach` on every decoder family of the installed `transformers` that can be built small.

A family is attached, with the logits, the generation and the files of its own, or refused in one
line; nothing is downloaded.
"""

import inspect

import pytest
import torch
from test_attach import hf, scrambled

import rr

AUTO = pytest.importorskip("transformers.models.auto.modeling_auto")
CONFIGS = pytest.importorskip("transformers.models.auto.configuration_auto").CONFIG_MAPPING
IDX = torch.randint(3, 60, (2, 9), generator=torch.Generator().manual_seed(1))
LARGEST = 4_000_000  # parameters
# What configurations call the same few sizes.
SMALL = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embedding_size", "lru_width"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 2),
    **dict.fromkeys(("decoder_layers", "encoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("intermediate_size", "ffn_hidden_size", "d_ff", "ffn_dim", "n_inner"), 48),
    **dict.fromkeys(("decoder_ffn_dim", "encoder_ffn_dim"), 48),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx"), 64),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 16),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "head_dim", "v_head_dim"), 8),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "rotary_dim"), 4),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "linear_head_dim"), 8),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads", "linear_num_heads"), 4),
    **dict.fromkeys(("index_head_dim", "index_n_heads", "index_topk"), 8),
    **dict(vocab_size=60, max_sequence_length=64, num_key_value_heads=2, num_experts_per_tok=2),
    **dict(n_group=1, topk_group=1, attn_layer_period=2, attn_layer_offset=1, is_decoder=True),
    **dict(bos_token_id=1, eos_token_id=2, pad_token_id=0),
}
# A family that is in two lists is one class: the configuration of the text alone is the smaller.
FAMILIES = {cls: kind for kind, cls in sorted(AUTO.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items())}
# These must not become refusals.
KNOWN = (
    "GPT2LMHeadModel GPTBigCode Llama Mistral Mixtral Qwen2 Qwen3 Qwen3Moe Gemma Phi3 Olmo Olmoe"
)
KNOWN += " NanoChat StableLm Starcoder2 SmolLM3 GptOss Persimmon Ernie4_5 Granite"
ATTACHED = {name if name in FAMILIES else f"{name}ForCausalLM" for name in KNOWN.split()}
QUICK = ATTACHED | {
    "GPTNeoXForCausalLM",
    "DogeForCausalLM",
    "OpenAIGPTLMHeadModel",
    "OPTForCausalLM",
}


def shape(kind: str, **more):
    """A configuration of a few thousand parameters, as far as its names say how."""
    config = CONFIGS[kind]
    known = set(inspect.signature(config.__init__).parameters)
    try:
        known |= config().to_dict().keys()
    except Exception:
        pass
    if "kv_lora_rank" in known:  # multi-head latent attention has as many heads of keys
        more["num_key_value_heads"] = 4
    return config(**{name: value for name, value in (SMALL | more).items() if name in known})


def small(family: str):
    """A model of a family in evaluation mode, and its logits; skips where it cannot be small."""
    build, problem = getattr(hf, family), ""
    for layers in (2, 4):  # some mix kinds of attention, and need one block of each
        try:
            config = shape(FAMILIES[family], num_hidden_layers=layers)
            with torch.device("meta"):
                size = sum(p.numel() for p in build(config).parameters())
            if size > LARGEST:
                problem = f"{size:,} parameters"
                break
            torch.manual_seed(0)
            model = build(config).eval()
            return model, model(input_ids=IDX).logits
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
    assert family not in ATTACHED, problem  # what `attach` names is always tested
    pytest.skip(problem[:200])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "family",
    [pytest.param(f, marks=[] if f in QUICK else pytest.mark.slow) for f in sorted(FAMILIES)],
)
@torch.no_grad()
def test_a_family_is_attached_or_refused_in_one_line(family, tmp_path):
    model, logits = small(family)
    names = list(model.state_dict())
    try:
        rr.attach(model, "standard")
    except rr.RRError as error:
        assert family in str(error)
        assert family not in ATTACHED
        assert list(model.state_dict()) == names and not hasattr(model.config, "rr_residuals")
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
        assert torch.equal(model(input_ids=IDX).logits, logits)
        return
    assert torch.equal(model(input_ids=IDX).logits, logits)
    how = {"max_new_tokens": 6, "do_sample": False, "attention_mask": torch.ones_like(IDX)}
    text = model.generate(IDX, **how)
    rr.detach(model)
    assert torch.equal(model.generate(IDX, **how), text)
    caches = torch.equal(model.generate(IDX, use_cache=False, **how), text)
    scrambled(rr.attach(model, "review"))
    ruled = model(input_ids=IDX).logits
    assert not torch.allclose(ruled, logits)
    if caches:
        text = model.generate(IDX, **how)
        assert torch.equal(model.generate(IDX, use_cache=False, **how), text)
    model.save_pretrained(tmp_path)
    again = rr.attach(type(model).from_pretrained(tmp_path), "review", weights=tmp_path)
    assert torch.equal(again.eval()(input_ids=IDX).logits, ruled)
