"""Data: corpora, tokenizers, and the windows of tokens that a step reads."""

from .corpus import Tokens, baselines, open_corpus

__all__ = ["Tokens", "baselines", "open_corpus"]
