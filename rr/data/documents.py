"""Corpora as streams of documents: files, folders, datasets of the Hugging Face hub, fables.

One document is in memory at a time, and a corpus can be read repeatedly. Bad input raises an
`RRError` of one line: what is wrong, where, what was expected.
"""

import hashlib
import json
import os
import re
import stat
import threading
import time
import urllib.error
import urllib.request
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import islice
from pathlib import Path

from ..errors import RRError, install, nearest
from . import fables
from .cache import digest
from .files import EOT, KINDS, PACKED, documents_of, file_format, read_all

HELD_OUT = 0.03  # share of a corpus that comes without a held-out part
TINYSTORIES = "roneneldan/TinyStories"
TINYSTORIES_REVISION = "f54c09fd23315a6f9c86f9dc80f725de7d8f9c64"
TINYSTORIES_STORIES = 400_000  # as many as the study read
# the first file of the sample of ten billion tokens: enough for the rungs up to 60M, 2 GB
FINEWEB_EDU = "HuggingFaceFW/fineweb-edu"
FINEWEB_EDU_REVISION = "87f09149ef4734204d70ed1d046ddc9ca3f2b8f9"
FINEWEB_EDU_FILE = "sample/10BT/000_00000.parquet"
_HUB = re.compile(r"(\w[\w.-]*/\w[\w.-]*)(?::(\w[\w.-]*))?(?:@(.+))?")  # name, config, revision
STEP = 2_000_000_000  # ns, of the times of change on FAT, the coarsest
PATIENCE = 5.0  # seconds that the hub may take to answer
WORKS_OFFLINE = "fables and file:PATH work without a network"
_NEEDS_HUB = f"the corpus {{}} needs datasets ({install('hub')}); {WORKS_OFFLINE}"
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
    if corpus == "tinystories":
        return _hub(TINYSTORIES, TINYSTORIES_REVISION, TINYSTORIES_STORIES, name="tinystories")
    if corpus == "fineweb-edu":
        return _hub(FINEWEB_EDU, FINEWEB_EDU_REVISION, None, name=corpus, file=FINEWEB_EDU_FILE)
    kind, colon, path = corpus.partition(":")
    if kind == "file" and colon:
        if not path:
            raise RRError(f"corpus 'file:' names no path: expected file:PATH, {KINDS}")
        try:
            return _local(Path(path).expanduser())
        except OSError as error:
            name = error.filename or path
            raise RRError(f"cannot read {name}: {error.strerror or error}") from error
    if os.path.exists(corpus) or corpus.endswith(_SUFFIXES):
        raise RRError(f"unknown corpus {corpus!r}: for a path write file:{corpus}")
    if hub := _HUB.fullmatch(pinned(corpus)):
        name, config, revision = hub.groups()
        return _hub(name, revision, None, name=name, config=config)
    known = ["fables", "tinystories", "fineweb-edu", "file:PATH", "org/name[:config][@revision]"]
    raise RRError(f"unknown corpus {corpus!r}: {nearest(corpus, known)}")


def hub_dataset(corpus: str) -> str | None:
    """The data set of the hub that a corpus is, `org/name`; None for fables and files."""
    named = {"tinystories": TINYSTORIES, "fineweb-edu": FINEWEB_EDU}
    hub = _HUB.fullmatch(corpus)
    return hub[1] if hub else named.get(corpus)


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


# ---- files and folders


def _local(path: Path) -> Source:
    if path.is_dir():
        parts = {part: _files_of(path, part) for part in ("train", "valid")}
        _refuse_twins([file for part in parts.values() for file in part])
        files = {file: _fingerprint(file) for part in parts.values() for file in part}
        named = [[file.name, known.identity] for file, known in files.items()]
        sha = hashlib.sha256(json.dumps(named).encode()).hexdigest()
        changes: dict[str, Counter[str]] = {}
        train, valid = (partial(read_all, parts[part], changes) for part in ("train", "valid"))
        name, identity = path.resolve().name, f"folder {sha}"
        return Source(name, identity, train, valid, changes, partial(_check_unchanged, files))
    if not path.exists():
        raise RRError(f"no file or folder {path}: expected {KINDS}")
    known, changes = _fingerprint(path), {}
    return Source(
        path.name,
        f"file {known.identity}",
        partial(read_all, [path], changes),
        changes=changes,
        check=partial(_check_unchanged, {path: known}),
    )


def _files_of(folder: Path, part: str) -> list[Path]:
    """The files of a folder whose names begin with `part`, in the order of their names."""
    inside = sorted(folder.iterdir(), key=lambda path: path.name)
    # on every system alike, whether or not its file names have case
    paths = [path for path in inside if path.name.lower().startswith(part)]
    if not paths:
        names = [path.name for path in inside][:6]
        content = f"it has {', '.join(names)}" if names else "it is empty"
        raise RRError(
            f"the folder {folder} has no {part}* file ({content}): expected train* and "
            "valid* files, several of each are read in sorted order"
        )
    return paths


def _refuse_twins(paths: list[Path]) -> None:
    """Raise RRError for a file beside its own compressed form, and for two of the same bytes."""
    seen: dict[object, Path] = {}
    for path in paths:
        plain = path.with_suffix("") if path.suffix.lower() in PACKED else path
        for key in (plain, _digest(path, *_regular(path))):
            if (twin := seen.setdefault(key, path)) is not path:
                why = "are the same bytes" if key != plain else "are one text, compressed and not"
                raise RRError(f"{twin} and {path.name} {why}: it would be read twice; keep one")


@dataclass(frozen=True)
class _Fingerprint:
    """A file's format and the hash of its bytes, which together determine its documents."""

    identity: str
    sha256: str
    version: tuple[int, int]  # size in bytes, time of the last change in ns


def _fingerprint(path: Path) -> _Fingerprint:
    version = _regular(path)
    sha256 = _digest(path, *version)
    return _Fingerprint(f"{'.'.join(file_format(path))} {sha256}", sha256, version)


def _regular(path: Path) -> tuple[int, int]:
    """Size and time of the last change of a file; RRError where it is none."""
    status = path.stat()
    if stat.S_ISREG(status.st_mode):
        return status.st_size, status.st_mtime_ns
    if stat.S_ISDIR(status.st_mode):
        raise RRError(f"{path} is a folder: expected train* and valid* files beside each other")
    raise RRError(
        f"{path} is a pipe or a device, which can be read only once, and a corpus is read several "
        "times: write it to a file first"
    )


def _check_unchanged(files: dict[Path, _Fingerprint]) -> None:
    """Raise RRError unless the files have been what they were hashed as, all the time."""
    for path, known in files.items():
        try:
            same = _regular(path) == known.version and digest(path) == known.sha256
        except OSError:
            same = False
        if not same:
            raise RRError(
                f"{path} changed while it was read: start again when nothing writes to it"
            )


def _digest(path: Path, size: int, changed: int) -> str:
    """The hash of a file's bytes, computed once per process for each version of the file.

    Of a file that has just changed each time: it may change again before its time of change does,
    which advances in steps of up to two seconds.
    """
    just_now = abs(time.time_ns() - changed) < STEP
    return digest(path) if just_now else _remembered(path, size, changed)


@cache
def _remembered(path: Path, size: int, changed: int) -> str:
    return digest(path)


# ---- the hub


def pinned(corpus: str) -> str:
    """The corpus with the commit that a branch or tag of the hub is now; else as it is.

    A run that begins reads the commit that it was planned with, also where the branch has moved
    on. Raises RRError where the hub does not answer.
    """
    hub = _HUB.fullmatch(corpus)
    if hub is None or re.fullmatch("[0-9a-f]{40}", hub[3] or ""):
        return corpus
    name, config, revision = hub.groups()
    return f"{name}{f':{config}' if config else ''}@{_commit(name, revision or 'main')}"


@cache
def _commit(repository: str, revision: str) -> str:
    """The commit of a branch or tag: of the hub, or of its local cache with HF_HUB_OFFLINE."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise RRError(_NEEDS_HUB.format(repository)) from error
    require_hub(f"the corpus {repository}", WORKS_OFFLINE)
    try:  # without a file to download it answers with the commit's folder
        folder = snapshot_download(
            repository, repo_type="dataset", revision=revision, allow_patterns=[]
        )
    except Exception as error:  # the library raises many kinds
        raise _not_loaded(repository, revision, error) from error
    return Path(folder).name


def _not_loaded(repository: str, revision: str, error: Exception) -> RRError:
    line = " ".join((str(error).strip() or type(error).__name__).split())[:300]
    hint = "org/name:config names a configuration; " if "onfig" in line else ""
    return RRError(
        f"cannot load {repository}@{revision} from the hub: {line}; {hint}{WORKS_OFFLINE}"
    )


def _hub(
    repository: str,
    revision: str,
    limit: int | None,
    name: str,
    file: str | None = None,
    config: str | None = None,
) -> Source:
    """A data set of the hub: its train split, or the one `file` of it, up to row `limit`."""
    identity = f"hub {repository}"
    if config:
        identity += f":{config}"
    identity += f"@{revision}"
    if file:
        identity += f"/{file}"
    if limit:
        identity += f"[:{limit}]"
    changes: dict[str, Counter[str]] = {}
    read = partial(_read_hub, changes, repository, revision, limit, file, config)
    return Source(name, identity, read, changes=changes)


def _read_hub(
    changes: dict[str, Counter[str]],
    repository: str,
    revision: str,
    limit: int | None,
    file: str | None,
    config: str | None,
) -> Iterator[str]:
    rows = hub_rows(repository, revision, limit, file, config)
    changed = changes[repository] = Counter()
    if "text" not in rows.column_names:
        raise RRError(f"{repository} has no 'text' column, but {', '.join(rows.column_names)}")
    for batch in rows.select_columns(["text"]).iter(batch_size=1024):
        column: list[object] = dict(batch)["text"]
        for row in column:
            if not isinstance(row, str):
                raise RRError(f"{repository}: a value in its 'text' column is not a string")
            if limit and EOT not in row:  # as the study read it, with stories that are empty
                yield row
            else:
                yield from documents_of(row, changed)


@cache
def hub_rows(
    repository: str, revision: str, limit: int | None, file: str | None, config: str | None
):
    """The hub's train split, downloaded once; a corpus is read several times."""
    try:
        import datasets
    except ImportError as error:
        raise RRError(_NEEDS_HUB.format(repository)) from error
    require_hub(f"the corpus {repository}", WORKS_OFFLINE)
    split = f"train[:{limit}]" if limit else "train"
    try:
        return datasets.load_dataset(
            repository, name=config, revision=revision, split=split, data_files=file
        )
    except Exception as error:  # the library raises many kinds, for a name as for a network
        raise _not_loaded(repository, revision, error) from error


def require_hub(what: str, instead: str) -> None:
    """Raise RRError, within `PATIENCE` seconds, where the hub cannot be reached.

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
            urllib.request.urlopen(request, timeout=PATIENCE).close()
            problems.append("")
        except urllib.error.HTTPError as error:
            problems.append("" if error.code < 500 and error.code != 407 else f"{error}")
        except OSError as error:
            problems.append(str(getattr(error, "reason", error)))

    # In a thread, because name resolution has no time limit.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(PATIENCE)
    problem = problems[0] if problems else f"no answer in {PATIENCE:.0f} s"
    if problem:
        raise RRError(f"{what} comes from the hub, which cannot be reached ({problem}): {instead}")
