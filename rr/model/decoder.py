"""Find the blocks of a pre-norm decoder that another library made: by their shape and behaviour."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import RRError

WANTED = {"norm": 2, "attention": 1, "MLP": 1}
WORDS = {
    "norm": ("norm", "ln_"),
    "attention": ("attention", "attn"),
    "MLP": ("mlp", "feedforward", "feed_forward", "ffn"),
}
LOOKED_FOR = "looked for one list of blocks with two norms, attention and an MLP each (pre-norm)"
WAY = "rr.Residuals puts a rule into your own code"


@dataclass
class Block:
    """A block of a decoder and its parts, norms in the order in which they are called."""

    module: nn.Module
    norms: tuple[nn.Module, nn.Module]
    attention: nn.Module
    mlp: nn.Module
    width: int = 0  # d, channels of the stream
    dtype: torch.dtype = torch.float32  # of the stream


def uncompiled(module: nn.Module) -> nn.Module:
    """The module that `torch.compile` returned a wrapper of; a module without one itself."""
    return module._modules.get("_orig_mod") or module


def first_tensor(args: tuple, kwargs: dict) -> Any:
    """What a module of a decoder works on: its first argument, or `hidden_states`."""
    return args[0] if args else kwargs.get("hidden_states")


def first_output(out: Any) -> Any:
    """What a module of a decoder has made: the first of a tuple or list, or all."""
    return out[0] if isinstance(out, tuple | list) else out


def with_first(out: Any, x: Tensor) -> Any:
    """What a module made, with x in the place of its first part."""
    return type(out)((x, *out[1:])) if isinstance(out, tuple | list) else x


@dataclass
class Decoder:
    """The parts of a pre-norm decoder that a rule is hooked into."""

    blocks: list[Block]  # bottom to top
    body: nn.Module  # whose forward calls them
    last: nn.Module  # the norm after the last
    output: Tensor  # of two tokens


def find(model: nn.Module) -> Decoder:
    """The parts of a pre-norm decoder.

    Two tokens are sent through the model, in evaluation mode and without gradients, to see that
    each block adds its attention's and its MLP's output to what it was given, and nothing else.
    RRError, one line, where there are no such blocks.
    """
    lists = [
        (name, [uncompiled(member) for member in module])
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module)
    ]
    matches = [(name, members) for name, members in lists if all(map(_is_block, members))]
    if len(matches) != 1:
        candidates = [f"{n}: {len(m)} × {_words(m[0])}" for n, m in matches or lists[:1]]
        raise RRError(
            f"{type(model).__name__} is no decoder that is known: {LOOKED_FOR}, found "
            f"{'; '.join(candidates) or 'no list of modules'}: {WAY}"
        )
    name, members = matches[0]
    blocks = [_block(member) for member in members]
    inside = {id(module) for block in blocks for module in block.module.modules()}
    ends = [m for m in model.modules() if id(m) not in inside and _kind("", m) == "norm"]
    output, seen = two_tokens(model), _Seen()
    with seen.watching(blocks, ends):
        two_tokens(model)
    for n, block in enumerate(blocks):
        if wrong := seen.unlike(block):
            raise RRError(
                f"block {n} of {type(model).__name__} is not pre-norm as looked for: {wrong} "
                f"(parallel residuals, scaled residuals or post-norm?): {WAY}"
            )
        stream = seen.inputs[id(block.module)]
        block.width, block.dtype = stream.shape[-1], stream.dtype
    for n, (below, above) in enumerate(pairwise(blocks)):
        if not _same(seen.inputs[id(above.module)], seen.outputs[id(below.module)]):
            raise RRError(
                f"block {n + 1} of {type(model).__name__} does not read what block {n} returns: "
                f"something between them changes the stream: {WAY}"
            )
    top = seen.outputs[id(blocks[-1].module)]
    last = [m for m in ends if id(m) in seen.inputs and _same(seen.inputs[id(m)], top)]
    if len(last) != 1:
        raise RRError(
            f"{type(model).__name__} has {len(last)} norms that read its last block: looked for "
            f"one: {WAY}"
        )
    return Decoder(blocks, model.get_submodule(name.rpartition(".")[0]), last[0], output)


def _kind(name: str, module: nn.Module) -> str:
    """What a child of a block is, by the name of its class, else by its own."""
    module = uncompiled(module)
    if isinstance(module, nn.Identity) or (isinstance(module, nn.Dropout) and module.p == 0):
        return "nothing"
    for text in (type(module).__name__.lower(), name.lower()):
        for kind, words in WORDS.items():
            if any(word in text for word in words):
                return kind
    return type(module).__name__


def _counts(block: nn.Module) -> dict[str, int]:
    kinds = [_kind(name, child) for name, child in block.named_children()]
    kinds += ["parameter"] * len(block._parameters)  # they would scale the state, or nothing
    return {kind: kinds.count(kind) for kind in dict.fromkeys(kinds) if kind != "nothing"}


def _is_block(module: nn.Module) -> bool:
    return _counts(module) == WANTED


def _words(block: nn.Module) -> str:
    parts = ", ".join(f"{n} {kind}" for kind, n in _counts(block).items())
    return f"{type(block).__name__} ({parts or 'no children'})"


def _block(module: nn.Module) -> Block:
    """Its parts in the order of registration; `unlike` sees whether it calls them so."""
    parts: dict[str, list[nn.Module]] = {kind: [] for kind in (*WANTED, "nothing")}
    for name, child in module.named_children():
        parts[_kind(name, child)].append(uncompiled(child))
    first, second = parts["norm"]
    return Block(module, (first, second), parts["attention"][0], parts["MLP"][0])


class _Seen:
    """What modules were given and what they made, by id, while watched.

    Attention and MLPs make 1 more in each channel: where they make zeros, as many networks do at
    their start, nothing would tell how they are added.
    """

    def __init__(self) -> None:
        self.branches: set[int] = set()
        self.inputs: dict[int, Any] = {}
        self.outputs: dict[int, Any] = {}

    @contextmanager
    def watching(self, blocks: list[Block], ends: list[nn.Module]) -> Iterator[None]:
        self.branches = {id(m) for block in blocks for m in (block.attention, block.mlp)}
        modules = [m for b in blocks for m in (b.module, *b.norms, b.attention, b.mlp)] + ends
        handles = []
        for module in modules:
            enter, leave = partial(self._enter, id(module)), partial(self._leave, id(module))
            handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
            handles.append(module.register_forward_hook(leave))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, key: int, module: nn.Module, args: tuple, kwargs: dict) -> None:
        self.inputs[key] = first_tensor(args, kwargs)

    def _leave(self, key: int, module: nn.Module, args: tuple, out: Any) -> Any:
        made = first_output(out)
        if key in self.branches and isinstance(made, Tensor):
            made = made + 1
            out = with_first(out, made)
        self.outputs[key] = made
        return out

    def unlike(self, block: Block) -> str:
        """How a block differs from a pre-norm one, in words; "" where it does not."""
        parts = (block.module, *block.norms, block.attention, block.mlp)
        if any(id(part) not in self.outputs for part in parts):
            return "one of its parts was not called"
        inputs = [self.inputs[id(part)] for part in parts]
        outputs = [self.outputs[id(part)] for part in parts]
        h, x1, x2, into_attn, into_mlp = inputs
        if not isinstance(h, Tensor):
            return "it does not take hidden states first, or under this name"
        for part, given, made in zip(parts, inputs, outputs, strict=True):
            if not all(isinstance(x, Tensor) and x.shape == h.shape for x in (given, made)):
                return f"its {type(part).__name__} reads or returns another shape than the stream's"
        out, y1, y2, u1, u2 = outputs
        if not _same(x1, h):  # whichever of the two was registered first
            first, second = block.norms
            block.norms = second, first
            x1, x2, y1, y2 = x2, x1, y2, y1
        checks = (
            ("no norm reads the stream first", x1, h),
            ("its attention does not read the first norm", into_attn, y1),
            ("its second norm does not read stream + attention", x2, h + u1),
            ("its MLP does not read the second norm", into_mlp, y2),
            ("it does not return stream + attention + MLP", out, h + u1 + u2),
        )
        return next((words for words, a, b in checks if not _same(a, b)), "")


def _same(a: Any, b: Tensor) -> bool:
    return isinstance(a, Tensor) and a.shape == b.shape and torch.equal(a, b)


@contextmanager
def _evaluated(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode; after it every module in the mode that it had."""
    before = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in before.items():
            module.training = training


def two_tokens(model: nn.Module) -> Tensor:
    """What the model makes of two tokens, in evaluation mode; RRError where it does not run.

    Without what `torch.compile` has made of it: that ignores hooks that came after it.
    """
    device = next(model.parameters()).device
    ids = torch.tensor([[0, 1]], device=device)
    try:
        with _evaluated(model), torch.compiler.set_stance("force_eager"):
            out = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
    except Exception as error:  # a foreign model's own words
        line = str(error).strip().partition("\n")[0]
        raise RRError(
            f"{type(model).__name__} does not run on two tokens (input_ids, attention_mask, "
            f"use_cache): {type(error).__name__}: {line}: {WAY}"
        ) from error
    return out if isinstance(out, Tensor) else out[0]
