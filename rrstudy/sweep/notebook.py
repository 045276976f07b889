"""The notebook that runs a cell: its parameters, and the papermill command that sets them.

papermill only warns of a parameter that the notebook lacks, and guesses types from words. Here both
are checked before anything starts.
"""

import ast
import importlib.util
import json
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path

from rr.errors import RRError, install, nearest
from rr.io import MIB, file_bytes
from rr.options import Request, options_of
from rr.specs import RUN_OPTIONS

from .grid import Cell

REPORTS = Path(__file__).resolve().parents[2] / "book" / "rrbook" / "reports"
REPORT = "report.ipynb"  # the executed copy, in the run's folder
ALWAYS = ("rung", "rule", "seed", "protocol", "corpus", "out")  # set even at their defaults
# The value of a parameter that is not chosen. Parameters are plain literals, so "", 0 and [] mean
# no choice, too.
ZERO = {int: 0, float: 0.0, bool: False}
NEUTRAL = {
    name: ZERO.get(option.read, "") if option.default is None else option.default
    for name, option in (RUN_OPTIONS | options_of(Request)).items()
    if name not in ALWAYS
} | {"budgets": [], "save_every": 0.0}


def find(path: str | None) -> Path:
    """The notebook: `path`, or the report of a run of the checkout. RRError without one."""
    chosen = Path(path) if path else REPORTS / "run.ipynb"
    if not chosen.is_file():
        raise RRError(f"no notebook {chosen}: give --notebook PATH, or --runner direct")
    return chosen


def check_installed() -> None:
    """RRError where no notebook can be executed."""
    missing = [n for n in ("papermill", "ipykernel") if importlib.util.find_spec(n) is None]
    if missing:
        raise RRError(
            f"{' and '.join(missing)} not installed: {install('book')}, or use "
            "--runner direct, which needs no Jupyter"
        )


def parameters(path: Path) -> dict[str, object]:
    """Name and default of every parameter: the literals of the cell tagged `parameters`."""
    try:
        cells = json.loads(path.read_bytes())["cells"]
        cell = next(c for c in cells if "parameters" in c["metadata"].get("tags", []))
        tree = ast.parse("".join(cell["source"]))
        defaults = {}
        for line in tree.body:
            if isinstance(line, ast.Assign | ast.AnnAssign):
                target = line.target if isinstance(line, ast.AnnAssign) else line.targets[0]
                if not isinstance(target, ast.Name) or line.value is None:
                    raise TypeError("a parameter is set as name = literal")
                defaults[target.id] = ast.literal_eval(line.value)
        return defaults
    except StopIteration:
        raise RRError(f"{path} has no cell tagged parameters: tag the one that sets them") from None
    except (OSError, ValueError, SyntaxError, KeyError, TypeError, AttributeError) as error:
        raise RRError(f"{path} cannot be read as a notebook: {error}") from None


def arguments(
    cell: Cell,
    out: Path,
    machine: Mapping[str, object],
    notebook: Path,
    known: Mapping[str, object],
) -> dict[str, object]:
    """The parameters to set for a cell, in a notebook with the parameters `known`.

    Raises RRError where the notebook lacks one, or has it with another type.
    """
    options = {**cell.words, **machine, "out": str(out)}
    for name, neutral in NEUTRAL.items():
        # a default of the notebook's own would be a choice that we did not make
        if name not in options and known.get(name) and known[name] != neutral:
            options[name] = neutral
    chosen = {}
    for name, value in options.items():
        if name not in known:
            raise RRError(f"{notebook} has no parameter {name!r}: {nearest(name, known)}")
        default = known[name]
        if isinstance(default, float) and type(value) is int:
            value = float(value)
        if type(value) is not type(default):
            raise RRError(
                f"{notebook}: parameter {name} must be {type(default).__name__} like its default "
                f"{default!r}, got {value!r} ({type(value).__name__})"
            )
        if name in ALWAYS or value != default:
            chosen[name] = value
    return {name: chosen[name] for name in sorted(chosen, key=_order)}


def _order(name: str) -> int:
    """A sort key: `rung`, `rule`, … first, the folder last."""
    if name == "out":
        return 100
    return ALWAYS.index(name) if name in ALWAYS else 50


def engine() -> str | None:
    """The book's engine for papermill, which leaves reports in standard Markdown, if installed."""
    return "plain" if entry_points(group="papermill.engine", name="plain") else None


def _kernel(path: Path) -> list[str]:
    """Options of papermill for a notebook that names no kernel, or one of its author's machine."""
    metadata = json.loads(path.read_bytes())["metadata"]
    spec = metadata.get("kernelspec", {})
    language = spec.get("language") or metadata.get("language_info", {}).get("name")
    return [] if spec.get("name") == "python3" and language else ["-k", "python3", "-l", "python"]


def papermill(
    notebook: Path, report: Path, chosen: Mapping[str, object], engine: str | None = None
) -> list[str]:
    """The words of the papermill command."""
    # papermill takes braces in a path for the name of a parameter
    paths = [str(path).replace("{", "{{").replace("}", "}}") for path in (notebook, report)]
    words = ["papermill", *paths]
    for name, value in chosen.items():
        if isinstance(value, list):
            words += ["-y", f"{name}: {value}"]
        else:
            words += ["-p" if _guessed(str(value)) == value else "-r", name, str(value)]
    words += _kernel(notebook)
    return [*words, "--engine", engine] if engine else words


def _guessed(word: str) -> object:
    """The value that papermill reads from the word after -p."""
    if word in ("True", "False", "None"):
        return ast.literal_eval(word)
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            pass
    return word


def complete(report: Path, run_id: str) -> bool:
    """Whether papermill executed this run's report completely, without an error."""
    try:
        executed = json.loads(file_bytes(report, 256 * MIB))
        code = [cell for cell in executed["cells"] if cell["cell_type"] == "code"]
        done = executed["metadata"]["papermill"]
        ended = bool(done["end_time"]) and Path(done["output_path"]).parent.name == run_id
        return ended and all(
            cell["metadata"]["papermill"]["status"] == "completed" for cell in code
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False
