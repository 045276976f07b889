"""How predictable a corpus is: the held-out losses of a unigram and a bigram model."""

import numpy as np

from ..errors import RRError
from .corpus import Tokens


def baselines(tokens: Tokens) -> dict[str, float | int]:
    """Held-out loss of unigram and bigram models, in nats per token.

    unigram: p(b) = (c(b) + 1) / (n + V) with c over the n training tokens, V = vocab_size.
    bigram, interpolated: λ·p(b|a) + (1 − λ)·p(b) with p(b|a) = c(ab) / c(a·), pairs counted over
    the training stream (across document ends, as a window reads them); where a never occurred,
    p(b) alone.

    λ has the greatest likelihood on the last tenth of the training tokens under counts (of both
    kinds) from the first nine tenths; the scores then use counts from all training tokens. Both
    are means over the held-out tokens but the first, which has no token before it.

    Returns "tokens" and "valid_tokens", their numbers, "unigram_nats" and "bigram_nats", the
    losses, and "bigram_lambda", λ. Raises RRError for fewer than 20 training tokens or 2 held-out
    ones.

    Needs 8 bytes per training token and a sort of them.

    Example:
        >>> from rr.data import baselines, open_corpus
        >>> table = baselines(open_corpus("fables", log=lambda line: None))
        >>> round(table["unigram_nats"], 2), round(table["bigram_nats"], 2)
        (5.31, 1.75)
    """
    train = tokens.train
    if len(train) < 20 or len(tokens.valid) < 2:
        raise RRError(
            f"corpus {tokens.name} is too short for baselines: expected at least 20 training "
            "tokens and 2 held-out tokens"
        )
    at = len(train) * 9 // 10
    fit = _pair_terms(train[:at], train[at - 1 :], tokens.vocab_size)
    lam = _fit_lambda(*fit)
    weight, bigram, unigram = _pair_terms(train, tokens.valid, tokens.vocab_size)
    total = weight.sum()
    return {
        "tokens": len(train),
        "valid_tokens": len(tokens.valid),
        "unigram_nats": float(-(weight * np.log(unigram)).sum() / total),
        "bigram_nats": float(-(weight * np.log(_mix(lam, bigram, unigram))).sum() / total),
        "bigram_lambda": lam,
    }


def _mix(lam: float, bigram: np.ndarray, unigram: np.ndarray) -> np.ndarray:
    return lam * bigram + (1 - lam) * unigram


def _pair_terms(
    counted: np.ndarray, scored: np.ndarray, vocab_size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each distinct pair ab of `scored`: its count there, and p(b|a), p(b) from `counted`."""
    unigrams = np.bincount(counted, minlength=vocab_size)
    contexts = unigrams.copy()
    contexts[counted[-1]] -= 1  # nothing follows the last token
    pairs = np.sort(_pair_keys(counted, vocab_size))
    distinct, weight = np.unique(_pair_keys(scored, vocab_size), return_counts=True)
    count = np.searchsorted(pairs, distinct, "right") - np.searchsorted(pairs, distinct, "left")
    a, b = np.divmod(distinct, vocab_size)
    unigram = (unigrams[b] + 1) / (len(counted) + vocab_size)
    seen = contexts[a] > 0
    bigram = np.where(seen, count / np.maximum(contexts[a], 1), unigram)
    return weight, bigram, unigram


def _pair_keys(ids: np.ndarray, vocab_size: int) -> np.ndarray:
    keys = ids[:-1].astype(np.int64)
    keys *= vocab_size
    keys += ids[1:]
    return keys


def _fit_lambda(weight: np.ndarray, bigram: np.ndarray, unigram: np.ndarray) -> float:
    """The maximum of the concave log-likelihood in λ, by bisection on its slope; in [0, 1)."""
    low, high = 0.0, 1.0
    for _ in range(40):
        lam = (low + high) / 2
        slope = (weight * (bigram - unigram) / _mix(lam, bigram, unigram)).sum()
        low, high = (lam, high) if slope > 0 else (low, lam)
    return low
