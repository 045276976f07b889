"""What a page folds: the plumbing, by rule; the idea stays open."""

import folding
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from nbkit import is_report, read, sources, tags

IDEA = "def gate(h, u, W):\n    return torch.sigmoid(torch.cat((rms(h), rms(u)), -1) @ W.T)"
START = new_code_cell("import torch\nimport rr", metadata={"tags": []})


@pytest.mark.parametrize(
    ("source", "given", "button"),
    [
        (IDEA, [], None),
        ("x = 1\nassert x == 1", [], None),
        ("tier = 'smoke'  # the tier", ["parameters"], "parameters"),
        ("explore.field()", ["explorable"], "code of the explorable"),
        ('answer = None\nprint(check("ex", answer))', [], "your answer, and its check"),
        ("x = 1\nglue('x', x)", [], "code, with the numbers for the text"),
        ("\n".join(f"x{i} = {i}" for i in range(13)), [], "code"),
        ("\n\n".join(f"x{i} = {i}" for i in range(12)), [], None),
        ("x = " + " + ".join(["1"] * 30), [], "code"),
        (IDEA, ["hide-input"], "code of gate"),
    ],
)
def test_what_a_cell_is(source, given, button):
    cell = new_code_cell(source, metadata={"tags": given})
    made = new_notebook(cells=[START, new_code_cell("y = 1"), cell])
    assert [what for _, what in folding.folds(made)] == ["imports and set-up", None, button]
    folding.fold(made)
    assert [tags(one) for one in made.cells[:2]] == [["hide-input"], []]
    assert made.cells[0].metadata["mystnb"]["code_prompt_show"] == "Show imports and set-up"


def test_cells_of_a_solution_are_folded_with_it():
    solution = [
        new_markdown_cell(":::{solution-start} ex\n:::"),
        new_code_cell(IDEA),
        new_markdown_cell(":::{solution-end}\n:::"),
    ]
    after = new_code_cell("x = 1")
    assert folding.open_cells(new_notebook(cells=[START, *solution, after])) == [after]


@pytest.mark.parametrize("path", sources(), ids=lambda path: path.stem)
def test_a_chapter_shows_little_code_and_its_idea(path):
    notebook = read(path)
    shown = folding.open_cells(notebook)
    assert len(shown) <= 10
    for cell in shown:
        lines = [line for line in cell.source.splitlines() if line.strip()]
        assert len(lines) <= 12 and max(map(len, lines)) <= 82, cell.id
    assert is_report(notebook) or any(cell.id.startswith("by-hand") for cell in shown)
