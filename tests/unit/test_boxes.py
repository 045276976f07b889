"""A box within an exercise takes what the exercise's own check calls right."""

import importlib
import inspect
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pandas as pd
import pytest

import rr
from rrbook.check import EXERCISES, check
from rrbook.explorables.emergence import WINDOW
from rrstudy import stats

ROOT = Path(__file__).parents[2]
EXERCISE = re.compile(
    r"^(:{4,})\{exercise\}[^\n]*\n:label: (?P<label>\S+)\n(?P<body>.*?)\n\1$",
    re.MULTILINE | re.DOTALL,
)
NUMBER = re.compile(r"^:::\{number\}\n:right: (\S+)", re.MULTILINE)
CHOICES = re.compile(r"^:::\{choose\}\n(.*?)\n\n", re.MULTILINE | re.DOTALL)


def published() -> pd.DataFrame:
    return pd.read_csv(rr.DATA / "published" / "review_residuals.csv")


def study() -> pd.DataFrame:
    """Size, tokens per parameter and gap of the five published models, as chapter 14 has them."""
    runs = published()
    means = runs.pivot_table("val_loss", "rung", "arm", sort=False)
    shapes = runs[runs.arm == "review"].groupby("rung", sort=False).first()
    size = 1e6 * shapes.params_M
    return pd.DataFrame(
        {
            "size": size,
            "ratio": shapes.steps * WINDOW / size,
            "gap": means.review - means.standard,
        }
    )


def at_1b() -> list[float]:
    tests = stats.compare(
        published(), pairs=[("review", "standard"), ("review", "highway")], by="rung"
    )
    return tests[tests.rung == "1B"].welch_p.tolist()


def least_gain() -> float:
    """The least gain in Table 2 of the report on depth attention."""
    rows = pd.read_csv(rr.DATA / "published" / "attention_residuals.csv")
    two = rows[rows["where"] == "Table 2"].pivot(index="size", columns="arm", values="value")
    return min((two.baseline - two.block).min(), (two.baseline - two.full).min())


def records() -> list[dict]:
    folder = rr.DATA / "measured" / "13_inside_the_gate"
    held = [json.loads(path.read_text()) for path in folder.glob("?" * 12 + ".json")]
    return [record for record in held if record["rule"] == "review"]


def shares() -> list[dict[str, float]]:
    """By sublayer, means over the recorded Review networks."""
    by_net = [[each["shares"] for each in record["sublayers"]] for record in records()]
    return [pd.DataFrame(same).mean().to_dict() for same in zip(*by_net, strict=True)]


# What a check needs of its notebook beside the answer.
GIVEN: dict[str, Callable[[], dict[str, Any]]] = {
    "ex-11-wrong": lambda: {"runs": published()},
    "ex-12-about": lambda: {"p": at_1b()},
    "ex-12-fair": lambda: {"runs": published(), "gain": least_gain()},
    "ex-13-chooses": lambda: {"records": records()},
    "ex-13-nearest": lambda: {"shares": shares()},
    "ex-14-budget": lambda: {"sizes": study()["size"][["60M", "150M", "320M"]].to_numpy()},
    "ex-14-speed": lambda: {"study": study()},
    "ex-14-steps": lambda: {"study": study()},
}


def boxes() -> Iterator[tuple[str, str]]:
    """(label, the box's source) of each exercise that has one box."""
    for path in sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb")):
        for cell in nbformat.read(path, as_version=4).cells:
            for exercise in EXERCISE.finditer(cell.source if cell.cell_type == "markdown" else ""):
                if "{number}" in exercise["body"] or "{choose}" in exercise["body"]:
                    yield exercise["label"], exercise["body"]


def plain(label: str) -> bool:
    """Whether its check takes a number or a word, and what else it needs is given here."""
    if label not in EXERCISES:  # it is solved in the box alone
        return False
    answer, *more = inspect.signature(EXERCISES[label].right).parameters.values()
    return answer.annotation in (int, float, str) and (not more or label in GIVEN)


for module in sorted((ROOT / "book" / "rrbook" / "check").glob("chapter_*.py")):
    importlib.import_module(f"rrbook.check.{module.stem}")
BOXES = [(label, body) for label, body in boxes() if plain(label)]


def test_the_boxes_of_these_chapters_are_seen():
    assert {*GIVEN, "ex-11-signs", "ex-12-seven", "ex-14-half"} <= {label for label, _ in BOXES}


@pytest.mark.parametrize(("label", "body"), BOXES, ids=[label for label, _ in BOXES])
def test_a_box_and_its_check_agree(label, body):
    if number := NUMBER.search(body):
        right = float(number[1])
        right = int(right) if right.is_integer() else right
        wrong: list[Any] = [2 * right + 1]
    else:
        options = [line[2:] for line in CHOICES.search(body)[1].splitlines()]
        [right] = [option[2:] for option in options if option.startswith("✓ ")]
        wrong = [option for option in options if not option.startswith("✓ ")]
    given = GIVEN[label]() if label in GIVEN else {}
    assert check(label, right, **given) == "right"
    assert all(check(label, each, **given).startswith("not yet: ") for each in wrong)
