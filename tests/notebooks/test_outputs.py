"""Stored outputs are compared so that another CPU passes and a changed output does not."""

import subprocess
import sys
from xml.etree import ElementTree

import nbformat
import pytest
from glued import agree
from nbformat.v4 import new_code_cell, new_notebook, new_output
from nbkit import ROOT, environment

PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "tests.notebooks.glued"]
PYTEST += ["@tests/notebooks/nbval.args"]
SOURCE = """import sys
from myst_nb import glue
glue("gap", 3.7253712345, display=False)
print("deprecated", file=sys.stderr)
print("equal")"""


def glued(text: str, name: str = "gap"):
    prefix = "application/papermill.record/"
    return new_output(
        "display_data",
        data={f"{prefix}text/plain": text},
        metadata={"scrapbook": {"mime_prefix": prefix, "name": name}},
    )


def printed(text: str):
    return new_output("stream", name="stdout", text=text)


# what a cell stores that glues 3.7253712345 as `gap`, warns, and prints `equal`: what nbval says
CELLS = [
    ([glued("3.7253712345"), printed("equal\n")], None),
    ([glued("3.7259112345"), printed("equal\n")], None),  # another CPU
    ([glued("3.7253712345"), printed("equal, almost\n")], "equal, almost"),
    ([glued("3.7253712345")], "stdout"),
    ([glued("5.5"), printed("equal\n")], "glued gap: 5.5 is stored, 3.7253712345 came out"),
    ([glued("3.7253712345", "other"), printed("equal\n")], "glued other: 3.7253712345 is stored"),
    ([printed("equal\n")], "glued gap: None is stored"),
]


def test_a_changed_output_fails_and_another_machines_digits_pass(tmp_path):
    """In nbval, as `make test` starts it."""
    path = tmp_path / "stored.ipynb"
    cells = [
        new_code_cell(SOURCE, execution_count=i, outputs=outputs)
        for i, (outputs, _) in enumerate(CELLS, 1)
    ]
    nbformat.write(new_notebook(cells=cells), path)
    report = path.with_suffix(".xml")
    command = [*PYTEST, f"--junit-xml={report}", path]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True)
    told = list(ElementTree.parse(report).iter("testcase"))
    assert len(told) == len(CELLS), done.stdout
    for (_, expected), cell in zip(CELLS, told, strict=True):
        found = getattr(cell.find("failure"), "text", None)
        assert (found is None) == (expected is None), found
        assert expected is None or expected in found


@pytest.mark.parametrize(
    ("stored", "now", "same"),
    [
        ("227540992", "227540992", True),
        ("0.5", "0.6", False),
        ("-0.0391", "0.0391", False),
        ("2e-08", "7e-08", True),  # rounding noise
        ("nan", "0.1", False),
        ("'none'", "'deepnorm'", False),
        ("'−0.056 (−0.073 to −0.039)'", "'−0.055 (−0.074 to −0.039)'", True),
        ("'−0.056 (−0.073 to −0.039)'", "'−0.056 (−0.073 to −0.029)'", False),
        ("'0.98 to 1.02'", "'0.98'", False),
    ],
)
def test_how_near_glued_values_must_be(stored, now, same):
    assert agree(stored, now) is agree(now, stored) is same
