"""Corpora: what comes out of each kind of input, what is said of bad ones, the cache's promise."""

import gzip
import json
import lzma
import math
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from rr.config import RRError
from rr.data import Tokens, baselines, cache, documents, open_corpus
from rr.data import tokenizer as vocabularies
from rr.data.corpus import identity
from rr.data.files import read_all

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("RR_SHARED", ROOT.parent / "shared")) / "data"
STORIES = ["The fox ran.\nIt was late.", "A bee sang to the sea.", "Zoë ate 3 pears — ok?"] * 40
MARK = "\n<|endoftext|>\n"


def quiet(line: str) -> None:
    """A log for tests that do not read it."""


def opened(corpus, tokenizer="bpe:270", **options) -> Tokens:
    return open_corpus(str(corpus), tokenizer, **{"log": quiet, **options})


def written(path: Path, texts=STORIES) -> Path:
    """The same documents in the format that the file's name says."""
    plain = MARK.join(texts) + MARK
    rows = "".join(json.dumps({"id": i, "text": t}) + "\n" for i, t in enumerate(texts))
    data = (rows if ".jsonl" in path.name else plain).encode()
    if path.suffix == ".xz":
        path.write_bytes(lzma.compress(data))
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress(data))
    elif path.suffix == ".parquet":
        table = pytest.importorskip("pyarrow").table({"text": texts})
        pytest.importorskip("pyarrow.parquet").write_table(table, path, row_group_size=7)
    else:
        path.write_bytes(data)
    return path


@pytest.fixture
def small(tmp_path):
    return f"file:{written(tmp_path / 'small.txt')}", tmp_path / "cache"


# ---- what comes out


@pytest.mark.parametrize(
    "name",
    ["a.txt", "a.txt.xz", "a.xz", "a.gz", "a.jsonl", "a.jsonl.gz", "a.jsonl.xz", "a.parquet"],
)
def test_every_format_gives_the_same_documents(tmp_path, name):
    tokens = opened(f"file:{written(tmp_path / name)}")
    parts = [tokens.decode(part).split("<|endoftext|>") for part in (tokens.train, tokens.valid)]
    assert all(part[-1] == "" for part in parts)  # each document is followed by the mark
    assert [*parts[0][:-1], *parts[1][:-1]] == STORIES
    assert tokens.n_documents == {"train": len(parts[0]) - 1, "valid": len(parts[1]) - 1}
    held = sum(len(t.encode()) for t in parts[1])
    total = sum(len(t.encode()) for t in STORIES)
    assert held >= 0.03 * total > held - len(parts[1][0].encode())  # and no document more
    assert tokens.train.dtype == np.uint16 and isinstance(tokens.train, np.memmap)
    assert tokens.vocab_size == 270 and tokens.train.max() < 270


def test_a_folder_brings_its_own_held_out_part(tmp_path):
    written(tmp_path / "train-01.txt", STORIES[3:])
    written(tmp_path / "train-00.jsonl", STORIES[:3])
    written(tmp_path / "valid.txt.xz", ["A new tale."])
    tokens = opened(f"file:{tmp_path}")
    assert tokens.decode(tokens.train).split("<|endoftext|>")[:-1] == STORIES
    assert tokens.decode(tokens.valid) == "A new tale.<|endoftext|>"
    assert tokens.name == tmp_path.name


def test_the_study_cuts_the_stream_of_tokens(tmp_path):
    corpus = f"file:{written(tmp_path / 'a.txt')}"
    whole, cut = opened(corpus), opened(corpus, split="tokens")
    stream = np.concatenate([whole.train, whole.valid])
    assert np.array_equal(np.concatenate([cut.train, cut.valid]), stream)
    assert len(cut.train) == int(0.97 * len(stream))


def test_one_long_document_is_cut_at_a_blank(tmp_path):
    text = " ".join(f"word{i}" for i in range(500))
    (tmp_path / "a.txt").write_text(text)
    tokens = opened(f"file:{tmp_path / 'a.txt'}", "bpe:257")
    train, valid = tokens.decode(tokens.train), tokens.decode(tokens.valid)
    assert train.endswith(" <|endoftext|>") and valid.startswith("word")
    assert (train + valid).replace("<|endoftext|>", "") == text
    assert 0.02 < len(valid) / len(text) < 0.04


def test_a_mark_in_a_row_separates_and_never_comes_from_text(tmp_path):
    rows = ["one<|endoftext|>two", *STORIES]
    tokens = opened(f"file:{written(tmp_path / 'a.jsonl', rows)}")
    assert tokens.n_documents["train"] + tokens.n_documents["valid"] == len(rows) + 1
    assert int((tokens.train == tokens.eot).sum()) == tokens.n_documents["train"]
    assert tokens.encode("one<|endoftext|>two") == [
        *tokens.encode("one"),
        tokens.eot,
        *tokens.encode("two"),
    ]
    assert tokens.eot not in tokens.encode("<|endoftext| > and |endoftext|>")


def test_marks_on_the_edges_of_blocks(tmp_path):
    """Reading is in blocks of 2**20 bytes; a mark, or a character, may lie across their edge."""
    for shift in range(-15, 3):
        first = "é" * ((2**20 + shift) // 2) + "x" * (shift % 2)
        path = tmp_path / f"{shift}.txt"
        path.write_text(first + MARK + "second", encoding="utf-8")
        assert list(read_all([path], {})) == [first, "second"]


def test_a_long_document_is_encoded_as_if_in_one_piece(monkeypatch, small):
    monkeypatch.setattr(vocabularies, "PIECE", 100)
    monkeypatch.setattr(vocabularies, "BATCH", 1000)
    vocabulary = opened(small[0], "bpe:280").vocabulary
    text = ("The fox's 12 hens, don't ask;\n\n  ran!  \t\n" * 90 + "x" * 700 + " end\u00a0 ") * 2
    pieces = list(vocabularies.text_pieces(text))
    assert len(pieces) > 20 and "".join(p for p, _ in pieces) == text
    ids, ended = zip(*vocabulary.stream([text, "", "b"]), strict=True)
    assert np.concatenate(ids).tolist() == [
        *vocabulary.encode(text),
        vocabulary.eot,
        vocabulary.eot,
        *vocabulary.encode("b"),
        vocabulary.eot,
    ]
    assert sum(ended) == 3


def test_training_a_tokenizer_is_deterministic(tmp_path):
    code = (
        "import sys; from rr.data import open_corpus; t = open_corpus('file:' + sys.argv[1],"
        "'bpe:280', cache=sys.argv[2], log=lambda line: None); print(t.sha256['train'])"
    )
    path = written(tmp_path / "a.txt")
    found = {
        subprocess.run(
            [sys.executable, "-c", code, str(path), str(tmp_path / threads)],
            check=True,
            cwd=ROOT,
            env={**os.environ, "RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": threads},
            capture_output=True,
            text=True,
        ).stdout
        for threads in ("1", "4")
    }
    assert len(found) == 1


def test_a_large_vocabulary_takes_four_bytes(small, tmp_path):
    trained = opened(small[0]).vocabulary.folder
    table = json.loads((trained / "vocab.json").read_text())
    table |= {f"<extra {i}>": len(table) + i for i in range(65_536 - len(table))}
    (tmp_path / "vocab.json").write_text(json.dumps(table))
    (tmp_path / "merges.txt").write_bytes((trained / "merges.txt").read_bytes())
    assert vocabularies.planned_size(str(tmp_path)) == 65_536
    tokens = opened(f"file:{written(tmp_path / 'a.txt')}", str(tmp_path))
    assert tokens.train.dtype == np.uint32 and tokens.vocab_size == 65_536
    assert tokens.decode(tokens.train[: len(tokens.encode(STORIES[0]))]) == STORIES[0]


# ---- real data (absent in a bare clone)

needs_shared = pytest.mark.skipif(not (SHARED / "gpt2").is_dir(), reason="no shared data here")


@needs_shared
def test_gpt2_on_real_stories():
    """Counts from the data's own description: 997 stories, 193,562 GPT-2 tokens without ends."""
    tokens = opened(f"file:{SHARED}/tinystories/valid.txt.xz", str(SHARED / "gpt2"))
    assert sum(tokens.n_documents.values()) == 997
    assert len(tokens.train) + len(tokens.valid) == 193_562 + 997
    assert tokens.eot == 50_256 and tokens.vocab_size == 50_257
    assert tokens.encode("Once upon a time") == [7454, 2402, 257, 640]


@needs_shared
def test_gpt2_by_name_and_by_folder_is_one_tokenizer():
    assert identity("fables", "gpt2") == identity("fables", str(SHARED / "gpt2"))


# ---- identity


def test_identity_is_content_and_never_a_path(tmp_path):
    (tmp_path / "x").mkdir()
    a, b = written(tmp_path / "a.txt"), written(tmp_path / "x" / "b.txt")
    assert identity(f"file:{a}", "bpe:300") == identity(f"file:{b}", "bpe:300")
    assert str(tmp_path) not in str(identity(f"file:{a}", "bpe:300"))
    before = identity(f"file:{a}", "bpe:300")
    a.write_text(a.read_text().replace("fox", "cat"))
    assert identity(f"file:{a}", "bpe:300") != before
    assert identity(f"file:{b}", "bpe:301")["tokenizer"] != before["tokenizer"]
    # the same bytes read in another way are another corpus
    (tmp_path / "c.jsonl").write_bytes(b.read_bytes())
    assert identity(f"file:{tmp_path / 'c.jsonl'}", "bpe:300")["corpus"] != before["corpus"]


def test_identity_of_a_folder_is_its_parts(tmp_path):
    for home in ("one", "two"):
        (tmp_path / home).mkdir()
        written(tmp_path / home / "train.txt")
        written(tmp_path / home / "valid.txt", STORIES[:2])
    one, two = (identity(f"file:{tmp_path / home}", "gpt2")["corpus"] for home in ("one", "two"))
    assert one == two
    written(tmp_path / "two" / "valid.txt", STORIES[:3])
    assert identity(f"file:{tmp_path / 'two'}", "gpt2")["corpus"] != one


def test_planning_downloads_and_trains_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(documents, "require_hub", lambda *_: pytest.fail("the hub was asked"))
    told = identity("tinystories", "gpt2", cache=tmp_path)
    assert told["corpus"].startswith("hub roneneldan/TinyStories@f54c09fd2331")
    assert identity(f"a/b:c@{'0' * 40}", None)["corpus"] == f"hub a/b:c@{'0' * 40}"
    assert identity("fables", "bpe:1024")["tokenizer"].startswith("bpe:1024 of fables ")
    assert [vocabularies.planned_size(t) for t in ("bpe:1024", "gpt2")] == [1024, 50_257]
    assert not list(tmp_path.iterdir())


def test_a_digest_is_remembered_until_the_file_changes(tmp_path, monkeypatch):
    path, home = tmp_path / "a.txt", tmp_path / "cache"
    path.write_text("one")
    first = cache.cached_digest(path, home)
    assert first == cache.digest(path)
    with monkeypatch.context() as without:
        without.setattr(cache, "digest", lambda _: pytest.fail("read again"))
        assert cache.cached_digest(path, home) == first
    path.write_text("two!")
    assert cache.cached_digest(path, home) == cache.digest(path) != first
    for note in (home / "digests").iterdir():
        note.write_text("{ damaged")
    assert cache.cached_digest(path, home) == cache.digest(path)


# ---- the cache


def test_a_second_call_makes_nothing(small, monkeypatch):
    corpus, home = small
    first = opened(corpus, cache=home)
    lines: list[str] = []
    monkeypatch.setattr(documents, "read_all", lambda *_: pytest.fail("read again"))
    second = opened(corpus, cache=home, log=lines.append)
    assert np.array_equal(first.train, second.train) and first.sha256 == second.sha256
    assert lines == []


@pytest.mark.parametrize("damage", ["truncated", "flipped", "card", "lost", "tokenizer"])
def test_damage_is_found_and_made_again(small, damage):
    corpus, home = small
    before = np.array(opened(corpus, cache=home).train)
    kind = "tokenizers" if damage == "tokenizer" else "tokens"
    (folder,) = (p for p in (home / kind).iterdir() if p.is_dir())
    path = folder / {"card": cache.CARD, "tokenizer": "merges.txt"}.get(damage, "train.bin")
    data = bytearray(path.read_bytes())
    if damage == "lost":
        path.unlink()
    elif damage in ("flipped", "tokenizer"):
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    else:
        path.write_bytes(data[: len(data) // 2])
    lines: list[str] = []
    after = opened(corpus, cache=home, log=lines.append)
    assert np.array_equal(before, after.train)
    assert any("making it again" in line for line in lines)


def test_a_process_killed_while_writing_leaves_no_half(small):
    """Killed at each point where the folder is made: before, between and after its files."""
    corpus, home = small
    code = (
        "import os, sys\n"
        "import rr.data.cache, rr.data.corpus\n"
        "at, seen = int(sys.argv[3]), [0]\n"
        "def point(name, real):\n"
        "    def wrapped(*a, **k):\n"
        "        seen[0] += 1\n"
        "        if seen[0] == at: os.kill(os.getpid(), 9)\n"
        "        return real(*a, **k)\n"
        "    return wrapped\n"
        "rr.data.corpus._write = point('write', rr.data.corpus._write)\n"
        "rr.data.cache.sync = point('sync', rr.data.cache.sync)\n"
        "rr.data.cache.digest = point('digest', rr.data.cache.digest)\n"
        "rr.data.open_corpus(sys.argv[1], 'bpe:257', cache=sys.argv[2])\n"
        "print(seen[0])\n"
    )
    whole = np.array(opened(corpus, "bpe:257", cache=home / "reference").train)
    killed = 0
    for at in (1, 3, 6, 9, 11, 12, 13, 14, 16, 99):
        there = home / str(at)
        done = subprocess.run(
            [sys.executable, "-c", code, corpus, str(there), str(at)],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        assert done.returncode in (0, -9), done.stderr
        killed += done.returncode == -9
        for folder in there.glob("*/*"):  # whatever has its final name is whole
            if folder.is_dir() and ".aside-" not in folder.name:
                assert cache.check_entry(folder)[0] is not None
        assert np.array_equal(opened(corpus, "bpe:257", cache=there).train, whole)
        assert not list(there.glob("*/*.aside-*"))
    assert 5 <= killed < 10


def test_processes_at_once_make_it_once(small):
    corpus, home = small
    code = (
        "import sys; from rr.data import open_corpus; "
        "t = open_corpus(sys.argv[1], 'bpe:280', cache=sys.argv[2]); print(t.sha256)"
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code, corpus, str(home)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    said = [process.communicate(timeout=120) for process in running]
    assert all(process.returncode == 0 for process in running), said
    out = "".join(stdout for stdout, _ in said)
    assert out.count("trained in") == 1 and out.count("(train) with") == 1
    assert len(set(re.findall(r"\{'train.*\}", out))) == 1


def test_a_cache_that_cannot_be_written(small, tmp_path):
    corpus, _ = small
    (tmp_path / "taken").write_text("a file")
    for home in (tmp_path / "taken", Path("/proc/no/such")):
        with pytest.raises(RRError, match="cannot write the cache .* set RR_CACHE"):
            opened(corpus, cache=home)


def test_a_full_disk_leaves_nothing(small, monkeypatch):
    corpus, home = small

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache, "sync", full)
    with pytest.raises(RRError, match="No space left"):
        opened(corpus, cache=home)
    assert not [p for p in home.glob("*/*") if p.is_dir()]


# ---- bad input: one line, nothing left behind


def bad(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    return f"file:{path}"


GOOD = ("{}" + MARK).format("word " * 50).encode() * 4
BAD_FILES = {
    "empty.txt": (b"", "is empty"),
    "empty.txt.xz": (b"", "is empty"),
    "blank.txt": (b"\n \n", "contains no text"),
    "marks.txt": (b"<|endoftext|>" * 3, "contains no text"),
    "zeros.txt": (bytes(5000), "not text .it contains zero bytes"),
    "zeros.xz": (bytes(5000), "corrupt or not a .xz file"),
    "zeros.gz": (bytes(5000), "corrupt or not a .gz file"),
    "zeros.parquet": (bytes(5000), "corrupt or not a Parquet file"),
    "zeros.jsonl": (bytes(5000), "line 1 is not JSON"),
    "binary.txt": (bytes(range(1, 256)), "not UTF-8 text .invalid byte 0x80"),
    "half.txt": ("é".encode() * 9 + b"\xc3", "not UTF-8"),
    "utf16.txt": ("word".encode("utf-16"), "not UTF-8"),
    "cut.txt.xz": (lzma.compress(GOOD)[:-9], "corrupt"),
    "cut.txt.gz": (gzip.compress(GOOD)[:-9], "corrupt"),
    "line.jsonl": (b'{"text": "a"}\n\n{"text": "b"\n', "line 3 is not JSON"),
    "list.jsonl": (b'["text"]\n', 'line 1 has no "text" string'),
    "other.jsonl": (b'{"text": "a"}\n{"story": "b"}\n', 'line 2 has no "text" string'),
    "null.jsonl": (b'{"text": null}\n', 'line 1 has no "text" string'),
    "byte.jsonl": (b'{"text": "\xff"}\n', "line 1 is not JSON"),
    "deep.jsonl": (b'{"text": ' + b"[" * 100_000, "line 1 is not JSON"),
    "a.parquet.gz": (gzip.compress(b"x"), "compressed inside already"),
    "word.txt": (b"word", "too short to split"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files(tmp_path, name):
    data, says = BAD_FILES[name]
    corpus = bad(tmp_path / name, data)
    with pytest.raises(RRError, match=says) as error:
        opened(corpus, "gpt2", cache=tmp_path / "cache")  # said before the tokenizer is asked for
    assert "\n" not in str(error.value)
    assert name in str(error.value)
    assert not [p for p in (tmp_path / "cache").glob("*/*") if p.is_dir()]


@pytest.mark.parametrize("at", range(30, 90, 20))
def test_a_flipped_bit_in_packed_text_is_found(tmp_path, at):
    data = bytearray(lzma.compress(b"".join(b"%d words. " % (i * i) for i in range(400))))
    data[at] ^= 4
    with pytest.raises(RRError, match="corrupt"):
        opened(bad(tmp_path / "a.txt.xz", bytes(data)), "bpe:257")


def test_parquet_without_text(tmp_path):
    pyarrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    path = tmp_path / "a.parquet"
    for table, says in (
        ({"story": ["a"], "n": [1]}, "no 'text' column, but story, n"),
        ({"text": ["a", None]}, "is not a string"),
        ({"text": [1, 2]}, "is not a string"),
        ({"text": [""]}, "contains no text"),
    ):
        parquet.write_table(pyarrow.table(table), path)
        with pytest.raises(RRError, match=says):
            opened(f"file:{path}")


@pytest.mark.parametrize(
    "corpus, says",
    [
        ("fabels", "unknown corpus 'fabels': did you mean fables"),
        ("", "unknown corpus"),
        ("file:", "names no path"),
        ("file:/no/such.txt", "no file or folder /no/such.txt"),
        ("no/such.txt", "for a path write file:no/such.txt"),
        (str(ROOT), "for a path write file:"),
        ("a b/c", "unknown corpus"),
    ],
)
def test_bad_corpus_names(corpus, says):
    for ask in (identity, opened):
        with pytest.raises(RRError, match=re.escape(says)):
            ask(corpus, "bpe:300")


def test_folders_that_lack_a_part(tmp_path):
    with pytest.raises(RRError, match="no train. file .it is empty"):
        opened(f"file:{tmp_path}")
    written(tmp_path / "train.txt")
    with pytest.raises(RRError, match="no valid. file .it has train.txt"):
        opened(f"file:{tmp_path}")
    (tmp_path / "valid.txt").touch()
    with pytest.raises(RRError, match="valid.txt is empty"):
        opened(f"file:{tmp_path}")


@pytest.mark.parametrize(
    "tokenizer",
    ["bpe:", "bpe:x", "bpe:256", "bpe:-3", "bpe:1e4", "bpe:²", "bpe:99999999999", "bpe:1000001"],
)
def test_bad_bpe_sizes(tokenizer):
    for ask in (identity, opened):
        with pytest.raises(RRError, match=r"must be bpe:N .* from 257 .* to 1,000,000"):
            ask("fables", tokenizer)


def test_more_tokens_than_the_text_has(small):
    corpus, home = small
    with pytest.raises(
        RRError, match=r"bpe:9000: the training text has merges for (\d+) tokens"
    ) as error:
        opened(corpus, "bpe:9000", cache=home)
    most = re.search(r"from 257 to (\d+)", str(error.value))[1]
    assert opened(corpus, f"bpe:{most}", cache=home).vocab_size == int(most)


def test_bad_tokenizer_folders(tmp_path):
    with pytest.raises(RRError, match="unknown tokenizer 'gtp2': did you mean gpt2"):
        opened("fables", "gtp2")
    with pytest.raises(RRError, match="no vocab.json and no merges.txt"):
        opened("fables", str(tmp_path))
    (tmp_path / "vocab.json").write_text('{"a": 0, "<|endoftext|>": 1}')
    with pytest.raises(RRError, match="no merges.txt"):
        opened("fables", str(tmp_path))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    with pytest.raises(RRError, match="not a byte-level BPE: its vocab.json lacks 255 of"):
        opened("fables", str(tmp_path))
    (tmp_path / "vocab.json").write_text('{"a": 0}')
    with pytest.raises(RRError, match="no <.endoftext.> entry"):
        opened("fables", str(tmp_path))
    for text in ("[1]", "{", '{"a": "b"}'):
        (tmp_path / "vocab.json").write_text(text)
        with pytest.raises(RRError, match="vocab.json"):
            opened("fables", str(tmp_path))
        with pytest.raises(RRError, match="is not a vocabulary"):
            vocabularies.planned_size(str(tmp_path))


def test_a_corpus_shorter_than_a_window(small):
    corpus, home = small
    with pytest.raises(RRError, match=r"tokens in its valid part, .* at least 258"):
        opened(corpus, cache=home, min_tokens=258)
    with pytest.raises(RRError, match="must be documents or tokens"):
        opened(corpus, cache=home, split="words")


# ---- the hub, without a network


def test_without_a_network_one_line_soon(monkeypatch, tmp_path):
    constants = pytest.importorskip("huggingface_hub.constants")
    pytest.importorskip("datasets")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    for corpus in ("tinystories", "org/name@v1"):
        with pytest.raises(RRError, match="cannot be reached .*fables and file:PATH work without"):
            opened(corpus, cache=tmp_path)
    with pytest.raises(RRError, match="gpt2 .*cannot be reached .*bpe:N and a folder"):
        opened("fables", "gpt2", cache=tmp_path)


def test_offline_by_choice_asks_nobody(monkeypatch, tmp_path):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def absent(*_, **__):
        raise ConnectionError("Couldn't reach it\n(offline mode)")

    monkeypatch.setattr(datasets, "load_dataset", absent)
    documents.hub_rows.cache_clear()
    with pytest.raises(RRError, match="cannot load org/other@0+ from the hub: Couldn't re"):
        opened(f"org/other@{'0' * 40}", cache=tmp_path)


def test_the_hub_is_asked_once_and_for_the_pinned_revision(monkeypatch, tmp_path):
    """The real library loads a local Parquet file in the hub's place."""
    datasets = pytest.importorskip("datasets")
    path, asked = written(tmp_path / "a.parquet"), []
    real = datasets.load_dataset

    def load(path_of, *, name, revision, split, data_files):
        assert name is None and data_files is None
        asked.append((path_of, revision, split))
        return real(
            "parquet",
            data_files=str(path),
            cache_dir=str(tmp_path / "hf"),
            split=split.replace("400000", "100"),
        )

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr(documents, "require_hub", lambda *_: None)
    documents.hub_rows.cache_clear()
    tokens = opened("tinystories", cache=tmp_path)
    documents.hub_rows.cache_clear()
    assert asked == [
        ("roneneldan/TinyStories", "f54c09fd23315a6f9c86f9dc80f725de7d8f9c64", "train[:400000]")
    ]
    assert tokens.name == "tinystories" and sum(tokens.n_documents.values()) == 100
    assert tokens.decode(tokens.train).startswith(STORIES[0] + "<|endoftext|>")


def test_fineweb_edu_is_one_file_of_a_pinned_revision(monkeypatch, tmp_path):
    """The real library reads a local folder with the data set's layout in the hub's place."""
    datasets = pytest.importorskip("datasets")
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    texts = [f"Lesson {i}. Water boils when it is heated." for i in range(100)]
    columns = {"text": texts, "id": [f"<urn:uuid:{i}>" for i in range(100)],
               "dump": ["CC-MAIN-2024-10"] * 100, "url": ["https://example.org"] * 100,
               "file_path": ["s3://commoncrawl/x"] * 100, "language": ["en"] * 100,
               "language_score": [0.9] * 100, "token_count": [9] * 100,
               "score": [3.5] * 100, "int_score": [4] * 100}  # fmt: skip
    for name, rows in (("000_00000", columns), ("001_00000", {**columns, "text": ["x"] * 100})):
        path = tmp_path / "hub" / "sample" / "10BT" / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pyarrow.table(rows), path)
    real, asked = datasets.load_dataset, []

    def load(repository, *, revision, **given):
        asked.append((repository, revision))
        return real(str(tmp_path / "hub"), cache_dir=str(tmp_path / "hf"), **given)

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr(documents, "require_hub", lambda *_: None)
    documents.hub_rows.cache_clear()
    tokens = opened("fineweb-edu", tokenizer="bpe:300", cache=tmp_path)
    documents.hub_rows.cache_clear()
    assert asked == [("HuggingFaceFW/fineweb-edu", "87f09149ef4734204d70ed1d046ddc9ca3f2b8f9")]
    assert sum(tokens.n_documents.values()) == 100
    assert tokens.decode(tokens.train).startswith(texts[0] + "<|endoftext|>" + texts[1])
    assert "000_00000.parquet" in identity("fineweb-edu", "bpe:300", cache=tmp_path)["corpus"]


# ---- baselines


def _reference(train, valid, vocab_size):
    """The definition in plain Python, λ by a fine grid."""

    def tables(ids):
        return Counter(ids), Counter(zip(ids, ids[1:], strict=False)), Counter(ids[:-1]), len(ids)

    def nats(table, before, scored, lam):
        uni, pairs, context, n = table
        total = 0.0
        for a, b in zip([before, *scored], scored, strict=False):
            p = (uni[b] + 1) / (n + vocab_size)
            q = pairs[a, b] / context[a] if context[a] else p
            total -= math.log(lam * q + (1 - lam) * p)
        return total / len(scored)

    at = len(train) * 9 // 10
    fit = tables(train[:at])
    lam = min(
        (i / 2000 for i in range(2000)), key=lambda lam: nats(fit, train[at - 1], train[at:], lam)
    )
    whole = tables(train)
    return lam, lambda lam: nats(whole, valid[0], valid[1:], lam)


def test_baselines_against_the_definition():
    rng = np.random.default_rng(0)
    vocab_size = 12
    steps = rng.choice(5, p=[0.5, 0.2, 0.1, 0.1, 0.1], size=3000)
    ids = (np.cumsum(steps) % 10).astype(np.uint16)  # two tokens never occur in training
    ids[::23] = rng.integers(0, 10, size=len(ids[::23]))  # so that counting pairs is not all
    ids[2800:2810] = 10, 11, 10, 3, 11, 11, 2, 10, 1, 0
    tokens = SimpleNamespace(name="x", train=ids[:2500], valid=ids[2500:], vocab_size=vocab_size)
    found = baselines(tokens)
    lam, nats = _reference(ids[:2500].tolist(), ids[2500:].tolist(), vocab_size)
    assert 0.5 < lam < 0.995 and found["bigram_lambda"] == pytest.approx(lam, abs=1e-3)
    assert found["unigram_nats"] == pytest.approx(nats(0.0), rel=1e-12)
    assert found["bigram_nats"] == pytest.approx(nats(found["bigram_lambda"]), rel=1e-12)
    assert found["tokens"] == 2500 and found["valid_tokens"] == 500
    json.dumps(found)


def test_baselines_of_too_little():
    tokens = SimpleNamespace(name="x", train=np.arange(9), valid=np.arange(9), vocab_size=9)
    with pytest.raises(RRError, match="too short for baselines"):
        baselines(tokens)
