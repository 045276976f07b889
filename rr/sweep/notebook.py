"""The notebook that a cell is run by: which parameters it has, and what papermill is told.

papermill only warns of a parameter that the notebook does not have, and guesses types from words.
Both are settled here, before anything starts.
"""

import ast
import importlib.util
import json
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path

from ..config import MIB, RRError, file_bytes, nearest
from .grid import Cell

NAME = "09_scaling_run.ipynb"
REPORT = "report.ipynb"  # the executed copy, in the run's folder
# What a parameter holds where nothing is chosen. A notebook has plain literals alone, so that
# "", 0 and [] stand for no choice as well.
NEUTRAL = {"values": "own", "loops": 1, "flavour": "gpt2", "tokenizer": "", "steps": 0,
           "budgets": [], "warmup": 0, "lr": 0.0, "depth_lr": False, "batch": 0,
           "eval_batches": 0, "precision": "", "threads": 0, "device": "", "micro_batch": 0,
           "save_every": 0.0, "log": ""}  # fmt: skip
ALWAYS = ("rung", "rule", "seed", "protocol", "corpus", "out")  # told even at their defaults


def find(path: str | None) -> Path:
    """The notebook: `path`, or that of the checkout that `rr` runs from. RRError without one."""
    found = Path(path) if path else Path(__file__).resolve().parents[2] / "notebooks" / NAME
    if not found.is_file():
        raise RRError(f"no notebook {found}: --notebook PATH, or --runner direct, is accepted")
    return found


def check_installed() -> None:
    """RRError where no notebook can be executed."""
    missing = [n for n in ("papermill", "ipykernel") if importlib.util.find_spec(n) is None]
    if missing:
        raise RRError(
            f"{' and '.join(missing)} not installed: pip install 'review-residuals[book]' brings "
            "it; --runner direct needs no Jupyter"
        )


def parameters(path: Path) -> dict[str, object]:
    """Name and default of every parameter: the literals of the cell tagged `parameters`."""
    try:
        cells = json.loads(path.read_text())["cells"]
        cell = next(c for c in cells if "parameters" in c["metadata"].get("tags", []))
        tree = ast.parse("".join(cell["source"]))
        found = {}
        for line in tree.body:
            if isinstance(line, ast.Assign | ast.AnnAssign):
                target = line.target if isinstance(line, ast.AnnAssign) else line.targets[0]
                found[target.id] = ast.literal_eval(line.value)
        return found
    except StopIteration:
        raise RRError(f"{path} has no cell tagged parameters: it cannot be told a run") from None
    except (OSError, ValueError, SyntaxError, KeyError, TypeError, AttributeError) as error:
        raise RRError(f"{path} cannot be read as a notebook: {error}") from None


def told(cell: Cell, out: Path, machine: Mapping[str, object], notebook: Path,
         known: Mapping[str, object]) -> dict[str, object]:  # fmt: skip
    """The parameters that a notebook with the parameters `known` needs to be told for a cell.

    RRError where it lacks one, or has it with another type.
    """
    words = {**cell.words, **machine, "out": str(out)}
    for name, value in NEUTRAL.items():
        if name not in words and known.get(name) not in (None, value) and known[name]:
            words[name] = value  # the notebook's own default is a choice, which we did not make
    chosen = {}
    for name, value in words.items():
        if name not in known:
            raise RRError(f"{notebook} has no parameter {name!r}: {nearest(name, known)}")
        default = known[name]
        if isinstance(default, float) and type(value) is int:
            value = float(value)
        if type(value) is not type(default):
            raise RRError(
                f"{notebook}: parameter {name} is {default!r}, {type(default).__name__}: "
                f"{value!r}, {type(value).__name__}, is not accepted"
            )
        if name in ALWAYS or value != default:
            chosen[name] = value
    return {name: chosen[name] for name in sorted(chosen, key=_order)}


def _order(name: str) -> int:
    """`rung`, `rule`, … first, the folder last, the others between."""
    return ALWAYS.index(name) if name in ALWAYS[:-1] else 100 if name == "out" else 50


def engine() -> str | None:
    """The book's engine for papermill, which leaves reports in standard Markdown, if installed."""
    return "plain" if entry_points(group="papermill.engine", name="plain") else None


def papermill(
    notebook: Path, report: Path, chosen: Mapping[str, object], engine: str | None = None
) -> list[str]:
    """The words of the papermill command."""
    words = ["papermill", str(notebook), str(report)]
    for name, value in chosen.items():
        if isinstance(value, list):
            words += ["-y", f"{name}: {value}"]
        else:
            words += ["-p" if _guessed(str(value)) == value else "-r", name, str(value)]
    return [*words, "--engine", engine] if engine else words


def _guessed(word: str) -> object:
    """What papermill makes of the word after -p."""
    if word in ("True", "False", "None"):
        return {"True": True, "False": False, "None": None}[word]
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            pass
    return word


def complete(report: Path) -> bool:
    """Whether papermill executed a report to its end, without an error."""
    try:
        made = json.loads(file_bytes(report, 256 * MIB))
        code = [cell for cell in made["cells"] if cell["cell_type"] == "code"]
        return bool(made["metadata"]["papermill"]["end_time"]) and all(
            cell["metadata"]["papermill"]["status"] == "completed" for cell in code
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False
