"""Citations of the book in standard Markdown, and the list of what a chapter cites."""

from functools import cache
from pathlib import Path
from typing import Any

from pybtex.database import Entry, Person, parse_file
from pybtex.plugin import find_plugin
from pybtex.richtext import Text

from rr.errors import RRError, nearest

from .markdown import escape

BIBLIOGRAPHY = Path(__file__).resolve().parents[1] / "references.bib"


@cache
def entries() -> dict[str, Entry]:
    """Every paper that the book names, by its key."""
    return dict(parse_file(BIBLIOGRAPHY).entries)


def entry(key: str) -> Entry:
    if key not in entries():
        raise RRError(f"no paper {key!r} in {BIBLIOGRAPHY.name}: {nearest(key, entries())}")
    return entries()[key]


def _surname(person: Person) -> str:
    names: Any = [person.prelast_names, person.last_names]  # pybtex has no types
    return str(Text.from_latex(" ".join(name for part in names for name in part)))


def authors(reference: Entry) -> str:
    """`Li`, `Li and Vu`, or `Li et al.`"""
    persons: Any = reference.persons
    names = [_surname(person) for person in persons["author"]]
    if len(names) > 2 or names[-1] == "others":
        return f"{names[0]} et al."
    return " and ".join(names)


def address(reference: Entry) -> str | None:
    """Where the paper can be read; None where its entry names no place."""
    fields: Any = reference.fields
    if fields.get("archiveprefix", "").lower() == "arxiv":
        return f"https://arxiv.org/abs/{fields['eprint']}"
    if "doi" in fields:
        return f"https://doi.org/{fields['doi']}"
    return fields.get("url")


class Citations:
    """Roles that cite, and the list of the papers that they cited."""

    def __init__(self) -> None:
        self.cited: set[str] = set()

    def _linked(self, key: str, form: str) -> str:
        reference = entry(key)
        fields: Any = reference.fields
        self.cited.add(key)
        words = escape(form.format(authors(reference), fields["year"]))
        place = address(reference)
        return f"[{words}]({place})" if place else words

    def _each(self, keys: str, form: str, between: str) -> str:
        return between.join(self._linked(key.strip(), form) for key in keys.split(","))

    def parenthetical(self, keys: str) -> str:
        return f"({self._each(keys, '{}, {}', '; ')})"

    def textual(self, keys: str) -> str:
        return self._each(keys, "{} ({})", ", ")

    def list(self) -> str:
        """The papers cited, in the order of their authors: a list in Markdown."""
        style = find_plugin("pybtex.style.formatting", "plain")()
        backend = find_plugin("pybtex.backends", "markdown")("utf-8")
        made = style.format_entries([entries()[key] for key in sorted(self.cited)])
        texts = [" ".join(one.text.render(backend).split()) for one in made]
        return "\n".join(f"- {text}" for text in texts)
