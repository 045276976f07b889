"""Imports run one way, and the core needs torch, numpy, tokenizers and tqdm alone."""

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2] / "rr"
# Top to bottom: a room may import only rooms above it.
ORDER = ["config", "kernels", "ops", "residual", "values", "model", "checks", "ladder", "cache",
         "fables_grammar", "fables", "documents", "tokens", "corpus", "runtime", "distributed",
         "paths", "evaluate", "memory", "roofline", "attention", "progress", "runs", "outcome",
         "loggers", "trainer", "numerics", "sweep", "bench", "planning", "hub", "stats", "inside",
         "report", "figures", "explore", "cli"]
CORE = ORDER[: ORDER.index("hub")]
ALLOWED = {"torch", "numpy", "tokenizers", "tqdm"}
OPTIONAL = {"kernels": "triton"}  # rooms that need one package more, and load only when asked for


def rooms():
    for path in sorted(ROOT.rglob("*.py")):
        if path != ROOT / "__init__.py":
            yield path, path.relative_to(ROOT).with_suffix("").parts[0]


def imported(path):
    """(top-level module or rr room, whether at module level) of every import in a file."""
    tree = ast.parse(path.read_text())
    package = ("rr", *path.relative_to(ROOT).parts[:-1])
    for node in ast.walk(tree):
        level = node in tree.body
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else ()
            stem = ".".join((*base, *filter(None, [node.module])))
            names = [f"{stem}.{alias.name}" for alias in node.names] if stem == "rr" else [stem]
        else:
            continue
        for name in names:
            yield name, level


def test_every_room_has_its_place():
    assert {room for _, room in rooms()} == set(ORDER)


def test_imports_run_one_way():
    for path, room in rooms():
        for name, _ in imported(path):
            if name.startswith("rr."):
                other = name.split(".")[1]
                if other in ORDER:
                    assert ORDER.index(other) <= ORDER.index(room), f"{path.name} imports {name}"


def test_the_core_needs_four_packages():
    for path, room in rooms():
        for name, level in imported(path):
            top = name.split(".")[0]
            if room in CORE and level and top != "rr":
                known = ALLOWED | set(sys.stdlib_module_names) | {OPTIONAL.get(room)}
                assert top in known, f"{path.name}: {name}"


def test_optional_rooms_are_imported_within_functions():
    for path, room in rooms():
        for name, level in imported(path):
            other = name.removeprefix("rr.").split(".")[0]
            assert not (level and room != other and other in OPTIONAL), f"{path.name}: {name}"


def test_tables_and_figures_need_no_torch():
    for path, room in rooms():
        if room in ("stats", "figures"):
            assert not any(n.split(".")[0] == "torch" for n, _ in imported(path)), path.name
