"""Text, JSON Lines and Parquet files as streams of documents.

One document is in memory at a time, and what reading changes is counted. Bad input raises an
`RRError` of one line: what is wrong, where, what was expected.
"""

import codecs
import gzip
import io
import json
import lzma
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import RRError, install
from .documents import EOT

KINDS = "a text, .xz, .gz, .parquet or .jsonl file, or a folder with train* and valid* files"
_FORMATS = {"": "text", "txt": "text", "text": "text", "md": "text"}
_FORMATS |= {"jsonl": "jsonl", "ndjson": "jsonl", "parquet": "parquet"}
# how PDF, RTF, HTML, XML and JSON begin: their syntax would be trained on
_MARKUP = re.compile(
    r'%PDF-|\{\\rtf|<!doctype html|<html|<\?xml|\[?\s*\{\s*"[^"\n]*"\s*:', re.IGNORECASE
)
# how files begin that stand for a text, or lie beside it
_STAND_INS = {
    b"version https://git-lfs": "a pointer of git-lfs; `git lfs pull` fetches the text",
    b"/annex/objects/": "a pointer of git-annex; `git annex get` fetches the text",
    b"\0\x05\x16\x07": "macOS's metadata of another file (AppleDouble); remove it",
    b"\xff\xfe": "UTF-16, as Windows and spreadsheets write it; save it as UTF-8",
    b"\xfe\xff": "UTF-16; save it as UTF-8",
}
_SURROGATE = re.compile("[\ud800-\udfff]")
# What reading changes, and how the log calls it.
_CRLF = "line ends normalised from CRLF to LF"
_EMPTY = "rows without text, skipped"
_HALF = "rows with half a character (a lone surrogate), replaced by U+FFFD"
PACKED = (".xz", ".gz")
_CORRUPT = (lzma.LZMAError, zlib.error, gzip.BadGzipFile, EOFError)


def file_format(path: Path) -> tuple[str, ...]:
    """("text" | "jsonl" | "parquet"[, "xz" | "gz"]), from the file's name."""
    suffixes = [s.lower().lstrip(".") for s in path.suffixes]
    packed = suffixes.pop() if suffixes and suffixes[-1] in ("xz", "gz") else None
    last = suffixes[-1] if suffixes else ""
    if last not in _FORMATS:
        advice = "rename the file if it is plain text"
        if last == "json":
            advice = f"`jq -c '.[]' {path.name}` writes an array as .jsonl"
        raise RRError(
            f"{path} ends in .{last}, which is not read as text: expected .txt, .md, .jsonl (a "
            f'"text" string per line) or .parquet (a text column), or .xz or .gz of these; {advice}'
        )
    kind = _FORMATS[last]
    return (kind, packed) if packed else (kind,)


def read_all(paths: list[Path], changes: dict[str, Counter[str]]) -> Iterator[str]:
    """The documents of files; `changes` gets what reading each of them to its end has changed."""
    readers = {"text": read_text_file, "jsonl": _read_jsonl, "parquet": _read_parquet}
    for path in paths:
        kind, *packed = file_format(path)
        changed: Counter[str] = Counter()
        has_text = False
        try:
            if path.stat().st_size == 0:
                raise RRError(f"{path} is empty: expected {KINDS}")
            _refuse_stand_in(path)
            for text in readers[kind](path, changed, *packed):
                has_text = has_text or bool(text.strip())
                yield text
        except _CORRUPT as error:
            raise RRError(f"{path} is corrupt or not a .{packed[0]} file: {error}") from error
        except UnicodeDecodeError as error:
            raise RRError(
                f"{path} is not UTF-8 text (invalid byte {error.object[error.start]:#04x}): "
                f"expected {KINDS}"
            ) from error
        except OSError as error:
            raise RRError(f"cannot read {path}: {error.strerror or error}") from error
        if not has_text:
            raise RRError(f"{path} contains no text: expected {KINDS}")
        changes[path.name] = changed


def _refuse_stand_in(path: Path) -> None:
    """Raise RRError for a file that is not what its name says, whatever its ending."""
    with open(path, "rb") as file:
        head = file.read(64)
    for begin, what in _STAND_INS.items():
        if head.startswith(begin):
            raise RRError(f"{path} is not a text, but {what}")


def _opened(path: Path, packed: str | None = None):
    if packed == "xz":
        return io.BufferedReader(_Xz(path), 1 << 20)
    return gzip.open(path, "rb") if packed else open(path, "rb")


class _Xz(io.RawIOBase):
    """The content of an .xz file. Python's own reader ends silently at a corrupt stream."""

    def __init__(self, path: Path) -> None:
        self.file, self.data = open(path, "rb"), b""
        # None between two streams
        self.stream: lzma.LZMADecompressor | None = lzma.LZMADecompressor(lzma.FORMAT_XZ)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        text = b""
        while not text:
            if self.stream is None:
                while not self.data:
                    block = self.file.read(1 << 16)
                    if not block:
                        return 0
                    self.data = block.lstrip(b"\0")  # streams may be padded
                self.stream = lzma.LZMADecompressor(lzma.FORMAT_XZ)
            elif self.stream.needs_input and not self.data:
                self.data = self.file.read(1 << 16)
                if not self.data:
                    raise EOFError("it ends inside a stream")
            text = self.stream.decompress(self.data, len(buffer))
            self.data = b""
            if self.stream.eof:
                self.data = self.stream.unused_data.lstrip(b"\0")
                self.stream = None
        buffer[: len(text)] = text
        return len(text)

    def close(self) -> None:
        self.file.close()
        super().close()


def read_text_file(path: Path, changed: Counter[str], packed: str | None = None) -> Iterator[str]:
    """Documents between EOT marks; line ends around a mark belong to neither document."""
    decode = codecs.getincrementaldecoder("utf-8-sig")().decode
    rest: list[str] = []  # of the document not yet ended
    begins = True
    with _opened(path, packed) as file:
        while block := file.read(1 << 20):
            text = decode(block)
            if begins and (markup := _MARKUP.match(text.lstrip()[:200])):
                raise RRError(
                    f"{path} is not plain text (it begins with {markup[0]!r}, as PDF, RTF, HTML, "
                    f"XML or JSON do): expected {KINDS}"
                )
            begins = False
            if "\0" in text:
                raise RRError(f"{path} is not text (it contains zero bytes): expected {KINDS}")
            # The last characters of a block may be the start of a mark, or half a line end.
            tail = rest.pop() if rest else ""
            text = tail + text
            if "\r\n" in text:
                changed[_CRLF] += text.count("\r\n")
                text = text.replace("\r\n", "\n")
            *ended, last = text.split(EOT)
            for part in ended:
                if document := "".join([*rest, part]).strip("\r\n"):
                    yield document
                rest = []
            cut = max(0, len(last) - len(EOT))
            rest += [last[:cut], last[cut:]]
    decode(b"", final=True)
    if document := "".join(rest).strip("\r\n"):
        yield document


def _read_jsonl(path: Path, changed: Counter[str], packed: str | None = None) -> Iterator[str]:
    with _opened(path, packed) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield from documents_of(_jsonl_text(path, number, line, changed), changed)


def _jsonl_text(path: Path, number: int, line: bytes, changed: Counter[str]) -> str:
    wants = 'expected one object with a "text" string per line'
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise RRError(f"{path} line {number} is not JSON ({error}): {wants}") from error
    if not isinstance(row, dict) or not isinstance(row.get("text"), str):
        raise RRError(f'{path} line {number} has no "text" string: {wants}')
    text, halves = _SURROGATE.subn("\ufffd", row["text"])
    if halves:
        changed[_HALF] += 1
    return text


def _read_parquet(path: Path, changed: Counter[str], packed: str | None = None) -> Iterator[str]:
    if packed:
        raise RRError(f"{path}: Parquet is compressed inside already: unpack its .{packed}")
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise RRError(f"reading {path} needs pyarrow: {install('hub')}") from error
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            columns = file.schema_arrow.names
            if "text" not in columns:
                raise RRError(f"{path} has no 'text' column, but {', '.join(columns)}")
            for batch in file.iter_batches(batch_size=1024, columns=["text"]):
                for row in batch.column(0).to_pylist():
                    if not isinstance(row, str):
                        raise RRError(f"{path}: a value in its 'text' column is not a string")
                    yield from documents_of(row, changed)
    except pyarrow.ArrowException as error:
        line = str(error).splitlines()[0]
        raise RRError(f"{path} is corrupt or not a Parquet file: {line}") from error


def documents_of(row: str, changed: Counter[str]) -> Iterator[str]:
    """The documents of a row: itself, split where it contains a mark, as in a text file."""
    if EOT in row:
        yield from filter(None, (part.strip("\r\n") for part in row.split(EOT)))
    elif row.strip("\r\n"):
        yield row
    else:
        changed[_EMPTY] += 1
