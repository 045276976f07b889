"""Every lab is built, and moved once, with whatever ipywidgets is installed.

`make colab` runs this under Colab's 7.7.1 and under the 8 of the project's own environment. It is
not part of `make test`, whose tests of each lab run under 8 alone.
"""

import json

import pytest

import rr
from rrbook import explore

pytest.importorskip("ipywidgets")
RUNG = "nano:n_layer=2,d_model=32,seq_len=64"
NAMES = sorted(name for name in explore._LABS if name.startswith("lab_"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    run = rr.plan(RUNG, "review", batch=2, steps=20, eval_batches=2)
    return rr.train(
        run, tmp_path_factory.mktemp("runs"), rr.Request(threads=1), log=lambda line: None
    )


def built(name: str, request, tmp_path):
    make = getattr(explore, name)
    if name == "lab_inside":
        model, _, vocabulary = rr.load(request.getfixturevalue("trained"), device="cpu")
        return make(model, vocabulary)
    if name == "lab_power":
        return make({"60M": 6e7, "150M": 1.5e8, "320M": 3.2e8})
    if name == "lab_cut":
        words = f"--rung {RUNG} --batch 2 --steps 60 --eval-batches 2 --threads 1".split()
        return make(words, 60, explore.final_weights(words, tmp_path))
    return make()


@pytest.mark.parametrize("name", NAMES)
def test_every_lab_is_built_and_redraws(name, request, tmp_path):
    lab = built(name, request, tmp_path)
    first = lab.picture.value
    assert '<svg role="img"' in first
    # what a front end is sent: plain JSON, of the controls and of the frame around them
    for widget in (lab, *lab.controls.values()):
        json.dumps(widget.get_state())
    seen = set()
    for control in lab.controls.values():
        options = getattr(control, "options", None)
        if name == "lab_cut" and control is not lab.controls["step"]:
            continue  # two processes a move: one is enough
        if options is not None:
            values = (
                options.values()
                if isinstance(options, dict)
                else (option[1] if isinstance(option, tuple) else option for option in options)
            )
            control.value = next(value for value in values if value != control.value)
        elif isinstance(control.value, bool):
            control.value = not control.value
        elif isinstance(control.value, str):
            control.value = "The fox wanted a boat."
        else:
            control.value = control.min if control.value != control.min else control.max
        seen.add(lab.picture.value)
    assert seen - {first}, "no control changes the picture"
