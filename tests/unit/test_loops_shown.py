"""What chapter 6 shows: its explorable against simulation, its lab, its figures."""

import math
import re

import numpy as np
import pytest

from rrbook import figures
from rrbook.explorables.loops import SCALES


@pytest.mark.parametrize(("blocks", "passes", "cosine"), [(1, 12, 0.8), (3, 5, 0.5), (4, 4, 0.0)])
def test_growth_is_what_a_simulation_finds(script, blocks, passes, cosine):
    """Updates √c·(the block's own) + √(1 − c)·(fresh): cosine c between a block's passes."""
    rng, size = np.random.default_rng(0), 200_000
    own = rng.standard_normal((blocks, size))
    for scale, words in SCALES.items():
        epsilon = {
            "1": 1,
            "1/√(NL)": (blocks * passes) ** -0.5,
            "1/N": 1 / passes,
            "1/(N√L)": 1 / (passes * blocks**0.5),
        }[words]
        h = rng.standard_normal(size)
        seen = [1.0]
        for _ in range(passes):
            for block in range(blocks):
                fresh = rng.standard_normal(size)
                h = h + epsilon * (cosine**0.5 * own[block] + (1 - cosine) ** 0.5 * fresh)
                seen.append(math.sqrt(np.mean(h**2)))
        [found] = script("loops", "loopNumbers", [blocks, passes, cosine, scale])
        assert found["rms"] == pytest.approx(seen, rel=0.015)
        assert found["epsilon"] == pytest.approx(epsilon)
        assert found["last"][scale] == found["rms"][-1]


def test_growth_in_closed_form(script):
    expected = {(1, 64, 1.0, "passes"): 2**0.5, (1, 64, 1.0, "one"): math.sqrt(1 + 64**2)}
    for blocks in (1, 4, 16):  # the two-factor law at c = 1 and the untied law at c = 0
        expected |= {(blocks, 9, 1.0, "both"): 2**0.5, (blocks, 9, 0.0, "root"): 2**0.5}
    found = script("loops", "loopNumbers", *map(list, expected))
    assert [one["rms"][-1] for one in found] == pytest.approx(list(expected.values()))


def test_lab_measures_real_models():
    pytest.importorskip("ipywidgets")
    import torch

    from rr.model import Model
    from rrbook.labs.loops import lab_loops, looped_model

    for scale, epsilon in (("one", 1), ("root", 6**-0.5), ("passes", 1 / 3), ("both", 2**-0.5 / 3)):
        tied, untied = looped_model(2, 3, scale), looped_model(2, 3, scale, tied=False)
        assert (tied.config.depth, untied.config.depth) == (6, 6)
        assert (tied.config.n_loops, untied.config.n_loops) == (3, 1)
        for model in (tied, untied):
            rule = model.rules[0]
            assert rule.coefficient(rule.site) == pytest.approx(epsilon)
            assert model.layers[0].mlp.down.weight.std().item() == pytest.approx(0.02, rel=0.03)
    ids = torch.arange(16)[None]
    plain = Model(looped_model(1, 1, "one").config)
    plain.load_state_dict(looped_model(1, 1, "one").state_dict())
    assert torch.equal(plain(ids), looped_model(1, 1, "both")(ids))
    made = lab_loops()
    said = made.picture.value
    assert said.count("8 passes of 2 blocks, ε = 1/N, before training") == 2  # picture and words
    made.controls["tied"].value = "untied"
    assert made.picture.value != said and "different untied blocks" in made.picture.value
    assert "two passes" not in made.picture.value and "mean cosine of" in made.picture.value
    made.controls["tied"].value = "tied"
    cosines = re.findall(r"mean cosine of (−?[\d.]*\d)", said)[:2]  # said twice
    same, others = (float(cosine.replace("−", "-")) for cosine in cosines)
    assert abs(others) < same <= 1 and made.picture.value == said
    made.controls["passes"].value = made.controls["blocks"].value = 1  # no pair of increments
    assert "mean cosine" not in made.picture.value


def test_best_rates_are_the_lowest_means_and_diverged_runs_are_marked():
    points = [
        {"loops": n, "lr": lr, "seed": seed, "value": value + seed / 100}
        for n, losses in ((1, (3.0, 2.0, 2.5)), (4, (2.0, 2.2, 4.0)))
        for lr, value in zip((1e-3, 2e-3, 4e-3), losses, strict=True)
        for seed in (0, 1)
    ]
    points[-1]["value"] = None  # N = 4 at the highest rate
    _, ax = figures.canvas()
    assert figures.rates_by_passes(ax, points) == {1: 2e-3, 4: 1e-3}
    drawn = {line.get_label(): line for line in ax.lines}
    assert list(drawn["N = 1"].get_ydata()) == pytest.approx([3.005, 2.005, 2.505])
    assert len(drawn["N = 4"].get_xdata()) == 2 and any(ax.get_marker() == "x" for ax in ax.lines)
