"""Chapter 08's explorable: where a step's time should go on a card that nobody has tried here."""

from functools import lru_cache

from . import kit

RUNGS = {"60M": 64, "150M": 64, "320M": 64, "590M": 32, "1B": 32}  # windows at once
CARDS = ("H100", "H200", "B200", "A100", "RTX 4090", "L4", "T4")
PATHS = ("reference", "eager")
PATH_WORDS = {"reference": "reference path in TF32", "eager": "fast path in 16 bits"}
FUSION = {"none": "nothing fused", "all": "everything fused"}
LONG = {
    "attention": "attention",
    "mlp": "the MLP",
    "rule": "the rule’s norms, gate and write",
    "embedding": "the embedding",
    "head": "the head",
    "optimizer": "the optimiser",
}


@lru_cache(maxsize=1)
def step_data() -> dict:
    """What the picture is drawn from: counts of one step of each rung's Review arm, and the cards.

    rungs: {name: {tokens (a step), flops (a step, by MFU's convention), micro, paths: {name:
    {parts: {part: [FLOPs, bytes of products, other bytes]}, memory (bytes)}}}}; cards: {name:
    [16-bit peak, bytes/s, bytes, 1 where it has TF32]}; spare: share of memory left to allocators.
    """
    from rrstudy.perf.budget import SPARE
    from rrstudy.perf.gpus import GPUS

    specs = [GPUS[name] for name in CARDS]
    cards = {gpu.name: [gpu.flops, gpu.bandwidth, gpu.memory, int(gpu.bf16)] for gpu in specs}
    return {"rungs": _rungs(), "cards": cards, "spare": SPARE}


def _rungs() -> dict:
    """The counts of `step_data`; they take some fifteen seconds."""
    from rr.model import costs, sizes
    from rr.training import planning
    from rr.training.backend import parse_backend
    from rr.training.memory import stacked
    from rrbook import roofline

    rungs = {}
    for name, micro in RUNGS.items():
        config, recipe = sizes.arm(name), planning.recipe(name)
        tokens = recipe.batch * config.seq_len
        paths = {}
        for path in PATHS:
            times = roofline.stacked(config, parse_backend(path), micro, recipe)
            paths[path] = {
                "parts": {
                    part: [one.flops, one.product_bytes, one.other_bytes]
                    for part, one in times.items()
                },
                "memory": stacked(config, parse_backend(path), micro, "cuda", recipe),
            }
        flops = costs.flops_per_token(config) * tokens
        rungs[name] = {"tokens": tokens, "flops": flops, "micro": micro, "paths": paths}
    return rungs


def step_roofline() -> kit.Explorable:
    """Explorable: where the time of one training step should go on a GPU, part by part."""
    data = step_data()
    return kit.explorable(
        "step-roofline",
        script="roofline.js",
        title="Where should the time of a step go?",
        lead="One optimiser step of the Review arm, projected on a card from counts alone.",
        controls=[
            kit.slider("share", "products reach, of their peak", 10, 100, 5, 60, " %"),
            kit.choice("rung", "rung", {name: name for name in RUNGS}, "320M"),
            kit.choice("card", "card", {name: name for name in CARDS}, "H100"),
            kit.radios("path", "Path", PATH_WORDS, "reference"),
            kit.radios("fusion", "What is no product", FUSION, "none"),
        ],
        picture="A bar of one step’s time in six parts, a fainter one of the other path below it, "
        "and a table of the parts with what limits each",
        note="A projection; what was measured on an H200 stands below. It knows no caches, "
        "launches or waiting, and the share of the peak is an assumption. FLOPs over what "
        "products reach, or their bytes over the card’s bandwidth, whichever takes longer; then "
        "the bytes of all "
        "that is no product, one kernel an operation, or none of them where everything is fused "
        "(embedding and optimiser keep theirs). Batches of 64 windows of 256 tokens; at once 64 up "
        "to 320M, 32 above. Memory is predicted for the path chosen here, and fits where it leaves "
        f"{kit.share(data['spare'])} to the allocator. Rule: norms, gate and write. TF32 has half "
        "of the 16-bit peak, of which MFU is. Of a card sold in two sizes, the smaller.",
        data=data,
    )
