"""Find results that were typed into prose (decimals, percentages, powers of ten, factors), and
wordings that neither the book nor its code uses.

Numbers on the page are computed: glued from a cell, or quoted from a paper with its key. What is
looked at is the text a reader reads: code, mathematics, roles, links, addresses and comments are
taken out first.
"""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

# what is not prose, in the order in which it is taken out
NOT_PROSE = [
    re.compile(r"(?ms)^(?P<fence>`{3,}|~{3,})[^\n]*\n.*?^(?P=fence)[`~]*\s*$"),  # code, directives
    re.compile(r"(?s)<!--.*?-->"),
    re.compile(r"(?s)\$\$.*?\$\$(?:[ \t]*\([\w:-]+\))?"),
    re.compile(r"(?s)\\begin\{(\w+\*?)\}.*?\\end\{\1\}"),
    re.compile(r"(?<![\\$])\$(?!\s)(?:\\.|[^$\\])+?(?<!\s)\$"),
    re.compile(r"\{[\w:.-]+\}(?P<tick>`+).+?(?P=tick)(?!`)", re.DOTALL),  # roles
    re.compile(r"(?P<tick>`+)(?!`).+?(?P=tick)(?!`)", re.DOTALL),
    re.compile(r"\]\([^)\s]*\)"),  # where a link leads; its words stay
    re.compile(r"<?https?://[^\s>)]+>?"),
    re.compile(r"(?m)^\([\w:-]+\)=\s*$"),
    re.compile(r"(?m)^\s*:[\w-]+:.*$"),  # options of directives
]
FENCED_PROSE = re.compile(  # directives whose content a reader reads
    r"(?ms)^(?P<fence>`{3,})\{(?:admonition|note|tip|warning|exercise\w*|solution\w*|dropdown|margin)"
    r"[^\n]*\}[^\n]*\n(?P<body>.*?)^(?P=fence)\s*$"
)
WORDS = "two|three|four|five|six|seven|eight|nine|ten|twelve|twenty|fifty|hundred|thousand"
RESULTS = [
    ("a decimal", re.compile(r"(?<![\w.])[-−+]?\d+\.\d+(?![\w.]*\d)")),
    ("a percentage", re.compile(rf"\b(?:\d[\d.,]*|{WORDS})\s?(?:%|per\s?cent\b|percent\b)", re.I)),
    ("a power of ten", re.compile(r"\b\d+(?:\.\d+)?[eE][-−+]?\d+\b|\b10[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+")),
    ("a factor", re.compile(r"\b\d[\d.,]*(?:[\s-]?(?:times\b|fold\b)|\s?×(?!\s?\d))", re.I)),
    ("a loss", re.compile(r"\b\d[\d.,]*\s(?:nats?|bits?)\b", re.I)),
]

UNITS = "nats?|bits?|bytes|tokens|FLOPs?|sublayers|seeds|windows|gates"
WHOLE = "token|byte|parameter|tenfold|step|sublayer|seed|arm|block|channel|pass|run|second|hour"
WORDING = [  # what is not written, and what is written for it
    (re.compile(rf"\b(?:{UNITS}) an? (?:{WHOLE})\b"), "say per: nats per token"),
    (re.compile(r"\bquotients?\b", re.I), "say ratio"),
    (re.compile(r"\bretellings?\b", re.I), "say update"),
    (re.compile(r"\b(?:is|are) damaged\b"), "say is corrupt"),
    (re.compile(r"\b(?:is|are) accepted\Z"), "say what is wrong, what was expected, what to do"),
]
MINUS = re.compile(r"(?<![^\s(\[])-\d")  # only in Markdown: Python writes -1 in code that it quotes


def visible(text: str) -> str:
    """The markdown with everything that is not prose blanked out; line numbers stay."""

    def blank(match: re.Match) -> str:
        return "".join("\n" if char == "\n" else " " for char in match.group())

    def unwrap(match: re.Match) -> str:
        lines = match.group().splitlines(keepends=True)
        return "\n" + "".join(lines[1:-1]) + "\n" if len(lines) > 2 else match.group()

    while FENCED_PROSE.search(text):
        text = FENCED_PROSE.sub(unwrap, text, count=1)
    for pattern in NOT_PROSE:
        text = pattern.sub(blank, text)
    return text


def typed_results(text: str) -> Iterator[tuple[int, str, str]]:
    """Every typed result in a piece of markdown: its line (1-based), its kind, its words."""
    prose = visible(text)
    for kind, pattern in RESULTS:
        for match in pattern.finditer(prose):
            yield prose.count("\n", 0, match.start()) + 1, kind, match.group().strip()


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """What a reader reads of a file, in pieces, each with its line or the number of its cell."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.lineno, node.value
    elif path.suffix == ".ipynb":
        for number, cell in enumerate(json.loads(source)["cells"]):
            if cell["cell_type"] == "markdown":
                yield number, visible("".join(cell["source"]))
    else:
        for number, line in enumerate(visible(source).splitlines(), 1):
            yield number, line


def worded(path: Path) -> Iterator[tuple[int, str, str]]:
    """Every wording of a file that the book does not use: where, its words, what to say."""
    rules = WORDING if path.suffix == ".py" else [*WORDING, (MINUS, "write a minus: −")]
    for place, text in texts(path):
        for pattern, advice in rules:
            for match in pattern.finditer(text):
                yield place, match.group(), advice


def reference_links(text: str) -> list[str]:
    """Links of the form [words][label]: where the label is missing, Sphinx shows them as plain
    text and says nothing, so the book does not use them."""
    return re.findall(r"\[[^\]\n]+\]\[[^\]\n]*\]", visible(text))


def words(text: str) -> int:
    """How many words a reader reads; folds and solutions, closed until asked for, are left out."""
    text = re.sub(r"(?ms)^(:{3,}|`{3,})\{(?:solution|dropdown)\}.*?^\1\s*$", " ", text)
    text = re.sub(r"(?s):{3,}\{solution-start\}.*", " ", text)
    return len(re.findall(r"[^\W\d_][\w'’-]*", visible(text)))
