"""The front page: an explorable in a page of text, the map of chapters, the timeline of papers.

What these show comes from the notebooks and the bibliography, so that it follows them.
"""

import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import drawings
import figure_data
import home
import nbformat
import yaml
from docutils import nodes
from nbkit import named, read
from sphinx.util.docutils import SphinxDirective, SphinxRole

from rr.errors import RRError
from rrbook import references

MINUTES = re.compile(r"\*\*Time\*\* (\d+) minutes to read")
LISTED = re.compile(r"(?P<chapter>\d\d_\w+) (?P<stars>★{1,3}|report)")
PAPER = re.compile(r"(?P<key>\w+): (?P<words>.+)")


class Shown(SphinxDirective):
    """``{explorable} gated_write``: one of `drawings.PAGES`, which needs no data."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        return [nodes.raw("", drawings.on_page(self.arguments[0]), format="html")]


FINDINGS = {  # small drawings, in the page's colours
    # after the dip a fan: how it goes on is not known
    "fades": """<path class="axis" d="M8 72H152M8 72V8"/><path class="dash" d="M8 30H152"/>
<path class="blue" d="M8 30C24 32 34 60 54 60C66 60 72 52 80 47"/>
<path class="fan" d="M80 47L150 12V62Z"/><text x="130" y="42">?</text>
<text x="70" y="22" text-anchor="end">always half</text><text x="38" y="70">gate</text>""",
    "reads": """<path class="axis" d="M8 58H152"/>
<rect class="axis" x="62" y="18" width="36" height="24" rx="5"/>
<path class="blue" d="M36 58V30H58"/><path class="orange dash" d="M124 58V30H102"/>

<path class="axis" d="M106 22L120 38M120 22L106 38"/>
<text x="80" y="34" text-anchor="middle">gate</text>
<text x="36" y="74" text-anchor="middle">stream</text>
<text x="124" y="74" text-anchor="middle">update</text>""",
    "survive": "".join(
        f'<circle class="{"full" if i > 6 else "axis"}" cx="{20 + 30 * (i % 5)}" '
        f'cy="{24 + 32 * (i // 5)}" r="9"/>'
        for i in range(10)
    ),
}  # fmt: skip


class Finding(SphinxDirective):
    """``{finding} fades``: the small drawing of a finding on the front page."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        drawn = FINDINGS[self.arguments[0]]
        svg = f'<svg class="rr-finding" viewBox="0 0 160 80" aria-hidden="true">{drawn}</svg>'
        return [nodes.raw("", svg, format="html")]


class Poster(SphinxDirective):
    """``{rule-poster}``: every registered rule on a card, filtered by what it reads and writes."""

    def run(self) -> list[nodes.Node]:
        from rrbook.explorables.poster import rule_poster  # torch only where a page asks for it

        self.env.note_reread()  # the registry may have changed though the page has not
        return [nodes.raw("", rule_poster(), format="html")]


class RuleCards(SphinxDirective):
    """``{rule-cards} gate``: the card of every registered rule of a family."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        from rrbook.explorables.gallery import rule_gallery  # torch only where a page asks for it

        self.env.note_reread()  # the registry may have changed though the page has not
        return [nodes.raw("", rule_gallery(self.arguments[0]).html, format="html")]


class WhichRule(SphinxDirective):
    """``{which-rule}``: a row for every registered rule, from the registry and the records."""

    def run(self) -> list[nodes.Node]:
        from rrbook.explorables.which import table  # torch only where a page asks for it

        self.env.note_reread()  # records and registry may have changed though the page has not
        return [nodes.raw("", table(), format="html")]


class AtScale(SphinxDirective):
    """``{at-scale}``: what others measured at larger sizes, from data/published/at_scale.csv."""

    def run(self) -> list[nodes.Node]:
        from rrbook.explorables.at_scale import table  # torch only where a page asks for it

        self.env.note_reread()  # the file may have changed though the page has not
        return [nodes.raw("", table(), format="html")]


class GainsBySize(SphinxDirective):
    """``{gains-by-size}``: the largest of these comparisons as a figure."""

    ALT = "Loss minus the standard network's at four sizes: below zero for each of four rules."

    def run(self) -> list[nodes.Node]:
        from rrbook.explorables.at_scale import drawing  # torch only where a page asks for it
        from rrbook.figures.svg import svg

        self.env.note_reread()  # the file may have changed though the page has not
        text, _ = figure_data.taken(svg(drawing()))  # its data are rows of the table below it
        return [nodes.raw("", figure_data.boxed(text, "scale-", self.ALT), format="html")]


class Colab(SphinxRole):
    """``{colab}`Open in Colab <01_residual_stream>` ``: a button; nothing without GitHub."""

    FORM = re.compile(r"(?P<words>.+?)\s*<(?P<chapter>\w+)>")

    def run(self):
        match, place = self.FORM.fullmatch(self.text), home.address() or ""
        if match is None:
            message = f"{{colab}} needs `words <chapter>`, not {self.text!r}"
            problem = self.inliner.reporter.error(message, line=self.lineno)
            return [self.inliner.problematic(self.rawtext, self.rawtext, problem)], [problem]
        if not place.startswith("https://github.com/"):
            return [], []
        words = match["words"]
        return [nodes.reference("", words, refuri=colab(place, match["chapter"], self.config),
                                classes=["rr-button"])], []  # fmt: skip


class HowToRun(SphinxRole):
    """``{how-to-run}`chapters` ``: how a chapter's page opens as a notebook, in this copy."""

    def run(self):
        if (home.address() or "").startswith("https://github.com/"):
            words = "The rocket at the top of a chapter opens it in Colab."
        else:
            words = (
                "This copy of the book does not know its project's address, so it has no Colab "
                "button. The arrow at the top of a chapter saves its notebook; it runs in Jupyter "
                "where the project is installed."
            )
        return [nodes.Text(words)], []


def colab(place: str, chapter: str, config: Any) -> str:
    """Where Colab opens the plain edition of a chapter, as published."""
    opener = config.html_theme_options["launch_buttons"]["colab_url"]
    path = quote(f"{home.PLAIN}/{chapter}.ipynb")
    return f"{opener}/github/{place.removeprefix('https://github.com/')}/blob/{home.PAGES}/{path}"


class ChapterMap(SphinxDirective):
    """The chapters: number, title, minutes, difficulty.

    The body names each chapter with one to three stars, or as a report: `01_residual_stream ★`.
    """

    has_content = True

    def run(self) -> list[nodes.Node]:
        lines = [LISTED.fullmatch(line.strip()) for line in self.content]
        if not all(lines):
            raise self.error("each line names a chapter and ★, ★★, ★★★ or report")
        rating = {line["chapter"]: line["stars"] for line in lines if line}
        toc = yaml.safe_load(Path(self.env.srcdir, "_toc.yml").read_text(encoding="utf-8"))
        files = [Path(one["file"]) for part in toc["parts"] for one in part["chapters"]]
        chapters = [path.name for path in files if path.parent.name == "notebooks"]
        if unrated := set(chapters) - rating.keys():
            raise self.error(f"the map does not say how difficult {min(unrated)} is")
        text = ["::::{grid} 2 2 3 4", ":gutter: 2", ":class-container: rr-map", ""]
        for chapter in chapters:
            text += self._card(chapter, rating[chapter])
        return self.parse_text_to_nodes("\n".join([*text, "::::"]))

    def _card(self, chapter: str, stars: str) -> list[str]:
        notebook = read(Path(self.env.srcdir) / "notebooks" / f"{chapter}.ipynb")
        label, title = named(notebook)
        minutes = minutes_to_read(notebook)
        about = [f"{minutes} min"] * bool(minutes) + [stars]
        return [
            ":::{grid-item-card}",
            f":link: {label}",
            ":link-type: ref",
            "",
            f"**{int(chapter[:2])}. {title}**",
            "",
            f"[{' · '.join(about)}]{{.rr-soft}}",
            ":::",
        ]


def minutes_to_read(notebook: nbformat.NotebookNode) -> int | None:
    """What the chapter's card says; None for a report, which has no card."""
    for cell in notebook.cells:
        if match := MINUTES.search(cell.source):
            return int(match[1])
    return None


class Timeline(SphinxDirective):
    """Papers with the year of their first version, as listed; a line is `key: what it added`.

    The keys are those of references.bib, which gives year and authors.
    """

    has_content = True

    def run(self) -> list[nodes.Node]:
        papers = []
        for line in self.content:
            match = PAPER.fullmatch(line.strip())
            if match is None:
                raise self.error(f"a line is `key: what the paper added`, not {line!r}")
            try:
                papers.append((first_version(match["key"]), match["key"], match["words"]))
            except RRError as error:
                raise self.error(str(error)) from None
        items = [
            f"- [{year}]{{.rr-year}} {words} {{cite:p}}`{key}`" for (year, _), key, words in papers
        ]
        return self.parse_text_to_nodes("\n".join([":::{div} rr-timeline", *items, ":::"]))


def first_version(key: str) -> tuple[int, int]:
    """Year and month in which arXiv has a paper's first version, by its number there."""
    fields: Any = references.entry(key).fields
    match = re.fullmatch(r"(\d\d)(\d\d)\.\d{4,5}", fields.get("eprint", ""))
    if match is None:
        raise RRError(f"{key} has no arXiv number in references.bib, so no date of first version")
    return 2000 + int(match[1]), int(match[2])
