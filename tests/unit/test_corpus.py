"""Corpora: what comes out of each kind of input, what is said of bad ones, the cache's promise."""

import gzip
import json
import lzma
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from filelock import FileLock

from rr.data import Tokens, baselines, cache, local, open_corpus
from rr.data import hub as data_hub
from rr.data import tokenizer as vocabularies
from rr.data.corpus import identity
from rr.data.files import EOT, read_all
from rr.errors import RRError

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("RR_SHARED", ROOT.parent / "shared")) / "data"
STORIES = ["The fox ran.\nIt was late.", "A bee sang to the sea.", "Zoë ate 3 pears — ok?"] * 40
MARK = f"\n{EOT}\n"


def opened(corpus, tokenizer="bpe:270", **options) -> Tokens:
    return open_corpus(str(corpus), tokenizer, **{"log": lambda line: None, **options})


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


def documents_in(tokens) -> int:
    return sum(int((part == tokens.eot).sum()) for part in (tokens.train, tokens.valid))


@pytest.mark.parametrize(
    "name", ["a.txt", "a.xz", "a.gz", "a.jsonl", "a.jsonl.gz", "a.jsonl.xz", "a.parquet"]
)
def test_every_format_gives_the_same_documents(tmp_path, name):
    tokens = opened(f"file:{written(tmp_path / name)}")
    train, valid = (tokens.decode(part).split(EOT) for part in (tokens.train, tokens.valid))
    assert train.pop() == valid.pop() == ""  # each document is followed by the mark
    assert train + valid == STORIES

    def size(texts):
        return len("".join(texts).encode())

    assert size(valid) >= 0.03 * size(STORIES) > size(valid[1:])  # and no document more
    assert tokens.train.dtype == np.uint16 and isinstance(tokens.train, np.memmap)
    assert tokens.vocab_size == 270 and tokens.train.max() < 270


def test_a_folder_brings_its_own_held_out_part(tmp_path):
    written(tmp_path / "train-01.txt", STORIES[3:])
    written(tmp_path / "train-00.jsonl", STORIES[:3])
    written(tmp_path / "valid.txt.xz", ["A new tale."])
    tokens = opened(f"file:{tmp_path}")
    assert tokens.decode(tokens.train).split(EOT)[:-1] == STORIES
    assert tokens.decode(tokens.valid) == f"A new tale.{EOT}"
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
    assert documents_in(tokens) == len(rows) + 1
    one, two = tokens.encode("one"), tokens.encode("two")
    assert tokens.encode("one<|endoftext|>two") == [*one, tokens.eot, *two]
    assert tokens.eot not in tokens.encode("<|endoftext| > and |endoftext|>")


def test_marks_on_the_edges_of_blocks(tmp_path):
    """Reading is in blocks of 2**20 bytes; a mark, or a character, may lie across their edge."""
    for shift in range(-15, 3):
        first = "é" * ((2**20 + shift) // 2) + "x" * (shift % 2)
        (tmp_path / "a.txt").write_text(first + MARK + "second", encoding="utf-8")
        assert list(read_all([tmp_path / "a.txt"], {})) == [first, "second"]


def test_a_long_document_is_encoded_as_if_in_one_piece(monkeypatch, small):
    monkeypatch.setattr(vocabularies, "PIECE", 100)
    monkeypatch.setattr(vocabularies, "BATCH", 1000)
    vocabulary = opened(small[0], "bpe:280").vocabulary
    text = ("The fox's 12 hens, don't ask;\n\n  ran!  \t\n" * 90 + "x" * 700 + " end\u00a0 ") * 2
    pieces = list(vocabularies.text_pieces(text))
    assert len(pieces) > 20 and "".join(p for p, _ in pieces) == text
    ids, ended = zip(*vocabulary.stream([text, "", "b"]), strict=True)
    wanted = [*vocabulary.encode(text), vocabulary.eot, vocabulary.eot, *vocabulary.encode("b")]
    assert np.concatenate(ids).tolist() == [*wanted, vocabulary.eot]
    assert sum(ended) == 3


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


needs_shared = pytest.mark.skipif(not (SHARED / "gpt2").is_dir(), reason="no shared data here")


@needs_shared
def test_gpt2_on_real_stories():
    """Counts from the data's own description: 997 stories, 193,562 GPT-2 tokens without ends."""
    tokens = opened(f"file:{SHARED}/tinystories/valid.txt.xz", str(SHARED / "gpt2"))
    assert documents_in(tokens) == 997
    assert len(tokens.train) + len(tokens.valid) == 193_562 + 997
    assert tokens.eot == 50_256 and tokens.vocab_size == 50_257
    assert tokens.encode("Once upon a time") == [7454, 2402, 257, 640]


# ---- identity


def test_identity_is_content_and_never_a_path(tmp_path):
    def recorded(path, tokenizer="bpe:300"):
        return identity(f"file:{tmp_path / path}", tokenizer)

    for home in ("one", "two"):
        (tmp_path / home).mkdir()
        written(tmp_path / home / "train.txt")
        written(tmp_path / home / "valid.txt", STORIES[:2])
    assert recorded("one") == recorded("two") and recorded("one/train.txt") == recorded(
        "two/train.txt"
    )
    assert str(tmp_path) not in str(recorded("one")) + str(recorded("one/train.txt"))
    before = recorded("one"), recorded("one/train.txt")
    written(tmp_path / "one" / "train.txt", ["Another fox ran.", *STORIES[1:]])
    written(tmp_path / "two" / "valid.txt", STORIES[:3])
    assert recorded("one")["corpus"] != before[0]["corpus"] != recorded("two")["corpus"]
    assert recorded("one/train.txt")["corpus"] != before[1]["corpus"]
    assert recorded("two/train.txt", "bpe:301")["tokenizer"] != before[1]["tokenizer"]
    # the same bytes read in another way are another corpus
    (tmp_path / "c.jsonl").write_bytes((tmp_path / "two" / "train.txt").read_bytes())
    assert recorded("c.jsonl")["corpus"] != before[1]["corpus"]


def test_planning_downloads_and_trains_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(data_hub, "require_hub", lambda *_: pytest.fail("the hub was asked"))
    recorded = identity("tinystories", "gpt2")
    assert recorded["corpus"].startswith("hub roneneldan/TinyStories@f54c09fd2331")
    assert identity(f"a/b:c@{'0' * 40}", None)["corpus"] == f"hub a/b:c@{'0' * 40}"
    assert identity("fables", "bpe:1024")["tokenizer"].startswith("bpe:1024 of fables ")
    assert [vocabularies.planned_size(t) for t in ("bpe:1024", "gpt2")] == [1024, 50_257]
    assert not list(tmp_path.iterdir())


# ---- the cache


@pytest.mark.parametrize("damage", [None, "truncated", "flipped", "card", "lost", "tokenizer"])
def test_a_second_call_makes_again_only_what_is_damaged(small, damage, monkeypatch):
    corpus, home = small
    first = opened(corpus, cache=home)
    before, lines = np.array(first.train), []
    kind = "tokenizers" if damage == "tokenizer" else "tokens"
    (folder,) = (p for p in (home / kind).iterdir() if p.is_dir())
    path = folder / {"card": cache.CARD, "tokenizer": "merges.txt"}.get(damage, "train.bin")
    data = bytearray(path.read_bytes())
    if damage is None:
        monkeypatch.setattr(local, "read_all", lambda *_: pytest.fail("read again"))
    elif damage == "lost":
        path.unlink()
    elif damage in ("flipped", "tokenizer"):
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    else:
        path.write_bytes(data[: len(data) // 2])
    after = opened(corpus, cache=home, log=lines.append)
    assert np.array_equal(before, after.train) and first.sha256 == after.sha256
    assert any("making it again" in line for line in lines) == (damage is not None)


def test_a_process_killed_while_writing_leaves_no_half(small):
    """Killed at each point where the folder is made: before, between and after its files."""
    corpus, home = small
    code = (
        "import os, sys, rr.data.cache, rr.data.corpus\n"
        "at, seen = int(sys.argv[3]), []\n"
        "def point(module, name):\n"
        "    real = getattr(module, name)\n"
        "    def wrapped(*a, **k):\n"
        "        seen.append(name)\n"
        "        return os.kill(os.getpid(), 9) if len(seen) == at else real(*a, **k)\n"
        "    setattr(module, name, wrapped)\n"
        "point(rr.data.corpus, '_write')\n"
        "point(rr.data.cache, 'sync')\n"
        "point(rr.data.cache, 'digest')\n"
        "rr.data.open_corpus(sys.argv[1], 'bpe:257', cache=sys.argv[2])\n"
    )
    whole = np.array(opened(corpus, "bpe:257", cache=home / "reference").train)
    for at in (1, 6, 11, 13, 16):
        there = home / str(at)
        command = [sys.executable, "-c", code, corpus, str(there), str(at)]
        assert subprocess.run(command, cwd=ROOT, capture_output=True).returncode == -9
        for folder in there.glob("*/*"):  # whatever has its final name is whole
            if folder.is_dir() and ".aside-" not in folder.name:
                assert cache.check_entry(folder)[0] is not None
        assert np.array_equal(opened(corpus, "bpe:257", cache=there).train, whole)
        assert not list(there.glob("*/*.aside-*"))


def test_processes_at_once_make_it_once_and_threads_change_no_token(small, tmp_path):
    corpus, home = small
    code = (
        "import sys; from rr.data import open_corpus; "
        "t = open_corpus(sys.argv[1], 'bpe:280', cache=sys.argv[2]); print(t.sha256)"
    )
    running = []
    for where, threads in ((home, "1"), (home, "1"), (tmp_path / "other", "4")):
        env = {**os.environ, "RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": threads}
        command = [sys.executable, "-c", code, corpus, str(where)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        running.append(subprocess.Popen(command, cwd=ROOT, env=env, **pipes))
    printed = [process.communicate(timeout=120) for process in running]
    assert all(process.returncode == 0 for process in running), printed
    out = [stdout for stdout, _ in printed]
    both = out[0] + out[1]
    assert both.count("trained in") == 1 and both.count("(train) with") == 1
    assert len(set(re.findall(r"\{'train.*\}", "".join(out)))) == 1


def test_a_process_that_waits_for_another_says_so(tmp_path):
    folder = cache.entry_path("kind", {}, tmp_path)
    folder.parent.mkdir()
    lock, lines = FileLock(f"{folder}.lock"), []

    def log(line):
        lines.append(line)
        lock.release()

    with lock:
        cache.get_or_create("kind", {}, lambda folder: {}, tmp_path, log)
    assert lines == [f"cache: another process makes {folder}: waiting for it"]
    assert cache.check_entry(folder)[0] is not None
    cache.get_or_create("kind", {"free": True}, lambda folder: {}, tmp_path, lines.append)
    assert len(lines) == 1


def test_a_disk_that_takes_nothing_is_one_line_and_leaves_nothing(small, monkeypatch):
    corpus, home = small

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache, "sync", full)
    with pytest.raises(RRError, match="No space left"):
        opened(corpus, cache=home)
    with pytest.raises(RRError, match="cannot write the cache .* set RR_CACHE"):
        opened(corpus, cache=Path("/proc/no/such"))
    assert not [p for p in home.glob("*/*") if p.is_dir()]


# ---- bad input: one line, nothing left behind


GOOD = ("{}" + MARK).format("word " * 50).encode() * 4
FLIPPED = bytearray(lzma.compress(b"".join(b"%d words. " % (i * i) for i in range(400))))
FLIPPED[50] ^= 4
BAD_FILES = {
    "empty.txt.xz": (b"", "is empty"),
    "blank.txt": (b"\n \n", "contains no text"),
    "zeros.txt": (bytes(5000), "not text .it contains zero bytes"),
    "zeros.xz": (bytes(5000), "corrupt or not a .xz file"),
    "zeros.parquet": (bytes(5000), "corrupt or not a Parquet file"),
    "binary.txt": (bytes(range(1, 256)), "not UTF-8 text .invalid byte 0x80"),
    "cut.txt.xz": (lzma.compress(GOOD)[:-9], "corrupt"),
    "flipped.txt.xz": (bytes(FLIPPED), "corrupt"),
    "line.jsonl": (b'{"text": "a"}\n\n{"text": "b"\n', "line 3 is not JSON"),
    "other.jsonl": (b'{"text": "a"}\n{"story": "b"}\n', 'line 2 has no "text" string'),
    "byte.jsonl": (b'{"text": "\xff"}\n', "line 1 is not JSON"),
    "deep.jsonl": (b'{"text": ' + b"[" * 100_000, "line 1 is not JSON"),
    "a.parquet.gz": (gzip.compress(b"x"), "compressed inside already"),
    "word.txt": (b"word", "too short to split"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files(tmp_path, name):
    data, says = BAD_FILES[name]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(RRError, match=says) as error:  # said before the tokenizer is asked for
        opened(f"file:{tmp_path / name}", "gpt2", cache=tmp_path / "cache")
    assert name in str(error.value)
    assert not [p for p in (tmp_path / "cache").glob("*/*") if p.is_dir()]


@pytest.mark.parametrize(
    ("corpus", "tokenizer", "says"),
    [
        ("fabels", "bpe:300", "unknown corpus 'fabels': did you mean fables"),
        ("file:/no/such.txt", "bpe:300", "no file or folder /no/such.txt"),
        ("no/such.txt", "bpe:300", "for a path write file:no/such.txt"),
        *(
            ("fables", f"bpe:{size}", "must be bpe:N .* from 257 .* to 1,000,000")
            for size in ("x", "256", "²", "1000001")
        ),
    ],
)
def test_bad_names(corpus, tokenizer, says):
    for ask in (identity, opened):
        with pytest.raises(RRError, match=says):
            ask(corpus, tokenizer)


# ---- the hub, without a network


def test_without_a_network_one_line_soon(monkeypatch, tmp_path):
    constants = pytest.importorskip("huggingface_hub.constants")
    pytest.importorskip("datasets")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setenv("no_proxy", "*")
    for corpus in ("tinystories", "org/name@v1"):
        with pytest.raises(RRError, match="cannot be reached .*fables and file:PATH work without"):
            opened(corpus, cache=tmp_path)
    with pytest.raises(RRError, match="gpt2 .*cannot be reached .*bpe:N and a folder"):
        opened("fables", "gpt2", cache=tmp_path)


HUB = {
    "tinystories": ("roneneldan/TinyStories", "f54c09fd23315a6f9c86f9dc80f725de7d8f9c64"),
    "fineweb-edu": ("HuggingFaceFW/fineweb-edu", "87f09149ef4734204d70ed1d046ddc9ca3f2b8f9"),
}


@pytest.mark.parametrize("name", HUB)
def test_the_hub_is_asked_once_and_for_the_pinned_revision(monkeypatch, tmp_path, name):
    """The real library reads a local folder in the hub's place; FineWeb-Edu is one file of it."""
    datasets = pytest.importorskip("datasets")
    for place, texts in (("000_00000", STORIES), ("001_00000", ["x"] * 100)):
        path = tmp_path / "hub" / "sample" / "10BT" / f"{place}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        written(path, texts)
    real, asked = datasets.load_dataset, []

    def load(repository, *, revision, split, data_files, **given):
        asked.append((repository, revision))
        assert (split == "train[:400000]") == (name == "tinystories") == (data_files is None)
        files = data_files or "sample/10BT/000_00000.parquet"
        split = split.replace("400000", str(len(STORIES)))
        where = {"split": split, "data_files": files, "cache_dir": str(tmp_path / "hf")}
        return real(str(tmp_path / "hub"), **where)

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr(data_hub, "require_hub", lambda *_: None)
    data_hub.hub_rows.cache_clear()
    tokens = opened(name, cache=tmp_path)
    data_hub.hub_rows.cache_clear()
    assert asked == [HUB[name]]
    assert tokens.name == name and documents_in(tokens) == len(STORIES)
    assert tokens.decode(tokens.train).startswith(STORIES[0] + EOT)
    assert ("_00000.parquet" in tokens.identity["corpus"]) == (name == "fineweb-edu")


def test_baselines_against_the_definition():
    """Counts as tables of NumPy, λ by a fine grid."""
    rng = np.random.default_rng(0)
    size = 12
    steps = rng.choice(5, p=[0.5, 0.2, 0.1, 0.1, 0.1], size=3000)
    ids = (np.cumsum(steps) % 10).astype(np.uint16)  # two tokens never occur in training
    ids[::23] = rng.integers(0, 10, size=len(ids[::23]))  # so that counting pairs is not all
    ids[2800:2810] = 10, 11, 10, 3, 11, 11, 2, 10, 1, 0

    def nats(train, before, scored, lam):
        single = (np.bincount(train, minlength=size) + 1) / (len(train) + size)
        pairs = np.zeros((size, size))
        np.add.at(pairs, (train[:-1], train[1:]), 1)
        context = pairs.sum(1, keepdims=True)
        after = np.where(context > 0, pairs / np.maximum(context, 1), single)
        mixed = lam * after + (1 - lam) * single
        return -np.log(mixed[np.append(before, scored[:-1]), scored]).mean()

    train, valid = ids[:2500], ids[2500:]
    grid = np.arange(2000) / 2000
    lam = min(grid, key=lambda one: nats(train[:2250], train[2249], train[2250:], one))
    result = baselines(SimpleNamespace(name="x", train=train, valid=valid, vocab_size=size))
    assert 0.5 < lam < 0.995 and result["bigram_lambda"] == pytest.approx(lam, abs=1e-3)
    for name, mix in (("unigram_nats", 0.0), ("bigram_nats", result["bigram_lambda"])):
        assert result[name] == pytest.approx(nats(train, valid[0], valid[1:], mix), rel=1e-12)
    assert result["tokens"] == 2500 and result["valid_tokens"] == 500
