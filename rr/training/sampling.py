"""Text that a trained model writes."""

import torch

from ..data.tokenizer import Vocabulary
from ..errors import RRError
from ..model.transformer import Model


def sample(
    model: Model,
    vocabulary: Vocabulary,
    prompt: str = "",
    tokens: int = 200,
    temperature: float = 0.8,
    top_k: int = 40,
    seed: int = 0,
) -> str:
    """Text that the model generates after `prompt`, which it holds; it stops at an end of text.

    tokens: at most so many are generated. temperature: 0 takes the likeliest token. top_k: sample
    from the k likeliest tokens. Raises RRError where the prompt does not fit the model's window.
    """
    ids = [vocabulary.eot, *vocabulary.encode(prompt)]
    if len(ids) >= model.config.seq_len:
        raise RRError(
            f"the prompt has {len(ids)} tokens with its start mark, but this model reads "
            f"{model.config.seq_len} with at least one to generate: shorten it"
        )
    source = torch.Generator().manual_seed(seed)
    start = torch.tensor([ids], device=model.token.weight.device)
    generated = model.generate(start, tokens, temperature, top_k, source, stop=vocabulary.eot)
    written = generated[0, 1:].tolist()
    return vocabulary.decode(i for i in written if i != vocabulary.eot).strip()
