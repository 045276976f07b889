"""Measured properties of a rule, for the diagrams of the field guide.

Nothing is taken from declarations. A rule of the registry, or of a user, is built at a small site
and its parameters are filled with random numbers; which outputs change when h, u or an earlier
depth is changed shows what it reads and how it writes.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rr.residual import Rule, Site, allow_rule, resolve
from rr.residual.values import ValueRule
from rr.specs import ModelConfig

WIDTH, BLOCKS = 16, 4
LISTS = ("list", "pair")  # kinds of state that are lists of tensors
FAMILIES = {
    "scale": "additive, with a fixed or learned scale",
    "gate": "additive, with a gate",
    "carry": "the old state is scaled, too",
    "look-back": "earlier depths are read again",
    "streams": "several streams",
    "values": "values of attention",
}


def _config(spec: str, kind: str) -> ModelConfig:
    named = {"rule": spec} if kind == "residual" else {"values": spec}
    config = ModelConfig(64, n_layer=BLOCKS, n_head=2, d_model=WIDTH, d_ff=4 * WIDTH)
    return replace(config, **named)


def _random(module: torch.nn.Module, source: torch.Generator) -> None:
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=source, dtype=p.dtype))


def _same(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-3, atol=1e-6)


def _sees(ask: Any, h: Tensor, u: Tensor, other: Tensor) -> dict[str, str]:
    """Which of h and u the output of ask(h, u) depends on: name -> "raw" or "normalised"."""
    reads, now = {}, ask(h, u)
    for name, moved, scaled in (
        ("state", ask(other, u), ask(7 * h, u)),
        ("update", ask(h, other), ask(h, 7 * u)),
    ):
        if not _same(now, moved):
            reads[name] = "normalised" if _same(now, scaled) else "raw"
    return reads


@torch.no_grad()
def anatomy(spec: str, kind: str = "residual") -> dict:
    """Facts about a rule, measured by moving its inputs; for the diagrams of the field guide.

    spec: a rule with its options; its file, if it is in one, is allowed. kind: "residual" or
    "values". Raises RRError for an unknown rule. Returns facts by name; for a residual rule:

    family       "scale" (additive, a fixed or learned scale), "gate" (additive, with a gate),
                 "carry" (the old state is scaled, too), "look-back" (earlier depths are read again)
                 or "streams"
    norm         where the stream is normalised: "read", "write", "both" or "none"
    gate         inputs of the coefficient on u: {"state" or "update": "raw" or "normalised"}
    channels     gates per token: "one" or "each channel", "" without a gate
    learned      whether the write has parameters of its own
    coefficient  on u at the start, at 12 blocks; None where it depends on the input
    carry        the same on h
    mixes        where earlier depths are read: "read", "write" or ""
    reads        what a sublayer reads: "stream", "earlier" depths instead of it, or "both"
    adds         whether the update is added to the stream, and not kept apart
    remade       whether the gate lets in another function of h and u, in the place of u
    orthogonal   whether what is added is orthogonal to the stream
    resized      whether the update is divided by its size before it is added
    erases       whether the write sets the stream along the update's direction, whose length does
                 not count
    streams      number of streams
    mixed        several streams: whether what one holds reaches another without an update
    weighs       several streams: what the sublayer's input is made of: "one" stream, the streams
                 with a "number" each, or with a gate for "each channel"
    apart        several streams: whether each is normalised by itself

    For a value rule, in the last of 4 blocks, `first` and `own` before training:

    family       "values"
    first, own   coefficients on V₁ and on V_n; None for own where the block has no V_n
    others       whether the values between are read
    after        whether it also adds to the output of attention
    gated        gates on the output of attention: "each channel", "each head" or ""
    looks_up     numbers of the blocks that add values of the token, from a table
    learned      whether the coefficients are learned
    blocks       numbers of the blocks whose values it changes

    Example:
        >>> from rrbook.anatomy import anatomy
        >>> facts = anatomy("review")
        >>> facts["family"], facts["gate"]
        ('gate', {'state': 'normalised', 'update': 'normalised'})
    """
    allow_rule(spec)
    source = torch.Generator().manual_seed(0)
    if kind == "values":
        of_values, options = resolve(spec, "values")
        return _values(of_values, options, _config(spec, kind), source)
    cls, options = resolve(spec)
    site = Site("mlp", 4, BLOCKS, WIDTH, n_head=2)  # the mlp of block 2
    rule = cls(site, _config(spec, kind), **options).double()
    deep = Site("attn", 3, 12, WIDTH, n_head=2)  # 12 blocks, as GPT-2
    draw = [torch.randn(1, 1, WIDTH, generator=source, dtype=torch.float64) for _ in range(3)]
    _random(rule, source)
    h, u, other = draw
    facts = {
        "norm": "none",
        "gate": {},
        "channels": "",
        "mixes": "",
        "reads": "stream",
        "adds": True,
        "remade": False,
        "orthogonal": False,
        "erases": False,
        "resized": False,
        "streams": 1,
        "mixed": False,
        "weighs": "",
        "apart": False,
        "learned": rule.write_params(site) > 0,
        "coefficient": rule.coefficient(deep),
        "carry": rule.carry(deep),
    }
    if cls.state in LISTS:
        rules = [
            cls(Site(kind, place, BLOCKS, WIDTH, n_head=2), _config(spec, kind), **options).double()
            for place, kind in enumerate(("attn", "mlp") * 3, 1)
        ]
        for one in rules:
            _random(one, source)
        opened, late = rules[0].open(h), rules[4:]
        for one in rules[:4]:
            opened = one.write(one.read(opened)[1], u)
        # attention and MLP of block 3, where both have earlier depths to read; all different
        opened = [torch.randn(h.shape, generator=source, dtype=h.dtype) for _ in opened]
        for one in late:
            _looks_back(one, facts, opened, u, other)
        # whether each writes to the second of a pair, too, which is then a stream
        lanes = (not _same(one.write(opened, u)[1], one.write(opened, other)[1]) for one in late)
        if cls.state == "pair" and all(lanes):
            facts |= {"streams": 2, "weighs": "one", "mixes": "", "reads": "stream"}
        rule, louder = late[0], [7 * x for x in opened]
    else:
        opened = rule.open(h)
        louder = 7 * opened
        if cls.state == "streams":
            opened = torch.randn(opened.shape, generator=source, dtype=opened.dtype)
            louder = 7 * opened
            _several(rule, facts, opened, u)
    if _same(rule.read(opened)[0], rule.read(louder)[0]):
        facts["norm"] = "read"
    if cls.state == "tensor":
        _writes(rule, facts, h, u, other)
    facts["family"] = _family(cls, facts)
    return facts


def _several(rule: Rule, facts: dict, streams: Tensor, u: Tensor) -> None:
    """Add what a rule with several streams (1, 1, n, d) shows: how it reads them, if they mix."""
    facts["streams"] = streams.shape[-2]
    with_none = rule.write(rule.read(streams)[1], torch.zeros_like(u))
    facts["mixed"] = not _same(with_none, streams)
    louder = streams.clone()
    louder[..., 0, :] *= 7
    facts["apart"] = _same(rule.read(louder)[0], rule.read(streams)[0])
    x, held = rule.read(streams)[0].flatten(), streams.flatten(0, 2).T  # (d,), (d, n)
    if isinstance(gain := getattr(rule, "gain", None), Tensor) and gain.ndim == 1:
        x = x / gain
    sums = held @ torch.linalg.lstsq(held, x[:, None]).solution  # one number per stream
    facts["weighs"] = "number" if _same(sums.flatten(), x) else "each channel"


def _writes(rule: Rule, facts: dict, h: Tensor, u: Tensor, other: Tensor) -> None:
    """Add the facts that the write of a single stream shows."""
    if _same(rule.write(h, u), rule.write(7 * h, 7 * u)):
        facts["norm"] = "both" if facts["norm"] == "read" else "write"
        return
    moved = rule.write(h, u) - h
    more = rule.write(h + u, u) - rule.write(h, u)  # what is left of more of u in the stream
    if _same(rule.write(h, u), rule.write(h, 7 * u)):
        facts["resized" if _same(more, u) else "erases"] = True
        return
    if (moved * h).sum().abs() < 1e-3 * moved.norm() * h.norm():
        facts["orthogonal"] = True
        return
    gate = rule.gate(h, u)
    kept = rule.kept(h, u)
    if gate is None and isinstance(kept, Tensor):  # a gate that does not multiply u itself
        gate, facts["remade"] = kept, True
    if gate is not None:
        ask = rule.gate if rule.gate(h, u) is not None else rule.kept
        facts["gate"] = _sees(ask, h, u, other)
        facts["channels"] = "one" if gate.shape[-1] == 1 else "each channel"


def _looks_back(rule: Rule, facts: dict, state: list[Tensor], u: Tensor, other: Tensor) -> None:
    """Fill in what one sublayer of a rule shows whose state is a list: the stream first, or none.

    Whether its later entries come in before the sublayer or after it; without them, and without
    the first one, whether what is read stays the same; whether the first one is added to.
    """
    facts["learned"] |= rule.write_params(rule.site) > 0
    facts["adds"] &= not _same(rule.write(state, u)[0], rule.write(state, other)[0])
    earlier, stream = [state[0], *(x + other for x in state[1:])], [other, *state[1:]]
    if not _same(rule.read(state)[0], rule.read(earlier)[0]):
        both = not _same(rule.read(state)[0], rule.read(stream)[0])
        facts["mixes"], facts["reads"] = "read", "both" if both else "earlier"
    elif not _same(rule.write(state, u)[0], rule.write(earlier, u)[0]):
        facts["mixes"] = facts["mixes"] or "write"


def _family(cls: type[Rule], facts: dict) -> str:
    if facts["streams"] > 1:
        return "streams"
    if cls.state in LISTS:
        return "look-back"
    if facts["carry"] != 1 or facts["norm"] in ("write", "both"):
        return "carry"
    return "gate" if facts["gate"] else "scale"


def _values(cls: type[ValueRule], options: dict, config: ModelConfig, source: Any) -> dict:
    """The coefficients of a value rule, from its output for one set of values at a time."""
    rules = []
    for block in range(1, BLOCKS + 1):
        rule = cls(Site("attn", 2 * block - 1, BLOCKS, WIDTH, n_head=2), config, **options).double()
        rule.reset(lambda tensor, std: None)
        rules.append(rule)

    def answer(owner: int, upto: int) -> tuple[float, float]:
        """(V', what `after` adds) of block `upto` when only block `owner`'s values are not 0."""
        vstate, zero = None, torch.zeros(1, 2, 1, 1, dtype=torch.float64)
        for block, rule in enumerate(rules[:upto], 1):
            v = zero + (block == owner) if rule.has_own_v(block) else None
            v, vstate = rule.values(v, vstate)
        return v.flatten()[0].item(), rule.after(zero, v, vstate).flatten()[0].item()

    last = [answer(owner, BLOCKS) for owner in range(1, BLOCKS + 1)]
    changed = [
        block
        for block in range(1, BLOCKS + 1)
        if answer(block, block) != (1.0, 0.0) or (block > 1 and answer(1, block) != (0.0, 0.0))
    ]
    for rule in rules:
        _random(rule, source)
    learned = [answer(owner, BLOCKS) for owner in (1, BLOCKS)] != [last[0], last[-1]]
    if learned:  # weights that are learned may start as the plain model's: a change, too
        changed += [block for block in range(2, BLOCKS + 1) if block not in changed]
    return {
        "family": "values",
        "first": last[0][0],
        "own": last[-1][0] if cls.has_own_v(BLOCKS) else None,
        "others": answer(2, BLOCKS)[0] != 0,
        "after": any(added for _, added in last),
        "gated": _gated(rules[-1], config, source),
        "looks_up": [n for n, rule in enumerate(rules, 1) if _looks_up(rule, config, source)],
        "learned": learned,
        "blocks": sorted(changed),
    }


def _looks_up(rule: ValueRule, config: ModelConfig, source: Any) -> bool:
    """Whether what one block adds to its values changes with the token."""
    v = torch.zeros(1, config.kv_heads, 1, config.head_dim, dtype=torch.float64)
    x = torch.randn(1, 1, config.d_model, generator=source, dtype=torch.float64)
    one, other = (rule.added(v, x, rule.begin(torch.tensor([[token]]))) for token in (0, 1))
    return not _same(one, other)


def _gated(rule: ValueRule, config: ModelConfig, source: Any) -> str:
    """Which gates a value rule has on the output of attention; "" for none."""
    draw = {"generator": source, "dtype": torch.float64}
    x = torch.randn(1, 1, config.d_model, **draw)
    ones = torch.ones(1, config.n_head, 1, config.head_dim, dtype=torch.float64)
    gate = rule.gated(ones, x)
    if _same(gate, ones):
        return ""
    return "each head" if _same(gate, gate[..., :1].expand_as(gate)) else "each channel"
