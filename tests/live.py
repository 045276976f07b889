"""What `rr` computes where a page's live network does: for the tests of both."""

import json
from pathlib import Path

import torch

from rr.data.tokenizer import Vocabulary
from rrbook.net import model_of

STOPS = {"closed": 0.0, "learned": None, "half": 0.5, "open": 1.0}  # what the page offers
SENTENCES = (
    "There was once, in a town by the sea, a",
    "One day the woodcutter's daughter said: \u201cI'll go, I've 12 apples!\u201d  And so",
    "",
)


def vocabulary_of(net: dict, folder: Path) -> Vocabulary:
    """The net's tokenizer, read by `rr`."""
    folder.mkdir(exist_ok=True)
    table = {token: i for i, token in enumerate(net["tokens"])}
    (folder / "vocab.json").write_text(json.dumps(table))
    (folder / "merges.txt").write_text("\n".join(net["merges"]) + "\n", encoding="utf-8")
    return Vocabulary("net", "of a file", folder)


@torch.no_grad()
def computed(net: dict, ids: list[int], gates: list) -> tuple[list[float], list]:
    """Logits after the last of ids, and h, u, h + r ⊙ u of every sublayer at it.

    gates: for each sublayer None, as learned, or the number that r is set to.
    """
    model, seen = model_of(net), []
    for rule, value in zip(model.rules, gates, strict=True):
        if value is not None:
            rule.write = lambda h, u, value=value: h + value * u
        rule.register_forward_hook(
            lambda rule, given, out: seen.append([x[0, -1].tolist() for x in (*given, out)])
        )
    return model(torch.tensor([ids]))[0, -1].tolist(), seen


def settings(sublayers: int) -> list[list]:
    """All sublayers at each setting of the page, and each of them alone at those that set it."""
    alone = [
        [value if s == place else None for s in range(sublayers)]
        for place in range(sublayers)
        for value in STOPS.values()
        if value is not None
    ]
    return [[value] * sublayers for value in STOPS.values()] + alone
