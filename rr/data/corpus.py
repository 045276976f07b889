"""Corpora as token streams: tokenised once, memory-mapped.

tokens = open_corpus("file:stories.txt.xz", "bpe:4096")
tokens.train            # np.memmap, 1-D, uint16: document, end mark, document, end mark, ...
"""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..errors import RRError
from . import cache as store
from .documents import Documents, Source, hold_out, source
from .tokenizer import Vocabulary, open_vocabulary
from .tokenizer import identity as tokenizer_identity

SPLITS = ("documents", "tokens")
TOKEN_SHARE = 0.97  # split="tokens": the training share of the stream, as the study cut it
_FORMAT = 2  # of the cached files; raise it to have them made again


@dataclass(frozen=True)
class Tokens:
    """A tokenised corpus. Every document is followed by one end-of-text token.

    `rr.open_corpus` makes one.

    Example:
        >>> import rr
        >>> tokens = rr.open_corpus("fables", log=lambda line: None)
        >>> tokens.name, tokens.tokenizer_name
        ('fables', 'bpe:1024')
    """

    name: str  # of the corpus, for tables
    tokenizer_name: str  # likewise
    identity: dict[str, str]  # "corpus" and "tokenizer", for a run's hash
    train: np.ndarray = field(repr=False)  # token ids (n,), uint16 or uint32, a memory map
    valid: np.ndarray = field(repr=False)  # likewise, held out
    sha256: dict[str, str] = field(repr=False)  # of the bytes of "train" and "valid"
    vocabulary: Vocabulary = field(repr=False)  # turns text into token ids and back

    @property
    def vocab_size(self) -> int:
        """Tokens of the vocabulary; above 65,535 the ids are uint32."""
        return self.vocabulary.size

    @property
    def eot(self) -> int:
        """The id of the end-of-text mark."""
        return self.vocabulary.eot

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, without an end mark but those written in it."""
        return self.vocabulary.encode(text)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids; an end mark is written out as `<|endoftext|>`."""
        return self.vocabulary.decode(ids)


def default_tokenizer(corpus: str) -> str:
    """`bpe:1024` for the built-in corpus, else `gpt2`."""
    return "bpe:1024" if corpus == "fables" else "gpt2"


def identity(corpus: str, tokenizer: str | None = None) -> dict[str, str]:
    """The content identity of a corpus and a tokenizer, for hashing: {"corpus", "tokenizer"}.

    Of a file its bytes, of a folder its files' names and bytes, of a hub name itself at its commit
    (which the hub is asked for where a branch or tag is named), of fables their grammar, seed and
    counts; of `bpe:N` N and its corpus. It contains no path, and nothing is downloaded, trained or
    tokenised. Raises RRError for an unknown name.
    """
    text = source(corpus).identity
    tokens = tokenizer_identity(tokenizer or default_tokenizer(corpus), text)
    return {"corpus": text, "tokenizer": tokens}


def open_corpus(
    corpus: str,
    tokenizer: str | None = None,
    *,
    split: str = "documents",
    min_tokens: int = 1,
    cache: str | Path | None = None,
    log: Callable[[str], None] = print,
) -> Tokens:
    """The tokens of a corpus: tokenised once, then memory-mapped from the cache.

    corpus: `fables`, `tinystories`, `fineweb-edu`, `file:PATH` (a .txt, .md, .jsonl or .parquet
        file, .xz or .gz of these, or a folder with train* and valid*),
        `org/name[:config][@revision]` (the hub's train split).
    tokenizer: `gpt2`, a folder with vocab.json and merges.txt, or `bpe:N`, a byte-level BPE of N
        tokens trained on the corpus; None: `bpe:1024` for fables, else `gpt2`.
    split: what is held out of a corpus that has no held-out part: "documents", the fewest last
        documents that make up 3 % of the text's bytes, or "tokens", all after the first
        int(0.97·n) of the n tokens, which may cut a document (as the study did).
        `bpe:N` is trained on the training documents of the former in both cases.
    min_tokens: raise unless each part has so many (a window and its target: seq_len + 1).
    cache: folder; None: `$RR_CACHE`, else `~/.cache/review-residuals`.
    log: called with each progress line.

    Raises RRError for any problem with the input or the cache folder.

    Example:
        >>> import rr
        >>> tokens = rr.open_corpus("fables", log=lambda line: None)
        >>> tokens.vocab_size, tokens.train.dtype
        (1024, dtype('uint16'))
    """
    if split not in SPLITS:
        raise RRError(f"split must be {' or '.join(SPLITS)}, got {split!r}")
    origin = source(corpus)
    chosen = tokenizer or default_tokenizer(corpus)
    known = {"corpus": origin.identity, "tokenizer": tokenizer_identity(chosen, origin.identity)}
    parts = _Parts(origin)
    own = "own" if origin.valid else split
    key = {**known, "split": own, "format": _FORMAT, "order": sys.byteorder}
    if not store.entry_path("tokens", key, cache).exists():
        next(parts.documents("train"))  # a problem with the text is reported before anything else

    def training_text() -> Iterator[str]:
        yield from parts.documents("train")
        origin.check()

    vocabulary = open_vocabulary(chosen, origin.identity, training_text, cache, log)

    def make(folder: Path) -> dict:
        _tokenise(origin, parts, vocabulary, split, folder, log)
        origin.check()  # of these bytes, or no entry
        if tokenizer_identity(chosen, origin.identity) != known["tokenizer"]:
            raise RRError(f"tokenizer {chosen} changed while it was read: start again")
        return {}

    folder, card = store.get_or_create("tokens", key, make, cache, log)
    maps = {p: np.memmap(folder / f"{p}.bin", vocabulary.dtype, "r") for p in ("train", "valid")}
    for part, ids in maps.items():
        if len(ids) < min_tokens:
            raise RRError(
                f"corpus {corpus} has {len(ids)} tokens in its {part} part, but a window and its "
                f"target need at least {min_tokens}: add text, or choose a shorter seq_len"
            )
    sha256 = {part: card["files"][f"{part}.bin"]["sha256"] for part in maps}
    return Tokens(
        origin.name,
        vocabulary.name,
        known,
        maps["train"],
        maps["valid"],
        sha256,
        vocabulary,
    )


class _Parts:
    """The training and held-out documents of a source, split once, when first read."""

    def __init__(self, origin: Source):
        self._origin = origin
        self._cut: tuple[Documents, Documents] | None = None
        if origin.valid:
            self._cut = origin.train, origin.valid

    def documents(self, part: str) -> Iterator[str]:
        if self._cut is None:
            self._cut = hold_out(self._origin)
        return self._cut[("train", "valid").index(part)]()


def _tokenise(
    origin: Source,
    parts: _Parts,
    vocabulary: Vocabulary,
    split: str,
    folder: Path,
    log: Callable[[str], None],
) -> None:
    if split == "tokens" and origin.valid is None:
        whole = folder / "whole.bin"
        _write(vocabulary, origin.train(), whole, origin.name, log)
        ids = np.memmap(whole, vocabulary.dtype, "r")
        at = int(TOKEN_SHARE * len(ids))
        for part, piece in (("train", ids[:at]), ("valid", ids[at:])):
            piece.tofile(folder / f"{part}.bin")
        whole.unlink()
    else:
        for part in ("train", "valid"):
            path = folder / f"{part}.bin"
            _write(vocabulary, parts.documents(part), path, f"{origin.name} ({part})", log)
    for part in ("train", "valid"):
        if not (folder / f"{part}.bin").stat().st_size:
            raise RRError(f"corpus {origin.name} is too short to split: its {part} part is empty")
    for name, changed in origin.changes.items():
        for what, count in changed.items():
            log(f"{name}: {what}: {count:,}")


def _write(
    vocabulary: Vocabulary,
    documents: Iterator[str],
    path: Path,
    what: str,
    log: Callable[[str], None],
) -> None:
    """Stream token numbers into `path`."""
    start = logged = time.perf_counter()
    count = ended = 0

    def line() -> str:
        seconds = time.perf_counter() - start
        return (
            f"tokenising {what} with {vocabulary.name}: {ended:,} documents, {count:,} tokens "
            f"in {seconds:.1f} s"
        )

    with open(path, "wb") as file:
        for ids, ends in vocabulary.stream(documents):
            ids.tofile(file)
            count += len(ids)
            ended += ends
            if time.perf_counter() - logged > 5:
                logged = time.perf_counter()
                log(line())
    log(line())
