"""Chapter 08's explorable: where a step's time should go on a card that nobody has tried here."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from . import kit

RUNGS = {"60M": 64, "150M": 64, "320M": 64, "590M": 32, "1B": 32}  # windows at once
CARDS = ("H100", "H200", "B200", "A100", "RTX 4090", "L4", "T4")
PATHS = ("reference", "fast")
PATH_WORDS = {"reference": "reference path in TF32", "fast": "fast path in 16 bits"}
FUSION = {"none": "nothing fused", "all": "everything fused"}
LONG = {
    "attention": "attention",
    "mlp": "the MLP",
    "rule": "the rule’s norms, gate and write",
    "embedding": "the embedding",
    "head": "the head",
    "optimizer": "the optimiser",
}
ALONE = ("embedding", "optimizer")  # as roofline.ALONE


@lru_cache(maxsize=1)
def step_data() -> dict:
    """What the picture is drawn from: counts of one step of each rung's Review arm, and the cards.

    rungs: {name: {tokens (a step), flops (a step, by MFU's convention), micro, paths: {name:
    {parts: {part: [FLOPs, bytes of products, other bytes]}, memory (bytes)}}}}; cards: {name:
    [16-bit peak, bytes/s, bytes, 1 where it has TF32]}; spare: share of memory left to allocators.
    """
    from rr.data import cache
    from rr.perf.budget import SPARE
    from rr.perf.gpus import GPUS

    made_by = Path(__file__).read_text(encoding="utf-8")
    rungs = cache.cached_value("roofline", made_by, cache.code_version(), _rungs)
    specs = [GPUS[name] for name in CARDS]
    cards = {gpu.name: [gpu.flops, gpu.bandwidth, gpu.memory, int(gpu.bf16)] for gpu in specs}
    return {"rungs": rungs, "cards": cards, "spare": SPARE}


def _rungs() -> dict:
    """Counting takes some fifteen seconds, so the caller caches it."""
    from rr.model import ladder
    from rr.training.backend import parse_backend
    from rr.training.memory import stacked
    from rrbook import roofline

    rungs = {}
    for name, micro in RUNGS.items():
        config, recipe = ladder.arm(name), ladder.recipe(name)
        tokens = recipe.batch * config.seq_len
        paths = {}
        for path in PATHS:
            found = roofline.stacked(config, parse_backend(path), micro, recipe)
            paths[path] = {
                "parts": {
                    part: [one.flops, one.product_bytes, one.other_bytes]
                    for part, one in found.items()
                },
                "memory": stacked(config, parse_backend(path), micro, "cuda", recipe),
            }
        flops = ladder.flops_per_token(config) * tokens
        rungs[name] = {"tokens": tokens, "flops": flops, "micro": micro, "paths": paths}
    return rungs


def step_numbers(
    data: Mapping, rung: str, path: str, card: str, share: float, fusion: str
) -> dict | None:
    """One step as the roofline has it; None where the card has no such products (TF32 on a T4).

    share: percent of the peak that products reach. ms: {part: milliseconds}; step: their sum;
    bound: {part: "arithmetic" where the products' FLOPs take the most of it, else "memory"};
    tokens: a second; mfu: of the 16-bit peak; largest: the part; fits: the memory that is
    predicted, less what an allocator loses.
    """
    peak, band, held, tf32 = data["cards"][card]
    if path == "reference" and not tf32:
        return None
    reached = peak * (0.5 if path == "reference" else 1) * share / 100
    of, one = data["rungs"][rung], data["rungs"][rung]["paths"][path]
    ms, bound = {}, {}
    for part, (flops, products, others) in one["parts"].items():
        think, move = 1000 * flops / reached, 1000 * products / band
        beside = 0.0 if fusion == "all" and part not in ALONE else 1000 * others / band
        ms[part] = max(think, move) + beside
        bound[part] = "arithmetic" if think >= max(move, beside) else "memory"
    step = sum(ms.values())
    return {
        "ms": ms,
        "bound": bound,
        "step": step,
        "tokens": 1000 * of["tokens"] / step,
        "mfu": 1000 * of["flops"] / (step * peak),
        "largest": max(ms, key=lambda part: ms[part]),
        "fits": one["memory"] <= (1 - data["spare"]) * held,
    }


def time_words(ms: float) -> str:
    """Milliseconds, or seconds from a thousand of them on."""
    return f"{kit.number(ms)}\u00a0ms" if ms < 999.5 else f"{kit.number(ms / 1000)}\u00a0s"


def path_words(data: Mapping, path: str, card: str) -> str:
    """The path and what its products are computed in on this card."""
    half = "bf16" if data["cards"][card][3] else "fp16"
    return f"fast path in {half}" if path == "fast" else PATH_WORDS[path]


def step_sentence(data: Mapping, rung: str, path: str, card: str, share: float, fusion: str) -> str:
    """The result in words; takes the arguments of `step_numbers`."""
    found, words = step_numbers(data, rung, path, card, share, fusion), path_words(data, path, card)
    asked = f"{rung}, {words}, {card}, products at {share:g}\u00a0% of their peak, {FUSION[fusion]}"
    if found is None:
        return f"{asked}: not projected. The {card} has no TF32, and fp32 is not projected."
    held, of = data["rungs"][rung]["paths"][path]["memory"] / 1e9, data["cards"][card][2] / 1e9
    tokens, unit = found["tokens"] / 1e3, "thousand"
    if tokens >= 999.5:
        tokens, unit = tokens / 1e3, "million"
    largest = found["largest"]
    return (
        f"{asked}: {time_words(found['step'])} a step, {kit.number(tokens)} {unit} tokens/s, an "
        f"MFU of {kit.share(found['mfu'])}. The largest part, "
        f"{kit.share(found['ms'][largest] / found['step'])}, is {LONG[largest]}. Memory "
        f"predicted for this path, {data['rungs'][rung]['micro']} windows at once: "
        f"{kit.number(held)}\u00a0GB, which {'fits' if found['fits'] else 'does not fit'} the "
        f"card’s {kit.number(of)}\u00a0GB."
    )


def step_roofline(
    rung: str = "320M",
    path: str = "reference",
    card: str = "H100",
    share: int = 60,
    fusion: str = "none",
) -> kit.Explorable:
    """Explorable: where the time of one training step should go on a GPU, part by part.

    rung (a key of `RUNGS`), path ("reference" or "fast"), card (of `CARDS`), share (percent of the
    peak that products reach, 10 to 100 in fives), fusion ("none" or "all"): where it starts.
    """
    data = step_data()
    values = {"rung": rung, "path": path, "card": card, "share": share, "fusion": fusion}
    said = step_sentence(data, **values)
    return kit.explorable(
        "step-roofline",
        script="roofline.js",
        title="Where should the time of a step go?",
        lead="One optimiser step of the Review arm, projected on a card from counts alone.",
        controls=[
            kit.slider("share", "products reach, of their peak", 10, 100, 5, share, " %"),
            kit.choice("rung", "rung", {name: name for name in RUNGS}, rung),
            kit.choice("card", "card", {name: name for name in CARDS}, card),
            kit.radios("path", "Path", PATH_WORDS, path),
            kit.radios("fusion", "What is no product", FUSION, fusion),
        ],
        picture="A bar of one step’s time in six parts, a fainter one of the other path below it, "
        "and a table of the parts with what limits each",
        said=said,
        note="A projection: this project has measured it on no GPU. It knows no caches, launches "
        "or waiting, and the share of the peak is an assumption. FLOPs over what products reach, "
        "or their bytes over the card’s bandwidth, whichever takes longer; then the bytes of all "
        "that is no product, one kernel an operation, or none of them where everything is fused "
        "(embedding and optimiser keep theirs). Batches of 64 windows of 256 tokens; at once 64 up "
        "to 320M, 32 above. Memory is predicted for the path chosen here, and fits where it leaves "
        f"{kit.share(data['spare'])} to the allocator. Rule: norms, gate and write. TF32 has half "
        "of the 16-bit peak, of which MFU is. Of a card sold in two sizes, the smaller.",
        data=data,
    )
