"""Other packages' models at the size of ours, with our interface: ids and targets -> mean loss."""

from importlib.util import find_spec

from torch import Tensor, nn

from ..config import ModelConfig

PEERS = {  # model -> the module that it needs, and the distribution to install
    "gpt2": ("transformers", "transformers"),
    "llama": ("transformers", "transformers"),
    "x-transformers": ("x_transformers", "x-transformers"),
    "litgpt": ("litgpt", "litgpt"),
}


def installed() -> tuple[list[str], list[str]]:
    """Names of the peers that can be built here, and the distributions that are not installed."""
    names = [name for name, (module, _) in PEERS.items() if find_spec(module) is not None]
    missing = {brings for name, (_, brings) in PEERS.items() if name not in names}
    return names, sorted(missing)


class Peer(nn.Module):
    """One of `PEERS`, of the shape of a standard arm; without dropout."""

    def __init__(self, name: str, config: ModelConfig) -> None:
        super().__init__()
        self.name, self.model = name, getattr(self, "_" + name.replace("-", "_"))(config)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        if self.name in ("gpt2", "llama"):
            return self.model(input_ids=x, labels=x).loss  # shifts by itself: one target fewer
        logits = self.model(x)
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), y.flatten())

    @staticmethod
    def _gpt2(c: ModelConfig) -> nn.Module:
        from transformers import GPT2Config, GPT2LMHeadModel

        return GPT2LMHeadModel(
            GPT2Config(
                vocab_size=c.vocab_size,
                n_positions=c.seq_len,
                n_embd=c.d_model,
                n_layer=c.n_layer,
                n_head=c.n_head,
                n_inner=c.d_ff,
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
                use_cache=False,
            )
        )

    @staticmethod
    def _llama(c: ModelConfig) -> nn.Module:
        from transformers import LlamaConfig, LlamaForCausalLM

        return LlamaForCausalLM(
            LlamaConfig(
                vocab_size=c.vocab_size,
                max_position_embeddings=c.seq_len,
                hidden_size=c.d_model,
                intermediate_size=c.d_ff,
                num_hidden_layers=c.n_layer,
                num_attention_heads=c.n_head,
                tie_word_embeddings=True,
                use_cache=False,
            )
        )

    @staticmethod
    def _x_transformers(c: ModelConfig) -> nn.Module:
        from x_transformers import Decoder, TransformerWrapper

        layers = Decoder(
            dim=c.d_model,
            depth=c.n_layer,
            heads=c.n_head,
            attn_dim_head=c.head_dim,
            attn_flash=True,
            rotary_pos_emb=True,
            use_rmsnorm=True,
            ff_swish=True,
            ff_glu=True,
            ff_mult=c.d_ff / c.d_model,
            ff_no_bias=True,
        )
        return TransformerWrapper(
            num_tokens=c.vocab_size,
            max_seq_len=c.seq_len,
            attn_layers=layers,
            tie_embedding=True,
            use_abs_pos_emb=False,
        )

    @staticmethod
    def _litgpt(c: ModelConfig) -> nn.Module:
        from litgpt import GPT, Config  # pyright: ignore[reportMissingImports]  # optional

        model = GPT(
            Config(
                block_size=c.seq_len,
                vocab_size=c.vocab_size,
                padded_vocab_size=c.padded_vocab,
                n_layer=c.n_layer,
                n_head=c.n_head,
                n_embd=c.d_model,
                head_size=c.head_dim,
                intermediate_size=c.d_ff,
                norm_class_name="RMSNorm",
                mlp_class_name="LLaMAMLP",
                bias=False,
                parallel_residual=False,
                rotary_percentage=1.0,
            )
        )
        model.apply(model._init_weights)
        model.lm_head.weight = model.transformer.wte.weight
        return model
