"""Tokenizers: text <-> token numbers, by byte-level BPE alone (Sennrich 2016; Radford 2019).

Every tokenizer is a folder with vocab.json and merges.txt, wherever it came from, read by one
piece of code. The end-of-text mark is never made from text: text that contains it is cut there.
"""

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from ..config import MIB, RRError, checked_file, nearest
from . import cache as store
from .documents import EOT, require_hub

FILES = ("vocab.json", "merges.txt")
GPT2 = "openai-community/gpt2"
GPT2_REVISION = "607a30d783dfa663caf39e06633721c8d4cfcd7e"
GPT2_SHA256 = (
    "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
)
GPT2_SIZE = 50_257
SMALLEST = 257  # 256 bytes and the end-of-text mark
LARGEST = 1_000_000  # the trainer sets memory aside for each token before it knows the text
LARGEST_FILE = 64 * MIB  # of vocab.json and of merges.txt; GPT-2's have one
_PIECE = 1 << 18  # characters; a longer document is encoded in pieces
_BATCH = 1 << 20  # characters handed to the encoder's threads at once
# A single blank between two words always begins a new pre-token, so cutting before it is exact.
_SEAM = re.compile(r"(?<=\S)[ \n](?=\S)")


class Vocabulary:
    """A byte-level BPE. name; identity (for hashing); size (tokens); eot (the mark's number)."""

    def __init__(self, name: str, identity: str, folder: Path):
        self.name, self.identity, self.folder = name, identity, folder
        try:
            files = [str(checked_file(folder / name, LARGEST_FILE)) for name in FILES]
            bpe = models.BPE.from_file(*files)
        except Exception as error:  # the library raises bare exceptions
            line = str(error).splitlines()[0]
            raise RRError(
                f"tokenizer {name}: cannot read vocab.json and merges.txt ({line})"
            ) from error
        self._bpe = Tokenizer(bpe)
        self._bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self._bpe.decoder = decoders.ByteLevel()
        self.eot = self._bpe.token_to_id(EOT)
        if self.eot is None:
            raise RRError(f"tokenizer {name}: vocab.json has no {EOT} entry, which ends documents")
        table = self._bpe.get_vocab()
        lacking = [c for c in pre_tokenizers.ByteLevel.alphabet() if c not in table]
        if lacking:
            raise RRError(
                f"tokenizer {name} is no byte-level BPE: its vocab.json lacks "
                f"{len(lacking)} of the 256 bytes"
            )
        self.size = max(table.values()) + 1

    @cached_property
    def dtype(self) -> np.dtype:
        """uint16 where every token number fits, else uint32."""
        return np.dtype(np.uint16 if self.size <= 65_535 else np.uint32)

    def encode(self, text: str) -> list[int]:
        """Token numbers of `text`; each end-of-text mark written in it becomes `eot`."""
        ids: list[int] = []
        for i, part in enumerate(text.split(EOT)):
            ids += [self.eot] * (i > 0) + self._bpe.encode(part).ids
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token numbers; the end-of-text mark is written out."""
        return self._bpe.decode([int(i) for i in ids], skip_special_tokens=False)

    def stream(self, documents: Iterable[str]) -> Iterator[tuple[np.ndarray, int]]:
        """Encode documents, each followed by `eot`: yields (token numbers, documents ended).

        Memory is that of one batch of about a million characters, whatever the corpus's size.
        """
        batch: list[str] = []
        ends: list[bool] = []
        held = 0
        for text in documents:
            for piece, last in _pieces(text):
                batch.append(piece)
                ends.append(last)
                held += len(piece)
                if held >= _BATCH:
                    yield self._encoded(batch, ends)
                    batch, ends, held = [], [], 0
        if batch:
            yield self._encoded(batch, ends)

    def _encoded(self, batch: list[str], ends: list[bool]) -> tuple[np.ndarray, int]:
        mark = [self.eot]
        parts = []
        for encoding, end in zip(self._bpe.encode_batch_fast(batch), ends, strict=True):
            parts.append(np.array(encoding.ids + mark if end else encoding.ids, self.dtype))
        return np.concatenate(parts), sum(ends)


def _pieces(text: str) -> Iterator[tuple[str, bool]]:
    """(piece, whether it ends the document): their tokens in a row are the document's."""
    start = 0
    while len(text) - start > _PIECE and (seam := _SEAM.search(text, start + _PIECE)):
        yield text[start : seam.start()], False
        start = seam.start()
    yield text[start:], True


def identity(tokenizer: str, corpus_identity: str) -> str:
    """What a tokenizer is, for hashing, from its name alone; nothing is trained or downloaded.

    `gpt2` and a folder with the same two files are the same tokenizer and have one identity.
    """
    size = _bpe_size(tokenizer)
    if size is not None:
        return f"bpe:{size} of {corpus_identity}"
    if tokenizer == "gpt2":
        return _files_identity(GPT2_SHA256)
    return _files_identity([store.digest(path) for path in _files(tokenizer)])


def planned_size(tokenizer: str) -> int:
    """Tokens that `tokenizer` will have, from its name alone: what a plan needs of it."""
    size = _bpe_size(tokenizer)
    if size is not None:
        return size
    if tokenizer == "gpt2":
        return GPT2_SIZE
    vocab = _files(tokenizer)[0]
    try:
        return max(json.loads(vocab.read_bytes()).values()) + 1
    except (ValueError, TypeError, AttributeError) as error:
        raise RRError(f"{vocab} is no vocabulary ({error}): token -> number is accepted") from None


def open_vocabulary(
    tokenizer: str,
    corpus_identity: str,
    training_text: Callable[[], Iterator[str]],
    cache: str | Path | None = None,
    log: Callable[[str], None] = print,
) -> Vocabulary:
    """`gpt2` (hub, once), a folder with vocab.json and merges.txt, or `bpe:N` (trained, once)."""
    told = identity(tokenizer, corpus_identity)
    size = _bpe_size(tokenizer)
    if size is not None:

        def make(folder: Path) -> dict:
            return _train(training_text(), size, folder, log)
    elif tokenizer == "gpt2":
        make = _fetch_gpt2
    else:
        return Vocabulary(
            Path(tokenizer).expanduser().resolve().name, told, Path(tokenizer).expanduser()
        )
    folder, _ = store.get_or_create("tokenizers", {"tokenizer": told}, make, cache, log)
    return Vocabulary(tokenizer, told, folder)


def _bpe_size(tokenizer: str) -> int | None:
    kind, colon, size = tokenizer.partition(":")
    if kind != "bpe":
        return None
    if not re.fullmatch("[0-9]{1,9}", size) or not SMALLEST <= int(size) <= LARGEST:
        raise RRError(
            f"tokenizer {tokenizer!r}: bpe:N is accepted, bpe:4096 say, with N from "
            f"{SMALLEST} (256 bytes and the end-of-text mark) to {LARGEST:,}"
        )
    return int(size)


def _files(tokenizer: str) -> list[Path]:
    folder = Path(tokenizer).expanduser()
    if not folder.is_dir():
        known = ["gpt2", "bpe:N", "a folder with vocab.json and merges.txt"]
        raise RRError(f"unknown tokenizer {tokenizer!r}: {nearest(tokenizer, known)}")
    lacking = [name for name in FILES if not (folder / name).is_file()]
    if lacking:
        raise RRError(
            f"the tokenizer folder {folder} has no {' and no '.join(lacking)}: "
            "a folder with vocab.json and merges.txt is accepted"
        )
    return [folder / name for name in FILES]


def _files_identity(digests: Iterable[str]) -> str:
    return "bpe files " + hashlib.sha256(" ".join(digests).encode()).hexdigest()


def _train(documents: Iterator[str], size: int, folder: Path, log: Callable[[str], None]) -> dict:
    """Train `size` tokens: the mark, the 256 bytes and the merges; the same text, the same files.

    Ties between pairs go to the lower token numbers, so neither threads nor time play a part.
    """
    start = time.perf_counter()
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[EOT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator((piece for text in documents for piece, _ in _pieces(text)), trainer)
    found = bpe.get_vocab_size()
    if found < size:
        raise RRError(
            f"tokenizer bpe:{size}: the training text has merges for {found} tokens "
            f"only; bpe:N is accepted with N from {SMALLEST} to {found}"
        )
    bpe.model.save(str(folder))
    log(f"tokenizer bpe:{size} trained in {time.perf_counter() - start:.1f} s")
    return {"size": size}


def _fetch_gpt2(folder: Path) -> dict:
    try:
        from huggingface_hub import hf_hub_download
    except ImportError as error:
        raise RRError(
            "tokenizer gpt2 needs huggingface_hub (pip install 'review-residuals[hub]'); "
            "bpe:N and a folder with vocab.json and merges.txt need nothing"
        ) from error
    without = "bpe:N and a folder with vocab.json and merges.txt work without a network"
    try:
        require_hub("the tokenizer gpt2", without)
        for name, sha in zip(FILES, GPT2_SHA256, strict=True):
            got = Path(hf_hub_download(GPT2, name, revision=GPT2_REVISION))
            if store.digest(got) != sha:
                raise RRError(f"the hub's {name} of {GPT2} is not the published file: {without}")
            (folder / name).write_bytes(got.read_bytes())
    except RRError:
        raise
    except Exception as error:  # the library raises many kinds
        line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise RRError(f"cannot fetch the tokenizer gpt2: {line}; {without}") from error
    return {"size": GPT2_SIZE}
