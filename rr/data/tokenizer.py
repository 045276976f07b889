"""Tokenizers: byte-level BPE (Sennrich 2016; Radford 2019), text to token numbers and back.

Every tokenizer is a folder with vocab.json and merges.txt, whether downloaded, trained or given.
The end-of-text token is never made from text: a text that contains the mark is split there.
"""

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from ..errors import RRError, install, nearest
from ..io import MIB, checked_file
from . import cache as store
from .documents import EOT

FILES = ("vocab.json", "merges.txt")
GPT2 = "openai-community/gpt2"
GPT2_REVISION = "607a30d783dfa663caf39e06633721c8d4cfcd7e"
GPT2_SHA256 = (
    "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
)
GPT2_SIZE = 50_257
SMALLEST = 257  # 256 bytes and the end-of-text token
LARGEST = 1_000_000  # the trainer allocates memory for each token before it reads the text
LARGEST_FILE = 64 * MIB  # of vocab.json and of merges.txt; GPT-2's have one
_FORMAT = 2  # of trained tokenizers; raise it to have them made again
PIECE = 1 << 18  # characters; a longer document is encoded in pieces
BATCH = 1 << 20  # characters handed to the encoder's threads at once
LONGEST = 1 << 20  # characters of a piece; text without a blank for so long is cut anywhere
# A single blank between two words always starts a new pre-token, so cutting before it is exact.
_SEAM = re.compile(r"(?<=\S)[ \n](?=\S)")
# Training takes the square of a word's length: such a run is seen in parts of this length.
_RUN = re.compile(r"(\S{4096}|\s{4096})")


class Vocabulary:
    """A byte-level BPE. name; identity (for hashing); size (tokens); eot (end-of-text token)."""

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
        eot = self._bpe.token_to_id(EOT)
        if eot is None:
            raise RRError(f"tokenizer {name}: vocab.json has no {EOT} entry, which ends documents")
        self.eot: int = eot
        table = self._bpe.get_vocab()
        missing = [c for c in pre_tokenizers.ByteLevel.alphabet() if c not in table]
        if missing:
            raise RRError(
                f"tokenizer {name} is not a byte-level BPE: its vocab.json lacks "
                f"{len(missing)} of the 256 bytes"
            )
        self.size = max(table.values()) + 1

    @cached_property
    def dtype(self) -> np.dtype:
        """The dtype of token numbers: uint16 where every one fits, else uint32."""
        return np.dtype(np.uint16 if self.size <= 65_535 else np.uint32)

    def encode(self, text: str) -> list[int]:
        """Token numbers of `text`; each end-of-text mark written in it becomes `eot`."""
        ids: list[int] = []
        for i, part in enumerate(text.split(EOT)):
            if i:
                ids.append(self.eot)
            ids += self._bpe.encode(part).ids
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token numbers; end-of-text is written as <|endoftext|>."""
        return self._bpe.decode([int(i) for i in ids], skip_special_tokens=False)

    def stream(self, documents: Iterable[str]) -> Iterator[tuple[np.ndarray, int]]:
        """Encode documents, each followed by `eot`; yields (token numbers, documents ended).

        Holds one batch of about a million characters in memory, whatever the corpus's size.
        """
        batch: list[str] = []
        ends: list[bool] = []
        held = 0
        for text in documents:
            for piece, last in text_pieces(text):
                batch.append(piece)
                ends.append(last)
                held += len(piece)
                if held >= BATCH:
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


def text_pieces(text: str) -> Iterator[tuple[str, bool]]:
    """(piece, whether it ends the document); the pieces' tokens together are the document's.

    Only where no blank follows within LONGEST characters (a genome in one line) may a token be cut.
    """
    start = 0
    while len(text) - start > PIECE:
        seam = _SEAM.search(text, start + PIECE, start + LONGEST)
        end = seam.start() if seam else start + LONGEST
        if end >= len(text):
            break
        yield text[start:end], False
        start = end
    yield text[start:], True


def identity(tokenizer: str, corpus_identity: str) -> str:
    """The identity of a tokenizer, for hashing, from its name; nothing is trained or downloaded.

    `gpt2` and a folder with the same two files are the same tokenizer and have one identity.
    """
    size = _bpe_size(tokenizer)
    if size is not None:
        return f"bpe:{size} of {corpus_identity}"
    if tokenizer == "gpt2":
        return _files_identity(GPT2_SHA256)
    return _files_identity([store.digest(path) for path in _files(tokenizer)])


def planned_size(tokenizer: str) -> int:
    """The vocabulary size that `tokenizer` will have, from its name; nothing is trained."""
    size = _bpe_size(tokenizer)
    if size is not None:
        return size
    if tokenizer == "gpt2":
        return GPT2_SIZE
    vocab = _files(tokenizer)[0]
    try:
        return max(json.loads(vocab.read_bytes()).values()) + 1
    except (ValueError, TypeError, AttributeError) as error:
        raise RRError(
            f"{vocab} is not a vocabulary ({error}): expected an object token -> number"
        ) from None


def open_vocabulary(
    tokenizer: str,
    corpus_identity: str,
    training_text: Callable[[], Iterator[str]],
    cache: str | Path | None = None,
    log: Callable[[str], None] = print,
) -> Vocabulary:
    """Open `gpt2` (downloaded once), `bpe:N` (trained once), or a folder with the two files."""
    known = identity(tokenizer, corpus_identity)
    size = _bpe_size(tokenizer)
    key: dict[str, object] = {"tokenizer": known}
    if size is not None:
        key["format"] = _FORMAT

        def make(folder: Path) -> dict:
            return _train(training_text(), size, folder, log)
    elif tokenizer == "gpt2":
        make = _fetch_gpt2
    else:
        given = Path(os.path.expanduser(tokenizer))
        return Vocabulary(given.resolve().name, known, given)
    folder, _ = store.get_or_create("tokenizers", key, make, cache, log)
    return Vocabulary(tokenizer, known, folder)


def _bpe_size(tokenizer: str) -> int | None:
    kind, colon, size = tokenizer.partition(":")
    if kind != "bpe":
        return None
    if not re.fullmatch("[0-9]{1,9}", size) or not SMALLEST <= int(size) <= LARGEST:
        raise RRError(
            f"tokenizer must be bpe:N with N from {SMALLEST} (256 bytes and the end-of-text token) "
            f"to {LARGEST:,}, as in bpe:4096, got {tokenizer!r}"
        )
    return int(size)


def _files(tokenizer: str) -> list[Path]:
    folder = Path(os.path.expanduser(tokenizer))  # an unknown ~user stays as it is
    if not folder.is_dir():
        known = ["gpt2", "bpe:N", "a folder with vocab.json and merges.txt"]
        raise RRError(f"unknown tokenizer {tokenizer!r}: {nearest(tokenizer, known)}")
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        raise RRError(
            f"the tokenizer folder {folder} has no {' and no '.join(missing)}: "
            "expected vocab.json and merges.txt"
        )
    return [folder / name for name in FILES]


def _files_identity(digests: Iterable[str]) -> str:
    return "bpe files " + hashlib.sha256(" ".join(digests).encode()).hexdigest()


def _train(documents: Iterator[str], size: int, folder: Path, log: Callable[[str], None]) -> dict:
    """Train a BPE of `size` tokens: end-of-text, the 256 bytes and the merges; deterministic.

    Ties between pairs go to the lower token numbers, whatever the number of threads.
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
    bpe.train_from_iterator(
        (
            part
            for text in documents
            for piece, _ in text_pieces(text)
            for part in _RUN.split(piece)
            if part
        ),
        trainer,
    )
    trained = bpe.get_vocab_size()
    if trained < size:
        raise RRError(
            f"tokenizer bpe:{size}: the training text has merges for {trained} tokens only: "
            f"choose N from {SMALLEST} to {trained}"
        )
    bpe.model.save(str(folder))
    log(f"tokenizer bpe:{size} trained in {time.perf_counter() - start:.1f} s")
    return {"size": size}


def _fetch_gpt2(folder: Path) -> dict:
    try:
        from huggingface_hub import hf_hub_download
    except ImportError as error:
        raise RRError(
            f"tokenizer gpt2 needs huggingface_hub ({install('hub')}); "
            "bpe:N and a folder with vocab.json and merges.txt work without it"
        ) from error
    without = "bpe:N and a folder with vocab.json and merges.txt work without a network"
    try:
        from .hub import require_hub

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
