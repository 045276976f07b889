"""Put a residual rule, and a value rule, into a decoder of `transformers`, and take it out again.

    model = transformers.AutoModelForCausalLM.from_pretrained("gpt2")
    rr.attach(model, "review:bias=7")             # in place; train, save, generate as before
    model.save_pretrained("gpt2-review")

    again = transformers.AutoModelForCausalLM.from_pretrained("gpt2-review")
    rr.attach(again, "review:bias=7", weights="gpt2-review")
    rr.detach(again)                              # the model without the rule, to the bit

All is done by hooks on the model's own blocks, which still compute attention and MLP. What a
block hands on is the rule's state, packed into one tensor P (B, T, channels):

    the block receives    [0 | P], with as many zeros as P' has channels
    before the 1st norm   x, state = read(unpack(P));  the norm gets x
    after attention       state = write(state, u);     attention returns 0
    before the 2nd norm   x, state = read(state);      the norm gets x
    after the MLP         P' = pack(write(state, u));  the MLP returns [P' | 0]
    the block returns     [0 | P] + 0 + [P' | 0] = [P' | P], and hands on P'

So the block's own residual additions add zeros, no gradient passes through them, and nothing but a
tensor travels between blocks: gradient checkpointing and compilation find what they know.
"""

import copy
import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..config import ModelConfig, RRError, file_bytes
from ..ops.module_list import ModuleList
from ..residual import Residuals, canonical
from ..residual.values import ValueRule, make_values
from .decoder import Block, find, first_output, first_tensor
from .packing import Layout, as_channels, as_heads

NAME = "rr_residuals"  # under which the rules are registered on the model, and in its config
HOOKS = "_rr_hooks"  # the attribute of the model that holds its hooks


def attach(
    model: nn.Module, rule: str, values: str | None = None, weights: str | Path | None = None
) -> nn.Module:
    """Attach a residual rule to a pre-norm decoder, in place; returns the model.

    model    a decoder that takes `input_ids`, such as those of the GPT-2, Llama, Mistral, Qwen2 and
             Qwen3 families. It is known by its shape: one list of blocks that each hold two norms,
             attention and an MLP and add both to what they are given, and one norm after the last.
             Two tokens are sent through it to see that it is so
    rule     a residual rule with its options (`rr.residual.RULES`). Its pre-norm is left out: the
             block has one. "standard" is the model as it was, to the bit. "review:bias=B" starts by
             writing σ(B) of each update, which lacks less than e^(−B) of it; at B = 20 nothing is
             missing in float32. Other rules start elsewhere, some far from what the model was
             trained as
    values   a value rule with its options (`rr.residual.REGISTRY`, "values"), for models whose
             values come from `v_proj` or GPT-2's `c_attn`; None: "own", which mixes nothing
    weights  folder that `model.save_pretrained` of Transformers wrote while the rule was attached,
             with the rules' parameters; without it they have their initial values

    The parameters are registered as `model.rr_residuals`, so that optimisers, `state_dict`,
    `model.save_pretrained` (Transformers) and `.to` find them; its `parameter_groups` sorts them
    for weight decay. They are float32 beside a model of lower precision. The entry `rr_residuals`
    of the model's config names the rules. Compile and shard (`fully_shard`) the model after
    attaching, and add PEFT's adapters after it, with `modules_to_save=["rr_residuals"]`: PEFT
    freezes whatever it is not told to train. Where blocks are compiled one by one, a rule whose
    state grows from block to block (attnres, denseformer) needs a graph for each: set
    `torch._dynamo.config.recompile_limit` to the number of blocks.

    Forward hooks on `model.rr_residuals.rules` see each write, ((state, u), new state); the probes
    of `rr.analysis` are made of such hooks. `output_hidden_states=True` shows the packed states
    that blocks hand on, and before them what the first block receives.

    With gradient checkpointing a block keeps twice the channels of its state. A rule's own
    initialisation of the branches is not applied: their weights are the model's.

    Not offered: passing the blocks more than once, as looped models do, and SVFormer's smaller
    cache, as the model's own cache still holds the values of every block.

    Raises RRError for another kind of model (`rr.Residuals` is the way into your own code), one
    that has a rule already, is sharded or offloaded, an unknown rule, a rule in a file that was not
    allowed (`rr.allow_rule`), or weights of other rules or of a class of your own.

    Example:
        >>> import torch, transformers
        >>> import rr
        >>> shape = transformers.GPT2Config(
        ...     vocab_size=60, n_embd=16, n_layer=2, n_head=2
        ... )
        >>> model = transformers.GPT2LMHeadModel(shape).eval()
        >>> ids = torch.arange(8)[None]
        >>> before = model(ids).logits
        >>> model = rr.attach(model, "standard")
        >>> same = torch.equal(model(ids).logits, before)
        >>> same, model.config.rr_residuals["rule"]
        (True, 'standard')
    """
    if not isinstance(model, nn.Module):
        raise RRError(
            f"model must be a module, got {model!r}: load it first, with "
            "transformers.AutoModelForCausalLM.from_pretrained"
        )
    if any(isinstance(module, Attached) for module in model.modules()):
        raise RRError("this model has a residual rule attached already: rr.detach(model) first")
    if any(hasattr(p, "full_tensor") for p in model.parameters()):
        raise RRError(
            "this model is sharded already, and the rule's parameters would not be: call rr.attach "
            "before fully_shard"
        )
    if away := [name for name, p in model.named_parameters() if p.is_meta]:
        raise RRError(
            f"{len(away)} parameters of this model are on the meta device, without numbers "
            f"({away[0]} …): load it whole, without offloading to CPU or disk"
        )
    specs = {"rule": canonical(rule), "values": canonical(values or "own", "values")}
    blocks, last = find(model)
    recorded = getattr(getattr(model, "config", None), NAME, None)
    if recorded and weights is None:
        raise RRError(
            f"this model was saved with {recorded['rule']!r} attached: give its folder as weights="
            f", or `del model.config.{NAME}` to begin with initial values"
        )
    attached = Attached(_config(model, blocks, specs), blocks, last)
    if weights is not None:
        wanted = attached.state_dict()
        attached.load_state_dict(_saved(Path(weights), specs, wanted, type(model).__name__))
    if not all(rule.caches_v(n) for n, rule in enumerate(attached.value_rules, 1)):
        warnings.warn(
            f"values={values}: the model's cache still holds the values of every block, though all "
            "are those of the first",
            stacklevel=2,
        )
    model.add_module(NAME, attached)
    setattr(model, HOOKS, _Hooks(model, blocks, last))
    setattr(model.config, NAME, specs)
    return model


def detach(model: nn.Module) -> nn.Module:
    """Remove an attached rule from a model, in place: hooks, parameters and the config's entry.

    The model then computes what its own weights, as they are now, compute without a rule. Raises
    RRError where it has none.

    Example:
        >>> import torch, transformers
        >>> import rr
        >>> shape = transformers.GPT2Config(
        ...     vocab_size=60, n_embd=16, n_layer=2, n_head=2
        ... )
        >>> model = transformers.GPT2LMHeadModel(shape).eval()
        >>> ids = torch.arange(8)[None]
        >>> before = model(ids).logits
        >>> model = rr.detach(rr.attach(model, "review"))
        >>> torch.equal(model(ids).logits, before)
        True
    """
    if HOOKS not in vars(model):
        raise RRError(f"no residual rule is attached to this {type(model).__name__}")
    for module in model.modules():
        _unhook(module)
    delattr(model, HOOKS)
    delattr(model, NAME)
    delattr(model.config, NAME)
    return model


def _config(model: nn.Module, blocks: list[Block], specs: dict[str, str]) -> ModelConfig:
    """The decoder's shape, as a ModelConfig for the rules."""
    heads = getattr(getattr(model, "config", None), "num_attention_heads", None)
    if heads is None:
        raise RRError(f"{type(model).__name__} has no config with num_attention_heads")
    kv, d = getattr(model.config, "num_key_value_heads", None), blocks[0].width
    # no rule asks for what is not known here, such as the width of the MLP
    return replace(ModelConfig(1, len(blocks), heads, d, 4 * d, n_kv_head=kv), **specs)


def _saved(
    folder: Path, specs: dict[str, str], wanted: dict[str, Tensor], kind: str
) -> dict[str, Tensor]:
    """The rules' parameters in a folder of `save_pretrained`; RRError unless as `wanted`.

    kind: the name of the model's class.
    """
    # only here: they come with the model
    import transformers
    from safetensors import SafetensorError, safe_open

    held: dict[str, Tensor] = {}
    try:
        config = json.loads(file_bytes(folder / "config.json"))
        recorded = config.get(NAME)
        (was,) = config.get("architectures") or [kind]
        if was != kind and not hasattr(transformers, was):
            raise RRError(
                f"{folder} was saved by {was}, a class of your own, and this model is a {kind}: "
                f"load it with {was}.from_pretrained"
            )
        if recorded is None:
            raise RRError(f"{folder} was saved without a rule attached: its config has no {NAME}")
        for key, spec in specs.items():
            # of a rule in a file, its class and options: the file may lie elsewhere now
            if recorded[key].rpartition(".py:")[2] != spec.rpartition(".py:")[2]:
                raise RRError(f"{folder} was saved with {key} {recorded[key]!r}, not {spec!r}")
        index, names = folder / "model.safetensors.index.json", ["model.safetensors"]
        if index.exists():  # in several files
            names = sorted(set(json.loads(file_bytes(index))["weight_map"].values()))
        for name in names:
            with safe_open(folder / Path(name).name, "pt") as file:
                for key in file.keys():
                    if key.startswith(f"{NAME}."):
                        held[key.removeprefix(f"{NAME}.")] = file.get_tensor(key)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        line = " ".join(str(error).split())[:200]
        raise RRError(
            f"{folder} is not a folder of save_pretrained, or is corrupt: {line}"
        ) from None
    shapes, expected = ({k: tuple(v.shape) for k, v in w.items()} for w in (held, wanted))
    if shapes != expected:
        apart = min(name for name, _ in shapes.items() ^ expected.items())
        raise RRError(
            f"{folder} does not hold the rules' weights of this model: expected {apart} to be "
            f"{expected.get(apart, 'absent')}, got {shapes.get(apart, 'none')}"
        )
    return held


class Attached(Residuals):
    """Residual rules at the sublayers of another library's model, which `_Hooks` call."""

    @torch.no_grad()
    def __init__(self, config: ModelConfig, blocks: list[Block], last: nn.Module) -> None:
        nn.Module.__init__(self)
        self.config = config
        self._build(config, norm=False)
        self.value_rules: ModuleList[ValueRule] = ModuleList()
        if config.values != "own":
            self.value_rules.extend(
                make_values(config.values, attn_rule.site, config) for attn_rule, _ in self.pairs
            )
        self.reset()
        # one token of zeros, to see what becomes of the state from block to block
        state, vstate = self.open(torch.zeros(1, 1, self.dim)), None
        self.layouts = [Layout(state, vstate)]  # of what each block receives, and of the last
        for n, (block, rules) in enumerate(zip(blocks, self.pairs, strict=True)):
            if self.value_rules:
                values = _Values(self.value_rules[n], block.attention, config)
                vstate = values.after_one_token(vstate)
            for rule in rules:
                state = rule.sublayer(state, torch.zeros_like)
            self.layouts.append(Layout(state, vstate))
            for rule in (*rules, *self.value_rules[n : n + 1]):
                _beside(rule, block.whole)
        _beside(self.final, last)


class _Hooks:
    """The hooks of a model with an attached rule, and whose rules they call.

    PEFT exchanges modules: with `modules_to_save` the rules for a copy that it trains, a projection
    for one with an adapter around it. Every pass through the model begins by following that.
    """

    def __init__(self, model: nn.Module, blocks: list[Block], last: nn.Module) -> None:
        self.model, self.warned = model, False
        stack = getattr(model, NAME)
        self.rules = stack.rules
        self.calls: list[_Calls] = []
        for n, (block, rules) in enumerate(zip(blocks, stack.pairs, strict=True)):
            values = None
            if stack.value_rules:
                values = _Values(stack.value_rules[n], block.attention, stack.config)
                values.follow()
            calls = _Calls(rules, values, *stack.layouts[n : n + 2])
            block.whole.register_forward_pre_hook(calls.enter, with_kwargs=True)
            block.norms[0].register_forward_pre_hook(calls.before_attention)
            block.attention.register_forward_hook(calls.after_attention)
            block.norms[1].register_forward_pre_hook(calls.before_mlp)
            block.mlp.register_forward_hook(calls.after_mlp)
            block.whole.register_forward_hook(calls.leave)
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

    def __deepcopy__(self, memo: dict) -> "_Hooks":
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


def _unhook(module: nn.Module) -> None:
    """Remove from a module what `_Hooks` hooked into it."""
    for hooks in (module._forward_hooks, module._forward_pre_hooks):
        for key, hook in list(hooks.items()):
            if isinstance(getattr(hook, "__self__", None), _Hooks | _Calls | _Values):
                del hooks[key]
                module._forward_pre_hooks_with_kwargs.pop(key, None)


def _beside(rule: nn.Module, module: nn.Module) -> None:
    """Put a rule where a module is; in float32, or more where the module has more."""
    weights = list(module.parameters())
    wide = torch.float64 if any(p.dtype == torch.float64 for p in weights) else torch.float32
    rule.to(weights[0].device, wide)  # quantised weights are no floating-point numbers


def _as_read(norm: nn.Module, x: Tensor) -> tuple[Tensor]:
    """A norm's input in the precision of its weights: rules compute in float32 at least."""
    weight = getattr(norm, "weight", None)
    return (x if weight is None else x.to(weight.dtype),)


class _Calls:
    """The hooks of one block; state is kept only from one hook to the next."""

    all: _Hooks
    first = False  # the first block makes a state from the embeddings

    def __init__(
        self, rules: tuple, values: "_Values | None", entering: Layout, leaving: Layout
    ) -> None:
        (self.attn_rule, self.mlp_rule), self.values = rules, values
        self.entering, self.leaving = entering, leaving
        self.state: Any = None

    def __deepcopy__(self, memo: dict) -> "_Calls":
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


class _Values:
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
            _unhook(module)
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
