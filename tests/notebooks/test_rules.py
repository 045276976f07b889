"""The linter finds what it is for: a good notebook passes, and each breach is named."""

import json

import bootstrap
import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from prose import reference_links, typed_results, worded, words
from rules import problems

ALT = "A line that falls from one to zero as depth grows."
IMAGE = new_output("display_data", data={"image/png": "aGk=", "text/plain": "<Figure>"})


DARK, NAMED = {"classes": "dark-light"}, {"caption": "A line.", "name": "fig-line"}


def figure_cell(**metadata):
    shown = {"image": DARK | {"alt": ALT}, "figure": NAMED}
    given = {"tags": ["check-exact"], "mystnb": shown}
    cell = new_code_cell("assert 1 + 1 == 2\nplt.show()", id="figure", metadata=given | metadata)
    cell.outputs = [IMAGE]
    return cell


def notebook(*cells):
    begin = [
        (bootstrap.source(), "bootstrap", [*bootstrap.CELL_TAGS]),
        ('tier = "smoke"  # smoke, colab or paper', "parameters", ["parameters"]),
        ('steps = parameters.check(tier, {"smoke": 2})', "derived", []),
    ]
    first = [new_code_cell(text, id=name, metadata={"tags": tags}) for text, name, tags in begin]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"rr": {"kind": "report"}, "kernelspec": kernel}
    made = new_notebook(cells=[*first, *cells], metadata=metadata)
    code = [cell for cell in made.cells if cell.cell_type == "code"]
    for count, cell in enumerate(code, 1):
        cell.execution_count = count
    return made


@pytest.fixture
def problems_of(tmp_path):
    def look(made) -> str:
        path = tmp_path / "01_made.ipynb"
        path.write_text(json.dumps(made))  # as it is: nbformat would mend what is to be found
        return "\n".join(problems(path))

    return look


def test_a_good_notebook_passes(problems_of):
    prose = new_markdown_cell("Depths 4, 16 and 32; {glue:text}`gap:.3f` nats.", id="prose")
    assert problems_of(notebook(prose, figure_cell())) == ""


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = 1;", "ends in `;`"),
        ('x = """\na;\n"""  # b;', ""),
        ("\n".join(f"x{i} = {i}" for i in range(16)), "16 lines; at most 15"),
        ("  ", "is empty"),
    ],
)
def test_bad_code(problems_of, source, expected):
    named = problems_of(notebook(new_code_cell(source, id="code")))
    assert expected in named and bool(named) == bool(expected)


def test_a_cell_that_was_not_executed_and_stored_errors_and_warnings(problems_of):
    made = notebook(new_code_cell("1 / 0", id="code"))
    made.cells[-1].execution_count = None
    made.cells[-1].outputs = [
        new_output("error", ename="ZeroDivisionError", evalue="division by zero", traceback=[]),
        new_output("stream", name="stderr", text="careful\n"),
    ]
    named = problems_of(made)
    assert "'code': was not executed" in named
    assert "stores an error: ZeroDivisionError" in named
    assert "stores a warning: careful" in named


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"mystnb": {"image": DARK | {"alt": "short"}, "figure": NAMED}}, "alt has 5 characters"),
        ({"mystnb": {"image": {"alt": ALT}, "figure": NAMED}}, "dark-light"),
        ({"mystnb": {"image": DARK | {"alt": ALT}}}, "figure.caption"),
        ({"tags": []}, "needs exactly one of check-exact"),
        ({"tags": ["check-exact", "check-ordering"]}, "needs exactly one of"),
        ({"tags": ["check-exact", "chekc"]}, "unknown tag `chekc`"),
    ],
)
def test_bad_figures(problems_of, metadata, expected):
    assert expected in problems_of(notebook(figure_cell(**metadata)))


def test_two_figures_in_a_cell_without_an_assert(problems_of):
    cell = figure_cell()
    cell.source, cell.outputs = "plt.show()", [IMAGE, IMAGE]
    named = problems_of(notebook(cell))
    assert "no assert" in named and "shows 2 figures" in named


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("seeds = [0]  # seeds", "the first line is not `tier"),
        ('tier = "paper"  # the tier', 'stored tier is not "smoke"'),
        ('tier = "smoke"  # tier\nlr: float | None = 1e-3  # rate', "does not recognise `lr`"),
        ('tier = "smoke"  # tier\nkw = dict(a=1)  # more', "line 2 is not a plain literal"),
        ('tier = "smoke"  # tier\nsteps = 10', "`steps` has no comment"),
    ],
)
def test_bad_parameters(problems_of, source, expected):
    made = notebook()
    made.cells[1].source = source
    assert expected in problems_of(made)


def test_parameters_that_nothing_checks(problems_of):
    made = notebook(new_code_cell("1 + 1", id="more"), new_code_cell("parameters.check(tier, {})"))
    assert "neither" not in problems_of(made)
    made.cells[2].source = 'steps = {"smoke": 2}[tier]'
    named = problems_of(made)
    assert "neither of the two code cells after the parameters calls" in named
    assert "'derived': `[tier]` meets a wrong tier" in named


def test_ids_are_used_once_and_the_bootstrap_cell_is_current(problems_of):
    made = notebook(new_markdown_cell("a", id="same"), new_markdown_cell("b", id="other"))
    made.cells[-1]["id"] = "same"
    made.cells[0].source += "\nprint('mine')"
    named = problems_of(made)
    assert "cell id 'same' is used twice" in named and "current bootstrap cell" in named


def test_a_chapter_keeps_to_the_template(problems_of):
    made = notebook(new_markdown_cell("Short.", id="prose"))
    made.metadata["rr"] = {"kind": "chapter"}
    named = problems_of(made)
    for part in ("2 code cells", "1 words", "rr-card", "0 exercises", "explorable", "lab"):
        assert part in named


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("The loss is 2.91.", ["a decimal"]),
        ("It costs 14 % of all parameters, ten percent.", ["a percentage"] * 2),
        ("It is 3 times as large, 10× as large, a 4-fold change.", ["a factor"] * 3),
        ("It fell to 1e-6, to 10⁻⁶.", ["a power of ten"] * 2),
        ("A gap of 3 nats.", ["a loss"]),
        (":::{admonition} Takeaways\n:class: rr-takeaways\nIt is 2.91.\n:::", ["a decimal"]),
        ("| arm | loss |\n|---|---|\n| review | 2.91 |", ["a decimal"]),
        ("Depths 4, 16 and 32, two seeds, width 64; windows of 64 × 256 tokens; section 2.", []),
        ("The loss is {glue:text}`loss:.2f`.", []),
        ("The coefficient is $0.5$, and $$x = 0.25$$ {eq}`eq-x`.", []),
        ("The paper says {quoted}`about 7 % <residual2026>`.", []),
        ("With `lr = 2.5e-4` and ``b = 1.5``.", []),
        ("See [the record](../data/v1.2/file.csv) and <https://example.org/1.5>.", []),
        ("```python\nx = 2.91\n```\n<!-- 2.91 -->", []),
        ("\\begin{align}x &= 0.5\\end{align}", []),
    ],
)
def test_typed_results_are_found_and_nothing_else(text, kinds):
    assert sorted(kind for _, kind, _ in typed_results(text)) == kinds


def test_links_that_sphinx_would_not_check_and_the_lines_of_typed_results():
    links = reference_links("See [the gate][gate], [one][], [good](gate.ipynb); `x[0][1]`.")
    assert links == ["[the gate][gate]", "[one][]"]
    assert [line for line, _, _ in typed_results("```\n1.5\n```\n\nIt is 2.5.\n")] == [5]


def test_words_counts_what_is_read():
    text = "Two words $a b c$ `code here`\n\n```python\nnot this\n```\n"
    assert words(text) == 2
    assert words("One.\n:::{solution} ex\n:class: dropdown\nClosed words.\n:::\n") == 1
    assert words(":::{dropdown} Open me\nClosed words.\n:::\nTwo words.\n::::\n") == 2


@pytest.mark.parametrize(
    "name, text, advice",
    [
        ("a.md", "It loses 3 nats a token.", "say per: nats per token"),
        ("a.md", "From (-3 to 4).", "write a minus: −"),
        ("a.md", "A quotient near one.", "say ratio"),
        ("a.py", 'raise E(f"{x}: a number is accepted")\n', "say what is wrong"),
        ("a.py", '"""RunFailed where it is damaged."""\n', "say is corrupt"),
        ("a.md", "Lower by −3 nats per token; 2-3 rules, `-1`, $-2$, and is accepted.", None),
        ("a.py", 'AXIS = "loss (nats per token)"; at = "-1"\n', None),
    ],
)
def test_wordings_that_the_book_does_not_use(tmp_path, name, text, advice):
    (tmp_path / name).write_text(text, encoding="utf-8")
    given = [one for _, _, one in worded(tmp_path / name)]
    assert len(given) == (advice is not None) and all(one.startswith(advice) for one in given)


def test_wordings_of_a_notebook_are_those_of_its_markdown(tmp_path):
    cells = [new_markdown_cell("Two nats a token."), new_code_cell("x = 'nats a token'")]
    path = tmp_path / "a.ipynb"
    nbformat.write(new_notebook(cells=cells), path)
    assert [(place, text) for place, text, _ in worded(path)] == [(0, "nats a token")]
