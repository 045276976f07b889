"""The plain edition: no MyST is left, and a chapter's text holds the numbers of the book's run."""

import re
from pathlib import Path

import nbformat
import pytest
from bs4 import BeautifulSoup
from click import ClickException
from markdown_it.renderer import RendererHTML
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from rr.errors import RRError
from rrbook import explore, glue, plain, yours
from rrbook.markdown import parser
from rrstudy.sweep.notebook import complete

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
MYST = re.compile(r"myst_|colon_fence|math_\w+_label|substitution|footnote|dl_open|span_open")
HOME = 'home = "https://github.com/Someone/fork"\nversion = "v9"'


def prose(notebook) -> str:
    return "\n\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")


def cell(notebook, name: str):
    return next(one for one in notebook.cells if one.id == name)


def stored(name: str, text: str):
    """What a cell stores that glued a value whose text/plain is `text`."""
    metadata = {"scrapbook": {"name": name, "mime_prefix": glue.PREFIX}}
    return new_output("display_data", {glue.TEXT: text}, metadata=metadata)


def book(*cells, **metadata):
    """A notebook of Markdown (text) and of code that glued values (a dictionary)."""
    made = []
    for one in cells:
        if isinstance(one, str):
            made.append(new_markdown_cell(one))
        elif "cell_type" not in one:
            outputs = [stored(name, text) for name, text in one.items()]
            made.append(new_code_cell("1", outputs=outputs, execution_count=1))
        else:
            made.append(one)
    return new_notebook(cells=made, metadata=metadata)


def converted(text: str, home: str = 'home = ""', **values: str) -> str:
    """A piece of Markdown in the plain edition of a chapter 6 that glued `values`."""
    first = new_code_cell(home, metadata={"tags": ["bootstrap"]})
    made = plain.convert(book("# T", first, values, text), "06_other")
    return made.cells[-1 if "## References" not in made.cells[-1].source else -2].source


# ---- the whole book ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def judge():
    """MyST's own parser, with the extensions that the page is built with."""
    config = pytest.importorskip("myst_parser.config.main")
    create = pytest.importorskip("myst_parser.parsers.mdit").create_md_parser
    extensions = {"amsmath", "attrs_inline", "colon_fence", "deflist", "dollarmath", "substitution"}
    return create(config.MdParserConfig(enable_extensions=extensions), RendererHTML)


def markup(tokens) -> list[str]:
    """What is MyST's among the tokens of a text."""
    mysts = []
    for token in tokens:
        directive = token.type == "fence" and token.info.startswith("{")
        if MYST.match(token.type) or directive:
            mysts.append(f"{token.type}: {token.info or token.content[:40]}")
        mysts += markup(token.children or ())
    return mysts


def kinds_of(text: str) -> list[str]:
    """Paragraphs, lists and tables of a text, as they follow each other."""
    tokens = parser().parse(text)
    return [one.type.replace("_label", "") for one in tokens if one.type != "myst_target"]


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_becomes_standard_markdown_around_the_same_code(path, judge):
    """No markup of MyST is left, and no number makes a list of a sentence."""
    notebook = nbformat.read(path, as_version=4)
    made = plain.convert(notebook, path.stem)
    nbformat.validate(made)
    for one in made.cells:
        if one.cell_type == "markdown":
            assert not markup(judge.parse(one.source)), one.id
    assert "not yet run" not in prose(made)
    for one in notebook.cells:
        if one.cell_type == "code":
            assert cell(made, one.id).source == one.source
        elif ":::" not in one.source:
            assert kinds_of(one.source) == kinds_of(cell(made, one.id).source), one.id
    assert not any(glue.TEXT in o.get("data", {}) for c in made.cells for o in c.get("outputs", []))


def unrun(name: str):
    """A chapter as it is before anybody executed it."""
    (path,) = (ROOT / "notebooks").glob(f"{name}_*.ipynb")
    notebook = nbformat.read(path, as_version=4)
    for one in notebook.cells:
        if one.cell_type == "code":
            one.outputs, one.execution_count = [], None
    return notebook, path.stem


def test_a_report_that_was_not_run_says_so_and_a_chapter_has_the_books_numbers():
    assert "not yet run" in prose(plain.convert(*unrun("09")))
    assert "not yet run" not in prose(plain.convert(*unrun("06")))


def test_every_glued_value_reads_as_on_the_page():
    """MyST-NB's own function, over every number that a sentence of the book quotes."""
    variables = pytest.importorskip("myst_nb.core.variables")
    seen = 0
    for path in CHAPTERS:
        notebook = nbformat.read(path, as_version=4)
        values = plain.glued(notebook)
        for name, spec in re.findall(r"\{glue:text\}`([^`:]+):?([^`:]*)`", prose(notebook)):
            seen += 1
            shown = variables.format_plain_text(values[name], spec or "s")
            assert glue.formatted(values[name], spec) == shown
    assert seen > 500


# ---- one construct at a time ---------------------------------------------------------------------

SITE = "https://someone.github.io/fork"
PAPER = "https://arxiv.org/abs/2606.31859"


@pytest.mark.parametrize(
    ("myst", "standard"),
    [
        ("It grew\n{glue:text}`a:.0f`. So.", "It grew 1. So."),  # never a list
        ("`{glue:text}` is code", "`{glue:text}` is code"),
        ("| a |\n|---|\n| {glue:text}`a:.2f` |", "| a |\n|---|\n| 1.23 |"),
        ("- one\n- {glue:text}`a:+.1f`", "- one\n- +1.2"),
        ("{glue:text}`down:.1f`, {glue:text}`tiny:.0e`", "−0.5, 2\u00a0×\u00a010⁻¹⁰"),
        ("{glue:text}`word`", r"two \* three"),
        (
            "{cite:t}`residual2026` and {cite:p}`residual2026`",
            f"[Kramer (2026)]({PAPER}) and ([Kramer, 2026]({PAPER}))",
        ),
        ("{quoted}`about 7 % <residual2026>`", f"about 7 % ([Kramer, 2026]({PAPER}))"),
        ("Some {term}`arms <arm>`, one {term}`block`", "Some arms, one block"),
        ("{preset}`64 sublayers <stream-share sublayers=64>`", "64 sublayers"),
        ("(a-label)=\n## Title", "## Title"),
        ("[words](01_residual_stream.ipynb), [more](../book/notation.md)", "words, more"),
        ("{download}`f.sh <../book/ready/f.sh>`", "`f.sh`"),
        (
            ":::{admonition} What *to* see\n:class: rr-see\nOne\n\ntwo.\n:::\nAfter.",
            "> **What *to* see**\n>\n> One\n>\n> two.\n\nAfter.",
        ),
        (
            "::::{admonition} Tip\n:::{admonition} Warning\nA\n:::\n::::",
            "> **Tip**\n>\n> > **Warning**\n> >\n> > A",
        ),
        (
            ":::{dropdown} How `sure`?\nBody.\n:::",
            "<details>\n<summary>How <code>sure</code>?</summary>\n\nBody.\n\n</details>",
        ),
        ("$$\nx\n$$ (eq-own)\n\nSee {eq}`eq-own`.", "$$\nx \\tag{6.1}\n$$\n\nSee (6.1)."),
        (
            ":::{admonition} Note\n$a\n\\cdot b$ and\n\n$$\nx\ny\n$$\n:::",
            "> **Note**\n>\n> $a \\cdot b$ and\n>\n> $$x y$$",
        ),
        ("```python\n{glue:text}`a`\n:::\n```", "```python\n{glue:text}`a`\n:::\n```"),
    ],
)
def test_a_construct_becomes_standard_markdown(myst, standard):
    assert converted(myst, a="1.234", word="'two * three'", down="-0.5", tiny="2e-10") == standard


@pytest.mark.parametrize(
    ("myst", "standard"),
    [
        ("[w](../book/notation.md#x)", f"[w]({SITE}/book/notation.html#x)"),
        (
            "{term}`residual stream`",
            f"[residual stream]({SITE}/book/glossary.html#term-residual-stream)",
        ),
        (
            "{numref}`fig-loop-sizes`",
            f"[Figure 6.1]({SITE}/notebooks/06_looped_transformers.html#fig-loop-sizes)",
        ),
        (
            "{download}`f.sh <../book/ready/f.sh>`",
            "[`f.sh`](https://github.com/Someone/fork/blob/v9/book/ready/f.sh)",
        ),
    ],
)
def test_with_a_home_references_lead_to_its_pages(myst, standard):
    assert converted(myst, home=HOME) == standard
    assert plain.site("https://gitlab.com/group/fork") == "https://group.gitlab.io/fork"
    assert plain.site("https://example.org/a/b") is plain.site(None) is None


def test_a_figure_gets_its_number_its_caption_and_its_alternative_text():
    caption = {"name": "fig-a", "caption": "Ends at {glue:text}`a:.1f`."}
    shown = {"mystnb": {"figure": caption, "image": {"alt": "A line."}}, "tags": ["hide-input"]}
    image = new_output("display_data", {"image/png": "AAAA", "image/svg+xml": "<svg></svg>"})
    code = new_code_cell("draw()", outputs=[image], metadata=shown)
    made = plain.convert(book("# T", {"a": "1.234"}, code, "See {numref}`fig-a`."), "06_other")
    figure, caption, text = made.cells[-3:]
    assert figure.metadata["jupyter"]["source_hidden"] and figure.metadata.cellView == "form"
    assert figure.outputs[0].metadata["image/png"]["alt"] == "A line."
    assert [*figure.outputs[0].data] == ["image/png"]  # on its card, on any ground
    assert caption.source.startswith("**Figure 6.1.** Ends at 1.2.")
    assert text.source == "See Figure 6.1."


def test_a_stored_explorable_says_what_to_do_where_its_script_and_style_are_taken_away():
    html = explore.stream_share().html.replace("<noscript>", "<noscript><svg>letters</svg>")
    data = {"text/html": html, "text/plain": "<stream-share>"}
    code = new_code_cell("explore.stream_share()", outputs=[new_output("display_data", data)])
    made = plain.convert(book("# T", {}, code), "06_other")
    soup = BeautifulSoup(made.cells[-1].outputs[0].data["text/html"], "html.parser")
    assert soup.select_one("figure > .rr-still").text.startswith("Run this cell")
    assert ".rr-still { display: none }" in soup.select("figure > style")[-1].text
    assert "letters" not in soup.text and soup.noscript.p.text


def test_a_solution_over_several_cells_is_a_fold_in_each_and_its_code_is_closed():
    start = "Before.\n\n:::{solution-start} ex-a\n:class: dropdown\n:::\nSo."
    notebook = book(
        "# T\n\n:::{exercise} Halve it · ★ · 5 minutes\n:label: ex-a\nHow?\n:::",
        *(start, {}, "And so.", {}, ":::{solution-end}\n:::", {}),
    )
    made = plain.convert(notebook, "06_other")
    texts = [one.source for one in made.cells]
    assert "> **Exercise 6.1.** Halve it · ★ · 5 minutes\n>\n> How?" in texts[0]
    summary = "<details>\n<summary>Solution of exercise 6.1"
    assert texts[1] == f"Before.\n\n{summary}</summary>\n\nSo.\n\n</details>"
    assert texts[3] == f"{summary}, continued</summary>\n\nAnd so.\n\n</details>"
    code = [one.metadata.get("jupyter", {}) for one in made.cells if one.cell_type == "code"]
    assert [one.get("outputs_hidden") for one in code] == [True, True, None]


def test_the_references_are_listed_once_each():
    made = plain.convert(book("# T\n\n{cite:p}`residual2026,looped2026` {cite:t}`looped2026`"), "x")
    listed = made.cells[-1].source.splitlines()[2:]
    assert len(listed) == 2 and "Kramer" in listed[0] and "arXiv" in listed[1]


# ---- whose numbers -------------------------------------------------------------------------------


def copied(name: str, parameters: dict, when: str = "2026-01-02T03:04:05"):
    """A copy that papermill made of a chapter: each glued value is 31.4, and a figure moved."""
    (path,) = (ROOT / "notebooks").glob(f"{name}_*.ipynb")
    notebook = nbformat.read(path, as_version=4)
    for one in notebook.cells:
        for output in one.get("outputs", []):
            if glue.glued([output]):
                output.data[glue.TEXT] = "31.4"
            if one.get("id") == "fig-loop-sizes" and "image/png" in output.get("data", {}):
                output.data["image/png"] = "bW92ZWQ="
    about = {"input_path": str(path), "parameters": parameters, "end_time": when}
    notebook.metadata["papermill"] = about
    return notebook


def test_the_text_of_an_executed_copy_is_the_books_whatever_came_out():
    """Captions too; of a figure that the parameters move they say whose it is."""
    path = ROOT / "notebooks" / "06_looped_transformers.ipynb"
    of_book = plain.convert(nbformat.read(path, as_version=4), path.stem)
    made = plain.convert(copied("06", {"width": 32}), "out")
    for one in of_book.cells:
        if one.cell_type == "markdown" and not one.id.endswith(("caption", "plain-edition")):
            assert cell(made, one.id).source == one.source
    about = cell(made, "plain-edition").source
    assert "speak of the book's run" in about
    assert "executed 2026-01-02 03:04 UTC with `width = 32`" in about
    captions = [one.source for one in made.cells if one.id.endswith("-caption")]
    assert sum(", your run's, and below it the book's. " in text for text in captions) == 1
    assert not any("Checked: within a tolerance" in text for text in captions)
    pictures = [
        output for output in cell(made, "fig-loop-sizes").outputs if "image/png" in output.data
    ]
    alts = [output.metadata["image/png"]["alt"] for output in pictures]
    assert len(alts) == 2 and alts[0] == f"Your run's. The book's: {alts[1]}"
    assert not any("image/svg+xml" in output.data for output in pictures)
    book = yours.of_chapter("06")
    same = plain.convert(copied("06", dict(book.parameters)), "out")
    assert not any("your run's, and below" in one.source for one in same.cells)


def test_a_report_reads_with_the_numbers_of_its_own_run():
    made = plain.convert(copied("09", {"seed": 3}), "out")
    assert "31" in prose(made) and "The book's run" not in prose(made)
    assert "The sentences hold the numbers of this copy" in cell(made, "plain-edition").source


def test_a_copy_that_was_only_prepared_does_not_say_that_it_was_executed():
    made = plain.convert(copied("06", {"width": 32}, ""), "out")
    assert not any("your run's, and below" in one.source for one in made.cells)
    about = cell(made, "plain-edition").source
    assert "prepared with `width = 32`, and not executed" in about and "UTC" not in about


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_the_books_values_are_those_of_its_stored_run(path):
    notebook = nbformat.read(path, as_version=4)
    book = yours.of_chapter(path.stem)
    if notebook.metadata.get("rr", {}).get("kind") == "report":
        assert book is None
    else:
        assert book.values == plain.glued(notebook), f"run book/tools/store.py {path.stem[:2]}"


def test_questions_keep_their_answers_in_a_fold():
    choose = "::::{choose}\n- one\n- ✓ two, $x^2$\n\nBecause {glue:text}`a:.1f`.\n::::"
    made = converted(choose, a="0.25")
    assert made.startswith("- one\n- two, $x^2$")
    assert "<summary>Answer</summary>" in made and "Because 0.2." in made and "✓" not in made
    number = ":::{number}\n:right: 1e-3\n:unit: nats\n\nSee above.\n:::"
    assert "1\u00a0×\u00a010⁻³ nats. See above." in converted(number)


def test_what_is_plain_already_stays():
    made = plain.convert(book("# T {term}`block`"), "06_other")
    assert plain.convert(made, "06_other") == made


# ---- papermill and files -------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path):
    """run(cells, parameters) -> the report that papermill's engine leaves, in a real kernel."""
    papermill = pytest.importorskip("papermill")
    from papermill.engines import papermill_engines

    from rrbook.engine import PlainEngine

    papermill_engines.register("plain", PlainEngine)

    def execute(cells: list, parameters: dict):
        given, out = tmp_path / "given.ipynb", tmp_path / "out.ipynb"
        kernel = {"name": "python3", "language": "python", "display_name": "Python 3"}
        nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": kernel}), given)
        settings = {"engine_name": "plain", "kernel_name": "python3", "progress_bar": False}
        papermill.execute_notebook(str(given), str(out), parameters, cwd=str(tmp_path), **settings)
        assert complete(out, tmp_path.name)
        return nbformat.read(out, as_version=4)

    return execute


def test_papermills_engine_leaves_a_report_that_reads(run):
    cells = [
        new_markdown_cell("# T"),
        new_code_cell("n = 1", metadata={"tags": ["parameters"]}),
        new_code_cell('from rrbook.glue import glue\nglue("twice", 2 * n, display=False)'),
        new_markdown_cell("Twice is {glue:text}`twice`."),
    ]
    made = run(cells, {"n": 21})
    assert made.cells[-1].source == "Twice is 42."
    assert "`n = 21`" in cell(made, "plain-edition").source


def test_papermills_engine_refuses_a_value_in_one_line(run):
    """Without the traceback of the kernel, and of papermill."""
    check = "parameters.check(tier, {'smoke': 1}, n=parameters.whole(0, 999))"
    cells = [
        new_code_cell('tier = "smoke"\nn = 1', metadata={"tags": ["parameters"]}),
        new_code_cell(f"from rrbook import parameters\n{check}"),
    ]
    with pytest.raises(ClickException) as refused:
        run(cells, {"n": -1})
    assert refused.value.message == "parameter n must be an integer from 0 to 999, got -1"


def test_papermills_engine_refuses_unknown_markup_before_it_runs_anything(run, tmp_path):
    with pytest.raises(RRError, match="odd"):
        run([new_code_cell("open('ran', 'w')"), new_markdown_cell("{odd}`x`")], {})
    assert not (tmp_path / "ran").exists()


def test_one_html_page_folds_what_the_notebook_folds(tmp_path):
    pytest.importorskip("nbconvert")
    hidden = new_code_cell("plumbing = 1", metadata={"tags": ["hide-input"]})
    notebook = book("# T\n\n{term}`block`", hidden, new_code_cell("seen = 2"))
    nbformat.write(notebook, tmp_path / "a.ipynb")
    plain.write(tmp_path / "a.ipynb", tmp_path / "a.html")
    page = BeautifulSoup((tmp_path / "a.html").read_text(), "html.parser")
    assert "plumbing" in page.find("details").text and "seen" not in page.find("details").text
    assert "{term}" not in page.text and "block" in page.text


def refused(capsys, *words: object) -> str:
    assert plain.main([str(word) for word in words]) == 2
    message = capsys.readouterr().err
    assert message.startswith("rrbook.plain: ") and message.count("\n") == 1
    return message


def test_what_is_no_notebook_is_one_line(tmp_path, capsys):
    given, out = tmp_path / "in.ipynb", tmp_path / "out.ipynb"
    assert "No such file" in refused(capsys, given, out)
    for text in ("no json", "[]", '{"nbformat": 4, "cells": [{}]}'):
        given.write_text(text)
        assert "is not a Jupyter notebook" in refused(capsys, given, out)
    assert not out.exists()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{odd}`x`", "{odd}"),
        (":::{odd}\n:::", "{odd}"),
        ("{cite:p}`nobody1900`", "nobody1900"),
        ("{numref}`fig-none`", "fig-none"),
        ("{glue:text}`word:.2f`", "word:.2f"),
        ("{quoted}`words`", "{quoted}"),
        (":::{solution} eq-looped\n:::", "names no exercise"),
    ],
)
def test_markup_that_is_not_known_is_named_with_its_cell(text, expected, tmp_path, capsys):
    notebook = book("# T", {"word": "'abc'"}, new_markdown_cell(text, id="the-cell"))
    nbformat.write(notebook, tmp_path / "in.ipynb")
    message = refused(capsys, tmp_path / "in.ipynb", tmp_path / "out.ipynb")
    assert expected in message and "'the-cell'" in message


def test_the_target_is_replaced_whole_and_never_the_source(tmp_path, capsys):
    given, out = tmp_path / "in.ipynb", tmp_path / "out.ipynb"
    nbformat.write(book("# T"), given)
    out.write_text("old")
    assert plain.main([str(given), str(out)]) == 0 and nbformat.read(out, 4).cells
    nbformat.write(book("{odd}`x`"), given)
    before = out.read_bytes()
    refused(capsys, given, out)
    assert out.read_bytes() == before
    refused(capsys, given, given)
    refused(capsys, given, tmp_path / "out.md")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.ipynb", "out.ipynb"]
