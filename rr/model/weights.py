"""Weights that were read from a file: their sizes come first, and the model after them.

A specification can claim any size. Weights cannot: their file holds them. So a model is made only
where its weights, by name and shape, are those of the file, and until then nothing of its size is
asked for.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..config import ModelConfig, RRError
from ..residual import resolve
from .transformer import Model

LOOPS = 1024  # passes that a specification may claim: where all share one stack, no weight tells


def check_sizes(config: ModelConfig, shapes: Mapping[str, Sequence[int]]) -> None:
    """Raise RRError, one line, unless a model of `config` has these weights: name -> shape.

    What bounds the number of modules and the sizes of matrices is compared first, then every weight
    with a model on the meta device, which has shapes and no bytes.
    """
    blocks = len({name.split(".")[1] for name in shapes if name.startswith("layers.")})
    if config.n_layer != blocks:
        raise RRError(f"n_layer is {config.n_layer}, and the weights are of {blocks} blocks")
    if config.n_loops > LOOPS:
        raise RRError(f"n_loops is {config.n_loops}: at most {LOOPS} is accepted")
    per_pass = resolve(config.rule)[1].get("per_pass")
    if per_pass and config.n_layer * config.n_loops > len(shapes):
        raise RRError(f"n_loops is {config.n_loops}, and there are {len(shapes)} weights in all")
    d, own = config.d_model, {name: tuple(shape) for name, shape in shapes.items()}
    first = {"token.weight": (config.padded_vocab, d), "layers.0.mlp.down.weight": (d, config.d_ff)}
    if config.flavour == "gpt2":
        first["position.weight"] = (config.seq_len, d)
    _compare({name: own[name] for name in first.keys() & own.keys()}, first)
    try:
        with torch.device("meta"):
            _compare(own, {name: tuple(t.shape) for name, t in Model(config).state_dict().items()})
    except RuntimeError as error:  # options of a rule whose product no integer holds
        line = str(error).partition("\n")[0]
        raise RRError(f"{config.rule} with {config.values} has no such weights: {line}") from None


def _compare(own: Mapping[str, tuple], expected: Mapping[str, tuple]) -> None:
    """own: of the file; expected: by the specification."""
    for name, shape in expected.items():
        if name not in own:
            raise RRError(f"by its specification there is {name}, which its weights lack")
        if own[name] != shape:
            raise RRError(
                f"{name} is {_shown(shape)} by its specification and {_shown(own[name])} in its "
                "weights"
            )
    if more := own.keys() - expected.keys():
        raise RRError(f"by its specification there is no {min(more)}, which its weights hold")


def _shown(shape: tuple) -> str:
    return " × ".join(map(str, shape)) or "one number"


def with_weights(config: ModelConfig, weights: Mapping[str, Tensor]) -> Model:
    """The model of `config` with these weights. RRError, before it is made, where others are."""
    if not isinstance(weights, Mapping) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in weights.items()
    ):
        raise RRError("its weights are no tensors by name")
    check_sizes(config, {name: value.shape for name, value in weights.items()})
    model = Model(config)
    model.load_state_dict(weights)
    return model
