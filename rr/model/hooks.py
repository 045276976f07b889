"""The hooks by which a rule works in another library's model: see `rr.model.attach`."""

import copy
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..config import ModelConfig, RRError
from ..residual.values import ValueRule
from .decoder import Block, first_output, first_tensor
from .packing import Layout, as_channels, as_heads

NAME = "rr_residuals"  # under which the rules are registered on the model, and in its config


class Hooks:
    """The hooks of a model with an attached rule, and whose rules they call.

    PEFT exchanges modules: with `modules_to_save` the rules for a copy that it trains, a projection
    for one with an adapter around it. Every pass through the model begins by following that.
    """

    def __init__(self, model: nn.Module, blocks: list[Block], last: nn.Module) -> None:
        self.model, self.warned = model, False
        stack = getattr(model, NAME)
        self.rules = stack.rules
        self.calls: list[Calls] = []
        for n, (block, rules) in enumerate(zip(blocks, stack.pairs, strict=True)):
            values = None
            if stack.value_rules:
                values = Values(stack.value_rules[n], block.attention, stack.config)
                values.follow()
            calls = Calls(rules, values, *stack.layouts[n : n + 2])
            block.module.register_forward_pre_hook(calls.enter, with_kwargs=True)
            block.norms[0].register_forward_pre_hook(calls.before_attention)
            block.attention.register_forward_hook(calls.after_attention)
            block.norms[1].register_forward_pre_hook(calls.before_mlp)
            block.mlp.register_forward_hook(calls.after_mlp)
            block.module.register_forward_hook(calls.leave)
            calls.all = self
            self.calls.append(calls)
        self.calls[0].first = True
        last.register_forward_pre_hook(self.close)

    def open(self, x0: Tensor) -> Any:
        """The first block's state from the embeddings."""
        stack: Any = getattr(self.model, NAME)
        if stack.rules is not self.rules:
            self.rules = stack.rules
            for n, (calls, rules) in enumerate(zip(self.calls, stack.pairs, strict=True)):
                calls.attn_rule, calls.mlp_rule = rules
                if calls.values:
                    calls.values.rule = stack.value_rules[n]
        for calls in self.calls:
            if calls.values:
                calls.values.follow()
        if not torch.compiler.is_compiling():
            self._warn_of_frozen(stack)
        return stack.open(x0)

    def close(self, norm: nn.Module, args: tuple) -> tuple:
        state, _ = self.calls[-1].leaving.unpack(args[0])
        return _as_read(norm, getattr(self.model, NAME).close(state))

    def __deepcopy__(self, memo: dict) -> "Hooks":
        return _with_model(self, self.model, memo)

    def _warn_of_frozen(self, stack: Any) -> None:
        """Warn, once, where the model is trained and its rules are not: PEFT freezes them."""
        if self.warned or not (self.model.training and torch.is_grad_enabled()):
            return
        own = list(stack.parameters())
        if own and not any(p.requires_grad for p in own):
            if any(p.requires_grad for p in self.model.parameters()):
                self.warned = True
                warnings.warn(
                    "the model is trained while the parameters of its residual rule are frozen: "
                    f'with PEFT give modules_to_save=["{NAME}"], which also saves them; otherwise '
                    f"call model.{NAME}.requires_grad_()",
                    stacklevel=2,
                )


def _with_model(hooks: Any, model: nn.Module, memo: dict) -> Any:
    """A copy for a model that is copied; of one module, as PEFT copies it, the hooks stay these."""
    if id(model) not in memo:
        return hooks
    other = memo[id(hooks)] = object.__new__(type(hooks))
    vars(other).update(copy.deepcopy(vars(hooks), memo))
    return other


def unhook(module: nn.Module) -> None:
    """Remove from a module what `Hooks` hooked into it."""
    for hooks in (module._forward_hooks, module._forward_pre_hooks):
        for key, hook in list(hooks.items()):
            if isinstance(getattr(hook, "__self__", None), Hooks | Calls | Values):
                del hooks[key]
                module._forward_pre_hooks_with_kwargs.pop(key, None)


def _as_read(norm: nn.Module, x: Tensor) -> tuple[Tensor]:
    """A norm's input in the precision of its weights: rules compute in float32 at least."""
    weight = getattr(norm, "weight", None)
    return (x if weight is None else x.to(weight.dtype),)


class Calls:
    """The hooks of one block; state is kept only from one hook to the next."""

    all: Hooks
    first = False  # the first block makes a state from the embeddings

    def __init__(
        self, rules: tuple, values: "Values | None", entering: Layout, leaving: Layout
    ) -> None:
        (self.attn_rule, self.mlp_rule), self.values = rules, values
        self.entering, self.leaving = entering, leaving
        self.state: Any = None

    def __deepcopy__(self, memo: dict) -> "Calls":
        return _with_model(self, self.all.model, memo)

    def enter(self, block: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        hidden = first_tensor(args, kwargs)
        if self.first:
            x0 = _as_computed(self.attn_rule, hidden)
            hidden = self.entering.pack(self.all.open(x0), None)
        hidden = F.pad(hidden, (self.leaving.width, 0))
        if args:
            return (hidden, *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": hidden}

    def before_attention(self, norm: nn.Module, args: tuple) -> tuple:
        state, vstate = self.entering.unpack(args[0][..., self.leaving.width :])
        if self.values:
            self.values.vstate = vstate
        x, self.state = self.attn_rule.read(state)
        return _as_read(norm, x)

    def after_attention(self, attention: nn.Module, args: tuple, out: Any) -> Any:
        u = first_output(out)
        self.state = self.attn_rule(self.state, _as_computed(self.attn_rule, u))
        nothing = u.new_zeros(1, 1, 1)
        return (nothing, *out[1:]) if isinstance(out, tuple) else nothing

    def before_mlp(self, norm: nn.Module, args: tuple) -> tuple:
        x, self.state = self.mlp_rule.read(self.state)
        return _as_read(norm, x)

    def after_mlp(self, mlp: nn.Module, args: tuple, out: Any) -> Any:
        u = first_output(out)
        state = self.mlp_rule(self.state, _as_computed(self.mlp_rule, u))
        packed = self.leaving.pack(state, self.values and self.values.take())
        packed, self.state = F.pad(packed, (0, self.entering.width)), None
        return (packed, *out[1:]) if isinstance(out, tuple) else packed

    def leave(self, block: nn.Module, args: tuple, out: Any) -> Any:
        packed = first_output(out)[..., : self.leaving.width]
        return (packed, *out[1:]) if isinstance(out, tuple) else packed


def _as_computed(rule: nn.Module, x: Tensor) -> Tensor:
    """x in the precision of a rule that has parameters, unless autocast sees to that."""
    weight = next(rule.parameters(), None)
    if weight is None or torch.is_autocast_enabled(x.device.type):
        return x
    if weight.dtype in (torch.bfloat16, torch.float16):
        raise RRError(
            f"the residual rule's parameters must be float32 beside a model of any precision, got "
            f"{weight.dtype}: call model.{NAME}.float()"
        )
    return x.to(weight.dtype)


class Values:
    """A value rule at one block's attention: on its value projection, and before its output."""

    def __init__(self, rule: ValueRule, attention: nn.Module, config: ModelConfig) -> None:
        self.rule, self.kv_heads, self.heads = rule, config.kv_heads, config.n_head
        self.width = self.kv_heads * getattr(attention, "head_dim", config.head_dim)
        self.v: Any = None  # the values of this forward pass, (B, heads, T, e)
        self.x: Any = None  # what attention read, (B, T, d)
        self.vstate: Any = None
        self.attention = attention
        children = dict(attention.named_children())
        fused = children.get("c_attn")
        self.projection, self.out = "", "o_proj" if "o_proj" in children else "c_proj"
        if "v_proj" in children:
            self.projection = "v_proj"
        elif getattr(fused, "nf", None) == 3 * config.d_model:  # GPT-2: q, k and v, side by side
            self.projection = "c_attn"
        else:
            raise RRError(
                f"values={config.values} needs a value projection (v_proj, or GPT-2's c_attn) in "
                f"{type(attention).__name__}: it has {', '.join(children) or 'no parts'}"
            )
        if self.adds and self.out not in children:
            raise RRError(
                f"values={config.values} needs an output projection (o_proj or c_proj) in "
                f"{type(attention).__name__}: it has {', '.join(children)}"
            )
        self.hooked: tuple[nn.Module, ...] = ()

    @property
    def adds(self) -> bool:
        """Whether the rule changes the output of attention."""
        rule = type(self.rule)
        return rule.after is not ValueRule.after or rule.gated is not ValueRule.gated

    def after_one_token(self, vstate: Any) -> Any:
        """The value state that one token leaves behind."""
        return self._mix(as_heads(torch.zeros(1, 1, self.width), self.kv_heads), vstate)[1]

    def follow(self) -> None:
        """Hook the rule into the projections that attention has now."""
        names = (self.projection, self.out) if self.adds else (self.projection,)
        now = tuple(getattr(self.attention, name) for name in names)
        if now == self.hooked:
            return
        for module in self.hooked:
            unhook(module)
        self.hooked = now
        now[0].register_forward_hook(self.mix)
        if self.adds:
            now[1].register_forward_pre_hook(self.add)

    def _mix(self, v: Tensor, vstate: Any) -> tuple[Tensor, Any]:
        has_own = self.rule.has_own_v(self.rule.site.block)
        return self.rule.values(v if has_own else None, vstate)

    def mix(self, projection: nn.Module, args: tuple, out: Tensor) -> Tensor:
        v = as_heads(out[..., -self.width :], self.kv_heads)
        self.v, self.vstate = self._mix(v, self.vstate)
        self.x = args[0]
        mixed = as_channels(self.v).to(out.dtype)
        return torch.cat([out[..., : -self.width], mixed], -1)

    def add(self, projection: nn.Module, args: tuple) -> tuple:
        y = self.rule.after(as_heads(args[0], self.heads), self.v, self.vstate)
        y = self.rule.gated(y, self.x)
        return (as_channels(y).to(args[0].dtype), *args[1:])

    def take(self) -> Any:
        """The value state after the block; nothing of it is kept here."""
        vstate, self.vstate, self.v, self.x = self.vstate, None, None, None
        return vstate
