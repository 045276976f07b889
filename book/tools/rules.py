"""The rules that every notebook obeys; CONTRIBUTING.md says them in words.

`problems(path)` yields one line for each rule broken, with the cell that breaks it. The book's
linter prints them, and the tests assert that there are none.
"""

import ast
import io
import json
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import bootstrap
import folding
import nbformat
import papermill
from IPython.core.inputtransformer2 import TransformerManager
from nbkit import code_cells, is_report, read, tags
from prose import reference_links, typed_results, words

from rrbook.labels import CHECKS
from rrbook.markdown import preset

KNOWN_TAGS = {
    *CHECKS,
    "bootstrap",
    "parameters",
    "explorable",
    "lab",
    "nbval-ignore-output",
    "small",
    "hide-input",
    "hide-output",
    "remove-input",
    "remove-output",
    "remove-cell",
}
PLAIN = (int, float, str, bool, list, dict)
LINES, HIDDEN_LINES, SMALL_LINES = 15, 25, 30
ASSERTS = re.compile(r"\b(assert(_\w+)?|verdict)\b|\.assert_\w+\(")
HIDDEN = {"hide-input", "remove-input", "remove-cell"}
CELLS = range(15, 31)
WORDS = range(1200, 2801)
BYTES = 2_000_000
ALT = 40
IMAGES = ("image/png", "image/jpeg", "image/svg+xml")


def images(cell: nbformat.NotebookNode) -> int:
    """How many pictures the cell shows; values that are glued for elsewhere are not shown."""
    return sum(any(kind in output.get("data", {}) for kind in IMAGES) for output in cell.outputs)


def problems(path: Path) -> Iterator[str]:
    """Every rule that the notebook breaks."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        ids = [cell["id"] for cell in raw["cells"]]  # before nbformat silently mends them
        notebook = read(path)
        nbformat.validate(notebook)
    except Exception as error:  # unreadable JSON, a missing key: any of them is the same finding
        yield f"not a valid notebook: {error}"
        return
    if path.stat().st_size > BYTES:
        yield f"{path.stat().st_size} bytes; at most {BYTES}, or it is a burden to every clone"
    for twice in sorted({i for i in ids if ids.count(i) > 1}):
        yield f"cell id {twice!r} is used twice"
    yield from _whole(notebook)
    yield from _bootstrap(notebook)
    yield from _parameters(notebook, path)
    yield from _checked(notebook)
    for cell in notebook.cells:
        place = f"cell {cell.get('id')!r}: "
        check = _code if cell.cell_type == "code" else _markdown
        yield from (place + problem for problem in check(cell))
    yield from _figures(notebook)
    yield from _presets(notebook)
    if not is_report(notebook):
        yield from _chapter(notebook)


def _whole(notebook: nbformat.NotebookNode) -> Iterator[str]:
    if notebook.metadata.get("kernelspec", {}).get("name") != "python3":
        yield "metadata.kernelspec.name is not python3"
    if "papermill" in notebook.metadata:
        yield "metadata of a papermill run is stored; `make store` cleans it"
    counts = [cell.execution_count for cell in code_cells(notebook)]
    if None not in counts and counts != list(range(1, len(counts) + 1)):
        yield f"cells were not executed once and in order: {counts}"


def _bootstrap(notebook: nbformat.NotebookNode) -> Iterator[str]:
    tagged = [cell for cell in notebook.cells if "bootstrap" in tags(cell)]
    current = [cell for cell in tagged if cell.source == bootstrap.source()]
    if len(tagged) != 1 or len(current) != 1:
        yield "needs exactly the current bootstrap cell: run book/tools/bootstrap.py"
    elif code_cells(notebook)[0] is not tagged[0]:
        yield "the bootstrap cell is not the first code cell"


def _parameters(notebook: nbformat.NotebookNode, path: Path) -> Iterator[str]:
    tagged = [cell for cell in notebook.cells if "parameters" in tags(cell)]
    if len(tagged) != 1:
        yield f"has {len(tagged)} cells tagged `parameters`; needs one"
        return
    tree = ast.parse(tagged[0].source)
    names = []
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        try:
            value = ast.literal_eval(node.value)
        except (ValueError, AttributeError):
            yield f"parameters: line {node.lineno} is not a plain literal"
            continue
        if not isinstance(value, PLAIN):
            yield f"parameters: line {node.lineno} is not of a plain type"
        if not isinstance(target, ast.Name):
            yield f"parameters: line {node.lineno} does not assign to a name"
            continue
        names.append(target.id)
        if "#" not in tagged[0].source.splitlines()[: node.end_lineno][-1]:
            yield f"parameters: `{target.id}` has no comment that says its meaning and unit"
    if not tagged[0].source.startswith("tier = ") or not names or names[0] != "tier":
        yield 'parameters: the first line is not `tier = "smoke"`'
    elif ast.literal_eval(tree.body[0].value) != "smoke":
        yield 'parameters: the stored tier is not "smoke"'
    try:
        seen = papermill.inspect_notebook(str(path))
    except ValueError as error:
        yield f"parameters: papermill cannot read them: {error}"
        return
    for name in set(names) - set(seen):
        yield f"parameters: papermill does not recognise `{name}`"
    for name in set(seen) & set(names):
        if not seen[name]["help"]:
            yield f"parameters: papermill finds no comment for `{name}`"


def _checked(notebook: nbformat.NotebookNode) -> Iterator[str]:
    """The cells after the parameters, where papermill's are known, check them and the tier."""
    cells = code_cells(notebook)
    first = next((i for i, cell in enumerate(cells, 1) if "parameters" in tags(cell)), 0)
    if not any("parameters.check(tier, " in cell.source for cell in cells[first : first + 2]):
        yield "neither of the two code cells after the parameters calls parameters.check(tier, …)"
    for cell in cells:
        if "[tier]" in cell.source:
            yield (
                f"cell {cell.get('id')!r}: `[tier]` meets a wrong tier with a bare KeyError: "
                "parameters.check(tier, …)"
            )


def _code(cell: nbformat.NotebookNode) -> Iterator[str]:
    for tag in set(tags(cell)) - KNOWN_TAGS:
        yield f"unknown tag `{tag}`"
    if cell.execution_count is None:
        yield "was not executed, or not stored"
    for output in cell.outputs:
        if output.output_type == "error":
            yield f"stores an error: {output.ename}: {output.evalue}"
        if output.output_type == "stream" and output.name == "stderr":
            yield f"stores a warning: {output.text.strip().splitlines()[-1][:100]}"
    if not cell.source.strip():
        yield "is empty"
    if _trailing_semicolon(cell.source):
        yield "a line ends in `;`, which nbval does not honour: use plt.show() or `_ =`"
    if {"papermill", "execution"} & set(cell.metadata):
        yield "stores execution times; `make store` cleans them"
    if not {"bootstrap", "parameters"} & set(tags(cell)):
        most = HIDDEN_LINES if HIDDEN & set(tags(cell)) else LINES
        most = SMALL_LINES if "small" in tags(cell) else most
        lines = sum(not re.match(r"(from \w|import )", line) for line in cell.source.splitlines())
        if lines > most:
            yield f"has {lines} lines; at most {most}"


def _trailing_semicolon(source: str) -> bool:
    """Whether a statement ends in `;`; one inside a string or a comment is no statement's end."""
    python = TransformerManager().transform_cell(source)
    kinds = [
        t
        for t in tokenize.generate_tokens(io.StringIO(python).readline)
        if t.type not in (tokenize.COMMENT, tokenize.NL)
    ]
    return any(
        one.type == tokenize.OP and one.string == ";" and two.type == tokenize.NEWLINE
        for one, two in zip(kinds, kinds[1:], strict=False)
    )


def _markdown(cell: nbformat.NotebookNode) -> Iterator[str]:
    for line, kind, text in typed_results(cell.source):
        yield f"line {line}: {kind} is typed in prose ({text!r}): glue it, or {{quoted}} its source"
    for link in reference_links(cell.source):
        yield f"write the link {link} with its target in (), where a wrong one stops the build"
    for alt in re.findall(r"!\[([^\]]*)\]\(", cell.source):
        if len(alt) < ALT:
            yield f"an image's alternative text has {len(alt)} characters; at least {ALT}"


def _figures(notebook: nbformat.NotebookNode) -> Iterator[str]:
    cells = code_cells(notebook)
    names = []
    for i, cell in enumerate(cells):
        place, drawn, kinds = f"cell {cell.get('id')!r}: ", images(cell), CHECKS.keys() & tags(cell)
        if not drawn:
            if kinds:
                yield f"{place}says how a figure is checked, but shows none"
            continue
        meta = cell.metadata.get("mystnb", {})
        image, figure = meta.get("image", {}), meta.get("figure", {})
        if drawn > 1:
            yield f"{place}shows {drawn} figures; one per cell: it has one alternative text"
        if (length := len(image.get("alt", ""))) < ALT:
            yield f"{place}mystnb.image.alt has {length} characters; at least {ALT}"
        if "dark-light" not in image.get("classes", ""):
            yield f"{place}mystnb.image.classes lacks dark-light, so dark mode shifts its colours"
        if not figure.get("caption") or not figure.get("name"):
            yield f"{place}needs mystnb.figure.caption and mystnb.figure.name"
        else:
            names.append(figure["name"])
        if len(kinds) != 1:
            yield f"{place}needs exactly one of {', '.join(sorted(CHECKS))}"
        near = cells[max(0, i - 1) : i + 2]
        if not any(ASSERTS.search(c.source) for c in near):
            yield f"{place}no assert in the code cell before it, in it, or after it"
    for twice in sorted({n for n in names if names.count(n) > 1}):
        yield f"figure name {twice!r} is used twice"


def _presets(notebook: nbformat.NotebookNode) -> Iterator[str]:
    """A button in the text sets controls that its explorable has, to values that they take."""
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    shown = "".join(output.get("data", {}).get("text/html", "") for output in outputs)
    for cell in notebook.cells:
        place = f"cell {cell.get('id')!r}: preset: "
        roles = re.findall(r"\{preset\}`([^`]+)`", cell.source)
        for _, name, settings in map(preset, roles if cell.cell_type == "markdown" else []):
            figure = re.search(rf'data-explorable="{name}".*?</form>', shown, re.DOTALL)
            if figure is None:
                yield f"{place}the notebook shows no explorable {name!r}"
                continue
            for key, value in settings.items():
                if not _takes(figure.group(), key, value):
                    yield f"{place}{name} has no control {key!r} that takes {value!r}"


def _takes(form: str, name: str, value: str) -> bool:
    """Whether a form's control takes the value: slider, checkbox, radio button or list."""
    slider = rf'type="range" name="{name}" min="([^"]+)" max="([^"]+)"'
    if match := re.search(slider, form):
        return float(match[1]) <= float(value) <= float(match[2])
    if f'type="checkbox" name="{name}"' in form:
        return value in ("on", "off")
    if f'<select name="{name}"></select>' in form:  # its script fills it: the browser's tests look
        return True
    options = re.search(rf'<select name="{name}">.*?</select>', form, re.DOTALL)
    return (f'name="{name}" value="{value}"' in form
            or f'value="{value}"' in (options.group() if options else ""))  # fmt: skip


def _folded(notebook: nbformat.NotebookNode) -> Iterator[str]:
    """The page folds what is long or plumbing; what stays open must be little, and the idea."""
    shown = folding.open_cells(notebook)
    if len(shown) > folding.CELLS:
        yield f"the page shows {len(shown)} code cells; at most {folding.CELLS}: tag hide-input"
    for cell in notebook.cells:
        if cell.get("id") == "by-hand" and cell not in shown:
            yield (
                f"cell 'by-hand': the page folds it: at most {folding.LINES} lines of"
                f" {folding.COLUMNS} characters"
            )


def _chapter(notebook: nbformat.NotebookNode) -> Iterator[str]:
    yield from _folded(notebook)
    cells = [c for c in code_cells(notebook) if not {"remove-cell", "small"} & set(tags(c))]
    if len(cells) not in CELLS:
        yield f"has {len(cells)} code cells; {CELLS.start} to {CELLS.stop - 1}"
    text = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    count = sum(words(source) for source in text)
    if count not in WORDS:
        yield f"has {count} words; {WORDS.start} to {WORDS.stop - 1}"
    whole = "\n".join(text)
    first = "(ch-transformer)=" in whole  # it teaches what is known, and has nothing to doubt
    boxes = {"rr-card", "rr-predict", "rr-see", "rr-takeaways"} | (set() if first else {"rr-mind"})
    for box in sorted(boxes):
        if not re.search(rf":class:.*\b{box}\b", whole):
            yield f"has no box of class {box}"
    labels = re.findall(
        r"\{exercise(?:-start)?\}[^\n]*\n(?:\s*:[^\n]*\n)*?\s*:label:\s*(\S+)", whole
    )
    if len(labels) not in range(4, 7):
        yield f"has {len(labels)} exercises with labels; four to six"
    solved = set(re.findall(r"\{solution(?:-start)?\}\s+(\S+)", whole))
    for label in labels:
        if label not in solved:
            yield f"exercise {label} has no solution"
    for kind in ("explorable",) if first else ("explorable", "lab"):
        if not any(kind in tags(cell) for cell in cells):
            yield f"has no cell tagged {kind}"
