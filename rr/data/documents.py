"""Where text comes from: a corpus's name -> its documents, in order, as many times as asked.

Nothing is kept in memory but the document at hand. Whatever is wrong with the input ends in one
`RRError` line that says what, where and what is accepted.
"""

import codecs
import gzip
import hashlib
import json
import lzma
import os
import re
import threading
import urllib.error
import urllib.request
import zlib
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from pathlib import Path

from ..config import RRError, nearest
from . import fables
from .cache import cached_digest

EOT = "<|endoftext|>"
HELD_OUT = 0.03  # of a corpus that comes without a held-out part
TINYSTORIES = "roneneldan/TinyStories"
TINYSTORIES_REVISION = "f54c09fd23315a6f9c86f9dc80f725de7d8f9c64"
TINYSTORIES_STORIES = 400_000  # what the study read
WORKS_OFFLINE = "fables and file:PATH work without a network"
_KINDS = "a text, .xz, .gz, .parquet or .jsonl file, or a folder with train* and valid* files"
_SUFFIXES = (".txt", ".xz", ".gz", ".jsonl", ".parquet")
_DAMAGE = (lzma.LZMAError, zlib.error, gzip.BadGzipFile, EOFError)

Documents = Callable[[], Iterator[str]]


@dataclass(frozen=True)
class Source:
    """A corpus before any tokenizer.

    name: what it is called in tables; identity: what it is, for hashing (no path in it);
    train, valid: each call reads the documents anew, in order. `valid` is None where the corpus
    has no held-out part of its own.
    """

    name: str
    identity: str
    train: Documents
    valid: Documents | None = None


def source(corpus: str, cache: str | Path | None = None) -> Source:
    """`fables`, `tinystories`, `file:PATH` or `org/name[@revision]`; downloads and reads nothing.

    (The bytes of a file are hashed for its identity, once: `rr.data.cache.cached_digest`.)
    """
    if corpus == "fables":
        return Source("fables", fables.IDENTITY, fables.train, fables.valid)
    if corpus == "tinystories":
        return _hub(TINYSTORIES, TINYSTORIES_REVISION, TINYSTORIES_STORIES, name="tinystories")
    kind, colon, path = corpus.partition(":")
    if kind == "file" and colon:
        if not path:
            raise RRError(f"corpus 'file:' names no path: file:PATH is accepted, {_KINDS}")
        try:
            return _local(Path(path).expanduser(), cache)
        except OSError as error:
            raise RRError(f"cannot read {path}: {error.strerror or error}") from error
    if os.path.exists(corpus) or corpus.endswith(_SUFFIXES):
        raise RRError(f"unknown corpus {corpus!r}: for a path write file:{corpus}")
    name, _, revision = corpus.partition("@")
    if re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name):
        return _hub(name, revision or "main", None, name=name)
    known = ["fables", "tinystories", "file:PATH", "org/name[@revision]"]
    raise RRError(f"unknown corpus {corpus!r}: {nearest(corpus, known)}")


def hold_out(origin: Source, share: float = HELD_OUT) -> tuple[Documents, Documents]:
    """Split its documents into (train, valid).

    Held out are the fewest last documents that make up `share` of the text's bytes. At least
    one document stays in the training part. A corpus of one document is cut inside it, after the
    last blank or line end before the point where the held-out share begins.
    """
    documents = origin.train
    sizes = array("q", (len(text.encode()) for text in documents()))
    total = sum(sizes)
    if not total:
        raise RRError(f"corpus {origin.name} holds no text")
    if len(sizes) == 1:
        text = next(documents())
        cut = int(len(text) * (1 - share))
        at = max(text.rfind("\n", 0, cut), text.rfind(" ", 0, cut)) + 1
        if not text[:at].strip() or not text[at:].strip():
            raise RRError(
                f"corpus {origin.name} is one short document: too little text to hold any out"
            )
        return (lambda: iter([text[:at]])), (lambda: iter([text[at:]]))
    first, held = len(sizes), 0
    while first > 1 and (first == len(sizes) or held < share * total):
        first -= 1
        held += sizes[first]
    return (lambda: islice(documents(), first)), (lambda: islice(documents(), first, None))


# ---- files and folders


def _local(path: Path, cache: str | Path | None) -> Source:
    if path.is_dir():
        parts = {}
        for part in ("train", "valid"):
            parts[part] = sorted(p for p in path.glob(f"{part}*") if p.is_file())
            if not parts[part]:
                names = sorted(p.name for p in path.iterdir())[:6]
                held = f"it has {', '.join(names)}" if names else "it is empty"
                raise RRError(
                    f"the folder {path} has no {part}* file ({held}): "
                    "train* and valid* files are accepted, several of each are read in sorted order"
                )
        told = [[p.name, _told(p, cache)] for part in parts.values() for p in part]
        sha = hashlib.sha256(json.dumps(told).encode()).hexdigest()
        train, valid = (partial(_read_all, parts[part]) for part in ("train", "valid"))
        return Source(path.resolve().name, f"folder {sha}", train, valid)
    if not path.exists():
        raise RRError(f"no file or folder {path}: file:PATH takes {_KINDS}")
    return Source(path.name, f"file {_told(path, cache)}", partial(_read_all, [path]))


def _told(path: Path, cache: str | Path | None) -> str:
    """How a file is read and the hash of its bytes: together, what the model will see."""
    return f"{'.'.join(_format(path))} {cached_digest(path, cache)}"


def _format(path: Path) -> tuple[str, ...]:
    """("text" | "jsonl" | "parquet"[, "xz" | "gz"]), by the name alone."""
    suffixes = [s.lower().lstrip(".") for s in path.suffixes]
    packed = suffixes.pop() if suffixes and suffixes[-1] in ("xz", "gz") else None
    last = suffixes[-1] if suffixes else ""
    kind = {"jsonl": "jsonl", "ndjson": "jsonl", "parquet": "parquet"}.get(last, "text")
    return (kind, packed) if packed else (kind,)


def _read_all(paths: list[Path]) -> Iterator[str]:
    readers = {"text": _read_text, "jsonl": _read_jsonl, "parquet": _read_parquet}
    for path in paths:
        kind, *packed = _format(path)
        some = False
        try:
            if path.stat().st_size == 0:
                raise RRError(f"{path} is empty: {_KINDS} is accepted")
            for text in readers[kind](path, *packed):
                some = some or bool(text.strip())
                yield text
        except _DAMAGE as error:
            raise RRError(f"{path} is damaged or no .{packed[0]} file: {error}") from error
        except UnicodeDecodeError as error:
            raise RRError(
                f"{path} is not UTF-8 text (a byte {error.object[error.start]:#04x} does not fit): "
                f"{_KINDS} is accepted"
            ) from error
        except OSError as error:
            raise RRError(f"cannot read {path}: {error.strerror or error}") from error
        if not some:
            raise RRError(f"{path} holds no text: {_KINDS} is accepted")


def _opened(path: Path, packed: str | None = None):
    return {"xz": lzma.open, "gz": gzip.open, None: open}[packed](path, "rb")


def _read_text(path: Path, packed: str | None = None) -> Iterator[str]:
    """Documents between EOT marks; the line ends that set a mark apart belong to neither."""
    decode = codecs.getincrementaldecoder("utf-8-sig")().decode
    rest: list[str] = []  # of the document not yet ended
    with _opened(path, packed) as file:
        while block := file.read(1 << 20):
            text = decode(block)
            if "\0" in text:
                raise RRError(f"{path} is not text (it holds zero bytes): {_KINDS} is accepted")
            # The last characters of a block may be the beginning of a mark.
            tail = rest.pop() if rest else ""
            *whole, last = (tail + text).split(EOT)
            for part in whole:
                if document := "".join([*rest, part]).strip("\r\n"):
                    yield document
                rest = []
            cut = max(0, len(last) - len(EOT))
            rest += [last[:cut], last[cut:]]
    decode(b"", final=True)
    if document := "".join(rest).strip("\r\n"):
        yield document


def _read_jsonl(path: Path, packed: str | None = None) -> Iterator[str]:
    with _opened(path, packed) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield from _parts(_jsonl_text(path, number, line))


def _jsonl_text(path: Path, number: int, line: bytes) -> str:
    wants = 'each line is one object with a "text" string'
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise RRError(f"{path} line {number} is not JSON ({error}): {wants}") from error
    if not isinstance(row, dict) or not isinstance(row.get("text"), str):
        raise RRError(f'{path} line {number} has no "text" string: {wants}')
    try:
        row["text"].encode()
    except UnicodeEncodeError as error:
        raise RRError(f"{path} line {number} holds half a character (a lone surrogate)") from error
    return row["text"]


def _read_parquet(path: Path, packed: str | None = None) -> Iterator[str]:
    if packed:
        raise RRError(f"{path}: a Parquet file is packed inside already; unpack its .{packed}")
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise RRError(
            f"reading {path} needs pyarrow: pip install 'review-residuals[hub]'"
        ) from error
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            columns = file.schema_arrow.names
            if "text" not in columns:
                raise RRError(f"{path} has no 'text' column: it has {', '.join(columns)}")
            for batch in file.iter_batches(batch_size=1024, columns=["text"]):
                for row in batch.column(0).to_pylist():
                    if not isinstance(row, str):
                        raise RRError(f"{path}: its 'text' column holds something that is no text")
                    yield from _parts(row)
    except pyarrow.ArrowException as error:
        line = str(error).splitlines()[0]
        raise RRError(f"{path} is damaged or no Parquet file: {line}") from error


def _parts(row: str) -> Iterator[str]:
    """A row is a document as it stands; a mark inside it separates, as it does in a text file."""
    if EOT in row:
        yield from filter(None, (part.strip("\r\n") for part in row.split(EOT)))
    else:
        yield row


# ---- the hub


def _hub(repository: str, revision: str, limit: int | None, name: str) -> Source:
    told = f"hub {repository}@{revision}" + (f"[:{limit}]" if limit else "")
    return Source(name, told, partial(_read_hub, repository, revision, limit))


def _read_hub(repository: str, revision: str, limit: int | None) -> Iterator[str]:
    rows = _hub_rows(repository, revision, limit)
    if "text" not in rows.column_names:
        raise RRError(f"{repository} has no 'text' column: it has {', '.join(rows.column_names)}")
    for batch in rows.select_columns(["text"]).iter(batch_size=1024):
        for row in batch["text"]:
            if not isinstance(row, str):
                raise RRError(f"{repository}: its 'text' column holds something that is no text")
            yield from _parts(row)


@cache
def _hub_rows(repository: str, revision: str, limit: int | None):
    """The hub's train split, downloaded once; a corpus is read several times."""
    try:
        import datasets
    except ImportError as error:
        raise RRError(
            f"the corpus {repository} needs datasets (pip install 'review-residuals[hub]'); "
            + WORKS_OFFLINE
        ) from error
    require_hub(f"the corpus {repository}", WORKS_OFFLINE)
    split = f"train[:{limit}]" if limit else "train"
    try:
        return datasets.load_dataset(repository, revision=revision, split=split)
    except Exception as error:  # the library raises many kinds, for a name as for a network
        line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise RRError(
            f"cannot load {repository}@{revision} from the hub: {line}; {WORKS_OFFLINE}"
        ) from error


def require_hub(what: str, instead: str, patience: float = 5.0) -> None:
    """Raise soon, in one line, where the hub cannot be reached; its own retries take 24 s.

    what: that needs the hub; instead: what works without it; patience: seconds.

    With HF_HUB_OFFLINE set nothing is asked: the hub's own libraries then read what they hold.
    """
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return
    from huggingface_hub import constants

    answers: list[str] = []

    def ask() -> None:
        try:
            request = urllib.request.Request(constants.ENDPOINT, method="HEAD")
            urllib.request.urlopen(request, timeout=patience).close()
            answers.append("")
        except urllib.error.HTTPError as error:
            answers.append("" if error.code < 500 and error.code != 407 else f"{error}")
        except OSError as error:
            answers.append(str(getattr(error, "reason", error)))

    # In a thread, because looking up a name takes no time limit of ours.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(patience)
    problem = answers[0] if answers else f"no answer in {patience:.0f} s"
    if problem:
        raise RRError(f"{what} comes from the hub, which cannot be reached ({problem}): {instead}")
