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
    def start(source: str, name: str, *tags: str):
        return new_code_cell(source, id=name, metadata={"tags": list(tags)})

    begin = [
        start(bootstrap.source(), "bootstrap", *bootstrap.CELL_TAGS),
        start('tier = "smoke"  # smoke, colab or paper', "parameters", "parameters"),
        start('steps = parameters.check(tier, {"smoke": 2})', "derived"),
    ]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"rr": {"kind": "report"}, "kernelspec": kernel}
    made = new_notebook(cells=[*begin, *cells], metadata=metadata)
    code = [cell for cell in made.cells if cell.cell_type == "code"]
    for count, cell in enumerate(code, 1):
        cell.execution_count = count
    return made


@pytest.fixture
def found(tmp_path):
    def look(made) -> str:
        path = tmp_path / "01_made.ipynb"
        path.write_text(json.dumps(made))  # as it is: nbformat would mend what is to be found
        return "\n".join(problems(path))

    return look


def test_a_good_notebook_passes(found):
    prose = new_markdown_cell("Depths 4, 16 and 32; {glue:text}`gap:.3f` nats.", id="prose")
    assert found(notebook(prose, figure_cell())) == ""


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("x = 1;", "ends in `;`"),
        ('x = """\na;\n"""  # b;', ""),
        ("\n".join(f"x{i} = {i}" for i in range(16)), "16 lines; at most 15"),
        ("  ", "is empty"),
    ],
)
def test_bad_code(found, source, said):
    told = found(notebook(new_code_cell(source, id="code")))
    assert said in told and bool(told) == bool(said)


def test_a_cell_that_was_not_executed_and_stored_errors_and_warnings(found):
    made = notebook(new_code_cell("1 / 0", id="code"))
    made.cells[-1].execution_count = None
    made.cells[-1].outputs = [
        new_output("error", ename="ZeroDivisionError", evalue="division by zero", traceback=[]),
        new_output("stream", name="stderr", text="careful\n"),
    ]
    said = found(made)
    assert "'code': was not executed" in said
    assert "stores an error: ZeroDivisionError" in said
    assert "stores a warning: careful" in said


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"mystnb": {"image": DARK | {"alt": "short"}, "figure": NAMED}}, "alt has 5 characters"),
        ({"mystnb": {"image": {"alt": ALT}, "figure": NAMED}}, "dark-light"),
        ({"mystnb": {"image": DARK | {"alt": ALT}}}, "figure.caption"),
        ({"tags": []}, "needs exactly one of check-exact"),
        ({"tags": ["check-exact", "check-ordering"]}, "needs exactly one of"),
        ({"tags": ["check-exact", "chekc"]}, "unknown tag `chekc`"),
    ],
)
def test_bad_figures(found, metadata, said):
    assert said in found(notebook(figure_cell(**metadata)))


def test_two_figures_in_a_cell_without_an_assert(found):
    cell = figure_cell()
    cell.source, cell.outputs = "plt.show()", [IMAGE, IMAGE]
    said = found(notebook(cell))
    assert "no assert" in said and "shows 2 figures" in said


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("seeds = [0]  # seeds", "the first line is not `tier"),
        ('tier = "paper"  # the tier', 'stored tier is not "smoke"'),
        ('tier = "smoke"  # tier\nlr: float | None = 1e-3  # rate', "does not recognise `lr`"),
        ('tier = "smoke"  # tier\nkw = dict(a=1)  # more', "line 2 is not a plain literal"),
        ('tier = "smoke"  # tier\nsteps = 10', "`steps` has no comment"),
    ],
)
def test_bad_parameters(found, source, said):
    made = notebook()
    made.cells[1].source = source
    assert said in found(made)


def test_parameters_that_nothing_checks(found):
    made = notebook(new_code_cell("1 + 1", id="more"), new_code_cell("parameters.check(tier, {})"))
    assert "neither" not in found(made)
    made.cells[2].source = 'steps = {"smoke": 2}[tier]'
    said = found(made)
    assert "neither of the two code cells after the parameters calls" in said
    assert "'derived': `[tier]` meets a wrong tier" in said


def test_ids_are_used_once_and_the_bootstrap_cell_is_current(found):
    made = notebook(new_markdown_cell("a", id="same"), new_markdown_cell("b", id="other"))
    made.cells[-1]["id"] = "same"
    made.cells[0].source += "\nprint('mine')"
    said = found(made)
    assert "cell id 'same' is used twice" in said and "current bootstrap cell" in said


def test_a_chapter_keeps_to_the_template(found):
    made = notebook(new_markdown_cell("Short.", id="prose"))
    made.metadata["rr"] = {"kind": "chapter"}
    said = found(made)
    for part in ("2 code cells", "1 words", "rr-card", "0 exercises", "explorable", "lab"):
        assert part in said


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
    assert sorted(found for _, found, _ in typed_results(text)) == kinds


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
    heard = [said for _, _, said in worded(tmp_path / name)]
    assert len(heard) == (advice is not None) and all(said.startswith(advice) for said in heard)


def test_wordings_of_a_notebook_are_those_of_its_markdown(tmp_path):
    cells = [new_markdown_cell("Two nats a token."), new_code_cell("x = 'nats a token'")]
    path = tmp_path / "a.ipynb"
    nbformat.write(new_notebook(cells=cells), path)
    assert [(place, said) for place, said, _ in worded(path)] == [(0, "nats a token")]
