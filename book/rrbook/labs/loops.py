"""Chapter 06's lab: the stream of a real looped model before training, and how its writes agree."""

import ipywidgets as widgets
import torch

from rr.analysis import probes
from rr.model.transformer import Model

from .. import figures
from ..explorables.kit import number
from ..explorables.loops import SCALES
from .lab import Drawn, Lab, small_model


def looped_model(blocks: int, passes: int, scale: str, tied: bool = True) -> Model:
    """A real model of width 64 at its start: `blocks` blocks, passed `passes` times.

    Every branch is multiplied by ε of that scale ("one", "root", "passes" or "both"); initial
    weights do not know the depth. Untied: blocks·passes blocks of their own, passed once, at the
    same ε.
    """
    epsilon = {
        "one": 1.0,
        "root": (blocks * passes) ** -0.5,
        "passes": 1 / passes,
        "both": 1 / (passes * blocks**0.5),
    }[scale]
    layers = blocks if tied else blocks * passes
    rule = f"scaled:law=none,init=flat,reference={layers},lam={epsilon!r}"
    return small_model(rule, layers, 64, seq_len=16, n_loops=passes if tied else 1)


def lab_loops() -> Lab:
    """Lab: rms by depth and cosines of the blocks' increments, of a real model at its start."""
    source = torch.Generator().manual_seed(0)
    ids = torch.randint(256, (4, 16), generator=source)

    def draw(passes: int, blocks: int, scale: str, tied: str) -> Drawn:
        made = {
            word: looped_model(blocks, passes, scale, word == "tied") for word in ("tied", "untied")
        }
        norms = {word: probes.norms_by_depth(model, ids)[::2] for word, model in made.items()}
        cosines = probes.increment_cosines(made[tied], ids, "block")
        figure, (left, right) = figures.canvas(2, height=3.2)
        depth = range(len(norms["tied"]))
        left.set_yscale("log")
        ends = []
        for word, colour, line in (("tied", figures.BLUE, "-"), ("untied", figures.SOFT, ":")):
            left.plot(depth, norms[word], color=colour, ls=line)
            ends.append((depth[-1], norms[word][-1], word, colour))
        left.set_xlabel("blocks of the unrolled network")
        left.set_ylabel("rms of the stream")
        figures.label_ends(left, ends)
        figure.colorbar(figures.cosine_matrix(right, cosines.numpy()), ax=right, label="cosine")
        block = torch.arange(len(cosines)) % made[tied].config.n_layer
        same, pair = block[:, None] == block, ~torch.eye(len(block), dtype=torch.bool)
        kinds = {
            "of one block in two passes": same & pair,
            f"of two different {tied} blocks": ~same,
        }
        agree = " and those ".join(
            f"{words} have a mean cosine of {number(cosines[where].mean().item())}"
            for words, where in kinds.items()
            if where.any()
        )
        return figure, (
            f"{passes} passes of {blocks} blocks, ε = {SCALES[scale]}, before training: tied, the "
            f"stream’s rms goes from {number(norms['tied'][0])} to {number(norms['tied'][-1])}; "
            f"untied, with as many blocks of their own, to {number(norms['untied'][-1])}."
            + (f" The increments {agree}." if agree else "")
        )

    controls = {
        "passes": widgets.IntSlider(8, 1, 16, 1, description="passes N"),
        "blocks": widgets.IntSlider(2, 1, 4, 1, description="unique blocks L"),
        "scale": widgets.Dropdown(
            options=[(f"ε = {words}", name) for name, words in SCALES.items()],
            value="passes",
            description="scale",
        ),
        "tied": widgets.Dropdown(options=["tied", "untied"], value="tied", description="cosines"),
    }
    lead = "At each move a real model of width 64 is built, tied and untied, and measured."
    grid = {"passes": [2, 8, 16], "scale": ["one", "root", "passes"]}
    return Lab("loops", controls, draw, lead, grid)
