"""Labs use of ipywidgets only what 7.7.1 has, which is Colab's; `make colab` runs them there."""

import ast

import pytest

from tests.conftest import ROOT

pytest.importorskip("ipywidgets")
# class -> what the labs give its constructor, by name or in this order
WIDGETS = {
    "Box": ("children", "layout"),
    "Checkbox": ("value", "description", "indent"),
    "Dropdown": ("options", "value", "description"),
    "FloatSlider": ("value", "min", "max", "step", "description"),
    "HTML": ("value", "layout"),
    "IntSlider": ("value", "min", "max", "step", "description"),
    "Layout": ("display", "flex_flow", "grid_gap", "max_width", "width"),
    "SelectionSlider": ("options", "value", "description"),
    "Text": ("value", "description"),
    "VBox": ("children",),
}
ATTRIBUTES = {"children", "continuous_update", "layout", "observe", "style", "value"}


def used() -> list[tuple[str, str, tuple[int, list[str | None]]]]:
    """File, class, and the arguments (how many by position, names) of each widget that is made."""
    found = []
    for path in sorted((ROOT / "book" / "rrbook").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if "import ipywidgets as widgets" not in path.read_text(encoding="utf-8"):
            continue
        calls = {id(n.func): n for n in ast.walk(tree) if isinstance(n, ast.Call)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "widgets":
                call = calls.get(id(node))
                told = (len(call.args), [k.arg for k in call.keywords]) if call else (0, [])
                found.append((path.name, node.attr, told))
    return found


def test_labs_use_what_colabs_widgets_have():
    seen = used()
    assert len({file for file, _, _ in seen}) >= 12
    for file, name, (positional, keywords) in seen:
        assert name in WIDGETS, f"{file}: is {name} in ipywidgets 7.7.1? Add it; make colab"
        assert positional <= len(WIDGETS[name]) and set(keywords) <= set(WIDGETS[name]), (
            f"{file}: {name}({keywords}) uses what is not known of ipywidgets 7.7.1"
        )
    assert {name for _, name, _ in seen} == set(WIDGETS)  # the list holds nothing else


def test_the_list_is_true_of_the_ipywidgets_at_hand():
    """In this environment of 8, under `make colab` of 7.7.1."""
    import ipywidgets

    for name, traits in WIDGETS.items():
        cls = getattr(ipywidgets, name)
        assert set(traits) <= set(cls.class_trait_names()), name
    assert ATTRIBUTES <= set(dir(ipywidgets.IntSlider())) | set(dir(ipywidgets.Box()))
