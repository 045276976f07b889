"""Corpora as streams of documents: files, folders, datasets of the Hugging Face hub, fables.

One document is in memory at a time, and a corpus can be read repeatedly. Bad input raises an
`RRError` of one line: what is wrong, where, what was expected.
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
HELD_OUT = 0.03  # share of a corpus that comes without a held-out part
TINYSTORIES = "roneneldan/TinyStories"
TINYSTORIES_REVISION = "f54c09fd23315a6f9c86f9dc80f725de7d8f9c64"
TINYSTORIES_STORIES = 400_000  # as many as the study read
# the first file of the sample of ten billion tokens: enough for the rungs up to 60M, 2 GB
FINEWEB_EDU = "HuggingFaceFW/fineweb-edu"
FINEWEB_EDU_REVISION = "87f09149ef4734204d70ed1d046ddc9ca3f2b8f9"
FINEWEB_EDU_FILE = "sample/10BT/000_00000.parquet"
WORKS_OFFLINE = "fables and file:PATH work without a network"
_KINDS = "a text, .xz, .gz, .parquet or .jsonl file, or a folder with train* and valid* files"
_SUFFIXES = (".txt", ".xz", ".gz", ".jsonl", ".parquet")
_CORRUPT = (lzma.LZMAError, zlib.error, gzip.BadGzipFile, EOFError)

Documents = Callable[[], Iterator[str]]


@dataclass(frozen=True)
class Source:
    """A corpus before any tokenizer.

    name: for tables; identity: of its content, for hashing (no path in it); train, valid: each call
    reads the documents again, in order. `valid` is None where the corpus has no held-out part.
    """

    name: str
    identity: str
    train: Documents
    valid: Documents | None = None


def source(corpus: str, cache: str | Path | None = None) -> Source:
    """The source of `fables`, `tinystories`, `fineweb-edu`, `file:PATH` or `org/name[@revision]`.

    Nothing is read.

    (The bytes of a file are hashed for its identity, once: `rr.data.cache.cached_digest`.)
    """
    if corpus == "fables":
        return Source("fables", fables.IDENTITY, fables.train, fables.valid)
    if corpus == "tinystories":
        return _hub(TINYSTORIES, TINYSTORIES_REVISION, TINYSTORIES_STORIES, name="tinystories")
    if corpus == "fineweb-edu":
        return _hub(FINEWEB_EDU, FINEWEB_EDU_REVISION, None, name=corpus, file=FINEWEB_EDU_FILE)
    kind, colon, path = corpus.partition(":")
    if kind == "file" and colon:
        if not path:
            raise RRError(f"corpus 'file:' names no path: expected file:PATH, {_KINDS}")
        try:
            return _local(Path(path).expanduser(), cache)
        except OSError as error:
            raise RRError(f"cannot read {path}: {error.strerror or error}") from error
    if os.path.exists(corpus) or corpus.endswith(_SUFFIXES):
        raise RRError(f"unknown corpus {corpus!r}: for a path write file:{corpus}")
    name, _, revision = corpus.partition("@")
    if re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name):
        return _hub(name, revision or "main", None, name=name)
    known = ["fables", "tinystories", "fineweb-edu", "file:PATH", "org/name[@revision]"]
    raise RRError(f"unknown corpus {corpus!r}: {nearest(corpus, known)}")


def hub_dataset(corpus: str) -> str | None:
    """The data set of the hub that a corpus is, `org/name`; None for fables and files."""
    named = {"tinystories": TINYSTORIES, "fineweb-edu": FINEWEB_EDU}
    if corpus in named:
        return named[corpus]
    name, local = corpus.partition("@")[0], corpus.startswith("file:")
    return name if "/" in name and not local else None


def hold_out(origin: Source, share: float = HELD_OUT) -> tuple[Documents, Documents]:
    """Split a source's documents into (train, valid).

    The fewest last documents that make up `share` of the text's bytes are held out; at least one
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
        cut = int(len(text) * (1 - share))
        at = max(text.rfind("\n", 0, cut), text.rfind(" ", 0, cut)) + 1
        if not text[:at].strip() or not text[at:].strip():
            raise RRError(
                f"corpus {origin.name} is one short document, too short to split: add text"
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
                content = f"it has {', '.join(names)}" if names else "it is empty"
                raise RRError(
                    f"the folder {path} has no {part}* file ({content}): expected train* and "
                    "valid* files, several of each are read in sorted order"
                )
        files = [[p.name, _fingerprint(p, cache)] for part in parts.values() for p in part]
        sha = hashlib.sha256(json.dumps(files).encode()).hexdigest()
        train, valid = (partial(read_all, parts[part]) for part in ("train", "valid"))
        return Source(path.resolve().name, f"folder {sha}", train, valid)
    if not path.exists():
        raise RRError(f"no file or folder {path}: expected {_KINDS}")
    return Source(path.name, f"file {_fingerprint(path, cache)}", partial(read_all, [path]))


def _fingerprint(path: Path, cache: str | Path | None) -> str:
    """A file's format and the hash of its bytes, which together determine its documents."""
    return f"{'.'.join(_format(path))} {cached_digest(path, cache)}"


def _format(path: Path) -> tuple[str, ...]:
    """("text" | "jsonl" | "parquet"[, "xz" | "gz"]), from the file's name."""
    suffixes = [s.lower().lstrip(".") for s in path.suffixes]
    packed = suffixes.pop() if suffixes and suffixes[-1] in ("xz", "gz") else None
    last = suffixes[-1] if suffixes else ""
    kind = {"jsonl": "jsonl", "ndjson": "jsonl", "parquet": "parquet"}.get(last, "text")
    return (kind, packed) if packed else (kind,)


def read_all(paths: list[Path]) -> Iterator[str]:
    readers = {"text": read_text_file, "jsonl": _read_jsonl, "parquet": _read_parquet}
    for path in paths:
        kind, *packed = _format(path)
        has_text = False
        try:
            if path.stat().st_size == 0:
                raise RRError(f"{path} is empty: expected {_KINDS}")
            for text in readers[kind](path, *packed):
                has_text = has_text or bool(text.strip())
                yield text
        except _CORRUPT as error:
            raise RRError(f"{path} is corrupt or not a .{packed[0]} file: {error}") from error
        except UnicodeDecodeError as error:
            raise RRError(
                f"{path} is not UTF-8 text (invalid byte {error.object[error.start]:#04x}): "
                f"expected {_KINDS}"
            ) from error
        except OSError as error:
            raise RRError(f"cannot read {path}: {error.strerror or error}") from error
        if not has_text:
            raise RRError(f"{path} contains no text: expected {_KINDS}")


def _opened(path: Path, packed: str | None = None):
    return {"xz": lzma.open, "gz": gzip.open, None: open}[packed](path, "rb")


def read_text_file(path: Path, packed: str | None = None) -> Iterator[str]:
    """Documents between EOT marks; line ends around a mark belong to neither document."""
    decode = codecs.getincrementaldecoder("utf-8-sig")().decode
    rest: list[str] = []  # of the document not yet ended
    with _opened(path, packed) as file:
        while block := file.read(1 << 20):
            text = decode(block)
            if "\0" in text:
                raise RRError(f"{path} is not text (it contains zero bytes): expected {_KINDS}")
            # The last characters of a block may be the start of a mark.
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
    wants = 'expected one object with a "text" string per line'
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise RRError(f"{path} line {number} is not JSON ({error}): {wants}") from error
    if not isinstance(row, dict) or not isinstance(row.get("text"), str):
        raise RRError(f'{path} line {number} has no "text" string: {wants}')
    try:
        row["text"].encode()
    except UnicodeEncodeError as error:
        raise RRError(f"{path} line {number} has half a character (a lone surrogate)") from error
    return row["text"]


def _read_parquet(path: Path, packed: str | None = None) -> Iterator[str]:
    if packed:
        raise RRError(f"{path}: Parquet is compressed inside already: unpack its .{packed}")
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
                raise RRError(f"{path} has no 'text' column, but {', '.join(columns)}")
            for batch in file.iter_batches(batch_size=1024, columns=["text"]):
                for row in batch.column(0).to_pylist():
                    if not isinstance(row, str):
                        raise RRError(f"{path}: a value in its 'text' column is not a string")
                    yield from _parts(row)
    except pyarrow.ArrowException as error:
        line = str(error).splitlines()[0]
        raise RRError(f"{path} is corrupt or not a Parquet file: {line}") from error


def _parts(row: str) -> Iterator[str]:
    """The documents of a row: itself, split where it contains a mark, as in a text file."""
    if EOT in row:
        yield from filter(None, (part.strip("\r\n") for part in row.split(EOT)))
    else:
        yield row


# ---- the hub


def _hub(
    repository: str, revision: str, limit: int | None, name: str, file: str | None = None
) -> Source:
    """A data set of the hub: its train split, or the one `file` of it, up to row `limit`."""
    identity = f"hub {repository}@{revision}" + (f"/{file}" if file else "")
    identity += f"[:{limit}]" if limit else ""
    return Source(name, identity, partial(_read_hub, repository, revision, limit, file))


def _read_hub(repository: str, revision: str, limit: int | None, file: str | None) -> Iterator[str]:
    rows = hub_rows(repository, revision, limit, file)
    if "text" not in rows.column_names:
        raise RRError(f"{repository} has no 'text' column, but {', '.join(rows.column_names)}")
    for batch in rows.select_columns(["text"]).iter(batch_size=1024):
        column: list[object] = dict(batch)["text"]
        for row in column:
            if not isinstance(row, str):
                raise RRError(f"{repository}: a value in its 'text' column is not a string")
            yield from _parts(row)


@cache
def hub_rows(repository: str, revision: str, limit: int | None, file: str | None):
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
        return datasets.load_dataset(repository, revision=revision, split=split, data_files=file)
    except Exception as error:  # the library raises many kinds, for a name as for a network
        line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise RRError(
            f"cannot load {repository}@{revision} from the hub: {line}; {WORKS_OFFLINE}"
        ) from error


def require_hub(what: str, instead: str, patience: float = 5.0) -> None:
    """Raise RRError within `patience` seconds where the hub cannot be reached.

    (The hub's own libraries retry for 24 s.) what: what needs the hub; instead: what works without
    it. With HF_HUB_OFFLINE set nothing is requested: the libraries then read their local cache.
    """
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return
    from huggingface_hub import constants

    problems: list[str] = []  # one, "" where the hub answered

    def ask() -> None:
        try:
            request = urllib.request.Request(constants.ENDPOINT, method="HEAD")
            urllib.request.urlopen(request, timeout=patience).close()
            problems.append("")
        except urllib.error.HTTPError as error:
            problems.append("" if error.code < 500 and error.code != 407 else f"{error}")
        except OSError as error:
            problems.append(str(getattr(error, "reason", error)))

    # In a thread, because name resolution has no time limit.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(patience)
    problem = problems[0] if problems else f"no answer in {patience:.0f} s"
    if problem:
        raise RRError(f"{what} comes from the hub, which cannot be reached ({problem}): {instead}")
