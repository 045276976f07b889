"""The book's Sphinx extension: the home address, the plain edition's buttons, offline scripts,
quoted and computed figures, what a term means, buttons that set an
explorable, figures in the page's colours, how figures are checked, names for screen readers."""

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import figure_data
import front
import home
import questions
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.util.docutils import SphinxRole
from sphinx.writers.html import HTMLTranslator

from rr import RRError
from rrbook.figures.svg import DARK
from rrbook.labels import CHECKS
from rrbook.markdown import preset, typeset

EXTRA = "_extra"  # render.py puts the page's own scripts there, where npm could fetch them

# what the theme and its extensions leave without a right name for screen readers
NAMED = [
    (re.compile(r'<summary aria-label="Toggle hidden content">'), "<summary>"),
    (re.compile(r'<summary>(?=<span class="toctree-toggle")'),
     '<summary aria-label="Show the pages below">'),
    (re.compile(r'(<button class="btn search-button-field[^>]*?)\s*aria-label="Search"'), r"\1"),
    (re.compile(r'<i class="(theme-switch[^"]*)"([^>]*?) title="[^"]*"'),
     r'<i aria-hidden="true" class="\1"\2'),
    (re.compile(r' role="(?:list" class="citation-list|doc-biblioentry)"'),
     lambda match: ' class="citation-list"' if "citation" in match[0] else ""),
]  # fmt: skip

# a command's options, which a narrow page would break after their first hyphens
COMMAND = re.compile(
    r'<div class="highlight-(?:bash|console|sh|shell|myst-ansi) .*?</pre>'
    r'|<code class="docutils .*?</code>',
    re.DOTALL,
)
OPTION = re.compile(r"(?<=[\s>\[])--?[a-z][\w-]*")

PAGES: dict[str, str] = {}  # of each page that is written, its words


def configure(app: Sphinx, config: Config) -> None:
    """Derive what depends on the project's home and on the scripts at hand."""
    options, place = config.html_theme_options, home.address() or ""
    # not below html_static_path: Jupyter Book loads every script there on every page
    config.html_search_scorer = str(Path(__file__).with_name("search_scorer.js"))
    config.html_static_path.append(str(DARK))
    config.html_css_files.append(DARK.name)
    commit = (home.version() or "")[:10]
    at = f", commit {commit}" if commit and commit != home.release() else ""
    options["extra_footer"] = f"<p>Review Residuals {home.release()}{at}</p>"
    if any(f"//{known}" in place for known in ("github.", "gitlab.", "bitbucket.")):
        options["repository_url"] = place
        options["repository_branch"] = home.version() or "main"
        # here and not in _config.yml: Jupyter Book refuses the button where it knows no address
        options["use_repository_button"] = True
        options["use_edit_page_button"] = options["use_issues_button"] = True
    if not place.startswith("https://github.com/"):
        options.pop("launch_buttons", None)  # Colab opens notebooks of GitHub alone
    vendor = Path(app.srcdir) / EXTRA / "vendor"
    if not vendor.is_dir():
        return
    # not html_static_path: Jupyter Book loads every script below that one on every page
    config.html_extra_path.append(EXTRA)
    config.mathjax_path = "../vendor/tex-svg.js"


def footer(
    app: Sphinx, page: str, template: str, context: dict, doctree: nodes.document | None
) -> None:
    """Errata and status at the foot of every page."""
    links = {"Errata": "book/errata", "Status": "book/status"}
    if page == "book/intro":  # who begins at the front begins with the first chapter
        chapter = "notebooks/00_transformer"
        context["next"] = {
            "link": context["pathto"](chapter),
            "title": "A transformer in twenty minutes",
        }
    context["theme_extra_footer"] += "<p>" + " · ".join(
        f'<a href="{context["pathto"](to)}">{words}</a>' for words, to in links.items()
    ) + "</p>"  # fmt: skip


def plain_edition(
    app: Sphinx, page: str, template: str, context: dict, doctree: nodes.document | None
) -> None:
    """Lead a chapter's download and Colab buttons to its plain edition, as published."""
    folder, _, chapter = page.rpartition("/")
    if folder != "notebooks":
        return
    path = f"{home.PLAIN}/{chapter}.ipynb"
    for group in context["header_buttons"]:
        for button in group.get("buttons", []):
            if button.get("label") == "download-source-button":
                button["url"] = context["pathto"](path, 1)
            elif "/edit/" in button.get("url", ""):  # an edit begins on a branch, not on a commit
                button["url"] = re.sub(r"/edit/[^/]+/", "/edit/main/", button["url"])
            elif button.get("text") == "Colab" and (address := home.address()):
                button["url"] = front.colab(address, chapter, app.config)


def without_thebe(app: Sphinx, config: Config) -> None:
    """Take back sphinx-thebe, which Jupyter Book always loads and this book does not use.

    It declares its constants in two scripts of every page, an error in each reader's console.
    """
    for listeners in app.events.listeners.values():
        for listener in list(listeners):
            if listener.handler.__module__ == "sphinx_thebe":
                app.disconnect(listener.id)
    files = app.registry.css_files
    files[:] = [file for file in files if file[0] != "sphinx-thebe.css"]


class Quoted(SphinxRole):
    """``{quoted}`about 7 % <key>` ``: a figure in a paper's words, with the paper it is from."""

    FORM = re.compile(r"(?P<words>.+?)\s*<(?P<key>[^<>\s]+)>", re.DOTALL)

    def run(self):
        match = self.FORM.fullmatch(self.text)
        if match is None:
            problem = self.inliner.reporter.error(
                f"{{quoted}} needs the words and a key of references.bib: `words <key>`,"
                f" not {self.text!r}",
                line=self.lineno,
            )
            return [self.inliner.problematic(self.rawtext, self.rawtext, problem)], [problem]
        quoted = nodes.inline(self.rawtext, match["words"], classes=["rr-quoted"])
        cite = self.env.get_domain("cite").roles["p"]
        cited, messages = cite(
            "cite:p", self.rawtext, match["key"], self.lineno, self.inliner, {}, []
        )
        return [quoted, nodes.Text(" "), *cited], messages


class Known(SphinxRole):
    """``{known}`mini_arms: review - constant` ``: a number computed from records, see known.py."""

    def run(self):
        from known import number  # torch and SciPy only where a page asks for a number

        try:
            words = number(self.text)
        except RRError as error:
            problem = self.inliner.reporter.error(str(error), line=self.lineno)
            return [self.inliner.problematic(self.rawtext, self.rawtext, problem)], [problem]
        self.env.note_reread()  # the records may have changed though the page has not
        return [nodes.inline(self.rawtext, words, classes=["rr-known"])], []


def define(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """A link to a term of the glossary says on hover what the term means; citations do already."""
    if "book/glossary" not in app.env.found_docs:
        return
    meanings = {
        name: item[-1].astext()
        for item in app.env.get_doctree("book/glossary").findall(nodes.definition_list_item)
        for term in item.findall(nodes.term)
        for name in term["ids"]
    }
    for link in doctree.findall(nodes.reference):
        _, _, name = link.get("refuri", "").rpartition("glossary.html#")
        if name in meanings:
            link["reftitle"] = meanings[name]


class Preset(SphinxRole):
    """``{preset}`64 sublayers <stream-share sublayers=64>` ``: a button that sets an explorable.

    After its name come the controls that differ from the start (a checkbox is `on` or `off`).
    """

    def run(self):
        words, name, settings = preset(self.text)
        button = (
            f'<button type="button" class="rr-preset" data-explorable="{html.escape(name)}" '
            f'data-set="{html.escape(urlencode(settings))}">{html.escape(words)}</button>'
        )
        return [nodes.raw("", button, format="html")], []


def inline_figures(app: Sphinx, doctree: nodes.document) -> None:
    """Put the cells' SVG into the page itself, where its colours follow the theme, and its data
    below it."""
    for place, image in enumerate(list(doctree.findall(nodes.image))):
        path = Path(app.srcdir, image["uri"].removeprefix("/"))
        of_cell = any("cell_output" in node.get("classes", ()) for node in _above(image))
        if not of_cell or path.suffix != ".svg":
            continue
        text, tables = figure_data.taken(path.read_text(encoding="utf-8"))
        box = figure_data.boxed(text, f"f{place}-", image.get("alt", ""))
        figure = next(filter(lambda node: isinstance(node, nodes.figure), _above(image)), image)
        name = next(iter(figure.get("names", ())), "figure")
        at = figure.parent.index(figure) + 1
        figure.parent.insert(at, Data("", html=figure_data.shown(tables, name)))
        image.replace_self(nodes.raw("", box, format="html"))


class Data(nodes.Element):
    """HTML that the search does not index, unlike that of a raw node."""

    @staticmethod
    def visit(translator: HTMLTranslator, node: "Data") -> None:
        translator.body.append(node["html"])
        raise nodes.SkipNode


ABOUT = (
    '<details class="rr-about"><summary title="How this figure is checked, and its data">'
    '<span class="rr-i" aria-hidden="true">i</span>'
    '<span class="visually-hidden">How this figure is checked, and its data</span></summary>'
)
UNREAD = (nodes.raw, nodes.Invisible, nodes.literal_block, Data)  # in what the search shows


def numbers(app: Sphinx, doctree: nodes.document) -> None:
    """Write the numbers that cells glued with a minus sign and powers of ten."""
    for node in doctree.findall(nodes.inline):
        if "pasted-text" in node["classes"]:
            node.children = [nodes.Text(typeset(node.astext()))]


HEAD = re.compile(r"<thead>(.*?)</thead>", re.DOTALL)
CELLS = re.compile(r"<th>([^<]*)</th>")
VALUE = re.compile(
    r"([−+±-]?\d[\d,.]*(e[−+-]?\d+)?(\s?(%|[×(±–^]|to\b|[A-Za-z]+/?s?$).*)?|[−–·]?|nan)?", re.DOTALL
)


def one_header(app: Sphinx, doctree: nodes.document) -> None:
    """Tables of pandas: one header row, and numbers under the right end of their heads."""
    for node in doctree.findall(nodes.raw):
        text = node.astext()
        if 'class="dataframe"' not in text:
            continue
        text = HEAD.sub(lambda match: f"<thead>{_joined(match[1])}</thead>", text)
        cells = re.findall(r"<td>([^<]*)</td>", text)
        if all(VALUE.fullmatch(cell.strip()) for cell in cells):
            text = text.replace('class="dataframe"', 'class="dataframe rr-numbers"')
        node.children = [nodes.Text(text)]


def _joined(head: str) -> str:
    """The header with the second row that pandas adds for the names of an index in the first."""
    rows = re.findall(r"<tr.*?</tr>", head, re.DOTALL)
    if len(rows) != 2 or "span=" in head:
        return head
    columns, index = map(CELLS.findall, rows)
    if len(columns) != len(index) or index[-1]:
        return head
    names = [
        f"{own} ↓ {above} →" if own and above else own or above
        for above, own in zip(columns, index, strict=True)
    ]
    return "<tr>" + "".join(f"<th>{name}</th>" for name in names) + "</tr>"


def columns(app: Sphinx, doctree: nodes.document) -> None:
    """In a table that is cards on a phone each cell but a row's first knows its column."""
    for box in doctree.findall(nodes.container):
        cards = {"rr-wide", "rr-try"} & {*box["classes"]}
        for table in box.findall(nodes.table) if cards else ():
            first, *others = (list(row.findall(nodes.entry)) for row in table.findall(nodes.row))
            for row in others:
                for head, entry in zip(first[1:], row[1:], strict=True):
                    entry["column"] = head.astext()


def visit_entry(translator: HTMLTranslator, node: nodes.entry) -> None:
    type(translator).visit_entry(translator, node)
    if "column" in node:
        named = f'<td data-column="{html.escape(node["column"])}"'
        translator.body[-1] = translator.body[-1].replace("<td", named, 1)


def depart_entry(translator: HTMLTranslator, node: nodes.entry) -> None:
    type(translator).depart_entry(translator, node)


def _above(node: nodes.Node) -> Iterator[nodes.Element]:
    """The node and what holds it, outwards."""
    while node is not None:
        if isinstance(node, nodes.Element):
            yield node
        node = node.parent


def about_figures(app: Sphinx, doctree: nodes.document) -> None:
    """Behind one mark below a figure: how it is checked, with a link to the kinds, and its data."""
    for cell in doctree.findall(nodes.container):
        for tag, words in CHECKS.items():
            if f"tag_{tag}" not in cell.get("classes", []):
                continue
            link = addnodes.pending_xref(
                "",
                nodes.inline("", words),
                refdomain="std",
                reftype="ref",
                reftarget="figure-checks",
                refexplicit=True,
                refwarn=True,
                refdoc=app.env.docname,
            )
            tables = [*cell.findall(Data)]
            for table in tables:
                table.parent.remove(table)
            cell += Data("", html=ABOUT)
            cell += nodes.paragraph("", "", link, classes=["rr-check", f"rr-{tag}"])
            cell += Data("", html="".join(table["html"] for table in tables) + "</details>")


def worded(node: nodes.Node) -> str:
    """The prose of a page, in elements with the names that the search knows its parts by."""
    if isinstance(node, nodes.Text):
        return html.escape(node.astext())
    if not isinstance(node, nodes.Element) or isinstance(node, UNREAD):
        return ""
    inside = ("" if isinstance(node, nodes.TextElement) else " ").join(map(worded, node.children))
    # what a term means belongs to the term
    item = isinstance(node, nodes.definition_list_item)
    named = next(iter(node.findall(nodes.term)), node) if item else node
    return f'<div id="{named["ids"][0]}">{inside}</div>' if named["ids"] else inside


def remember(app: Sphinx, doctree: nodes.document, page: str) -> None:
    PAGES[page] = f'<main role="main">{worded(doctree)}</main>'


def excerpts(
    app: Sphinx, page: str, template: str, context: dict, doctree: nodes.document | None
) -> None:
    """Give the search page the prose of all pages, for the lines below each result.

    Sphinx's script fetches a page for them, which a browser refuses where the book is on a disk.
    """
    if page != "search":
        return
    words = json.dumps(PAGES, ensure_ascii=False)
    script = f"""const words = {words};
window.fetch = async page => ({{text: async () => words[page.replace(/^\\.\\/|\\.html$/g, "")]}});
"""
    Path(app.outdir, "words.js").write_text(script, encoding="utf-8")
    app.add_js_file("../words.js")


def unbroken(command: re.Match) -> str:
    """The HTML of a command, each of its options in one piece."""
    return OPTION.sub(r'<span class="rr-option">\g<0></span>', command[0])


def finish(app: Sphinx, error: Exception | None) -> None:
    """Give the pages' controls the names that NAMED says, and keep a command's options whole."""
    if error is not None or app.builder.name != "html":
        return
    for path in Path(app.outdir).rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        for pattern, put in NAMED:
            text = pattern.sub(put, text)
        text = COMMAND.sub(unbroken, text)
        path.write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict:
    app.connect("build-finished", finish)
    app.connect("doctree-resolved", define)
    app.connect("doctree-resolved", remember)
    app.connect("html-page-context", excerpts)
    app.connect("config-inited", configure)
    app.connect("config-inited", without_thebe)
    # before Sphinx collects the images that are files
    app.connect("doctree-read", inline_figures, priority=400)
    app.connect("doctree-read", about_figures)
    app.connect("doctree-read", numbers)
    app.connect("doctree-read", one_header)
    app.connect("doctree-read", columns)
    app.connect("html-page-context", footer)
    app.connect("html-page-context", plain_edition, priority=502)  # the theme's buttons are there
    app.add_node(nodes.entry, override=True, html=(visit_entry, depart_entry))
    app.add_node(Data, html=(Data.visit, None))
    app.add_role("quoted", Quoted())
    app.add_role("known", Known())
    app.add_role("preset", Preset())
    app.add_role("colab", front.Colab())
    app.add_role("how-to-run", front.HowToRun())
    app.add_directive("explorable", front.Shown)
    app.add_directive("chapter-map", front.ChapterMap)
    app.add_directive("rule-poster", front.Poster)
    app.add_directive("rule-cards", front.RuleCards)
    app.add_directive("which-rule", front.WhichRule)
    app.add_directive("at-scale", front.AtScale)
    app.add_directive("gains-by-size", front.GainsBySize)
    app.add_directive("timeline", front.Timeline)
    app.add_directive("finding", front.Finding)
    app.add_directive("choose", questions.Choose)
    app.add_directive("number", questions.Number)
    # PAGES is filled while pages are written
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": False}
