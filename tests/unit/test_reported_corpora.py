"""Corpora that people reported to other projects, as inputs of our own; see tests/reports.md."""

import gzip
import json
import lzma
import random
import re
import subprocess
import sys
import tempfile
from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rr
from rr.data import hub as data_hub
from rr.data import open_corpus
from rr.data.corpus import identity
from rr.data.files import EOT, read_all
from rr.errors import RRError
from rrstudy import command_line
from rrstudy.hub import hub_dataset
from rrstudy.sweep import cells

ROOT = Path(__file__).resolve().parents[2]
COMMITS = {"main": "a" * 40, "v1": "b" * 40}


def file(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    return f"file:{path}"


def read(path: Path) -> list[str]:
    return list(read_all([path], {}))


ENDINGS = {
    "a.csv.gz": gzip.compress(b"text\nhello\n"),
    "a.html": b"<p>hello</p>",
    "a.json": b'[{"text": "hello"}]',
    "a.tar.gz": gzip.compress(b"hello"),
    "a.txt.bak": b"hello",
}
RENAMED = {
    "pdf.txt": b"%PDF-1.7\nsome text\n",
    "scan.txt": b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n",
    "rtf.txt": b"{\\rtf1\\ansi hello}",
    "page.md": b"\xef\xbb\xbf<HTML><p>hello</p>",
    "feed.txt": b'<?xml version="1.0"?><a>hello</a>',
    "array.txt": b'[\n {"text": "hello"}\n]\n',
    "rows.xz": lzma.compress(b'{"id": 1, "text": "hello"}\n'),
    "book.txt": b"PK\x03\x04\x00\x00word/document.xml",
    "plain": b"\x89PNG\r\n\x1a\n",
}


@pytest.mark.parametrize("name", [*ENDINGS, *RENAMED])
def test_what_is_not_text_is_refused_by_its_ending_or_its_beginning(tmp_path, name):
    corpus = file(tmp_path / name, ENDINGS.get(name) or RENAMED[name])
    says = "not (plain |UTF-8 )?text" if name in RENAMED else r"expected \.txt, .* or \.parquet"
    for ask in (open_corpus,) if name in RENAMED else (identity, open_corpus):  # when planning, too
        with pytest.raises(RRError, match=says) as error:
            ask(corpus, "bpe:257")
        assert name in str(error.value)
        assert ("jq -c" in str(error.value)) == (name == "a.json")


@pytest.mark.parametrize("text", ["[1] A fox.", "{} is a set.", "<p> is a tag", "% a comment"])
def test_text_that_only_looks_a_little_like_it_is_read(tmp_path, text):
    (tmp_path / "a.md").write_text(text)
    assert read(tmp_path / "a.md") == [text]


def test_half_a_character_and_rows_without_text_are_counted_once(tmp_path):
    texts = [f"Story {i} of a fox." for i in range(60)]
    texts[3:3] = ["", "\n", "cut off \ud83d", "\udc00 and \ud83d again", "whole \U0001f98a"]
    path = tmp_path / "a.jsonl"
    corpus = file(path, "".join(json.dumps({"text": t}) + "\n" for t in texts).encode())
    printed: list[str] = []
    for _ in range(2):  # the second time the tokens are there
        tokens = open_corpus(corpus, "bpe:270", cache=tmp_path / "cache", log=printed.append)
    assert [line for line in printed if line.startswith("a.jsonl: ")] == [
        "a.jsonl: rows without text, skipped: 2",
        "a.jsonl: rows with half a character (a lone surrogate), replaced by U+FFFD: 2",
    ]
    got = (tokens.decode(tokens.train) + tokens.decode(tokens.valid)).split(EOT)
    assert got[:7] == [*texts[:3], "cut off \ufffd", "\ufffd and \ufffd again", *texts[7:9]]
    assert len(got) == 64  # 63 documents, each followed by the mark


def test_rows_of_parquet_without_text_are_skipped_too(tmp_path):
    pyarrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    parquet.write_table(pyarrow.table({"text": ["", "a", "", "b", "\r\n"]}), tmp_path / "a.parquet")
    changes = {}
    assert list(read_all([tmp_path / "a.parquet"], changes)) == ["a", "b"]
    assert list(changes["a.parquet"].values()) == [3]


@pytest.mark.parametrize("name", ["a.txt.gz", "a.txt.xz"])
def test_several_streams_in_one_file_are_all_read(tmp_path, name):
    """As `cat` and parallel compressors make them; the second of them damaged is not silence."""
    pack = gzip.compress if name.endswith("gz") else lzma.compress
    first, second = (pack(f"{word}{EOT}".encode()) for word in ("one", "two"))
    path = tmp_path / name
    for between in (b"", bytes(512)):
        path.write_bytes(first + between + second)
        assert read(path) == ["one", "two"]
    for rest in (second[:-3], b"x" + second[1:], b"garbage"):
        path.write_bytes(first + rest)
        with pytest.raises(RRError, match="corrupt"):
            read(path)


def test_windows_line_ends_are_the_same_text_and_are_named_once(tmp_path):
    text = "".join(f"Story {i}.\nThe end.\n<|endoftext|>\n" for i in range(50))
    tokens, printed = [], []
    for name, ends in (("unix", "\n"), ("windows", "\r\n")):
        path = tmp_path / name / "a.txt.gz"
        path.parent.mkdir()
        corpus = file(path, gzip.compress(text.replace("\n", ends).encode()))
        tokens.append(open_corpus(corpus, "bpe:280", cache=tmp_path / "cache", log=printed.append))
    assert tokens[0].sha256 == tokens[1].sha256
    assert sum("line ends normalised from CRLF to LF: 150" in line for line in printed) == 1


def test_a_line_end_across_the_edge_of_a_block(tmp_path):
    for shift in (-2, -1, 0, 1):
        first = "x" * (2**20 + shift)
        (tmp_path / "a.txt").write_bytes(f"{first}\r\nend\r\n".encode())
        changes = {}
        assert list(read_all([tmp_path / "a.txt"], changes)) == [f"{first}\nend"]
        assert sum(changes["a.txt"].values()) == 2


LINES = "a\rb\x0bc\x0cd\x85e\u2028f\n\ng"  # breaks by other programs' reading; here one text


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_no_other_sign_ends_a_line_or_a_document(tmp_path, name):
    row = json.dumps({"text": LINES}, ensure_ascii=False) + "\n"
    (tmp_path / name).write_bytes((row if name == "a.jsonl" else f"{LINES}\n{EOT}\n").encode())
    assert read(tmp_path / name) == [LINES]


@pytest.mark.parametrize("letters", ["ACGT", "字"])
def test_a_tokenizer_is_trained_on_a_line_without_blanks(tmp_path, letters):
    """The square of the word's length would be a day; and memory is bounded."""
    code = (
        "import random, resource, sys; from rr.data import open_corpus\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "t = open_corpus(sys.argv[1], 'bpe:270', cache=sys.argv[2], log=lambda line: None)\n"
        "print(len(t.train), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    drawn = random.Random(0).choices(letters, k=600_000)
    text = "".join(drawn) + EOT + "some other words here. " * 900
    corpus = file(tmp_path / "a.txt", text.encode())
    command = [sys.executable, "-c", code, corpus, str(tmp_path / "cache")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    tokens, kib = map(int, done.stdout.split())
    assert tokens > 100 and kib < 600_000


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub of one data set with two configurations, which `datasets` reads from a folder."""
    datasets = pytest.importorskip("datasets")
    hub = pytest.importorskip("huggingface_hub")
    for config in ("en", "de"):
        folder = tmp_path / "hub" / config
        folder.mkdir(parents=True)
        rows = [{"text": f"{config} story {i}, a fox."} for i in range(50)] + [{"text": ""}]
        (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "hub" / "README.md").write_text(
        "---\nconfigs:\n- config_name: en\n  data_files: en/train.jsonl\n"
        "- config_name: de\n  data_files: de/train.jsonl\n---\n"
    )
    real, asked = datasets.load_dataset, []

    def load(repository, *, revision, **given):
        asked.append((repository, given["name"], revision))
        return real(str(tmp_path / "hub"), cache_dir=str(tmp_path / "hf"), **given)

    def snapshot(repository, *, repo_type, revision, allow_patterns):
        assert repo_type == "dataset" and allow_patterns == []
        return str(tmp_path / "snapshots" / COMMITS[revision])

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr(hub, "snapshot_download", snapshot)
    monkeypatch.setattr(data_hub, "require_hub", lambda *_: None)
    for cached in ("hub_rows", "commit"):  # with a cache of the test's own
        fresh = lru_cache(getattr(data_hub, cached).__wrapped__)
        monkeypatch.setattr(data_hub, cached, fresh)
    return asked


def test_a_configuration_is_named_and_the_branch_is_a_commit(hub, tmp_path):
    printed: list[str] = []
    tokens = open_corpus("org/name:de", "bpe:270", cache=tmp_path / "c", log=printed.append)
    assert tokens.identity["corpus"] == f"hub org/name:de@{'a' * 40}"
    assert set(hub) == {("org/name", "de", "a" * 40)}
    assert tokens.decode(tokens.train).startswith(f"de story 0, a fox.{EOT}de story 1")
    assert sum((part == tokens.eot).sum() for part in (tokens.train, tokens.valid)) == 50
    assert "org/name: rows without text, skipped: 1" in printed
    other = identity("org/name:en@v1", "bpe:270")["corpus"]
    assert other == f"hub org/name:en@{'b' * 40}"
    assert hub_dataset("org/name:de@v1") == "org/name"


def test_several_configurations_and_none_named_is_one_line(hub, tmp_path):
    with pytest.raises(RRError, match="org/name:config names a configuration") as error:
        open_corpus("org/name", "bpe:270", cache=tmp_path / "c", log=print)
    assert re.search("'en'.*'de'|'de'.*'en'", str(error.value))


def test_a_run_keeps_the_commit_that_it_was_planned_with(hub, monkeypatch):
    run = rr.plan("nano", corpus="org/name:de", tokenizer="bpe:270")
    (cell,) = cells({"rung": ["nano"], "corpus": ["org/name:de"], "tokenizer": ["bpe:270"]}, print)
    monkeypatch.setitem(COMMITS, "main", "c" * 40)  # the branch moves on
    data_hub.commit.cache_clear()
    kept = f"org/name:de@{'a' * 40}"
    assert run.source["corpus"] == cell.words["corpus"] == kept
    assert identity(kept, "bpe:270")["corpus"] == run.corpus
    assert command_line.options(run)["corpus"] == kept
    assert rr.plan("nano", corpus="org/name:de", tokenizer="bpe:270").id != run.id


LETTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0\r")
TEXT = st.text(LETTERS, max_size=30).filter(lambda text: "<|" not in text)
TEXTS = st.lists(TEXT, min_size=1, max_size=8)
KINDS, PACKED = st.sampled_from(["txt", "jsonl"]), st.sampled_from(["", ".gz", ".xz"])


def as_file(folder: str, kind: str, packed: str, texts: list[str], ends: str, bom: bool) -> Path:
    """The documents in one of the formats; a mark or a row each."""
    if kind == "txt":
        data = "".join(f"{text}\n{EOT}\n" for text in texts).replace("\n", ends)
    else:
        data = "".join(json.dumps({"text": text}) + ends for text in texts)
    raw = data.encode("utf-8-sig" if bom else "utf-8")
    path = Path(folder) / f"a.{kind}{packed}"
    path.write_bytes({"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[packed](raw))
    return path


@settings(max_examples=60)
@given(TEXTS, KINDS, PACKED, st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_any_documents_come_back_from_any_dialect(texts, kind, packed, ends, bom):
    plain = [text.strip("\n") if kind == "txt" else text for text in texts]
    wanted = [text for text in plain if text.strip("\n")]
    with tempfile.TemporaryDirectory() as folder:
        path = as_file(folder, kind, packed, texts, ends, bom)
        try:
            assert read(path) == wanted
        except RRError as error:
            first = texts[0].lstrip().lower()
            refused = ("%pdf-", "{\\rtf", "<!doctype html", "<html", "<?xml", "{", "[")
            assert not any(text.strip() for text in wanted) or first.startswith(refused), error


@settings(max_examples=100)
@given(TEXTS, KINDS, PACKED, st.integers(0, 999), st.integers(0, 255), st.booleans())
def test_a_damaged_file_is_text_or_one_line(texts, kind, packed, place, byte, cut):
    """And what is read can be encoded: no half character comes out."""
    with tempfile.TemporaryDirectory() as folder:
        path = as_file(folder, kind, packed, texts, "\n", False)
        data = bytearray(path.read_bytes())
        at = place % len(data)
        if cut:
            del data[at:]
        else:
            data[at] = byte
        path.write_bytes(data)
        try:
            for text in read(path):
                text.encode()
                assert text.strip("\r\n")
        except RRError as error:
            assert str(path) in str(error) and "\n" not in str(error).replace(str(path), "")
