"""Data: corpora, tokenizers, and the windows of tokens that a step reads.

Example:
    >>> from rr.data import baselines, open_corpus
    >>> tables = baselines(open_corpus("fables", log=lambda line: None))
    >>> round(tables["unigram_nats"], 2), round(tables["bigram_nats"], 2)
    (5.31, 1.75)
"""

from .corpus import Tokens, baselines, open_corpus

__all__ = ["Tokens", "baselines", "open_corpus"]
