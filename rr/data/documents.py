"""Corpora as streams of documents: fables here, files in `.local`, the hub in `.hub`.

One document is in memory at a time, and a corpus can be read repeatedly. Bad input raises an
`RRError` of one line: what is wrong, where, what was expected.
"""

import os
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from ..errors import RRError, nearest
from . import fables

EOT = "<|endoftext|>"
HELD_OUT = 0.03  # share of a corpus that comes without a held-out part
TINYSTORIES = "roneneldan/TinyStories"
TINYSTORIES_REVISION = "f54c09fd23315a6f9c86f9dc80f725de7d8f9c64"
TINYSTORIES_STORIES = 400_000  # as many as the study read
# the first file of the sample of ten billion tokens: enough for the rungs up to 60M, 2 GB
FINEWEB_EDU = "HuggingFaceFW/fineweb-edu"
FINEWEB_EDU_REVISION = "87f09149ef4734204d70ed1d046ddc9ca3f2b8f9"
FINEWEB_EDU_FILE = "sample/10BT/000_00000.parquet"
HUB = re.compile(r"(\w[\w.-]*/\w[\w.-]*)(?::(\w[\w.-]*))?(?:@(.+))?")  # name, config, revision
_SUFFIXES = (".txt", ".xz", ".gz", ".jsonl", ".parquet")

Documents = Callable[[], Iterator[str]]


@dataclass(frozen=True)
class Source:
    """A corpus before any tokenizer.

    name: for tables; identity: of its content, for hashing (no path in it); train, valid: each call
    reads the documents again, in order. `valid` is None where the corpus has no held-out part.
    changes: of each file read to its end, what reading has changed, and how often. check: raises
    RRError where the files are no longer those of `identity`.
    """

    name: str
    identity: str
    train: Documents
    valid: Documents | None = None
    changes: dict[str, Counter[str]] = field(default_factory=dict, compare=False)
    check: Callable[[], None] = field(default=lambda: None, compare=False)


def source(corpus: str) -> Source:
    """The source of `fables`, `tinystories`, `fineweb-edu`, `file:PATH` or a data set of the hub.

    Nothing is read.

    (The bytes of a file are hashed for its identity. A branch or tag of the hub is resolved to its
    commit, see `pinned`.)
    """
    if corpus == "fables":
        return Source("fables", fables.IDENTITY, fables.train, fables.valid)
    kind, colon, path = corpus.partition(":")
    if kind == "file" and colon:
        return _local_source(path)
    if corpus not in ("tinystories", "fineweb-edu"):
        if os.path.exists(corpus) or corpus.endswith(_SUFFIXES):
            raise RRError(f"unknown corpus {corpus!r}: for a path write file:{corpus}")
        if not HUB.fullmatch(corpus):
            forms = ["fables", "tinystories", "fineweb-edu", "file:PATH"]
            forms.append("org/name[:config][@revision]")
            raise RRError(f"unknown corpus {corpus!r}: {nearest(corpus, forms)}")
    return _hub_source(corpus)


def _local_source(path: str) -> Source:
    from .files import KINDS
    from .local import local_source

    if not path:
        raise RRError(f"corpus 'file:' names no path: expected file:PATH, {KINDS}")
    try:
        return local_source(Path(os.path.expanduser(path)))
    except OSError as error:
        name = error.filename or path
        raise RRError(f"cannot read {name}: {error.strerror or error}") from error


def _hub_source(corpus: str) -> Source:
    from .hub import hub_source

    if corpus == "tinystories":
        return hub_source(TINYSTORIES, TINYSTORIES_REVISION, TINYSTORIES_STORIES, name=corpus)
    if corpus == "fineweb-edu":
        revision = FINEWEB_EDU_REVISION
        return hub_source(FINEWEB_EDU, revision, None, name=corpus, file=FINEWEB_EDU_FILE)
    hub = HUB.fullmatch(pinned(corpus))
    assert hub is not None  # as `source` has seen
    name, config, revision = hub.groups()
    return hub_source(name, revision, None, name=name, config=config)


def pinned(corpus: str) -> str:
    """The corpus with the commit that a branch or tag of the hub is now; else as it is.

    A run that begins reads the commit that it was planned with, also where the branch has moved
    on. Raises RRError where the hub does not answer.
    """
    hub = HUB.fullmatch(corpus)
    if hub is None or re.fullmatch("[0-9a-f]{40}", hub[3] or ""):
        return corpus
    from .hub import commit

    name, config, revision = hub.groups()
    return f"{name}{f':{config}' if config else ''}@{commit(name, revision or 'main')}"


def hold_out(origin: Source) -> tuple[Documents, Documents]:
    """Split a source's documents into (train, valid).

    The fewest last documents that make up `HELD_OUT` of the text's bytes are held out; at least one
    document stays in the training part. A single document is cut inside, after the last blank or
    line end before the point where the held-out share begins.
    """
    documents = origin.train
    sizes = array("q", (len(text.encode()) for text in documents()))
    total = sum(sizes)
    if not total:
        raise RRError(f"corpus {origin.name} contains no text: expected at least one document")
    if len(sizes) == 1:
        text = next(documents())
        cut = int(len(text) * (1 - HELD_OUT))
        at = max(text.rfind("\n", 0, cut), text.rfind(" ", 0, cut)) + 1
        if not text[:at].strip() or not text[at:].strip():
            raise RRError(
                f"corpus {origin.name} is one short document, too short to split: add text"
            )
        return (lambda: iter([text[:at]])), (lambda: iter([text[at:]]))
    first, held = len(sizes), 0
    while first > 1 and (first == len(sizes) or held < HELD_OUT * total):
        first -= 1
        held += sizes[first]
    return (lambda: islice(documents(), first)), (lambda: islice(documents(), first, None))
