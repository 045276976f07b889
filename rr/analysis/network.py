"""What the probes need of a network, be it an `rr.Model` or any module with `rr.Residuals`."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import RRError
from ..model.attach import Attached
from ..model.transformer import Model
from ..ops import cross_entropy
from ..residual import Residuals, Rule
from ..residual.values import ValueRule


@contextlib.contextmanager
def hooked(modules: Iterable[nn.Module], hook: Callable, before: bool = False) -> Iterator[None]:
    """Within the block each module has this forward hook; with `before`, a forward pre-hook.

    modules: those of a model, such as `model.rules`. hook: hook(module, args, output) sees every
    call and may return another output. before: a pre-hook, hook(module, args).

    On a residual rule args are (state, u) and the output is the new state.

    Example:
        >>> import torch
        >>> from rr.analysis import hooked
        >>> layer, seen = torch.nn.Linear(2, 4), []
        >>> note = lambda module, args, output: seen.append(tuple(output.shape))
        >>> with hooked([layer], note):
        ...     output = layer(torch.ones(3, 2))
        >>> seen
        [(3, 4)]
    """
    handles = [
        module.register_forward_pre_hook(hook) if before else module.register_forward_hook(hook)
        for module in modules
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class Network:
    """The rules of a model, and the calls that probes make.

    model: an `rr.Model`; a model that a rule is attached to; or any module that holds one
    `rr.Residuals`. The latter two are called as model(idx), and are analysed in the mode that they
    are in: with dropout, call model.eval() first. Raises RRError for other modules.
    """

    rules: list[Rule]  # bottom to top; pass by pass where each pass has its own
    final: Rule  # of the last read
    value_rules: list[ValueRule]  # block by block; none where each block attends over its own

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.stack: Residuals | None = None
        if isinstance(model, Model):
            self.rules, self.final = model.rules, model.final_rule
            self.value_rules = [layer.attn.rule for layer in model.layers]
            return
        held = [module for module in model.modules() if isinstance(module, Residuals)]
        if len(held) != 1:
            raise RRError(
                f"{type(model).__name__} holds {len(held)} rr.Residuals: give an rr.Model, a model "
                "with a rule attached (rr.attach), or a module that holds one rr.Residuals"
            )
        self.stack = stack = held[0]
        self.rules, self.final = list(stack.rules), stack.final
        self.value_rules = list(stack.value_rules) if isinstance(stack, Attached) else []

    @property
    def depth(self) -> int:
        """L, unique blocks."""
        return self.final.site.n_layer

    @property
    def sublayers(self) -> int:
        """Sublayers of the unrolled network, 2·L·N."""
        return 2 * self.depth * self.final.site.n_loops

    @contextlib.contextmanager
    def opened(self, see: Callable[[Any], Any]) -> Iterator[None]:
        """Within the block see(state) is called with the state that the first sublayer reads.

        What it returns, unless None, is read instead.
        """
        seen: list[bool] = []

        def before(layer: nn.Module, args: tuple) -> tuple | None:
            if seen:  # later passes begin with the state that the last write left
                return None
            seen.append(True)
            other = see(args[0])
            return None if other is None else (other, *args[1:])

        if isinstance(self.model, Model):
            hook = hooked(self.model.layers[:1], before, before=True)
        else:
            assert self.stack is not None
            hook = hooked([self.stack], lambda stack, args, state: see(state))
        with hook:
            yield

    def run(self, idx: Tensor) -> None:
        """A forward pass, for what hooks see of it."""
        if isinstance(self.model, Model):
            self.model.hidden(idx)
        else:
            self.model(idx)

    def loss(self, idx: Tensor, targets: Tensor) -> Tensor:
        """The mean loss in nats per token; idx and targets (B, T)."""
        if isinstance(self.model, Model):
            return self.model(idx, targets)
        return self._losses(idx, targets).mean()

    def token_losses(self, idx: Tensor, targets: Tensor) -> Tensor:
        """The loss of every token in nats: (B, T), for idx and targets (B, T)."""
        if not isinstance(self.model, Model):
            return self._losses(idx, targets)
        hidden, head = self.model.hidden(idx).flatten(0, 1), self.model.head_weight
        vocab = self.model.config.vocab_size
        return cross_entropy.token_losses(hidden, head, targets.flatten(), vocab)[0].view(idx.shape)

    def _losses(self, idx: Tensor, targets: Tensor) -> Tensor:
        out = self.model(idx)
        logits = out if isinstance(out, Tensor) else getattr(out, "logits", None)
        if logits is None or logits.shape[:2] != targets.shape:
            raise RRError(
                f"{type(self.model).__name__} must return logits (B, T, vocabulary) for targets "
                f"(B, T) = {tuple(targets.shape)}, as a tensor or an attribute named logits"
            )
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32)).flatten(0, 1)
        return F.cross_entropy(wide, targets.flatten(), reduction="none").view(targets.shape)
