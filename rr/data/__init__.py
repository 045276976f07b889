"""Text as tokens: corpora, tokenizers, and the windows that a step reads."""

from .corpus import Tokens, baselines, open_corpus

__all__ = ["Tokens", "baselines", "open_corpus"]
