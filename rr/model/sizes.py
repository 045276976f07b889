"""The model sizes: five published rungs and two small ones, and the arms that are built at each."""

from dataclasses import dataclass, replace

from .. import residual
from ..errors import RRError, nearest, positive
from ..options import parse_spec
from ..specs import ModelConfig, Run
from .costs import count

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
    """The model of one arm at one rung, widened to the parameter count of Review with `values`.

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
        while count(body) < target:
            body = widened(body, body.d_model + step)
        return body
    step = count(replace(body, d_ff=body.d_ff + 64)) - count(body)
    return replace(body, d_ff=body.d_ff + 64 * round((target - count(body)) / step))


def widened(body: ModelConfig, d: int) -> ModelConfig:
    """The body at width d, its MLP four times as wide."""
    return replace(body, d_model=d, d_ff=4 * d)


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


def canonical_rung(spec: str) -> str:
    """A rung with its options in one order, as runs and records name it."""
    name, _ = parse_spec(spec)
    _, shape = parse_rung(spec)
    options = ",".join(f"{key}={shape[key]}" for key in SHAPE if key in shape)
    return f"{name}:{options}" if options else name
