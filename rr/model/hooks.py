"""The hooks by which a rule works in another library's model: see `rr.model.attach`."""

import copy
import threading
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import RRError
from ..residual.values import ValueRule
from ..specs import ModelConfig
from .decoder import Block, Decoder, first_output, first_tensor, with_first
from .packing import Layout, as_channels, as_heads

NAME = "rr_residuals"  # under which the rules are registered on the model, and in its config


_EXCHANGE = threading.Lock()  # one thread at a time follows what PEFT has exchanged
OF_REPLICA = "_rr_of_replica"  # attribute of a replica's modules: its stack, its rules in a block


class Rules(NamedTuple):
    """The rules of one block."""

    attn: nn.Module
    mlp: nn.Module
    values: ValueRule | None


class Now:
    """What a forward pass keeps from one hook to the next, in `local`: each thread has its own.

    Several threads may call one model at the same time. A block runs in one thread from the norm
    before its attention to its MLP. Where checkpointing computes it again that is the thread of the
    backward pass (a GPU has its own), without the hooks on the block itself (Transformers 5), and
    it may end within the last hook: the next block replaces what is left. Of the block that runs

        rules   its own, or those of its replica
        state   the residual state; vstate: the value state
        v, x    the values (B, heads, T, e); what attention read, (B, T, d)

    and of the model `left`, the layout of what the last block so far has handed on.
    """

    def __init__(self) -> None:
        self.local: Any = threading.local()  # dynamo knows this class, and none derived from it

    def __reduce__(self) -> tuple:  # a copy of the model is in no pass
        return Now, ()


class Hooks:
    """The hooks of a model with an attached rule, and whose rules they call.

    PEFT exchanges modules: with `modules_to_save` the rules for a copy that it trains, a projection
    for one with an adapter around it. Every pass through the model begins by following that.
    """

    def __init__(self, model: nn.Module, decoder: Decoder) -> None:
        self.model, self.last, self.warned, self.now = model, decoder.last, False, Now()
        stack = getattr(model, NAME)
        self.rules = stack.rules
        self.calls: list[Calls] = []
        for n, (block, rules) in enumerate(zip(decoder.blocks, _by_block(stack), strict=True)):
            calls = Calls(self, block, rules, *stack.layouts[n : n + 2])
            if rules.values:
                calls.values = Values(rules.values, block.attention, stack.config, calls.now)
                calls.values.follow()
            block.module.register_forward_pre_hook(calls.enter, with_kwargs=True)
            block.norms[0].register_forward_pre_hook(calls.before_attention)
            block.attention.register_forward_hook(calls.after_attention)
            block.norms[1].register_forward_pre_hook(calls.before_mlp)
            block.mlp.register_forward_hook(calls.after_mlp)
            block.module.register_forward_hook(calls.leave, prepend=True)  # before others see it
            self.calls.append(calls)
        self.calls[0].first = True
        model.register_forward_pre_hook(self.tell_replica)
        decoder.body.register_forward_pre_hook(self.begin)
        decoder.last.register_forward_pre_hook(self.close)

    def begin(self, body: nn.Module, args: tuple) -> None:
        """A pass begins: no block has run."""
        self.now.local.left = None

    def tell_replica(self, model: nn.Module, args: tuple) -> None:
        """Tell a replica's blocks their rules: `nn.DataParallel` copies modules, but no hooks."""
        if getattr(model, "_is_replica", False):
            stack = getattr(model, NAME)
            copies = dict(zip(self.model.modules(), model.modules(), strict=True))
            for part in copies.values():  # the norms are those that PEFT has left
                vars(part)[OF_REPLICA] = stack, None
            for calls, rules in zip(self.calls, _by_block(stack), strict=True):
                for part in calls.block.module.modules():
                    vars(copies[part])[OF_REPLICA] = stack, rules

    def rules_at(self, module: nn.Module, rules: Rules | None) -> tuple[Any, Any]:
        """The stack that a block or the last norm belongs to, and its rules there."""
        if getattr(module, "_is_replica", False):
            if not hasattr(module, OF_REPLICA):
                raise RRError(
                    f"DataParallel calls a part of {type(self.model).__name__}, to which the rule "
                    "is attached: let it call that model"
                )
            return getattr(module, OF_REPLICA)
        return getattr(self.model, NAME), rules

    def follow(self) -> None:
        """Call the rules, and hook the projections, that the model has now."""
        stack: Any = getattr(self.model, NAME)
        if stack.rules is not self.rules or any(c.values and c.values.moved() for c in self.calls):
            with _EXCHANGE:
                for calls, rules in zip(self.calls, _by_block(stack), strict=True):
                    calls.rules = rules
                    if calls.values:
                        calls.values.follow()
                self.rules = stack.rules
        if not torch.compiler.is_compiling():
            self._warn_of_frozen(stack)

    def close(self, norm: nn.Module, args: tuple) -> tuple | None:
        left = getattr(self.now.local, "left", None)
        self.now.local.left = None
        if left is None:  # nanochat normalises its embeddings with the same module
            return None
        stack, _ = self.rules_at(norm, None)
        state, _ = left.unpack(args[0])
        return _as_read(norm, stack.close(state), self.calls[-1].block)

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


def _by_block(stack: Any) -> list[Rules]:
    values = list(stack.value_rules) or [None] * len(stack.pairs)
    return [Rules(attn, mlp, own) for (attn, mlp), own in zip(stack.pairs, values, strict=True)]


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


def _as_read(norm: nn.Module, x: Tensor, block: Block) -> tuple[Tensor]:
    """A norm's input in the precision of its weights: rules compute in float32 at least.

    Of a norm without weights (OLMo's, nanochat's) in that of its block's; where these are
    quantised, in that of the stream as it was.
    """
    weight = getattr(norm, "weight", None)
    if weight is None:
        weight = next((p for p in block.module.parameters() if p.is_floating_point()), None)
    return (x.to(block.dtype if weight is None else weight.dtype),)


class Calls:
    """The hooks of one block."""

    first = False  # the first block makes a state from the embeddings

    def __init__(
        self, hooks: Hooks, block: Block, rules: Rules, entering: Layout, leaving: Layout
    ) -> None:
        self.all, self.block, self.rules, self.now = hooks, block, rules, hooks.now
        self.entering, self.leaving = entering, leaving
        self.values: Values | None = None

    def __deepcopy__(self, memo: dict) -> "Calls":
        return _with_model(self, self.all.model, memo)

    def enter(self, block: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        hidden = first_tensor(args, kwargs)
        if self.first:
            self.all.follow()
        stack, rules = self.all.rules_at(block, self.rules)
        if self.first:
            x0 = _as_computed(rules.attn, hidden)
            hidden = self.entering.pack(stack.open(x0), None)
        hidden = F.pad(hidden, (self.leaving.width, 0))
        if args:
            return (hidden, *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": hidden}

    def before_attention(self, norm: nn.Module, args: tuple) -> tuple:
        now = self.now.local
        _, now.rules = self.all.rules_at(norm, self.rules)
        state, now.vstate = self.entering.unpack(args[0][..., self.leaving.width :])
        x, now.state = now.rules.attn.read(state)
        return _as_read(norm, x, self.block)

    def after_attention(self, attention: nn.Module, args: tuple, out: Any) -> Any:
        u, now = first_output(out), self.now.local
        now.state = now.rules.attn(now.state, _as_computed(now.rules.attn, u))
        return with_first(out, u.new_zeros(1, 1, 1))

    def before_mlp(self, norm: nn.Module, args: tuple) -> tuple:
        now = self.now.local
        x, now.state = now.rules.mlp.read(now.state)
        return _as_read(norm, x, self.block)

    def after_mlp(self, mlp: nn.Module, args: tuple, out: Any) -> Any:
        now = self.now.local
        state = now.rules.mlp(now.state, _as_computed(now.rules.mlp, first_output(out)))
        packed = self.leaving.pack(state, now.vstate)
        now.state = now.vstate = now.v = now.x = None
        return with_first(out, F.pad(packed, (0, self.entering.width)))

    def leave(self, block: nn.Module, args: tuple, out: Any) -> Any:
        self.all.now.local.left = self.leaving
        return with_first(out, first_output(out)[..., : self.leaving.width])


def _as_computed(rule: nn.Module, x: Tensor) -> Tensor:
    """x in the precision of a rule that has parameters, unless autocast sees to that."""
    weight = next(_weights(rule), None)
    if weight is None or torch.is_autocast_enabled(x.device.type):
        return x
    if weight.dtype in (torch.bfloat16, torch.float16):
        raise RRError(
            f"the residual rule's parameters must be float32 beside a model of any precision, got "
            f"{weight.dtype}: call model.{NAME}.float(), or compute under torch.autocast, where "
            "FSDP or DeepSpeed hands out its parameters in 16 bits"
        )
    return x.to(weight.dtype)


def _weights(module: nn.Module) -> Iterator[Tensor]:
    """The parameters of a module; those of a replica, which has none, as it computes with them."""
    yield from module.parameters()
    for part in module.modules():
        yield from getattr(part, "_former_parameters", {}).values()


class Values:
    """A value rule at one block's attention: on its value projection, and before its output."""

    def __init__(
        self, rule: ValueRule, attention: nn.Module, config: ModelConfig, now: Now
    ) -> None:
        self.rule, self.now = rule, now
        self.kv_heads, self.heads = config.kv_heads, config.n_head
        self.width = self.kv_heads * getattr(attention, "head_dim", config.head_dim)
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
        made = getattr(children[self.projection], "out_features", self.width)
        wide = self.heads * self.width // self.kv_heads  # channels of attention's output
        read = getattr(children.get(self.out), "in_features", wide)
        if made != self.width or (self.adds and read != wide):
            raise RRError(
                f"values={config.values} needs {self.kv_heads} heads of values of one size, as "
                f"the config says, and {type(attention).__name__} has others in this block"
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
        v = as_heads(torch.zeros(1, 1, self.width), self.kv_heads)
        return _mixed(self.rule, v, vstate)[1]

    def projections(self) -> tuple[nn.Module, ...]:
        """Those that attention has now."""
        names = (self.projection, self.out) if self.adds else (self.projection,)
        return tuple(getattr(self.attention, name) for name in names)

    def moved(self) -> bool:
        """Whether they are others than those that the rule is hooked into."""
        return self.projections() != self.hooked

    def follow(self) -> None:
        """Hook the rule into the projections that attention has now."""
        if not self.moved():
            return
        for module in self.hooked:
            unhook(module)
        now = self.projections()
        now[0].register_forward_hook(self.mix)
        if self.adds:
            now[1].register_forward_pre_hook(self.add)
        self.hooked = now

    def mix(self, projection: nn.Module, args: tuple, out: Tensor) -> Tensor:
        now, v = self.now.local, as_heads(out[..., -self.width :], self.kv_heads)
        now.v, now.vstate = _mixed(now.rules.values, v, now.vstate)
        now.x = args[0]
        mixed = as_channels(now.v).to(out.dtype)
        return torch.cat([out[..., : -self.width], mixed], -1)

    def add(self, projection: nn.Module, args: tuple) -> tuple:
        now = self.now.local
        rule = now.rules.values
        y = rule.after(as_heads(args[0], self.heads), now.v, now.vstate)
        y = rule.gated(y, now.x)
        return (as_channels(y).to(args[0].dtype), *args[1:])


def _mixed(rule: ValueRule, v: Tensor, vstate: Any) -> tuple[Tensor, Any]:
    return rule.values(v if rule.has_own_v(rule.site.block) else None, vstate)
