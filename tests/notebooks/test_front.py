"""What the front page takes from chapters and bibliography."""

import pytest
from front import first_version, minutes_to_read, named
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from nbkit import read, sources

from rr.errors import RRError


def chapter():
    cells = [
        new_markdown_cell("(ch-made)=\n# A made chapter\n\nText."),
        new_markdown_cell("- **Time** 25 minutes to read; to run: 1 minute (CPU)."),
        new_code_cell(),
    ]
    return new_notebook(cells=cells)


def test_a_chapter_says_its_title_and_its_minutes():
    made = chapter()
    assert named(made) == ("ch-made", "A made chapter") and minutes_to_read(made) == 25
    assert named(read(sources("00")[0])) == ("ch-transformer", "A transformer in twenty minutes")
    assert minutes_to_read(new_notebook(cells=made.cells[:1])) is None
    with pytest.raises(RRError, match="a chapter begins with"):
        named(new_notebook(cells=made.cells[1:]))


def test_a_paper_is_as_old_as_its_number_on_arxiv():
    assert first_version("resnet2016") == (2015, 12)
    assert first_version("rezero2020") == (2020, 3)
    for key, said in (("holm1979", "no arXiv number"), ("resnet2061", "resnet2016")):
        with pytest.raises(RRError, match=said):
            first_version(key)
