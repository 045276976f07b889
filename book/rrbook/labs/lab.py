"""Labs: ipywidgets that drive the real `rr`, and a recorded grid where there is no kernel.

A lab redraws from Python, so it needs a running kernel. For the page, which has none, a lab that
names a grid of settings computes them all when the book is executed (`book/tools/execute.py` sets
RECORD); the grid lies in a hidden widget, so it is stored with the notebook, and silent for nbval.
The picture is SVG inside an HTML widget, with an alternative text, in the colours of its ground.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any

import ipywidgets as widgets
import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from rr.model.init import initialise
from rr.model.transformer import Model
from rr.specs import ModelConfig

from ..figures.svg import DARK, svg
from .recorded import record

RECORD = "RR_RECORD_LABS"  # in the environment where the book is executed for its pages
TEXT = "font-size:15px;line-height:1.5;margin:6px 0"  # widgets' own is small and far apart
# A figure, and the sentence that says in words what it shows.
Drawn = tuple[Figure, str]


@contextmanager
def one_thread() -> Iterator[None]:
    """Within the context torch has one thread: on more, small tensors only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def small_model(rule: str, blocks: int, width: int, seed: int = 0, **shape: Any) -> Model:
    """A real model at its start: two heads, 256 pieces, an MLP four times as wide as the stream.

    shape: fields of `ModelConfig`, these three among them where they are to be others.
    """
    shape = {"vocab_size": 256, "n_head": 2, "d_ff": 4 * width} | shape
    config = ModelConfig(n_layer=blocks, d_model=width, rule=rule, **shape)
    return initialise(Model(config), seed)


class Lab(widgets.VBox):
    """Controls, and below them the figure that the real code gives for their values.

    controls: name -> widget with a `value`. draw: called with those values by name, returns a
    matplotlib figure and one sentence that says in words what it shows. lead: what to try (HTML).
    grid: control -> values that a page without a kernel offers, the first value among them; all
    combinations are computed when the book is executed. alone: draws for the grid, where `draw`
    remembers earlier settings.
    """

    def __init__(
        self,
        name: str,
        controls: Mapping[str, Any],
        draw: Callable[..., Drawn],
        lead: str,
        grid: Mapping[str, Sequence] | None = None,
        alone: Callable[..., Drawn] | None = None,
    ) -> None:
        self.name, self.controls, self._draw = name, controls, draw
        self.picture = widgets.HTML()
        for control in controls.values():
            control.style = {"description_width": "initial"}
            control.layout = widgets.Layout(width="300px", max_width="100%")
            if hasattr(control, "continuous_update"):
                control.continuous_update = False  # one drawing per move, not one per pixel
            control.observe(self.update, names="value")
        row = widgets.Box(
            list(controls.values()),
            layout=widgets.Layout(flex_flow="row wrap", grid_gap="2px 16px"),
        )
        head = widgets.HTML(f'<p style="{TEXT}"><strong>Lab.</strong> {lead}</p>')
        parts = [head, row, self.picture]
        if grid and RECORD in os.environ:
            html = record(name, controls, alone or draw, lead, grid)
            parts.append(widgets.HTML(html, layout=widgets.Layout(display="none")))
        super().__init__(parts)
        self.update()

    def update(self, change: object = None) -> None:
        """Ask the real code again and show what it says."""
        figure, sentence = self._draw(**{name: c.value for name, c in self.controls.items()})
        drawn = svg(figure, data=False)
        plt.close(figure)  # else the notebook would show it a second time
        drawn = drawn.replace("<svg ", f'<svg role="img" aria-label="{escape(sentence)}" ', 1)
        # no width of its own: picture and words take that of the page
        self.picture.value = (
            f"<style>{DARK.read_text(encoding='utf-8')}</style>"
            f'<div style="width:0;min-width:100%"><div style="max-width:700px">{drawn}</div></div>'
            f'<p style="{TEXT}">{escape(sentence)}</p>'
        )

    def __repr__(self) -> str:
        return f"<lab {self.name}: needs a notebook that shows widgets>"
