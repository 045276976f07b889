"""Data: corpora, tokenizers, and the windows of tokens that a step reads.

Example:
    >>> from rr.data import baselines, open_corpus
    >>> tables = baselines(open_corpus("fables", log=lambda line: None))
    >>> round(tables["unigram_nats"], 2), round(tables["bigram_nats"], 2)
    (5.31, 1.75)
"""

from .. import lazy_names

_MODULES = {"Tokens": "corpus", "baselines": "predictability", "open_corpus": "corpus"}
__all__ = [*_MODULES]
__getattr__, __dir__ = lazy_names(__name__, _MODULES, __all__)
