"""Docstrings as Markdown, for the API reference.

Beside paragraphs and lists a docstring may hold

* `name: meaning` at the start of a sentence, which begins a parameter's item in a list;
* lines of `name   meaning`, aligned, which become such a list;
* a sentence that begins with Returns, Raises or Source:, which becomes a paragraph;
* `package.name`, `name()` or `Name` between backticks, a link where that name is public.
"""

import ast
import re
import textwrap
from collections.abc import Mapping

from nbkit import NOTEBOOKS

APART = r"Raises\b|Returns\b|Source:"  # begin a paragraph
CODE = re.compile(r"(`[^`]+`)")
ROW = re.compile(r"(\S[^=]*?) {2,}([^=\s].*)")  # of an aligned list; an assignment is code
CHAPTER = re.compile(r"\b[Cc]hapter (\d+)\b")


def split(doc: str) -> tuple[str, str]:
    """A docstring's description and its example, "" where it has none."""
    text, _, example = doc.partition("\nExample:\n")
    return text.strip(), textwrap.dedent(example).strip()


def escaped(text: str, links: dict[str, str]) -> str:
    """Text in which only `code` and *emphasis* are Markdown; public names and chapters are links.

    A bare lower-case name, as of a parameter or of a row's key, is never a link.
    """
    parts = CODE.split(text)
    for at, part in enumerate(parts):
        if at % 2 == 0:
            part = re.sub(r"([\\*_$<>\[\]{}|~])", r"\\\1", part)
            part = re.sub(r"(?<![\w\\])\\\*(\w[\w -]*)\\\*(?!\w)", r"*\1*", part)
            parts[at] = CHAPTER.sub(_chapter, part)
            continue
        name = part[1:-1].removesuffix("()")
        marked = "." in name or name != part[1:-1] or name[:1].isupper()
        if marked and name in links:
            parts[at] = f"[{part}](#{links[name]})"
    return "".join(parts)


def _chapter(match: re.Match) -> str:
    path = next(NOTEBOOKS.glob(f"{int(match[1]):02}_*.ipynb"))
    return f"[{match[0]}](../../{NOTEBOOKS.name}/{path.name})"


def prose(text: str, parameters: Mapping[str, str], links: dict[str, str]) -> str:
    """A docstring's description as Markdown: parameters as a list, errors and source apart.

    parameters: what a list shows for each name, such as a field's declaration.
    """
    return "\n\n".join(
        _paragraph(block, parameters, links) for block in re.split(r"\n\s*\n", text.strip("\n"))
    )


def _paragraph(block: str, parameters: Mapping[str, str], links: dict[str, str]) -> str:
    lines = block.splitlines()
    if rows := aligned(block):
        return "\n".join(
            f"* `{parameters.get(name, name)}`: {escaped(words, links)}" for name, words in rows
        )
    if all(line.startswith("    ") for line in lines):
        return code(textwrap.dedent(block), "python" if _is_python(block) else "text")
    if lines[0].startswith("|"):  # a table
        return "\n".join("|".join(escaped(cell, links) for cell in line.split("|"))
                         for line in lines)  # fmt: skip
    if lines[0].startswith("* "):
        items = re.split(r"(?m)^\* ", block)[1:]
        return "\n".join("* " + escaped(" ".join(item.split()), links) for item in items)
    text = " ".join(block.split())
    names = "|".join(map(re.escape, sorted(parameters, key=len, reverse=True))) or r"(?!)"
    starts = re.compile(
        rf"(?:^|(?<=[.;:),] ))(?:(?P<names>(?:{names})(?:, (?:{names}))*): |(?P<word>{APART}))"
    )
    cuts = list(starts.finditer(text))
    edges = [match.start() for match in cuts] + [len(text)]
    shown = [escaped(text[: edges[0]].strip(), links)] if edges[0] else []
    for match, end in zip(cuts, edges[1:], strict=True):
        if match["names"]:
            given = ", ".join(f"`{parameters[name]}`" for name in match["names"].split(", "))
            shown.append(f"* {given}: {escaped(text[match.end() : end].strip(' ;,'), links)}")
        else:
            rest = escaped(text[match.end() : end].strip(), links)
            shown.append(f"\n**{match['word']}** {rest}\n")
    return "\n".join(
        "\n" + line if line.startswith("* ") and at and not shown[at - 1].startswith("* ") else line
        for at, line in enumerate(shown)
    )


def _is_python(block: str) -> bool:
    """Whether an indented block is code and no formula."""
    try:
        ast.parse(textwrap.dedent(block))
    except SyntaxError:
        return False
    return True


def aligned(block: str) -> list[tuple[str, str]]:
    """The rows of lines like `name   meaning`, a meaning on one line or more; [] for other text."""
    rows: list[tuple[str, str]] = []
    for line in textwrap.dedent(block).splitlines():
        if match := ROW.fullmatch(line):
            rows.append((match[1], match[2]))
        elif rows and line.startswith("  "):
            rows[-1] = (rows[-1][0], f"{rows[-1][1]} {line.strip()}")
        else:
            return []
    return rows


def code(text: str, language: str) -> str:
    """A block of code; its class lets long lines wrap, see custom.css."""
    return f"```{{code-block}} {language}\n:class: rr-code\n\n{text}\n```"


def example(text: str) -> list[str]:
    """An entry's example, where it has one."""
    return ["**Example**\n\n" + code(text, "pycon")] if text else []
