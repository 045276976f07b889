"""*Your run*: the book's numbers and a reader's, side by side, under any parameters."""

import json
import math

import pytest
import torch
from IPython.testing.globalipapp import start_ipython

from rr.errors import RRError
from rrbook import yours
from rrbook.yours import Book, block, written

PARAMETERS = {"tier": "smoke", "width": 64, "seeds": [0, 1]}


def held(**rows) -> Book:
    """A book's run whose experiment `05-train` gave these rows."""
    values = {f"05-train: {name}": repr(json.dumps(value)) for name, value in rows.items()}
    return Book(PARAMETERS, values)


BOOK = held(loss=5.0, gap=[-0.2, -0.21])


def shown(rows=None, judged=None, **parameters) -> str:
    given = {name: (value, False) for name, value in (rows or {}).items()}
    given |= {name: (value, True) for name, value in (judged or {}).items()}
    return block("05-train", given, BOOK, {**PARAMETERS, **parameters, "x": 1})


def test_other_parameters_stand_in_the_head_and_both_numbers_in_a_row():
    text = shown({"loss": 6.0}, {"gap": [0.1, 0.3]}, width=32, seeds=[3])
    head, _, title, _, loss, gap, _, brackets = text.splitlines()
    assert head == (
        "**Your run.** `width = 32` (the book: `64`), `seeds = [3]` (the book: `[0, 1]`)"
    )
    assert title == "| quantity | the book | yours |"
    assert brackets.startswith("In brackets: 95 % t intervals")
    assert loss == "| loss | 5 | 6 |"
    assert gap == (
        "| gap | −0.205 (−0.2685 to −0.1415): below | +0.2 (−1.071 to +1.471): not told apart |"
    )


def test_with_the_books_parameters_one_line_says_whether_the_numbers_agree():
    agreeing = "**Your run.** With the book's parameters, this machine's numbers agree."
    assert shown({"loss": 5.1}, {"gap": [-0.2, -0.21]}) == agreeing
    apart = shown({"loss": 5.1}, {"gap": [-0.2, 0.21]})
    assert "1 of 2 numbers differ on this machine" in apart and "| loss | 5 | 5.1 |" in apart


def test_what_the_book_did_not_record_is_no_number():
    assert "| other | not recorded | 1 |" in shown({"other": 1}, width=2)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([-1.0, -1.1, -0.9], "−1 (−1.248 to −0.7516): below"),
        ([1.0, 1.1, 0.9], "+1 (+0.7516 to +1.248): above"),
        ([1.0, -1.1, 0.2], "+0.03333 (−2.6 to +2.666): not told apart"),
        ([0.5], "+0.5 (one seed: no interval)"),
        ([0.0, 0.0], "+0 in each of 2 seeds"),
        ([0.5, math.nan], "not finite in 1 of 2 seeds"),
        ([0.5, math.inf], "not finite in 1 of 2 seeds"),
        ([], "no seeds"),
    ],
)
def test_a_difference_is_judged_by_its_interval_alone(value, text):
    assert written(value, judged=True) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1e-300, "1e−300"),
        (math.inf, "∞"),
        (-math.inf, "−∞"),
        (math.nan, "undefined"),
        (None, "undefined"),
        (12345, "12,345"),
        ("a|b", "a\\|b"),
    ],
)
def test_what_underflows_overflows_or_is_undefined_is_shown_as_what_it_is(value, text):
    assert written(value) == text


def test_in_a_kernel_it_stores_the_rows_and_reads_the_kernels_parameters(monkeypatch, capsys):
    shell = start_ipython() or yours.get_ipython()
    monkeypatch.delenv(yours.EDITION, raising=False)
    monkeypatch.setattr(yours, "of_chapter", {"05": BOOK}.get)
    shell.user_ns.update(PARAMETERS, width=16)
    said = []
    monkeypatch.setattr(yours, "glue", lambda name, value, display: said.append((name, value)))
    monkeypatch.setattr(yours.IPython.display, "display", lambda each: said.append(each.data))
    rows = {"loss": torch.tensor(2.5)}, {"gap": torch.tensor([1.0, 2.0])}
    yours.your_run("05-train", *rows)
    assert said[:2] == [("05-train: loss", "2.5"), ("05-train: gap", "[1.0, 2.0]")]
    assert "`width = 16`" in said[2] and "| loss | 5 | 2.5 |" in said[2]
    monkeypatch.setenv(yours.EDITION, "1")  # where the book is built the page shows nothing
    said.clear()
    yours.your_run("05-train", *rows)
    assert len(said) == 2


def test_a_corrupt_file_of_values_is_named(tmp_path):
    path = tmp_path / "05_x.json"
    for text in ("", "[]", '{"values": {}}'):
        path.write_text(text)
        with pytest.raises(RRError, match=r"05_x\.json is corrupt.*store\.py 05"):
            yours.read(path)
