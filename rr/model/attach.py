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

from ..errors import RRError
from ..io import file_bytes
from ..residual import Residuals, canonical, resolve
from ..residual.values import ValueRule, make_values
from ..specs import ModelConfig
from .decoder import WAY, Decoder, find, two_tokens, uncompiled
from .hooks import NAME, Hooks, Now, Values, unhook
from .packing import Layout

HOOKS = "_rr_hooks"  # the attribute of the model that holds its hooks


@torch.inference_mode(False)  # the rule's parameters are to be trained, wherever they are made
def attach(
    model: nn.Module, rule: str, values: str | None = None, weights: str | Path | None = None
) -> nn.Module:
    """Attach a residual rule to a pre-norm decoder, in place; returns the model.

    model    a decoder that takes `input_ids`, such as those of the GPT-2, Llama, Mistral, Qwen2 and
             Qwen3 families. It is known by its shape: one list of blocks that each hold two norms,
             attention and an MLP and add both to what they are given, and one norm after the last.
             Two tokens are sent through it to see that it is so, and once more with its additions
             taken over. One that `torch.compile` returned is attached to inside
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
    of the model's config names the rules. Shard the model (`fully_shard`) after attaching, wrap it
    for several devices after it, and add PEFT's adapters after it, with
    `modules_to_save=["rr_residuals"]`: PEFT freezes and leaves out of its files whatever it is not
    told to train. What was compiled before is compiled again. Where blocks are compiled one by one,
    a rule whose state grows from block to block (attnres, denseformer) needs a graph for each: set
    `torch._dynamo.config.recompile_limit` to the number of blocks. Several threads may call the
    model at the same time, as a server's or `nn.DataParallel`'s do.

    Forward hooks on `model.rr_residuals.rules` see each write, ((state, u), new state); the probes
    of `rr.analysis` are made of such hooks. `output_hidden_states=True` shows the packed states
    that blocks hand on, and before them what the first block receives.

    With gradient checkpointing a block keeps twice the channels of its state. A rule's own
    initialisation of the branches is not applied: their weights are the model's. So are its norms:
    `rezero`, `fixup`, `deepnorm`, `parallel` and `gated-residual` are then with a norm before each
    branch. A gate does not learn from a bias above 17, where float32 holds 1 alone. Loaded without
    `rr.attach`, a model that was saved with a rule is the model without it.

    Not offered: passing the blocks more than once, as looped models do, and SVFormer's smaller
    cache, as the model's own cache still holds the values of every block.

    Raises RRError for another kind of model (`rr.Residuals` is the way into your own code), one
    that has a rule or adapters already, is wrapped, sharded or offloaded, an unknown rule, a rule
    in a file that was not allowed (`rr.allow_rule`), or weights of other rules or of a class of
    your own. The model is then as it was.

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
    given, model = model, uncompiled(model)
    _check_plain(model)
    specs = {"rule": canonical(rule), "values": canonical(values or "own", "values")}
    looked_up: Any = resolve(specs["values"], "values")[0]
    if looked_up.reads_ids() or looked_up.added is not ValueRule.added:
        raise RRError(
            f"values={values} looks values up by token ids, or adds to them, which attention here "
            "does not do: use it in rr.Model, or another value rule"
        )
    decoder = find(model)
    recorded = getattr(getattr(model, "config", None), NAME, None)
    if recorded and weights is None:
        raise RRError(
            f"this model was saved with {recorded['rule']!r} attached, or shares its config with a "
            f"model that has it: give its folder as weights=, or `del model.config.{NAME}`, on a "
            "copy of a shared config, to begin with initial values"
        )
    attached = Attached(_config(model, decoder, specs), decoder)
    if weights is not None:
        wanted = attached.state_dict()
        attached.load_state_dict(_saved(Path(weights), specs, wanted, type(model).__name__))
    if not all(rule.caches_v(n) for n, rule in enumerate(attached.value_rules, 1)):
        warnings.warn(
            f"values={values}: the model's cache still holds the values of every block, though all "
            "are those of the first",
            stacklevel=2,
        )
    _check_neutral(model, decoder)
    _put(model, attached, decoder)
    setattr(model.config, NAME, specs)
    torch.compiler.reset()  # what was compiled without the rule
    return given


def _check_plain(model: nn.Module) -> None:
    """Raise RRError for a model that is prepared already for what must know the rule's parameters.

    By the names of classes: neither PEFT nor FSDP is imported for it.
    """
    kinds = {base.__name__ for module in model.modules() for base in type(module).__mro__}
    if any(isinstance(module, Attached) for module in model.modules()):
        raise RRError("this model has a residual rule attached already: rr.detach(model) first")
    if kinds & {"PeftModel", "BaseTunerLayer"}:
        raise RRError(
            "this model has adapters of PEFT already, whose files would not hold the rule: attach "
            f'it first, then add them, with modules_to_save=["{NAME}"]; or merge_and_unload() first'
        )
    for kind in ("DataParallel", "DistributedDataParallel"):
        if isinstance(model, getattr(nn.parallel, kind)):
            raise RRError(f"{kind} wraps this model: rr.attach(model.module, …), then wrap it")
    if "FullyShardedDataParallel" in kinds or any(
        hasattr(p, "full_tensor") or hasattr(p, "ds_id") for p in model.parameters()
    ):
        raise RRError(
            "this model is sharded already, and the rule's parameters would not be: call rr.attach "
            "before fully_shard (or FSDP, DeepSpeed)"
        )
    if away := [name for name, p in model.named_parameters() if p.is_meta]:
        raise RRError(
            f"{len(away)} parameters of this model are on the meta device, without numbers "
            f"({away[0]} …): load it whole, without offloading to CPU or disk"
        )


@torch.no_grad()
def _check_neutral(model: nn.Module, decoder: Decoder) -> None:
    """Raise RRError unless the model gives its output also with "standard" in its blocks.

    Its blocks are pre-norm by now, but something else may read or scale the stream.
    """
    neutral = Attached(_config(model, decoder, {"rule": "standard", "values": "own"}), decoder)
    name = type(model).__name__
    _put(model, neutral, decoder)
    try:
        again = two_tokens(model).double()
    except RRError as error:
        why = f"{type(error.__cause__).__name__}: {error.__cause__}".partition("\n")[0]
        raise RRError(
            f"the blocks of {name} do more with the stream than add to it ({why}): {WAY}"
        ) from None
    finally:
        _take(model)
    before = decoder.output.double()
    bound = torch.finfo(decoder.output.dtype).eps ** 0.5  # kernels may round otherwise
    if not (again - before).norm() <= bound * before.norm():
        raise RRError(
            f"{name} gives other logits once its blocks' additions are a rule's: something else "
            f"changes the stream: {WAY}"
        )


def _put(model: nn.Module, attached: "Attached", decoder: Decoder) -> None:
    model.add_module(NAME, attached)
    setattr(model, HOOKS, Hooks(model, decoder))


def _take(model: nn.Module) -> None:
    for module in model.modules():
        unhook(module)
    delattr(model, HOOKS)
    delattr(model, NAME)


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
    given, model = model, uncompiled(model)
    if HOOKS not in vars(model):
        raise RRError(f"no residual rule is attached to this {type(model).__name__}")
    _take(model)
    vars(model.config).pop(NAME, None)
    torch.compiler.reset()  # what was compiled with the rule
    return given


def _config(model: nn.Module, decoder: Decoder, specs: dict[str, str]) -> ModelConfig:
    """The decoder's shape, as a ModelConfig for the rules."""
    config, d = getattr(model, "config", None), decoder.blocks[0].width
    try:
        heads, kv = (
            getattr(config, name, None) for name in ("num_attention_heads", "num_key_value_heads")
        )
    except RuntimeError:  # Transformers', of a config in which each block has its own
        heads = None
    if heads is None:
        raise RRError(f"{type(model).__name__} has no config with one num_attention_heads")
    # no rule asks for what is not known here, such as the width of the MLP
    return replace(ModelConfig(1, len(decoder.blocks), heads, d, 4 * d, n_kv_head=kv), **specs)


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
    of: set[str] = set()  # the parts of the saved model with a rule
    try:
        config = json.loads(file_bytes(folder / "config.json"))
        parts = [config, *(part for part in config.values() if isinstance(part, dict))]
        recorded = next((part[NAME] for part in parts if NAME in part), None)  # of a part of it
        was = (config.get("architectures") or [kind])[0]
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
        for name in _weight_files(folder):
            with safe_open(folder / Path(name).name, "pt") as file:
                for key in file.keys():
                    # the rule may be attached to a part of what was saved, `model.model`
                    before, dot, name = f".{key}".partition(f".{NAME}.")
                    if dot:
                        of.add(before)
                        held[name] = file.get_tensor(key)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        line = " ".join(str(error).split())[:200]
        raise RRError(
            f"{folder} is not a folder of save_pretrained, or is corrupt: {line}"
        ) from None
    if len(of) > 1:
        parts = ", ".join(sorted(part.lstrip(".") or "the whole" for part in of))
        raise RRError(f"{folder} holds the rules of several models: {parts}; save them apart")
    shapes, expected = ({k: tuple(v.shape) for k, v in w.items()} for w in (held, wanted))
    if shapes != expected:
        apart = min(name for name, _ in shapes.items() ^ expected.items())
        raise RRError(
            f"{folder} does not hold the rules' weights of this model: expected {apart} to be "
            f"{expected.get(apart, 'absent')}, got {shapes.get(apart, 'none')}"
        )
    return held


def _weight_files(folder: Path) -> list[str]:
    """The files of a folder's weights, found in the order in which Transformers looks for them."""
    if (folder / "model.safetensors").exists():
        return ["model.safetensors"]
    index = folder / "model.safetensors.index.json"
    if index.exists():
        return sorted(set(json.loads(file_bytes(index))["weight_map"].values()))
    names = ", ".join(sorted(path.name for path in folder.iterdir()))
    raise RRError(
        f"{folder} has no model.safetensors, but {names}: expected what "
        "model.save_pretrained(folder) writes, without a variant"
    )


class Attached(Residuals):
    """Residual rules at the sublayers of another library's model, which `Hooks` call."""

    @torch.no_grad()
    def __init__(self, config: ModelConfig, decoder: Decoder) -> None:
        nn.Module.__init__(self)
        self.config = config
        self._build(config, norm=False)
        self.value_rules: Any = nn.ModuleList()  # of ValueRules
        if config.values != "own":
            self.value_rules.extend(
                make_values(config.values, attn_rule.site, config) for attn_rule, _ in self.pairs
            )
        self.reset()
        # one token of zeros, to see what becomes of the state from block to block
        state, vstate = self.open(torch.zeros(1, 1, self.dim)), None
        self.layouts = [Layout(state, vstate)]  # of what each block receives, and of the last
        for n, (block, rules) in enumerate(zip(decoder.blocks, self.pairs, strict=True)):
            if self.value_rules:
                values = Values(self.value_rules[n], block.attention, config, Now())
                vstate = values.after_one_token(vstate)
            for rule in rules:
                state = rule.sublayer(state, torch.zeros_like)
            self.layouts.append(Layout(state, vstate))
            for rule in (*rules, *self.value_rules[n : n + 1]):
                _move_to(rule, block.module)
        last = decoder.last
        _move_to(self.final, last if list(last.parameters()) else decoder.blocks[-1].module)


def _move_to(rule: nn.Module, module: nn.Module) -> None:
    """Put a rule where a module is; in float32, or more where the module has more."""
    weights = [*module.parameters(), *module.buffers()]
    wide = torch.float64 if any(p.dtype == torch.float64 for p in weights) else torch.float32
    rule.to(weights[0].device, wide)  # quantised weights are no floating-point numbers
