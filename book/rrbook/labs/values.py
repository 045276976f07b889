"""Chapter 05's lab: the gradient of every W_V and the bytes of every cache, of a real model."""

import ipywidgets as widgets
import torch

from rr.model.transformer import Model
from rr.residual import REGISTRY
from rrbook import attention

from .. import figures
from ..explorables.kit import number
from .lab import Drawn, Lab, small_model


def value_model(values: str, blocks: int, queries: int) -> Model:
    """A real Llama model of width 64 at its start: four heads, `queries` of them per value head."""
    shape = {"n_head": 4, "d_ff": 224, "seq_len": 32, "n_kv_head": 4 // queries}
    return small_model("standard", blocks, 64, values=values, flavour="llama", **shape)


def _per_token(held: torch.Tensor | None, ids: torch.Tensor) -> float:
    return 0 if held is None else held.nbytes / ids.numel()


def cache_bytes(model: Model, ids: torch.Tensor) -> list[tuple[float, float]]:
    """(keys, values) bytes per token that each cache holds after reading ids (1, T), measured."""
    caches = model.caches()
    with torch.no_grad():
        model.hidden(ids, caches)
    return [(_per_token(cache.k, ids), _per_token(cache.v, ids)) for cache in caches]


def lab_values() -> Lab:
    """Lab: gradients of W_V by block at the start, and what the caches hold, for any value rule."""
    source = torch.Generator().manual_seed(0)
    ids, targets = torch.randint(256, (2, 4, 32), generator=source)

    def draw(values: str, lam: float, blocks: int, queries: int) -> Drawn:
        spec = f"{values}:lam={lam:g}" if "lam" in REGISTRY["values"][values].options else values
        if values == "neutreno" and queries > 1:
            queries = 1  # it needs a value head for each query head
        model, plain = value_model(spec, blocks, queries), value_model("own", blocks, queries)
        figure, (left, right) = figures.canvas(2, height=3.2)
        slopes = attention.value_gradients(model, ids, targets)
        standard = attention.value_gradients(plain, ids, targets)
        lines = {"own": standard, values: slopes}
        figures.by_block(left, lines, "gradient norm of $W_V$", zero=True)
        held = cache_bytes(model, ids[:1])
        full = cache_bytes(value_model("own", blocks, 1), ids[:1])
        figures.cache_bars(right, held)
        total, standard_total = sum(map(sum, held)), sum(map(sum, full))
        others = [slope for slope in slopes[1:] if slope is not None]
        sentence = "there is only one value matrix"
        if others and slopes[0] is not None:
            ratio = number(slopes[0] * len(others) / sum(others))
            sentence = (
                f"the gradient of the first value matrix is {ratio} times the mean of the others"
            )
        heads = f"{queries} query head{'s' * (queries > 1)} per value head"
        return figure, (
            f"{spec}, {blocks} blocks, {heads}, before training: {sentence}. "
            f"The caches hold {total:,.0f} bytes per token, "
            f"{number(total / standard_total)} of what own values with four value heads take."
        )

    controls = {
        "values": widgets.Dropdown(
            options=list(REGISTRY["values"]), value="svformer", description="values"
        ),
        "lam": widgets.FloatSlider(2, min=0, max=5, step=0.5, description="λ, where it has one"),
        "blocks": widgets.IntSlider(8, 2, 16, 2, description="blocks L"),
        "queries": widgets.Dropdown(
            options=[1, 2, 4], value=1, description="query heads per value head"
        ),
    }
    lead = (
        "At each move a real model of width 64 is built. Gradient: what reaches each value matrix "
        "before training. Bytes: what each block’s cache holds after 32 tokens, measured. "
        "(NeuTRENO always has a value head for each query head.)"
    )
    grid = {"values": list(REGISTRY["values"]), "queries": [1, 4]}
    return Lab("values", controls, draw, lead, grid)
