"""Loading weights from a file: sizes are compared before the model is built.

A specification can claim any size, but weights have the size of their file. So a model is allocated
only after the names and shapes of its weights are those of the file.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..errors import RRError
from ..residual import resolve
from ..specs import ModelConfig
from .transformer import Model

LOOPS = 1024  # largest number of passes: with one shared stack, no weight bounds it


def check_sizes(config: ModelConfig, shapes: Mapping[str, Sequence[int]]) -> None:
    """Raise RRError, one line, unless a model of `config` has these weights: name -> shape.

    The numbers of modules and the sizes of matrices are compared first, then every weight with a
    model on the meta device, which has shapes and no bytes.
    """
    blocks = len({name.split(".")[1] for name in shapes if name.startswith("layers.")})
    if config.n_layer != blocks:
        raise RRError(f"n_layer is {config.n_layer}, but the weights have {blocks} blocks")
    if config.n_loops > LOOPS:
        raise RRError(f"n_loops must be at most {LOOPS}, got {config.n_loops}")
    per_pass = resolve(config.rule)[1].get("per_pass")
    if per_pass and config.n_layer * config.n_loops > len(shapes):
        raise RRError(f"n_loops is {config.n_loops}, but there are only {len(shapes)} weights")
    d, own = config.d_model, {name: tuple(shape) for name, shape in shapes.items()}
    first = {"token.weight": (config.padded_vocab, d), "layers.0.mlp.down.weight": (d, config.d_ff)}
    if config.flavour == "gpt2":
        first["position.weight"] = (config.seq_len, d)
    _compare({name: own[name] for name in first.keys() & own.keys()}, first)
    try:
        with torch.device("meta"):
            _compare(own, {name: tuple(t.shape) for name, t in Model(config).state_dict().items()})
    except RuntimeError as error:  # options whose product overflows an integer
        line = str(error).partition("\n")[0]
        raise RRError(f"{config.rule} with {config.values} cannot have weights: {line}") from None


def _compare(own: Mapping[str, tuple], expected: Mapping[str, tuple]) -> None:
    """Raise RRError unless the file's own weights are those expected by the specification."""
    for name, shape in expected.items():
        if name not in own:
            raise RRError(f"weight {name} of the specification is missing in the file")
        if own[name] != shape:
            raise RRError(
                f"weight {name} must be {_shown(shape)} by the specification, got "
                f"{_shown(own[name])}"
            )
    if more := own.keys() - expected.keys():
        raise RRError(f"weight {min(more)} is not part of the specification")


def _shown(shape: tuple) -> str:
    return " × ".join(map(str, shape)) or "one number"


def with_weights(config: ModelConfig, weights: Mapping[str, Tensor] | None) -> Model:
    """The model of `config` with these weights; RRError, before it is built, if they differ."""
    if not isinstance(weights, Mapping) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in weights.items()
    ):
        raise RRError("weights must be tensors by name")
    check_sizes(config, {name: value.shape for name, value in weights.items()})
    model = Model(config)
    model.load_state_dict(weights)
    return model
