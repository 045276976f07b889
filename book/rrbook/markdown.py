"""MyST Markdown, as the book's notebooks are written, turned into standard Markdown.

markdown-it finds the markup; what is found is replaced at its place in the source, and all other
text stays as it was written.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from markdown_it import MarkdownIt
from markdown_it.rules_inline import StateInline, link
from markdown_it.token import Token
from mdit_py_plugins.amsmath import amsmath_plugin
from mdit_py_plugins.colon_fence import colon_fence_plugin
from mdit_py_plugins.dollarmath import dollarmath_plugin
from mdit_py_plugins.dollarmath.index import math_inline_dollar
from mdit_py_plugins.myst_blocks import myst_block_plugin
from mdit_py_plugins.myst_role import myst_role_plugin
from mdit_py_plugins.myst_role.index import myst_role

from rr.errors import RRError, nearest

from .explorables.kit import SUPERSCRIPT

BOXES = ("admonition", "dropdown", "exercise")
QUESTIONS = ("choose", "number")  # which a page checks: their answer is folded here
SOLUTIONS = ("solution", "solution-start", "solution-end")
ALONE = ("myst_target", "myst_line_comment", "myst_block_break")  # say nothing to a reader
DIRECTIVE = re.compile(r"\{(?P<name>[\w:-]+)\}\s*(?P<argument>.*)")
OPTION = re.compile(r":(?P<name>[\w-]+):\s*(?P<value>.*)")
SPECIAL = re.compile(r"([\\`*_\[\]<>|$~])")
TITLED = re.compile(r"(?P<text>.+?)\s*<(?P<target>[^<>]+)>", re.DOTALL)


def _located(rule: Callable) -> Callable:
    """The rule, whose token records its position in the paragraph."""

    def run(state: StateInline, silent: bool) -> bool:
        start, count = state.pos, len(state.tokens)
        if not rule(state, silent):
            return False
        for token in state.tokens[count:]:
            if not silent and token.type in ("myst_role", "math_inline", "link_open"):
                token.meta = {**token.meta, "span": (start, state.pos)}
                break
        return True

    return run


def parser() -> MarkdownIt:
    """A parser of the book's Markdown, with the extensions that _config.yml names and uses."""
    markdown = MarkdownIt("commonmark").enable("table")
    for plugin in (myst_block_plugin, myst_role_plugin, colon_fence_plugin, amsmath_plugin):
        markdown.use(plugin)
    markdown.use(dollarmath_plugin)
    for name, rule in (
        ("myst_role", myst_role),
        ("math_inline", math_inline_dollar()),
        ("link", link),
    ):
        markdown.inline.ruler.at(name, _located(rule))
    return markdown


PARSER = parser()


def escape(text: str) -> str:
    """Text that Markdown shows as it is."""
    return SPECIAL.sub(r"\\\1", text)


def table_row(cells: Iterable[str]) -> str:
    """A line of a table."""
    return f"| {' | '.join(cells)} |"


def typeset(number: str) -> str:
    """A formatted number as prose writes it: a minus sign, a power of ten."""

    def power(match: re.Match) -> str:
        exponent = str(int(match["exponent"])).translate(SUPERSCRIPT)
        return f"{match['digits']}\u00a0×\u00a010{exponent}"

    number = re.sub(r"(?P<digits>\d(?:\.\d+)?)e(?P<exponent>[-+]\d+)", power, number)
    return re.sub(r"(?<![\w.])-(?=\d)", "−", number)


def titled(text: str) -> tuple[str | None, str]:
    """`words <target>` -> (words, target); `target` -> (None, target)."""
    match = TITLED.fullmatch(text)
    return (match["text"], match["target"]) if match else (None, text)


def preset(text: str) -> tuple[str, str, dict[str, str]]:
    """`words <explorable name=value …>` of the role preset -> words, explorable, settings."""
    words, target = titled(text)
    name, *settings = target.split()
    if words is None or not all("=" in one for one in settings):
        raise RRError(f"role {{preset}} needs `words <explorable name=value …>`, got {text!r}")
    return words, name, dict(one.split("=", 1) for one in settings)


@dataclass(frozen=True)
class Directive:
    """A directive of MyST, from a colon fence or a fence: ``:::{name} argument``."""

    name: str
    argument: str
    options: dict[str, str]
    body: str

    @classmethod
    def of(cls, token: Token) -> "Directive | None":
        """The directive that the token is, if it is one."""
        if token.type not in ("fence", "colon_fence"):
            return None
        match = DIRECTIVE.fullmatch(token.info.strip())
        if match is None:
            return None
        options, lines = {}, token.content.splitlines()
        while lines and (option := OPTION.fullmatch(lines[0].strip())):
            options[option["name"]] = option["value"]
            del lines[0]
        return cls(match["name"], match["argument"].strip(), options, "\n".join(lines).strip("\n"))


def walk(text: str) -> Iterator[Token]:
    """Every token of a text, those within its boxes too."""
    for token in PARSER.parse(text):
        yield token
        if directive := Directive.of(token):
            yield from walk(directive.body)


@dataclass
class Plain:
    """Turns the Markdown of one notebook, cell by cell, into standard Markdown.

    roles: name of a role -> its content made Markdown. number: kind and label -> its number.
    follow: where a link leads to in the plain edition; None leaves its words alone.
    """

    roles: dict[str, Callable[[str], str]]
    number: Callable[[str, str], str]
    follow: Callable[[str], str | None]
    solution: str | None = None  # label of the solution that is open at the end of the text

    def text(self, source: str) -> str:
        """Standard Markdown. RRError names a role or directive that is not known."""
        return re.sub(r"\n{3,}", "\n\n", _Pass(source).run(self)).strip("\n")

    def line(self, source: str) -> str:
        """A title or caption: one line."""
        return " ".join(self.text(source).split())

    def box(self, directive: Directive) -> str:
        """A directive as a block quote with a bold title, or as a fold."""
        if directive.name in SOLUTIONS:
            return self._solution(directive)
        if directive.name in QUESTIONS:
            return self._question(directive)
        if directive.name not in BOXES:
            known = nearest(directive.name, (*BOXES, *QUESTIONS, *SOLUTIONS))
            raise RRError(f"directive {{{directive.name}}} is not known: {known}")
        title, body = self.line(directive.argument), self.text(directive.body)
        if directive.name == "exercise":
            number = self.number("exercise", directive.options.get("label", ""))
            title = f"**Exercise {number}.** {title}".rstrip()
        elif directive.name == "dropdown" or "dropdown" in directive.options.get("class", ""):
            return fold(title, body)
        else:
            title = f"**{title}**"
        return _quote(f"{title}\n\n{body}" if body else title)

    def _question(self, directive: Directive) -> str:
        if directive.name == "number":
            number = " ".join(
                filter(None, [directive.options["right"], directive.options.get("unit")])
            )
            return fold("Answer", f"{typeset(number)}. {self.text(directive.body)}")
        options, _, why = directive.body.partition("\n\n")
        right = re.sub(r"^[-*] ✓ *", "- ", options, flags=re.MULTILINE)
        (answer,) = re.findall(r"^[-*] ✓ *(.*)", options, flags=re.MULTILINE)
        return f"{self.text(right)}\n\n{fold('Answer', self.text(f'*{answer}*. {why}'))}"

    def _solution(self, directive: Directive) -> str:
        label, body = directive.argument, self.text(directive.body)
        if directive.name == "solution":
            return fold(self.solved(label), body)
        if directive.name == "solution-end":
            self.solution = None
            return "</details>"
        self.solution = label
        return f"<details>\n<summary>{self.solved(label)}</summary>\n\n{body}".rstrip()

    def solved(self, label: str) -> str:
        """The title of a solution."""
        return f"Solution of exercise {self.number('exercise', label)}"


def fold(title: str, body: str) -> str:
    """A fold that a click opens; its title is HTML, made from one line of Markdown."""
    return f"<details>\n<summary>{PARSER.renderInline(title)}</summary>\n\n{body}\n\n</details>"


def _quote(text: str) -> str:
    """A block quote. Mathematics keeps to one line: its `>` would be read as "greater than"."""
    lines = _Pass(text).on_one_line().split("\n")
    return "\n".join(f"> {line}".rstrip() for line in lines)


def _lines(token: Token) -> tuple[int, int]:
    """The lines of a block's token, the last exclusive."""
    assert token.map is not None, token
    first, last = token.map
    return first, last


class _Pass:
    """One reading of a text: what is to be replaced, by position."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.lines = source.split("\n")
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line) + 1)
        self.cursor: dict[int, int] = {}  # of each line, how much was found in it
        self.edits: list[tuple[int, int, str]] = []

    def run(self, plain: Plain) -> str:
        for token in PARSER.parse(self.source):
            if token.type == "inline":
                self._inline(token, plain)
            elif token.type in ALONE:
                self._block(token, "")
            elif token.type == "math_block_label":
                number = plain.number("equation", token.info)
                self._block(token, f"$$\n{token.content.strip()} \\tag{{{number}}}\n$$")
            elif directive := Directive.of(token):
                self._block(token, f"\n{plain.box(directive)}\n")
        return self._edited()

    def on_one_line(self) -> str:
        for token in PARSER.parse(self.source):
            if token.type == "math_block":
                self._block(token, f"$${' '.join(token.content.split())}$$")
            elif token.type == "inline":
                for child, start, end in self._children(token):
                    if child.type == "math_inline":
                        self._joined(start, end)
        return self._edited()

    def _joined(self, start: int, end: int) -> None:
        text = self.source[start:end]
        if "\n" in text:
            self.edits.append((start, end, re.sub(r"\n[>\s]*", " ", text)))

    def _edited(self) -> str:
        text, at = [], 0
        for start, end, new in sorted(self.edits):
            text += [self.source[at:start], new]
            at = end
        return "".join([*text, self.source[at:]])

    def _block(self, token: Token, new: str) -> None:
        """Replace the token's lines, within the list or quote that they stand in."""
        first, last = _lines(token)
        line = self.lines[first]
        prefix = line[: line.index(token.markup)] if token.markup else ""
        rest = re.sub(r"[^>\s]", " ", prefix)
        new = "\n".join(
            (prefix if i == 0 else rest) + part for i, part in enumerate(new.split("\n"))
        )
        self.edits.append((self.starts[first], self.starts[last] - 1, new))

    def _children(self, token: Token) -> Iterator[tuple[Token, int, int]]:
        """The markup within a paragraph, a heading or a table's cell, with its place."""
        first, last = _lines(token)
        children = token.children or []
        if not any("span" in child.meta for child in children):
            if last - first == 1:
                self._find(first, token.content)
            return
        places = [self._find(first + i, line) for i, line in enumerate(token.content.split("\n"))]

        def place(position: int) -> int:
            before = token.content[:position]
            return places[before.count("\n")] + len(before) - (before.rfind("\n") + 1)

        for child in children:
            if span := child.meta.get("span"):
                start, end = span
                yield child, place(start), place(end)

    def _find(self, number: int, content: str) -> int:
        """Where the content of a line begins in the source."""
        column = self.lines[number].find(content, self.cursor.get(number, 0))
        if column < 0:
            raise RRError(f"{content!r} is not found in {self.lines[number]!r}: write it simpler")
        self.cursor[number] = column + len(content)
        return self.starts[number] + column

    def _inline(self, token: Token, plain: Plain) -> None:
        for child, start, end in self._children(token):
            if child.type == "math_inline":
                self._joined(start, end)
            elif child.type == "link_open":
                self._link(start, end, str(child.attrs["href"]), plain)
            else:
                name = child.meta["name"]
                if name not in plain.roles:
                    known = nearest(name, plain.roles)
                    raise RRError(f"role {{{name}}} is not known: {known}")
                new = plain.roles[name](child.content)
                first = self.source.rfind("\n", 0, start) + 1
                above = self.source[: first - 1] if first > self.starts[_lines(token)[0]] else ""
                if above and not self.source[first:start].strip("> \t") and above[-1] not in "\\ ":
                    start, new = first - 1, f" {new}"  # at a line's start "3." would be a list
                self.edits.append((start, end, new))

    def _link(self, start: int, end: int, href: str, plain: Plain) -> None:
        if href.startswith(("https:", "http:", "mailto:")):
            return
        middle, target = self.source.rfind("](", start, end), plain.follow(href)
        if target is None:
            self.edits += [(start, start + 1, ""), (middle, end, "")]
        else:
            self.edits.append((middle, end, f"]({target})"))
