"""Every chapter under a reader's own parameters, and on data that is turned round.

A chapter is executed without RR_EDITION, as a reader does. No valid value may end in an error.
Conclusions follow the data: under drawn parameters, and with mirrored losses, sentences that
`verdict` glues turn round. A number that is said of records stays.
"""

import os
import re
from datetime import date
from functools import cache
from random import Random

import nbformat
import pytest
from nbkit import read, sources

from rrbook.plain import glued

# What is drawn from; the notebooks say themselves which values they take.
SHAPES = {"d_model": [32, 48, 96], "n_layer": [4, 8], "seq_len": [32, 48]}
SEEDS = {"seeds": [[3, 4], [5, 6, 7], [1, 8]]}
POOLS: dict[str, dict[str, list]] = {
    "00": {"seed": [3, 4], "words": [4, 20]},
    "01": {"width": [32, 64, 96], "deep": [8, 32, 96], "depths": [[2], [4, 8, 16]]}
    | {"seeds": [[3], [1, 2]]},
    "02": SHAPES | SEEDS,
    "03": {"depths": [[4, 8], [2, 24], [2, 4, 8]], "width": [32, 96], "lr": ["1e-4", 0.02]} | SEEDS,
    "04": SHAPES | SEEDS,
    "05": SHAPES | SEEDS,
    "06": {"width": [16, 128], "passes": [[1, 2, 4, 8], [1, 3]], "rate": ["1e-5", 0.02]}
    | {"seeds": [[3], [1, 2]]},
    "07": SHAPES | SEEDS,
    "08": {"rung": ["150M", "1B"], "steps": [2, 60]},
    "09": {"rule": ["standard", "constant", "hyper-connections"], "seed": [3, 4]}
    | {"steps": [1, 12, 60], "lr": ["1e-5", 0.02]},
    "10": {"baseline": ["highway", "review"], "seeds": [[0, 1], [1, 2], [0, 1, 2]]},
    "11": {"n_seeds": [2, 12, 40]},
    "12": {"width": [32, 96, 128]},
    "13": SHAPES | {"seed": [3, 4, 5], "windows": [2, 8]},
    "14": {"budgets": [[10, 20], [60, 30]], "speed": [1.02, 1.5]} | SEEDS,
    "15": SEEDS,
    "16": {
        "rates": [["1e-3", "5e-3"], [1e-4, 3e-4, 0.02]],
        "weight": [2, 5],
        "terms": [1000, 5000],
    },
    "17": {"kill_at": [12, 38], "between": [0.5, 100]},
}
DRAWN, TIERS = ("0", "1", "2"), ("colab", "paper")
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
VERDICT = re.compile(r"\bverdict\(\s*\"(\w+)\"")
RECORDED = re.compile(r"[^.]*\b(?:recorded|published)\b[^.]*")  # sentences, nearly
GLUED = re.compile(r"\{glue:text\}`(\w+)")


def drawn(chapter: str, seed: int) -> dict:
    """A value for each parameter of the pool, or none: then the notebook's own."""
    rng = Random(f"{chapter} {seed}")
    return {name: rng.choice(values) for name, values in POOLS[chapter].items()}


@pytest.fixture(scope="session")
def executed(tmp_path_factory):
    """executed(chapter, kind) -> what the execution glued; AssertionError where a cell failed."""

    @cache
    def execute(chapter: str, kind: str) -> dict[str, str]:
        import papermill

        here = tmp_path_factory.mktemp(f"{chapter}-{kind}")
        notebook = read(CHAPTERS[chapter])
        if kind not in DRAWN:
            at = next(i for i, cell in enumerate(notebook.cells) if cell.id == "bootstrap")
            patch = MIRRORED if kind == "mirrored" else STUB
            notebook.cells.insert(at + 1, nbformat.v4.new_code_cell(patch))
        nbformat.write(notebook, here / "in.ipynb")
        parameters = drawn(chapter, int(kind)) if kind in DRAWN else {}
        if kind in TIERS:
            parameters["tier"] = kind
        papermill.execute_notebook(
            str(here / "in.ipynb"), str(here / "out.ipynb"), parameters,
            kernel_name="python3", cwd=str(here), progress_bar=False, execution_timeout=900,
        )  # fmt: skip
        return glued(read(here / "out.ipynb"))

    edition = os.environ.pop("RR_EDITION", None)  # kernels inherit the environment
    yield execute
    if edition is not None:
        os.environ["RR_EDITION"] = edition


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*DRAWN, "mirrored", *TIERS])
@pytest.mark.parametrize("chapter", POOLS)
def test_every_cell_is_executed(executed, chapter, kind):
    if kind == "paper" and chapter in NO_PAPER:
        pytest.skip(NO_PAPER[chapter])
    names = executed(chapter, kind)
    missing = set(glued(read(CHAPTERS[chapter]))) - set(names)
    assert not missing, f"the text quotes what this execution did not compute: {sorted(missing)}"


@pytest.mark.slow
@pytest.mark.parametrize("chapter", POOLS)
def test_conclusions_follow_the_data_and_records_do_not(executed, chapter):
    notebook = read(CHAPTERS[chapter])
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    stored, conclusions = glued(notebook), set(VERDICT.findall(code))
    others = [executed(chapter, kind) for kind in (*DRAWN, "mirrored")]
    turned = {name for name in conclusions if any(o[name] != stored[name] for o in others)}
    assert turned or not conclusions, "the same sentences whatever came out"
    quoted = {name for said in RECORDED.findall(text) for name in GLUED.findall(said)}
    moved = [name for name in quoted - conclusions if any(o[name] != stored[name] for o in others)]
    assert not moved, f"said of records, but of this execution: {moved}"


@pytest.mark.parametrize("place", range(2))
def test_two_chapters_a_day(executed, place):
    """Whichever the date picks, under parameters that it draws."""
    day = date.today().toordinal()
    chapter = sorted(POOLS)[(2 * day + place) % len(POOLS)]
    names = executed(chapter, DRAWN[day % len(DRAWN)])
    assert set(glued(read(CHAPTERS[chapter]))) <= set(names)


def test_every_chapter_has_a_pool():
    assert POOLS.keys() == CHAPTERS.keys()
