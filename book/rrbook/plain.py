"""The plain edition: a notebook of the book in standard Markdown, for any program that shows one.

    python -m rrbook.plain IN.ipynb OUT.ipynb
    python -m rrbook.plain IN.ipynb OUT.html              # the same as a page, by nbconvert
    papermill --engine plain IN.ipynb OUT.ipynb -p ...    # executes, then the same

A chapter's text holds the numbers of the book's run in every copy (`rrbook.yours`); a report, and
chapters 9 and 10, those of their own outputs. OUT is replaced where it exists. The notebook must be
one of this checkout, or a copy.
"""

import argparse
import ast
import copy
import functools
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import nbformat
from nbformat.v4 import new_markdown_cell, new_output

from rr.errors import RRError, nearest
from rr.io import write_atomic

from . import glue, yours
from .labels import CHAPTER, CHECKS, ROOT, Label, elsewhere, labels
from .markdown import Plain, escape, preset, titled, typeset
from .references import Citations

FOLDED = {"hide-input", "remove-input", "remove-cell"}  # tags of cells whose code is plumbing
NOT_YET = "*(not yet run)*"
# an explorable's picture without scripts: of one that is taken away its letters would stay
PICTURE = re.compile(r"<noscript><svg.*?</svg>", re.DOTALL)
# in a stored explorable: shown by a program that takes scripts and styles away
STILL = (
    "<style>.rr-still { display: none }</style>"
    '<p class="rr-still"><strong>Run this cell, or trust the notebook,</strong> to see the picture'
    " and move the controls.</p>\n"
)


# ---- where the notebook is from ------------------------------------------------------------------


def chapter_of(notebook: nbformat.NotebookNode, name: str) -> str | None:
    """Which chapter the notebook is, or was copied from by papermill; None where it is none."""
    source = notebook.metadata.get("papermill", {}).get("input_path") or ""
    for one in (name, source):
        if CHAPTER.fullmatch(Path(one).stem):
            return Path(one).stem
    return None


def home(notebook: nbformat.NotebookNode) -> tuple[str | None, str]:
    """The repository's address and the version, as the notebook's first cell states them."""
    assigned: dict[str, str] = {}
    for cell in notebook.cells:
        if "bootstrap" in tags(cell):
            for node in ast.parse(cell.source).body:
                if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                    target, value = node.targets[0], node.value.value
                    if isinstance(target, ast.Name) and isinstance(value, str):
                        assigned[target.id] = value
    return assigned.get("home") or None, assigned.get("version", "")


def site(address: str | None) -> str | None:
    """Where GitHub or GitLab publishes the pages of a repository; None for any other place."""
    parts = urlsplit(address or "")
    owner, _, name = parts.path.strip("/").partition("/")
    host = {"github.com": "github.io", "gitlab.com": "gitlab.io"}.get(parts.hostname or "")
    return f"https://{owner.lower()}.{host}/{name}" if host and name else None


# ---- one notebook --------------------------------------------------------------------------------


class Edition:
    """A notebook on its way to the plain edition: what its Markdown refers to."""

    def __init__(self, notebook: nbformat.NotebookNode, name: str) -> None:
        self.notebook, self.name = copy.deepcopy(notebook), name
        self.chapter = chapter_of(notebook, name)
        self.run = notebook.metadata.get("papermill")  # of a copy that papermill executed
        self.labels = labels(notebook, self.chapter)
        self.home, self.version = home(notebook)
        self.site = site(self.home)
        self.book = yours.of_chapter(self.chapter) if self.chapter else None
        self.values = self.book.values if self.book else glued(notebook)
        run = self.run or {}
        self.when = str(run.get("end_time") or run.get("start_time") or "")[:16].replace("T", " ")
        given = run.get("parameters") or {}
        self.changed = self.book.differing(given) if self.book and self.when else {}
        self.missing: set[str] = set()
        self.citations = Citations()
        cite = self.citations
        roles = {
            "cite:p": cite.parenthetical,
            "cite:t": cite.textual,
            "download": self._download,
            "eq": self._eq,
            "glue:text": self._glue,
            "numref": self._numref,
            "preset": lambda text: escape(preset(text)[0]),
            "quoted": self._quoted,
            "ref": self._ref,
            "term": self._term,
        }
        self.markdown = Plain(roles, self._number, self._follow)

    # -- roles

    def _glue(self, text: str) -> str:
        name, _, spec = text.partition(":")
        if name not in self.values:
            self.missing.add(name)
            return NOT_YET
        try:
            words = glue.formatted(self.values[name], spec)
        except ValueError as error:
            raise RRError(
                f"role {{glue:text}}: {text!r} does not fit the value {self.values[name]}: {error}"
            ) from None
        return escape(typeset(words))

    def _quoted(self, text: str) -> str:
        words, key = titled(text)
        if words is None:
            raise RRError(f"role {{quoted}} needs `words <key>`, got {text!r}")
        return f"{escape(words)} {self.citations.parenthetical(key)}"

    def _at(self, page: str, anchor: str = "") -> str | None:
        return f"{self.site}/{page}.html" + (f"#{anchor}" if anchor else "") if self.site else None

    def _linked(self, words: str, place: str | None) -> str:
        return f"[{words}]({place})" if place else words

    def _label(self, name: str) -> Label:
        known = self.labels if name in self.labels else elsewhere()
        if name not in known:
            raise RRError(f"no label {name!r}: {nearest(name, {**elsewhere(), **self.labels})}")
        return known[name]

    def _to(self, words: str, name: str, anchor: str) -> str:
        """Words that lead to the page of another chapter; within this one they stay words."""
        label = self._label(name)
        return words if name in self.labels else self._linked(words, self._at(label.page, anchor))

    def _numref(self, text: str) -> str:
        words, name = titled(text)
        label = self._label(name)
        if words is None:
            words = f"{label.kind.capitalize()} {label.number}"
        else:
            words = escape(words.replace("%s", label.number).replace("{number}", label.number))
        return self._to(words, name, name)

    def _eq(self, name: str) -> str:
        return self._to(f"({self._label(name).number})", name, f"equation-{name}")

    def _ref(self, text: str) -> str:
        words, name = titled(text)
        return self._to(escape(words or self._label(name).title), name, name)

    def _term(self, text: str) -> str:
        words, term = titled(text)
        anchor = f"term-{re.sub(r'[^A-Za-z0-9._]+', '-', term).strip('-')}"
        return self._linked(escape(words or term), self._at("book/glossary", anchor))

    def _download(self, text: str) -> str:
        words, path = titled(text)
        return self._linked(f"`{words or Path(path).name}`", self._file(path))

    def _number(self, kind: str, name: str) -> str:
        label = self._label(name)
        if label.kind != kind:
            raise RRError(f"label {name!r} names no {kind}, but a {label.kind}")
        return label.number

    def _follow(self, href: str) -> str | None:
        """Where a link leads: to the published page, where there is one."""
        path, _, anchor = href.partition("#")
        target = Path("notebooks", path or f"{self.chapter}.ipynb")
        if target.suffix not in (".ipynb", ".md"):
            return self._file(path)
        parts = [part for part in target.with_suffix("").parts if part != "notebooks"]
        page = "/".join(parts[1:]) if parts[0] == ".." else f"notebooks/{'/'.join(parts)}"
        return self._at(page, anchor)

    def _file(self, path: str) -> str | None:
        """A file of the repository that the page offers."""
        return f"{self.home}/blob/{self.version}/{path.removeprefix('../')}" if self.home else None

    # -- cells

    def made(self) -> nbformat.NotebookNode:
        """The notebook in the plain edition."""
        cells: list[nbformat.NotebookNode] = []
        for cell in self.notebook.cells:
            if cell.cell_type == "markdown":
                cells += self._prose(cell)
            elif cell.cell_type == "code":
                cells += self._code(cell)
            else:
                cells.append(cell)
        cells = [cell for cell in cells if cell.source.strip() or cell.cell_type == "code"]
        if self.citations.cited:
            text = f"## References\n\n{self.citations.list()}"
            cells.append(new_markdown_cell(text, id="plain-references"))
        for cell in cells:  # the text has what was glued
            if cell.cell_type == "code":
                cell.outputs = [output for output in cell.outputs if not glue.glued([output])]
        self._say_whose(cells)
        self.notebook.cells = cells
        self.notebook.metadata.setdefault("rr", {})["edition"] = "plain"
        return self.notebook

    def _prose(self, cell: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
        """A Markdown cell; a solution that spans several cells is a fold in each of them."""
        begun = self.markdown.solution
        try:
            text = self.markdown.text(cell.source)
        except RRError as error:
            raise RRError(f"{self.name}, cell {cell.id!r}: {error}") from None
        if begun and text == "</details>":
            return []
        if begun:
            title = self.markdown.solved(begun)
            text = f"<details>\n<summary>{title}, continued</summary>\n\n{text}"
        if self.markdown.solution:
            text += "\n\n</details>"
        cell.source = text
        return [cell]

    def _code(self, cell: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
        """A code cell, folded where the book hides it; after it the caption of its figure."""
        shown = cell.metadata.pop("mystnb", {})
        if FOLDED & {*tags(cell)} or self.markdown.solution:
            cell.metadata["cellView"] = "form"  # closed in Colab, and by the next line in Jupyter
            jupyter = cell.metadata.setdefault("jupyter", {})
            jupyter["source_hidden"] = True
            if self.markdown.solution:  # what it printed as well
                jupyter["outputs_hidden"] = True
        live = self.changed and not {"check-recorded", "check-published"} & {*tags(cell)}
        own, alt = len(cell.outputs), shown.get("image", {}).get("alt", "")
        if live and "figure" in shown:
            of_book = _pictures(one for one in self.stored if one.get("id") == cell.id)
            now, before = ([one.data["image/png"] for one in each]
                           for each in (_pictures([cell]), of_book))  # fmt: skip
            live = now != before  # the parameters do not move every figure
            if live and of_book:
                words = new_output("display_data", {"text/markdown": "The book's run:"})
                cell.outputs += [words, *of_book]
        for place, output in enumerate(cell.outputs):
            if "image/png" in output.get("data", {}):  # whose card is read on any ground
                output.data.pop("image/svg+xml", None)
                of_copy = f"Your run's. The book's: {alt}" if live and place < own else alt
                output.metadata |= {"image/png": {"alt": of_copy}} if alt else {}
            if 'class="rr-explorable"' in (html := output.get("data", {}).get("text/html", "")):
                html = PICTURE.sub("<noscript>", html)
                output.data["text/html"] = html.replace("</figure>", f"{STILL}</figure>")
        if "figure" not in shown:
            return [cell]
        figure = shown["figure"]
        caption = self.markdown.line(figure["caption"])
        number = self._label(figure["name"]).number
        if live:
            text = f"**Figure {number}**, your run's, and below it the book's. Of that: {caption}"
        else:
            checks = [words for tag, words in CHECKS.items() if tag in tags(cell)]
            checked = f" *({checks[0].capitalize()}.)*" if checks and not self.run else ""
            text = f"**Figure {number}.** {caption}{checked}"
        return [cell, new_markdown_cell(text, id=f"{cell.id[:56]}-caption")]

    @functools.cached_property
    def stored(self) -> list[nbformat.NotebookNode]:
        """The cells of the chapter that this is a copy of."""
        return read(ROOT / "notebooks" / f"{self.chapter}.ipynb").cells

    def _say_whose(self, cells: list[nbformat.NotebookNode]) -> None:
        """At the top, whose numbers these are."""
        run, book = self.run or {}, self.book
        given = _assigned(run.get("parameters") or {}) or "the stored parameters"
        copied = f"prepared with {given}, and not executed"
        if self.when:
            copied = f"executed {self.when} UTC with {given}"
        built = f"when the book was built ({self.version or 'no version is stated'})"
        if book:
            title = "The book's run, and yours"
            lines = [
                "The text, its questions, captions and their numbers speak of the book's run"
                f" ({_assigned(book.parameters)}), computed {built}.",
                f"This copy was {copied}: its figures, tables and *Your run* are its own."
                if self.when
                else f"This copy was {copied}: it shows no run but the book's."
                if run
                else "Run the cells, and *Your run* shows your numbers beside the book's.",
            ]
        elif self.values:
            title = "Numbers of this run" if run else "Recorded numbers"
            lines = [
                f"The sentences hold the numbers of this copy, {copied}."
                if run
                else f"They were computed {built}."
            ]
        elif self.missing:
            title, lines = "Not yet run", []
        else:
            return
        if self.missing:
            lines.append(f"Numbers that no cell has computed stand as {NOT_YET}.")
        text = f"> **{title}**\n>\n> " + "\n> ".join(lines)
        cells.insert(1, new_markdown_cell(text, id="plain-edition"))


def _assigned(parameters: Mapping) -> str:
    return ", ".join(f"`{name} = {value!r}`" for name, value in parameters.items())


def tags(cell: nbformat.NotebookNode) -> list[str]:
    return list(cell.metadata.get("tags", []))


def _pictures(cells: Iterable[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    return [one for cell in cells for one in cell.outputs if "image/png" in one.get("data", {})]


def glued(notebook: nbformat.NotebookNode) -> dict[str, str]:
    """Every glued value that the notebook's outputs hold, as text."""
    return glue.glued(output for cell in notebook.cells for output in cell.get("outputs", []))


def convert(notebook: nbformat.NotebookNode, name: str) -> nbformat.NotebookNode:
    """The notebook called `name` in the plain edition; one that already is stays as it is."""
    if notebook.metadata.get("rr", {}).get("edition") == "plain":
        return notebook
    return Edition(notebook, name).made()


# ---- files ---------------------------------------------------------------------------------------


def read(path: Path) -> nbformat.NotebookNode:
    """A notebook. RRError where there is none."""
    try:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
    except OSError as error:
        raise RRError(f"{path} cannot be read: {error.strerror}") from None
    except Exception as error:  # not JSON, or another shape; nbformat raises a dozen kinds
        reason = str(error).splitlines()[0][:100]
        raise RRError(f"{path} is not a Jupyter notebook: {reason}") from None
    return notebook


# what a program folds in a notebook is folded on the page, too
TEMPLATE = """{%- extends 'lab/index.html.j2' -%}
{% block input_group %}{% if cell.metadata.get('jupyter', {}).get('source_hidden')
  or 'injected-parameters' in cell.metadata.get('tags', []) -%}
<details><summary>Code</summary>{{ super() }}</details>
{%- else %}{{ super() }}{% endif %}{% endblock %}
{% block output_group %}{% if cell.metadata.get('jupyter', {}).get('outputs_hidden') -%}
<details><summary>Output</summary>{{ super() }}</details>
{%- else %}{{ super() }}{% endif %}{% endblock %}
"""


def page(notebook: nbformat.NotebookNode) -> str:
    """The notebook as one HTML page, by nbconvert. Its mathematics is typeset by MathJax's CDN."""
    try:
        from nbconvert import HTMLExporter
    except ImportError:
        raise RRError(
            "nbconvert is not installed: `pip install nbconvert`, or an OUT that ends in .ipynb"
        ) from None
    return HTMLExporter(raw_template=TEMPLATE).from_notebook_node(notebook)[0]


def write(given: Path, out: Path) -> None:
    """Convert one file into another, which is replaced in one step."""
    if out.suffix not in (".ipynb", ".html"):
        raise RRError(f"OUT must end in .ipynb or .html, got {out.name!r}")
    if out.exists() and given.exists() and out.samefile(given):
        raise RRError(f"OUT is IN, {given}: name another file, or the source is lost")
    made = convert(read(given), given.stem)
    text = page(made) if out.suffix == ".html" else nbformat.writes(made).rstrip("\n") + "\n"
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(out, text.encode())
    except OSError as error:
        raise RRError(f"{out} cannot be written: {error.strerror}") from None


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m rrbook.plain",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("given", metavar="IN.ipynb", type=Path, help="executed or not")
    parser.add_argument("out", metavar="OUT", type=Path, help="what to write: .ipynb or .html")
    args = parser.parse_args(words)
    try:
        write(args.given, args.out)
    except RRError as error:
        print(f"rrbook.plain: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
