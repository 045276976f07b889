"""Files that are no texts, or change while they are read, as people reported; tests/reports.md."""

import gzip
import json
import os
import shutil
import time
from pathlib import Path

import pytest

from rr.data import open_corpus, tokenizer
from rr.data.corpus import identity
from rr.data.files import EOT, read_all
from rr.errors import RRError

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 1932458\n"
STAND_INS = {
    "git lfs pull": LFS,
    "git annex get": b"/annex/objects/SHA256E-s1932458--4d7a.txt\n",
    "AppleDouble": b"\0\x05\x16\x07\0\x02\0\0Mac OS X        ",
    "UTF-16": "A fox.\r\n".encode("utf-16"),
}


@pytest.mark.parametrize("name", ["train-1.txt", "train-1.jsonl", "train-1.txt.gz"])
@pytest.mark.parametrize("words", STAND_INS)
def test_what_stands_for_a_text_is_named(words, name, tmp_path):
    for other in ("train-0.txt", "valid.txt"):
        (tmp_path / other).write_text(f"{other}: a fox went to the river. " * 60)
    (tmp_path / name).write_bytes(STAND_INS[words])
    with pytest.raises(RRError, match=words) as error:
        open_corpus(f"file:{tmp_path}", "bpe:257", cache=tmp_path / "cache", log=print)
    assert name in str(error.value)
    assert not list((tmp_path / "cache").rglob("card.json"))


def same_twice(folder: Path) -> None:
    (folder / "train (1).txt").write_bytes((folder / "train.txt").read_bytes())


def compressed_too(folder: Path) -> None:
    (folder / "train.txt.gz").write_bytes(gzip.compress(b"an older state of it"))


def held_out_too(folder: Path) -> None:
    (folder / "valid.txt").write_bytes((folder / "train.txt").read_bytes())


def dangling(folder: Path) -> None:
    (folder / "train-2.txt").symlink_to(folder / "blobs" / "4d7a")


def folder_inside(folder: Path) -> None:
    (folder / "train").mkdir()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (same_twice, "train \\(1\\).txt and train.txt are the same bytes"),
        (compressed_too, "train.txt and train.txt.gz are one text, compressed and not"),
        (held_out_too, "train.txt and valid.txt are the same bytes"),
        (dangling, "cannot read .*train-2.txt: No such file"),
        (folder_inside, "train is a folder"),
    ],
)
def test_a_folder_whose_texts_are_there_twice_or_not_at_all(change, words, tmp_path):
    for name in ("train.txt", "valid.txt"):
        (tmp_path / name).write_text(f"{name}: a fox.")
    assert identity(f"file:{tmp_path}", "bpe:257")
    change(tmp_path)
    with pytest.raises(RRError, match=words):
        identity(f"file:{tmp_path}", "bpe:257")


def test_names_count_alike_where_file_names_have_case_and_where_not(tmp_path):
    for name in ("Train-1.TXT", "train-0.txt", "VALID.txt"):
        (tmp_path / name).write_text(f"{name} is a text about a fox.\n" * 40)
    tokens = open_corpus(f"file:{tmp_path}", "bpe:270", cache=tmp_path / "cache", log=print)
    text = tokens.decode(tokens.train)
    assert text.startswith("Train-1") and "train-0" in text and "VALID" not in text


def test_a_file_rewritten_within_a_tick_of_the_clock_has_another_hash(tmp_path):
    """Same size, same time of change: what one process remembers of it would be the old bytes."""
    path, hashes = tmp_path / "text.txt", set()
    now = time.time_ns()
    for word in ("fox", "cat"):
        path.write_text(f"A {word} saw the sea.")
        os.utime(path, ns=(now, now))
        hashes.add(identity(f"file:{path}", "bpe:257")["corpus"])
    assert len(hashes) == 2


def test_macos_sidecars_in_a_folder_are_left_out(tmp_path):
    """Their names begin with `._`, and those of texts with `train` and `valid`."""
    for name in ("train.txt", "valid.txt"):
        (tmp_path / name).write_text(f"{name}: a fox.")
    known = identity(f"file:{tmp_path}", "bpe:257")
    for name in ("train.txt", "valid.txt"):
        (tmp_path / f"._{name}").write_bytes(STAND_INS["AppleDouble"])
    assert identity(f"file:{tmp_path}", "bpe:257") == known


def test_rows_as_windows_and_pandas_write_them(tmp_path):
    """A byte order mark before JSON Lines; strings of a category in Parquet."""
    pyarrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    texts = [f"A fox saw {i} stones." for i in range(4)]
    lines = "".join(json.dumps({"text": text}) + "\r\n" for text in texts)
    (tmp_path / "a.jsonl").write_text(lines, encoding="utf-8-sig", newline="")
    column = pyarrow.array(texts).dictionary_encode()
    parquet.write_table(pyarrow.table({"text": column}), tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.parquet"):
        assert list(read_all([tmp_path / name], {})) == texts


def test_a_user_without_a_home_folder_is_told_what_to_set(monkeypatch):
    """As the arbitrary user of a container: no HOME, and no line in /etc/passwd."""
    import pwd

    def unknown(uid):
        raise KeyError(uid)

    for name in ("HOME", "RR_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(RRError, match="set RR_CACHE"):
        open_corpus("fables", log=print)


def test_a_pipe_is_named_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "text.txt")
    with pytest.raises(RRError, match="is a pipe or a device, which can be read only once"):
        identity(f"file:{tmp_path / 'text.txt'}", "bpe:257")


STORY = "".join(f"The fox number {i} went to the river.\n{EOT}\n" for i in range(400))


@pytest.mark.parametrize(
    ("when", "how", "inside"),
    [
        ("trained", "grows", "file"),
        ("(train)", "same size", "file"),
        ("(valid)", "and back", "file"),
        ("(train)", "grows", "folder"),
        ("(valid)", "and back", "folder"),
    ],
)
def test_a_text_that_changes_while_it_is_read_makes_no_entry(when, how, inside, tmp_path):
    """Neither of tokens nor of a tokenizer: it would be found under the hash of other bytes."""
    path = tmp_path / "text" / "train.txt"
    path.parent.mkdir()
    path.write_text(STORY)
    (path.parent / "valid.txt").write_text("Another fox, held out.\n" * 9)
    corpus = f"file:{path if inside == 'file' else path.parent}"
    changed = []

    def log(line: str) -> None:
        if when in line and not changed:
            changed.append(line)
            path.write_text(STORY * 2 if how == "grows" else STORY.replace("fox", "cat"))
            if how == "and back":
                path.write_text(STORY)

    with pytest.raises(RRError, match=r"train\.txt changed while it was read"):
        open_corpus(corpus, "bpe:270", cache=tmp_path / "kept", log=log)
    assert changed and not list((tmp_path / "kept" / "tokens").glob("*/card.json"))
    path.write_text(STORY)
    kept, fresh = (
        open_corpus(corpus, "bpe:270", cache=tmp_path / name, log=lambda line: None)
        for name in ("kept", "fresh")
    )
    assert kept.sha256 == fresh.sha256


def test_a_tokenizer_is_not_kept_for_a_text_that_changed_while_it_was_trained(
    tmp_path, monkeypatch
):
    path = tmp_path / "train.txt"
    path.write_text(STORY)
    real = tokenizer.text_pieces

    def pieces(text: str):
        path.write_text(STORY * 2)
        return real(text)

    monkeypatch.setattr(tokenizer, "text_pieces", pieces)
    with pytest.raises(RRError, match="changed while it was read"):
        open_corpus(f"file:{path}", "bpe:270", cache=tmp_path / "cache", log=print)
    assert not list((tmp_path / "cache").rglob("card.json"))


def test_the_files_of_a_tokenizer_that_change_make_no_entry(tmp_path):
    path, files = tmp_path / "text.txt", tmp_path / "bpe"
    path.write_text(STORY)
    first = open_corpus(f"file:{path}", "bpe:270", cache=tmp_path / "c", log=print)
    shutil.copytree(first.vocabulary.folder, files)

    def log(line: str) -> None:
        (files / "merges.txt").write_text("#version: 0.2\n")

    with pytest.raises(RRError, match="tokenizer .* changed while it was read"):
        open_corpus(f"file:{path}", str(files), cache=tmp_path / "d", log=log)
    assert not list((tmp_path / "d").rglob("card.json"))
