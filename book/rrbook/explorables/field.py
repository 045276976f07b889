"""Chapter 04's explorable: a toy stream under any rule, its norm and its gradient by depth.

The toy: one token of 32 channels; u = W₂ tanh(W₁ x), x what the rule reads, W₁ and W₂ random and
the same for every rule; the loss is the mean product of what the head would read with a fixed
random vector. Here the rules are rr's own, run by torch in double precision; the script has its
own tape. The tests hold the two equal.
"""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from . import kit

if TYPE_CHECKING:
    import torch

D, GAIN = 32, 1.6
# the rules that the script knows; of a reader's own, the lab draws the real thing
TOY = ("standard", "constant", "scaled", "rezero", "layerscale", "fixup", "highway", "state-gate",
       "update-gate", "review", "deepnorm", "review-convex", "highway-carry", "gtrxl",
       "denseformer", "attnres", "hyper-connections")  # fmt: skip
BIASED = (
    "constant",
    "state-gate",
    "update-gate",
    "review",
    "highway",
    "review-convex",
    "highway-carry",
    "gtrxl",
)
WORDS = {"unit": "as large as the embedding", "own": "as each rule begins"}


def draw(key: int, n: int) -> np.ndarray:
    """n numbers of mean 0 and variance 1, the same here and in the script (mulberry32)."""
    mask = np.uint64(0xFFFFFFFF)
    start = np.uint64((key + 1) * 0x9E3779B1 & 0xFFFFFFFF)
    state = (start + np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x6D2B79F5)) & mask
    t = (state ^ (state >> np.uint64(15))) * (state | np.uint64(1)) & mask
    t ^= t + ((t ^ (t >> np.uint64(7))) * (t | np.uint64(61)) & mask) & mask
    t = (t ^ (t >> np.uint64(14))) & mask
    return (t / 4294967296 * 2 - 1) * np.sqrt(3)


def rule_spec(rule: str, bias: float) -> str:
    """The rule with the option that the slider sets, as `rr train` takes it.

    The constant rule gets c = σ(b), the coefficient of a gate with that bias and no weights.
    """
    if rule == "constant":
        return f"constant:c={1 / (1 + math.exp(-bias))}"
    return f"{rule}:bias={bias}" if rule in BIASED else rule


def _filler(sublayer: int):
    """What a rule's `reset` draws from: its first matrix, its second, its third."""
    keys: Iterator[int] = iter(range(1000 + sublayer, 10_000, 1000))

    def normal(tensor: "torch.Tensor", std: float) -> None:
        import torch

        numbers = draw(next(keys), tensor.numel()) * std
        tensor.copy_(torch.from_numpy(numbers).reshape(tensor.shape))

    return normal


def factors(rule, start: str) -> tuple[float, float]:
    """What a rule's initialisation makes of W₁ and W₂; 1 each where updates start at full size."""
    if start != "own":
        return 1.0, 1.0
    # GPT-2's 0.02 and Xavier's 1/√d are what the rules' laws begin with: 1/√d here
    unit = D**-0.5 if rule.name == "deepnorm" else 0.02
    return tuple(rule.init_std(rule.site, part, D, D) / unit for part in ("up", "down"))


def stream(rule, state) -> "torch.Tensor":
    """What a sublayer reads before any norm, (B, T, d), of any rule's state.

    Of several streams their mean; of a list the mix where the rule makes one, else its first entry.
    """
    import torch

    if rule.state == "streams":
        return state.mean(-2)
    if rule.state in ("list", "pair"):
        mixed = hasattr(rule, "weights")
        return (rule.weights(state) * torch.stack(state)).sum(0) if mixed else state[0]
    return state


def field_numbers(
    rule: str, sublayers: int, start: str = "unit", bias: float = 0.0
) -> dict[str, list[float]]:
    """`norms`, rms of what is read before any norm at depth 0 … S, and `gradients`.

    Entry 0 of the gradients is ‖∂loss/∂h_0‖, entry l ‖∂loss/∂u_l‖: what training tells sublayer l.
    """
    import torch

    from rr.config import ModelConfig
    from rr.residual import Site, make

    spec, L = rule_spec(rule, bias), sublayers // 2
    config = ModelConfig(64, n_layer=L, n_head=1, d_model=D, d_ff=4 * D, rule=spec)

    def vector(key: int, rows: int = 1, std: float = 1.0) -> torch.Tensor:
        return torch.from_numpy(draw(key, rows * D) * std).reshape(rows, D)

    def built(kind: str, sublayer: int):
        made = make(spec, Site(kind, sublayer, L, D, n_head=1), config).double()
        with torch.no_grad():
            made.reset(_filler(sublayer))
        return made

    first = vector(0).unsqueeze(0).requires_grad_()  # (1, 1, d)
    state, updates, norms = None, [], []
    for depth in range(1, sublayers + 1):
        here = built("attn" if depth % 2 else "mlp", depth)
        state = here.open(first) if state is None else state
        norms.append(stream(here, state).detach().pow(2).mean().sqrt().item())
        x, state = here.read(state)
        up, down = factors(here, start)
        u = torch.tanh(x @ vector(2 * depth, D, up / D**0.5).T)
        u = u @ vector(2 * depth + 1, D, down * GAIN / D**0.5).T
        u.retain_grad()
        updates.append(u)
        state = here.write(state, u)
    final = built("final", sublayers + 1)
    norms.append(stream(final, state).detach().pow(2).mean().sqrt().item())
    x, _ = final.read(state)
    (x * vector(1)).mean().backward()
    gradients = [0.0 if v.grad is None else v.grad.norm().item() for v in (first, *updates)]
    return {"norms": norms, "gradients": gradients}


def field_sentence(rule: str, sublayers: int, start: str = "unit", bias: float = 0.0) -> str:
    """The result in words."""
    found = field_numbers(rule, sublayers, start, bias)
    norms, g = found["norms"], found["gradients"]
    option = f" with b = {kit.number(bias)}" if rule in BIASED else ""
    text = (
        f"{rule}{option}, {sublayers} sublayers: the stream’s rms goes from "
        f"{kit.number(norms[0])} to {kit.number(norms[-1])}. "
    )
    if g[1] == g[-1] == 0:
        return (
            f"{text}No sublayer gets a gradient at this start; the embedding gets "
            f"{kit.number(g[0])}."
        )
    quarter = sublayers // 4  # one update's gradient hangs on the one draw of its weights
    ratio = math.fsum(g[1 : quarter + 1]) / math.fsum(g[-quarter:])
    return (
        f"{text}The first quarter of the updates gets {kit.number(ratio)} times the gradient of "
        "the last quarter."
    )


def rule_field(
    rule: str = "review-convex",
    sublayers: int = 32,
    start: str = "unit",
    bias: float = 0.0,
) -> kit.Explorable:
    """Explorable: a toy stream under any residual rule of the book (TOY), at its start.

    Where it begins: `rule`, `sublayers` (4 to 64), `start` ("unit": updates as large as the
    embedding; "own": branch weights as the rule initialises them), gate `bias`. Needs torch for
    the picture without scripts.
    """
    said = field_sentence(rule, sublayers, start, bias)
    return kit.explorable(
        "rule-field",
        script="field.js",
        title="A toy stream under any rule",
        lead="One token, random sublayers, each rule as it is before training.",
        controls=[
            kit.slider("sublayers", "sublayers", 4, 64, 4, sublayers),
            kit.choice("rule", "rule", {name: name for name in TOY}, rule),
            kit.slider("bias", "bias b (c = σ(b))", -4, 4, 0.5, bias),
            kit.radios("start", "size of updates", WORDS, start),
        ],
        picture="Two curves over depth, for the chosen rule and the standard one: rms of the "
        "stream, and gradient at each update on a logarithmic scale",
        said=said,
        note="Toy: u = W₂ tanh(W₁ x) with random W₁ and W₂, 32 channels, one token, no attention; "
        "all derivatives are exact. The gradient is that of a fixed random read-out by each "
        "update u<sub>l</sub>, at 0 by the embedding. One draw of the weights: small wiggles mean "
        "nothing.",
    )
