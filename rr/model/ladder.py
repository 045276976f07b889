"""The ladder of model sizes: five published ones and two small ones, their arms and costs.

Parameter counts are exact: counted on modules on torch's meta device, not computed from formulas.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch.nn import Linear

from .. import residual
from ..config import (
    RUN_OPTIONS,
    ModelConfig,
    Recipe,
    RRError,
    Run,
    nearest,
    options_of,
    parse_spec,
    positive,
)
from .transformer import Layer, Model

PAPER_ARMS = ("review", "highway", "standard")
VOCABULARY = 50_257  # tokens of GPT-2's vocabulary, with which a rung has its published size


@dataclass(frozen=True)
class Rung:
    """One size of the ladder: its Review arm; other arms are widened to its parameter count."""

    name: str
    d_model: int
    n_layer: int
    n_head: int
    steps: int
    batch: int = 64  # windows
    lr: float = 2e-4  # peak learning rate of protocol `clean`
    seeds: tuple[int, ...] = (0, 1, 2)
    seq_len: int = 256  # tokens
    published: bool = True


# Shapes, steps and seeds of the published rungs: arXiv 2606.31859 and its code. Their `clean`
# learning rates follow the table of GPT-3 (2005.14165), by size.
RUNGS = {
    rung.name: rung
    for rung in (
        Rung("nano", 128, 4, 2, steps=150, batch=8, lr=3e-3, published=False),
        Rung("mini", 192, 6, 3, steps=300, batch=8, lr=1.5e-3, published=False),
        Rung("60M", 512, 8, 8, steps=8000, lr=6e-4),
        Rung("150M", 768, 12, 12, steps=8000, lr=6e-4),
        Rung("320M", 1024, 16, 16, steps=8000, lr=3e-4, seeds=(0, 1)),
        Rung("590M", 1280, 20, 20, steps=7000, lr=2.5e-4),
        Rung("1B", 1536, 24, 16, steps=6000, lr=2e-4),
    )
}
WIDTHS = (16, 32, 48, 80)  # at which costs are evaluated to print them as polynomials of d
SHAPE = ("d_model", "n_layer", "n_head", "d_ff", "seq_len", "n_kv_head")


def parse_rung(spec: str) -> tuple[Rung, dict[str, int]]:
    """`"nano:n_layer=16,d_model=64"` -> the rung with these sizes, and the options as given.

    Options: d_model, n_layer, n_head, d_ff, seq_len, n_kv_head.
    """
    name, given = parse_spec(spec)
    if name not in RUNGS:
        raise RRError(f"unknown rung {name!r}: {nearest(name, RUNGS)}")
    shape = {}
    for key, word in given.items():
        if key not in SHAPE:
            raise RRError(f"rung {name!r} has no option {key!r}: {nearest(key, SHAPE)}")
        if not word.isdecimal() or len(word) > 20:  # int() raises for thousands of digits
            raise RRError(f"{key} must be an integer ≥ 1 and below 2**31, got {word}")
        positive(key, int(word))
        shape[key] = int(word)
    kept = {key: value for key, value in shape.items() if key not in ("d_ff", "n_kv_head")}
    return replace(RUNGS[name], **kept), shape


def arm(
    spec: str,
    rule: str = "review",
    vocab_size: int = VOCABULARY,
    protocol: str = "clean",
    values: str = "own",
    loops: int = 1,
    flavour: str = "gpt2",
) -> ModelConfig:
    """The model of one arm at one rung, widened to the parameter count of the rung's Review arm.

    paper: d grows in steps of n_head until the count is at least Review's, as the study did (of
    2·n_head for llama, whose heads need an even number of channels).
    clean: d_ff moves in steps of 64, d and head size stay, to the count nearest to Review's; a rule
    that is larger than Review even at the rung's own d_ff stays at its own size. A rung with
    options is not matched: its sizes are exactly those given.
    """
    rung, shape = parse_rung(spec)
    body = ModelConfig(
        vocab_size=vocab_size,
        n_layer=rung.n_layer,
        n_head=rung.n_head,
        d_model=rung.d_model,
        d_ff=shape.get("d_ff", 4 * rung.d_model),
        seq_len=rung.seq_len,
        rule=rule,
        values=values,
        n_loops=loops,
        flavour=flavour,
        pad_vocab=protocol == "clean",
        n_kv_head=shape.get("n_kv_head"),
    )
    residual.resolve(rule)  # raises on unknown names, before anything is counted
    if shape:
        return body
    target = count(replace(body, rule="review"))
    if count(body) >= target:
        return body
    if protocol == "paper":
        step = body.n_head * (2 if flavour == "llama" else 1)
        sure = int(body.d_model * ((target / count(body)) ** 0.5 - 1) / step)
        ahead = widened(body, body.d_model + step * sure)  # scalars grow by less than d²
        if count(ahead) < target:
            body = ahead
        while count(body) < target:
            body = widened(body, body.d_model + step)
        return body
    step = count(replace(body, d_ff=body.d_ff + 64)) - count(body)
    return replace(body, d_ff=body.d_ff + 64 * round((target - count(body)) / step))


def widened(body: ModelConfig, d: int) -> ModelConfig:
    """The body at width d, its MLP four times as wide."""
    return replace(body, d_model=d, d_ff=4 * d)


def _meta(config: ModelConfig) -> Model:
    """The model of `config` on the meta device: modules and shapes, no numbers."""
    return _built(
        config, residual.resolve(config.rule)[0], residual.resolve(config.values, "values")[0]
    )


@lru_cache(maxsize=256)
def _built(config: ModelConfig, rule: type, values: type) -> Model:
    # Cached by the classes, too: a name that is registered again is another rule.
    with torch.device("meta"):
        return Model(config)


def count(config: ModelConfig) -> int:
    """The number of trainable scalars, without padding rows of the embedding.

    The tied head is counted once.
    """
    padding = (config.padded_vocab - config.vocab_size) * config.d_model
    padding *= 1 if config.tied else 2
    return sum(p.numel() for p in _meta(config).parameters()) - padding


def published_params(run: Run) -> int | None:
    """Published parameter count of the run's rung, where the run has another size; else None.

    That of its Review arm with GPT-2's vocabulary; another vocabulary makes another model.
    """
    rung, shape = parse_rung(run.rung)
    if not rung.published or shape or run.model.vocab_size == VOCABULARY:
        return None
    return count(arm(rung.name))


def other_size(run: Run) -> str | None:
    """One line where a run has the name of a published rung but another size; else None."""
    published = published_params(run)
    if published is None:
        return None
    return (
        f"rung {run.rung} with vocabulary {run.model.vocab_size:,}: {count(run.model):,} "
        f"parameters, not the published {published:,}"
    )


def rule_params(config: ModelConfig) -> int:
    """Trainable scalars of the rules' writes (the gates), without norm gains."""
    model = _meta(config)
    return sum(rule.write_params(rule.site) for rule in model.rules)


def flops_per_token(config: ModelConfig) -> int:
    """FLOPs of one training step per token: matrix products, forward and backward.

    Three times the forward pass: 2 per multiply-add for each linear weight, the rules' own
    products in the stack and in the read before the head, the head over vocab_size, and causal
    attention: a token attends to (T + 1)/2 tokens on average, with 4·d FLOPs each per layer (scores
    and mix).
    """
    model = _meta(config)
    products = [m for m in model.layers.modules() if isinstance(m, Linear)]
    stack = sum(2 * m.weight.numel() for m in products)
    stack += sum(rule.matmul_flops(rule.site) for layer in model.layers for rule in layer.rules)
    stack += sum(layer.attn.rule.matmul_flops(layer.attn_rule.site) for layer in model.layers)
    stack += config.n_layer * 2 * config.d_model * (config.seq_len + 1)
    head = 2 * config.vocab_size * config.d_model
    final = model.final_rule.matmul_flops(model.final_rule.site)  # after the last pass
    return 3 * (config.n_loops * stack + final + head)


def canonical_rung(spec: str) -> str:
    """A rung with its options in one order, as runs and records name it."""
    name, _ = parse_spec(spec)
    _, shape = parse_rung(spec)
    options = ",".join(f"{key}={shape[key]}" for key in SHAPE if key in shape)
    return f"{name}:{options}" if options else name


def recipe(
    spec: str,
    protocol: str = "clean",
    *,
    steps: int | None = None,
    budgets: Sequence[int] | None = None,
    **chosen,
) -> Recipe:
    """The rung's recipe under a protocol, with the caller's choices; None leaves one to them.

    budgets: steps of each decay branch, instead of `steps`; a single budget is `steps`. The others
    are the options that `Recipe` declares.
    """
    rung, _ = parse_rung(spec)
    if budgets is not None:
        if steps is not None:
            raise RRError(
                f"steps {steps} beside budgets: give one of them; the longest budget is the steps"
            )
        if not budgets:
            raise RRError("budgets is empty: give at least one number of steps")
        steps = budgets[-1]
    steps = rung.steps if steps is None else steps
    positive("steps", steps)
    known = options_of(Recipe)
    for name in chosen:
        if name not in known:
            raise RRError(f"unknown option {name!r}: {nearest(name, RUN_OPTIONS)}")
    usual: dict[str, Any] = {"batch": rung.batch, "lr": rung.lr}
    if protocol == "paper":
        usual = {
            "batch": 64,
            "lr": 2e-4,
            "schedule": "cosine",
            "decay_all": True,
            "precision": "tf32",
        }
    chosen = {name: value for name, value in chosen.items() if value is not None}
    usual["warmup"] = usual_warmup(protocol, steps)
    branches = tuple(budgets) if budgets is not None and len(budgets) > 1 else None
    return Recipe(steps=steps, budgets=branches, **(usual | chosen))


def usual_warmup(protocol: str, steps: int) -> int:
    """Steps of warm-up where none are chosen: 500, in a short run a twentieth of it.

    paper: a twelfth, which leaves the study's own runs, of 6,000 steps and more, their 500.
    """
    return max(1, min(500, steps // (12 if protocol == "paper" else 20)))


def specify(
    rung: str = "nano",
    rule: str = "review",
    *,
    corpus: str,
    tokenizer: str,
    vocab_size: int,
    values: str = "own",
    loops: int = 1,
    flavour: str = "gpt2",
    seed: int = 0,
    protocol: str = "clean",
    source: dict | None = None,
    **overrides,
) -> Run:
    """The run of one arm; corpus and tokenizer are content identities. See `rr.plan`.

    rule, values: named by the caller, so that their file may be imported.
    """
    residual.allow_rule(rule, values)
    rule, values = residual.canonical(rule), residual.canonical(values, "values")
    return Run(
        rung=canonical_rung(rung),
        seed=seed,
        protocol=protocol,
        corpus=corpus,
        tokenizer=tokenizer,
        model=arm(rung, rule, vocab_size, protocol, values, loops, flavour),
        recipe=recipe(rung, protocol, **overrides),
        rule_content=residual.content(rule),
        values_content=residual.content(values, "values"),
        source=source or {},
    )


def table(protocol: str = "clean", rules: tuple[str, ...] | None = None) -> list[dict]:
    """One row per rung and arm: shape, exact counts, cost and budget."""
    rows = []
    for name, rung in RUNGS.items():
        if protocol == "paper" and not rung.published:
            continue
        for rule in rules or PAPER_ARMS:
            config, plan = arm(name, rule, protocol=protocol), recipe(name, protocol)
            rows.append(
                {
                    "rung": name,
                    "rule": rule,
                    "d_model": config.d_model,
                    "d_ff": config.d_ff,
                    "n_layer": config.n_layer,
                    "n_head": config.n_head,
                    "params": count(config),
                    "gate_params": rule_params(config),
                    "flops_per_token": flops_per_token(config),
                    "steps": plan.steps,
                    "tokens": plan.steps * plan.batch * config.seq_len,
                }
            )
    return rows


def describe() -> list[dict]:
    """Every registered rule in plain types, from its class's declarations."""
    rows = []
    for kind, names in residual.REGISTRY.items():
        for name, cls in names.items():
            flops = [_cost(name, kind, d)[1] for d in WIDTHS]
            rows.append(
                {
                    "name": name,
                    "kind": kind,
                    "equation": cls.equation,
                    "source": cls.source,
                    "shipped": cls.shipped,
                    "cost": {
                        "params_per_block": _params(name, kind),
                        "matmul_flops_per_token_and_block": polynomial(flops),
                    },
                    "coefficient": _start(name) if kind == "residual" else None,
                    "options": {key: option.meaning for key, option in cls.options.items()},
                }
            )
    return rows


def _params(name: str, kind: str) -> str:
    """Parameters of one rule in a middle block, as a polynomial of d and of the vocabulary V."""
    none, one = ([_cost(name, kind, d, vocab)[0] for d in WIDTHS] for vocab in (64, 65))
    per_row = [b - a for a, b in zip(none, one, strict=True)]
    rest = polynomial([a - 64 * row for a, row in zip(none, per_row, strict=True)])
    return f"V·{polynomial(per_row)} + {rest}" if any(per_row) else rest


def _cost(name: str, kind: str, d: int, vocab: int = 64) -> tuple[int, int]:
    """Parameters and forward FLOPs per token that one rule adds to a middle block of width d.

    Negative where a value rule removes the block's value projection.
    """
    named = {"rule": name} if kind == "residual" else {"values": name}
    config = replace(ModelConfig(vocab, n_layer=4, n_head=1, d_model=d, d_ff=4 * d), **named)
    layer = _middle(config)
    if kind == "values":
        rule, site = layer.attn.rule, layer.attn_rule.site
        params, flops = rule.saved(config)
        return rule.params(site) - params, rule.matmul_flops(site) - flops
    pairs = [(rule.write_params(rule.site), rule.matmul_flops(rule.site)) for rule in layer.rules]
    return sum(p for p, _ in pairs), sum(f for _, f in pairs)


def polynomial(costs: Sequence[int]) -> str:
    """`a d² + b d + c` through costs at WIDTHS; "" where the last disagrees with the others."""
    x, y, last = WIDTHS[:3], costs[:3], WIDTHS[3]
    a = (y[2] - 2 * y[1] + y[0]) // (2 * x[0] ** 2)
    b = (y[1] - y[0]) // x[0] - 3 * a * x[0]
    c = y[0] - a * x[0] ** 2 - b * x[0]
    if costs[3] != a * last**2 + b * last + c:
        return ""
    terms = []
    for factor, power in ((a, "d²"), (b, "d"), (c, "")):
        if factor and power and abs(factor) == 1:
            terms.append(power if factor > 0 else f"-{power}")
        elif factor:
            terms.append(f"{factor}{power}")
    return " + ".join(terms).replace("+ -", "- ") or "0"


def _middle(config: ModelConfig) -> Layer:
    """The second block of a model, built alone."""
    with torch.device("meta"):
        return Layer(config, residual.Residuals.of(config).pairs[1])


def _start(name: str) -> float | None:
    rule, _ = _middle(ModelConfig(64, 12, 1, 8, 32, rule=name)).rules  # 12 blocks, as GPT-2
    return rule.coefficient(rule.site)


def group(run: Run) -> tuple:
    """The key of a comparison: two runs that differ in their rule or in tuning alone have the same.

    Returns (size, rung, protocol, corpus, tokenizer, steps, budgets, seed). A sweep orders its
    cells by it, so that all arms of one size and seed are trained together. Raises RRError for an
    unknown rung.
    """
    rung, _ = parse_rung(run.rung)  # not the arm's width, which protocol `paper` changes
    size = rung.n_layer * rung.d_model**2
    text = run.source.get("corpus", run.corpus), run.source.get("tokenizer", run.tokenizer)
    steps = run.recipe.steps, run.recipe.budgets or ()
    return size, run.rung, run.protocol, *text, *steps, run.seed
