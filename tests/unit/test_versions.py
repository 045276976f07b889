"""What is said of other versions of torch is what pytest reported; pyproject.toml follows it."""

import json
import re
import tomllib

import versions

SUITE = '<testsuites><testsuite tests="{}" failures="{}" errors="{}" skipped="{}"/></testsuites>'


def counts(folder, *numbers):
    path = folder / "report.xml"
    path.write_text(SUITE.format(*numbers))
    return versions.counted(path)


def test_a_report_is_counted_and_what_shows_nothing_has_failed(tmp_path):
    assert counts(tmp_path, 9, 1, 2, 3) == {"passed": 3, "failed": 3, "skipped": 3}
    assert counts(tmp_path, 2, 0, 0, 2)["failed"] == 1  # all skipped
    assert counts(tmp_path, 0, 0, 0, 0)["failed"] == 1
    assert versions.counted(tmp_path / "none.xml")["failed"] == 1


def test_a_row_replaces_the_earlier_one_of_its_set_and_the_page_names_failures(tmp_path):
    row = {
        "set": "torch 2.10.0",
        "python": "3.11.7",
        "torch": "2.10.0+cpu",
        "numpy": "2.1.3",
        "checks": {"gradients": {"passed": 30, "failed": 2, "skipped": 0}},
        "commit": "0123456789",
        "processor": "a processor",
        "date": "2026-01-02",
    }
    path = tmp_path / "tested_with.json"
    versions.keep(row, path)
    versions.keep(row | {"set": "torch 2.9.1", "torch": "2.9.1"}, path)
    good = {"gradients": {"passed": 32, "failed": 0, "skipped": 0}}
    assert "30; **2 failed**" in versions.page(path)
    versions.keep(row | {"checks": good}, path)
    assert [one["set"] for one in json.loads(path.read_text())] == ["torch 2.9.1", "torch 2.10.0"]
    assert "all 32" in versions.page(path) and "01234567 |" in versions.page(path)


def test_the_lower_bound_is_the_lowest_version_that_is_tried(root):
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    (bound,) = [name for name in project["dependencies"] if name.startswith("torch")]
    lowest = versions.TORCH[0].split(".")
    assert re.fullmatch(r"torch>=(\d+)\.(\d+)", bound).groups() == tuple(lowest[:2])
    minors = [int(version.split(".")[1]) for version in versions.TORCH]
    assert minors == list(range(minors[0], minors[-1] + 1))  # none is left out


def test_no_version_that_failed_is_accepted():
    rows = json.loads(versions.KEPT.read_text())
    assert rows and not [row["set"] for row in rows if versions.failures(row)]
    for version in versions.TORCH:  # what was not tried is said
        tried = f"torch {version}" in {row["set"] for row in rows}
        assert tried != (f"torch {version}" in versions.page().partition("Not tried")[2])
