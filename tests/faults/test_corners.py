"""Every chapter at the corners of its parameters, at the larger tiers, and on mirrored losses.

A chapter is executed without RR_EDITION, as a reader does. No valid value may end in an error, and
its text stays that of the book's run. Chapters 9 and 10 report a run: their sentences follow it.
"""

import os
import re
from functools import cache
from pathlib import Path

import nbformat
import pytest
from nbkit import ROOT, is_report, read, sources

from rrbook import plain, yours
from rrbook.plain import glued

# All lowest; all highest that end within ten minutes on two cores; lists reversed, and one seed
# where one is enough, on a text of one's own. The notebooks say themselves which values they take.
LOW, HIGH = {"seeds": [0, 1]}, {"seeds": [998, 999]}
CORNERS: dict[str, tuple[dict, dict, dict]] = {
    "00": ({"seed": 0}, {"seed": 999}, {"seed": 1}),
    "01": (
        {"width": 16, "deep": 8, "depths": [2], "seeds": [0]},
        {"width": 16, "deep": 128, "depths": [2, 64], "seeds": [49, 50]},
        {"depths": [16, 2], "seeds": [5]},
    ),
    "02": (
        LOW | {"d_model": 16, "n_layer": 1, "seq_len": 16},
        HIGH | {"d_model": 128, "n_layer": 8, "seq_len": 256},
        {"seeds": [1, 0]},
    ),
    "03": (
        LOW | {"depths": [2, 4], "width": 32, "lr": 1e-5},
        HIGH | {"depths": [48, 64], "width": 64, "lr": 3e-2},
        {"depths": [16, 4, 2], "seeds": [1, 0]},
    ),
    "04": (
        LOW | {"d_model": 16, "n_layer": 1, "seq_len": 16},
        HIGH | {"d_model": 64, "n_layer": 16, "seq_len": 128},
        {"seeds": [1, 0]},
    ),
    "05": (
        LOW | {"d_model": 16, "n_layer": 4, "seq_len": 16},
        HIGH | {"d_model": 128, "n_layer": 16, "seq_len": 128},
        {"seeds": [1, 0]},
    ),
    "06": (
        {"width": 16, "passes": [1, 2], "seeds": [0], "rate": 1e-5},
        {"width": 2048, "passes": [127, 128], "seeds": [999], "rate": 3e-2},
        {"passes": [8, 4, 1], "seeds": [7]},
    ),
    "07": (
        LOW | {"d_model": 16, "n_layer": 4, "seq_len": 16},
        HIGH | {"d_model": 64, "n_layer": 16, "seq_len": 128},
        {"seeds": [1, 0]},
    ),
    "08": ({"rung": "60M", "steps": 2}, {"rung": "1B", "steps": 500}, {"rung": "320M"}),
    "09": (
        {"rule": "standard", "seed": 0, "steps": 1, "lr": 1e-8},
        {"rule": "hyper-connections", "seed": 999, "steps": 60, "lr": 1e8},
        {"rule": "constant", "steps": 12},
    ),
    "10": (
        {"seeds": [0, 1], "baseline": "review"},
        {"seeds": [1, 2], "baseline": "highway"},
        {"seeds": [2, 1, 0]},
    ),
    "11": ({"n_seeds": 2}, {"n_seeds": 50}, {"n_seeds": 3}),
    "12": ({"width": 32}, {"width": 512}, {"width": 64}),
    "13": (
        {"seed": 0, "d_model": 16, "n_layer": 1, "seq_len": 16, "windows": 2},
        {"seed": 999, "d_model": 128, "n_layer": 8, "seq_len": 256, "windows": 16},
        {"seed": 1},
    ),
    "14": (
        LOW | {"budgets": [10, 15], "speed": 1.02},
        HIGH | {"budgets": [200, 400], "speed": 2.0},
        {"budgets": [40, 20], "seeds": [1, 0]},
    ),
    "15": (LOW, HIGH, {"seeds": [1, 0]}),
    "16": (
        {"rates": [1e-5, 1e-4], "weight": 0, "terms": 1000},
        {"rates": [0.03, 0.1], "weight": 9999, "terms": 10_000_000},
        {"rates": [1e-2, 3e-3]},
    ),
    "17": (
        {"kill_at": 10, "between": 0.1},
        {"kill_at": 40, "between": 1000.0},
        {"kill_at": 20},
    ),
}
TIERS = ("colab", "paper")
NO_PAPER = {"09": "trains 60M on a text that must be downloaded"}
# Losses mirrored about 5 nats: the arm that finished first finishes last, and training makes worse.
MIRRORED = """
import functools, hashlib, json, pathlib
import rr
from rr import io
from rr.training import provenance, trainer

def turned(row):
    losses = ("loss", "val_loss", "valid", "story_loss")
    mirrored = {k: 10 - row[k] for k in losses if isinstance(row.get(k), float)}
    return row | mirrored | {"budgets": [turned(each) for each in row.get("budgets", [])]}

def mirrored(train):
    @functools.wraps(train)
    def wrapped(*words, **options):
        folder = pathlib.Path(train(*words, **options))
        curve = [json.loads(line) for line in open(folder / "metrics.jsonl")]
        curve = [{k: v for k, v in turned(row).items() if k != "budgets"} for row in curve]
        io.write_atomic(folder / "metrics.jsonl", provenance.curve_bytes(curve))
        result = turned(io.read_sealed(folder / "result.json"))
        if not result["budgets"]:
            del result["budgets"]
        digest = hashlib.sha256(provenance.curve_bytes(curve)).hexdigest()
        io.write_record(folder / "result.json", result | {"curve_sha256": digest})
        return folder
    return wrapped

rr.train = trainer.train = mirrored(trainer.train)
"""
# Most steps replaced by a plausible loss: what follows a long training is reached in minutes.
STUB = """
import dataclasses
from rr.training.trainer import Training
from rrbook import numerics

def few(self, real=Training._train_step, curve=lambda step: 2.5 + 4.4 * 0.99**step):
    if self.schedule_step < 4 or self.optimizer_step.grad_norm is None:  # or just resumed
        return real(self)
    self.loss_sum += curve(self.schedule_step)
    self.steps_in_sum += 1

def short(run, stream, change=numerics.Change(), real=numerics.trained):
    eight = dataclasses.replace(run.recipe, steps=min(8, run.recipe.steps))
    model, losses = real(dataclasses.replace(run, recipe=eight), stream, change)
    return model, losses + [losses[-1]] * (run.recipe.steps - len(losses))

Training._train_step, numerics.trained = few, short
"""
CHAPTERS = {path.stem[:2]: path for path in sources()}
NO_NUMBER = re.compile(r"(?i)(?<![\w.])[-+−]?(nan|inf)(?![\w-])")


def own_text(folder: Path) -> Path:
    """The package's code as a text file, each of its paragraphs a document."""
    pages = sorted((ROOT / "rr").rglob("*.py"))
    paragraphs = "\n\n".join(page.read_text(encoding="utf-8") for page in pages).split("\n\n")
    path = folder / "own.txt"
    path.write_text("\n<|endoftext|>\n".join(paragraphs), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def executed(tmp_path_factory):
    """executed(chapter, kind) -> the executed copy; AssertionError where a cell failed."""

    @cache
    def execute(chapter: str, kind: int | str) -> nbformat.NotebookNode:
        import papermill

        here = tmp_path_factory.mktemp(f"{chapter}-{kind}")
        notebook = read(CHAPTERS[chapter])
        if isinstance(kind, str):
            at = next(i for i, cell in enumerate(notebook.cells) if cell.id == "bootstrap")
            patch = MIRRORED if kind == "mirrored" else STUB
            notebook.cells.insert(at + 1, nbformat.v4.new_code_cell(patch))
        given = here / CHAPTERS[chapter].name
        nbformat.write(notebook, given)
        parameters = CORNERS[chapter][kind] if isinstance(kind, int) else {}
        if kind in TIERS:
            parameters = {"tier": kind}
        if kind == 2 and "corpus = " in "".join(cell.source for cell in notebook.cells):
            parameters |= {"corpus": f"file:{own_text(here)}", "tokenizer": "bpe:300"}
        papermill.execute_notebook(
            str(given), str(here / "out.ipynb"), parameters,
            kernel_name="python3", cwd=str(here), progress_bar=False, execution_timeout=900,
        )  # fmt: skip
        return read(here / "out.ipynb")

    edition = os.environ.pop("RR_EDITION", None)  # kernels inherit the environment
    yield execute
    if edition is not None:
        os.environ["RR_EDITION"] = edition


def check(chapter: str, copy: nbformat.NotebookNode) -> None:
    """The text of a copy is the book's, and *Your run* shows what is no number as what it is."""
    stored = read(CHAPTERS[chapter])
    if "corpus" not in copy.metadata.papermill.parameters:  # another text has no entropy floor, …
        missing = glued(stored).keys() - glued(copy).keys()
        assert not missing, f"the text quotes what was not computed: {sorted(missing)}"
    if is_report(stored):
        return
    name = CHAPTERS[chapter].stem
    of_book, of_copy = (
        {
            cell.id: cell.source
            for cell in plain.convert(each, name).cells
            if cell.cell_type == "markdown" and not cell.id.endswith(("-caption", "plain-edition"))
        }
        for each in (stored, copy)
    )
    assert of_book == of_copy
    for cell in copy.cells:
        if "your_run(" in cell.source and "def " not in cell.source:
            text = cell.outputs[-1].data["text/markdown"]
            assert text.startswith("**Your run.**") and not NO_NUMBER.search(text), text


@pytest.mark.slow
@pytest.mark.parametrize("corner", range(3), ids=("lowest", "highest", "reversed"))
@pytest.mark.parametrize("chapter", CORNERS)
def test_a_chapter_ends_at_the_corners_of_its_parameters(executed, chapter, corner):
    check(chapter, executed(chapter, corner))


@pytest.mark.slow
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("chapter", CORNERS)
def test_a_chapter_ends_at_the_larger_tiers(executed, chapter, tier):
    if tier == "paper" and chapter in NO_PAPER:
        pytest.skip(NO_PAPER[chapter])
    check(chapter, executed(chapter, tier))


@pytest.mark.slow
def test_a_reported_run_with_mirrored_losses_has_other_sentences(executed):
    stored, mirrored = glued(read(CHAPTERS["09"])), glued(executed("09", "mirrored"))
    assert mirrored["ended_said"] != stored["ended_said"]
    assert mirrored["crossed"] != stored["crossed"]


def test_a_chapter_that_trains_nothing_ends_at_a_corner(executed):
    """Of those above the quickest, so that each change sees one."""
    check("11", executed("11", 0))


def test_every_chapter_has_its_corners():
    assert CORNERS.keys() == CHAPTERS.keys()
    for chapter, corners in CORNERS.items():
        book = yours.of_chapter(chapter)
        assert book is None or all(corner.keys() <= book.parameters.keys() for corner in corners)
