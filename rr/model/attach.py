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

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..config import ModelConfig, RRError, file_bytes
from ..ops.module_list import ModuleList
from ..residual import Residuals, canonical, resolve
from ..residual.values import ValueRule, make_values
from .decoder import Block, find, first_output, first_tensor

NAME = "rr_residuals"  # under which the rules are registered on the model, and in its config


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
    attaching. Forward hooks on `model.rr_residuals.rules` see each write, ((state, u), new state);
    the probes of `rr.analysis` are made of such hooks. `output_hidden_states=True` shows the packed
    states that blocks hand on, and before them what the first block receives.

    With gradient checkpointing a block keeps twice the channels of its state. A rule's own
    initialisation of the branches is not applied: their weights are the model's.

    Not offered: passing the blocks more than once, as looped models do, and SVFormer's smaller
    cache, as the model's own cache still holds the values of every block.

    Raises RRError for another kind of model (`rr.Residuals` is the way into your own code), one
    that has a rule already or is sharded, an unknown rule, a rule in a file that was not allowed
    (`rr.allow_rule`), or weights of other rules.

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
    specs = {"rule": canonical(rule), "values": canonical(values or "own", "values")}
    if resolve(specs["values"], "values")[0].reads_ids():
        raise RRError(
            f"values={values} looks values up by token ids, which attention here does not get: "
            "use it in rr.Model, or another value rule"
        )
    blocks, last = find(model)
    recorded = getattr(getattr(model, "config", None), NAME, None)
    if recorded and weights is None:
        raise RRError(
            f"this model was saved with {recorded['rule']!r} attached: give its folder as weights="
            f", or `del model.config.{NAME}` to begin with initial values"
        )
    attached = Attached(_config(model, blocks, specs), blocks, last)
    if weights is not None:
        attached.load_state_dict(_saved(Path(weights), specs, attached.state_dict()))
    if not all(rule.caches_v(n) for n, rule in enumerate(attached.value_rules, 1)):
        warnings.warn(
            f"values={values}: the model's cache still holds the values of every block, though all "
            "are those of the first",
            stacklevel=2,
        )
    attached.register(blocks, last)
    model.add_module(NAME, attached)
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
    attached = getattr(model, NAME, None)
    if not isinstance(attached, Attached):
        raise RRError(f"no residual rule is attached to this {type(model).__name__}")
    for handle in attached.handles:
        handle.remove()
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


def _saved(folder: Path, specs: dict[str, str], wanted: dict[str, Tensor]) -> dict[str, Tensor]:
    """The rules' parameters in a folder of `save_pretrained`; RRError unless as `wanted`."""
    from safetensors import SafetensorError, safe_open  # only here: it comes with transformers

    held: dict[str, Tensor] = {}
    try:
        recorded = json.loads(file_bytes(folder / "config.json")).get(NAME)
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
    """Residual rules at the sublayers of another library's model, and the hooks that call them."""

    @torch.no_grad()
    def __init__(self, config: ModelConfig, blocks: list[Block], last: nn.Module) -> None:
        nn.Module.__init__(self)
        self._build(config, norm=False)
        self.value_rules: ModuleList[ValueRule] = ModuleList()
        if config.values != "own":
            self.value_rules.extend(
                make_values(config.values, attn_rule.site, config) for attn_rule, _ in self.pairs
            )
        self.reset()
        self.handles: list[Any] = []
        self.calls: list[_Calls] = []
        # one token of zeros, to see what becomes of the state from block to block
        state, vstate = self.open(torch.zeros(1, 1, self.dim)), None
        entering = _Layout(state, vstate)
        for n, (block, rules) in enumerate(zip(blocks, self.pairs, strict=True)):
            values = None
            if self.value_rules:
                values = _Values(self.value_rules[n], block.attention, config)
                vstate = values.after_one_token(vstate)
            for rule in rules:
                state = rule.sublayer(state, torch.zeros_like)
            leaving = _Layout(state, vstate)
            self.calls.append(_Calls(rules, values, entering, leaving))
            entering = leaving
            for rule in (*rules, *self.value_rules[n : n + 1]):
                _beside(rule, block.whole)
        _beside(self.final, last)

    def register(self, blocks: list[Block], last: nn.Module) -> None:
        """Hook the rules into the blocks."""
        add = self.handles.append
        for block, calls in zip(blocks, self.calls, strict=True):
            add(block.whole.register_forward_pre_hook(calls.enter, with_kwargs=True))
            add(block.norms[0].register_forward_pre_hook(calls.before_attention))
            add(block.attention.register_forward_hook(calls.after_attention))
            add(block.norms[1].register_forward_pre_hook(calls.before_mlp))
            add(block.mlp.register_forward_hook(calls.after_mlp))
            add(block.whole.register_forward_hook(calls.leave))
            if calls.values:
                self.handles += calls.values.register()
        self.calls[0].opens = self
        add(last.register_forward_pre_hook(self._close))

    def _close(self, norm: nn.Module, args: tuple) -> tuple:
        state, _ = self.calls[-1].leaving.unpack(args[0])
        return _as_read(norm, self.close(state))


def _beside(rule: nn.Module, module: nn.Module) -> None:
    """Put a rule where a module is; in float32, or more where the module has more."""
    weight = next(p for p in module.parameters() if p.is_floating_point())
    rule.to(weight.device, torch.promote_types(weight.dtype, torch.float32))


def _as_read(norm: nn.Module, x: Tensor) -> tuple[Tensor]:
    """A norm's input in the precision of its weights: rules compute in float32 at least."""
    weight = getattr(norm, "weight", None)
    return (x if weight is None else x.to(weight.dtype),)


class _Layout:
    """Packs a residual state and a value state into one tensor (B, T, channels), and unpacks it."""

    def __deepcopy__(self, memo: dict) -> "_Layout":
        return self  # nothing of it changes

    def __init__(self, state: Any, vstate: Any) -> None:
        """Of states of one token."""
        streams, of_values = tree_flatten(state)[0], tree_flatten(vstate)[0]
        leaves, self.spec = tree_flatten((state, vstate))
        self.kinds = ["stream"] * len(streams) + [self._kind(leaf) for leaf in of_values]
        self.shapes: list[tuple[int, ...]] = [
            () if kind == "none" else tuple(leaf.shape[2:] if kind == "stream" else leaf.shape)
            for leaf, kind in zip(leaves, self.kinds, strict=True)
        ]
        self.widths = [
            0 if kind == "none" else leaf.numel()
            for leaf, kind in zip(leaves, self.kinds, strict=True)
        ]
        self.width = sum(self.widths)

    @staticmethod
    def _kind(leaf: Tensor | None) -> str:
        # values (B, heads, T, e), or a tensor that is the same for all tokens
        return "none" if leaf is None else "heads" if leaf.ndim == 4 else "shared"

    def pack(self, state: Any, vstate: Any) -> Tensor:
        leaves = tree_flatten((state, vstate))[0]
        b, t = leaves[0].shape[:2]
        flat = []
        for leaf, kind in zip(leaves, self.kinds, strict=True):
            if kind == "stream":
                flat.append(leaf.flatten(2))
            elif kind == "heads":
                flat.append(_as_channels(leaf))
            elif kind == "shared":
                flat.append(leaf.flatten().expand(b, t, -1))
        return flat[0] if len(flat) == 1 else torch.cat(flat, -1)

    def unpack(self, packed: Tensor) -> tuple[Any, Any]:
        leaves: list[Any] = []
        pieces = packed.split(self.widths, -1)
        for piece, kind, shape in zip(pieces, self.kinds, self.shapes, strict=True):
            if kind == "stream":
                leaves.append(piece.unflatten(-1, shape))
            elif kind == "heads":
                leaves.append(_as_heads(piece, shape[1]))
            else:
                leaves.append(piece[0, 0].view(shape) if kind == "shared" else None)
        return tree_unflatten(leaves, self.spec)


def _as_heads(x: Tensor, heads: int) -> Tensor:
    """(B, T, heads·e) -> (B, heads, T, e)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _as_channels(x: Tensor) -> Tensor:
    """(B, heads, T, e) -> (B, T, heads·e)."""
    return x.transpose(1, 2).flatten(2)


class _Calls:
    """The hooks of one block; state is kept only from one hook to the next."""

    opens: Any = None  # the first block's: the stack, which makes a state from the embeddings

    def __init__(
        self, rules: tuple, values: "_Values | None", entering: _Layout, leaving: _Layout
    ) -> None:
        (self.attn_rule, self.mlp_rule), self.values = rules, values
        self.entering, self.leaving = entering, leaving
        self.state: Any = None

    def enter(self, block: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        hidden = first_tensor(args, kwargs)
        if self.opens is not None:
            x0 = _as_computed(self.attn_rule, hidden)
            hidden = self.entering.pack(self.opens.open(x0), None)
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
        children = dict(attention.named_children())
        fused = children.get("c_attn")
        if "v_proj" in children:
            self.projection = children["v_proj"]
        elif (
            fused is not None and getattr(fused, "nf", None) == 3 * config.d_model
        ):  # GPT-2: q, k and v, side by side
            self.projection = fused
        else:
            raise RRError(
                f"values={config.values} needs a value projection (v_proj, or GPT-2's c_attn) in "
                f"{type(attention).__name__}: it has {', '.join(children) or 'no parts'}"
            )
        self.out = children.get("o_proj") or children.get("c_proj")
        if self.adds and self.out is None:
            raise RRError(
                f"values={config.values} needs an output projection (o_proj or c_proj) in "
                f"{type(attention).__name__}: it has {', '.join(children)}"
            )

    @property
    def adds(self) -> bool:
        """Whether the rule changes the output of attention."""
        rule = type(self.rule)
        return rule.after is not ValueRule.after or rule.gated is not ValueRule.gated

    def after_one_token(self, vstate: Any) -> Any:
        """The value state that one token leaves behind."""
        return self._mix(_as_heads(torch.zeros(1, 1, self.width), self.kv_heads), vstate)[1]

    def register(self) -> list[Any]:
        handles = [self.projection.register_forward_hook(self.mix)]
        if self.adds and self.out is not None:
            handles.append(self.out.register_forward_pre_hook(self.add))
        return handles

    def _mix(self, v: Tensor, vstate: Any) -> tuple[Tensor, Any]:
        has_own = self.rule.has_own_v(self.rule.site.block)
        return self.rule.values(v if has_own else None, vstate)

    def mix(self, projection: nn.Module, args: tuple, out: Tensor) -> Tensor:
        v = _as_heads(out[..., -self.width :], self.kv_heads)
        self.v, self.vstate = self._mix(v, self.vstate)
        self.x = args[0]
        mixed = _as_channels(self.v).to(out.dtype)
        return torch.cat([out[..., : -self.width], mixed], -1)

    def add(self, projection: nn.Module, args: tuple) -> tuple:
        y = self.rule.after(_as_heads(args[0], self.heads), self.v, self.vstate)
        y = self.rule.gated(y, self.x)
        return (_as_channels(y).to(args[0].dtype), *args[1:])

    def take(self) -> Any:
        """The value state after the block; nothing of it is kept here."""
        vstate, self.vstate, self.v, self.x = self.vstate, None, None, None
        return vstate
