"""Chapter 13's explorable: what a gate holds back, word by word, and what the update is worth."""

import math
from collections.abc import Mapping

from . import kit

NAMES = {"attn": "attention", "mlp": "MLP"}
BELOW = {
    "saved": "loss saved",
    "loss": "loss of the next word",
}


def strip_data(story: Mapping) -> dict:
    """What the script needs of a record (`data/measured/13_inside_the_gate/story.json`)."""

    def short(rows: list) -> list:
        return [[round(x, 4) for x in row] for row in rows]

    return {
        "words": [word or "▸" for word in story["words"]],
        "kinds": [NAMES[kind] for kind in story["kinds"]],
        "held": short(story["held"]),
        "saved": short(story["saved"]),
        "loss": short([story["loss"]])[0],
    }


def ranks(x: list[float]) -> list[float]:
    """Rank of each value from 1, ties sharing their mean rank."""
    return [sum(b < a for b in x) + (sum(b == a for b in x) + 1) / 2 for a in x]


def strip_numbers(data: Mapping, sublayer: int, below: str) -> dict[str, float]:
    """One sublayer on the story: mean, lowest and highest of 1 − r̄ and where; gains; correlation.

    helped: tokens whose loss is lower with the update. rank: Spearman's correlation of 1 − r̄ with
    what stands below. luck: what |rank| stays under in 19 of 20 samples of unrelated values.
    """
    held = data["held"][sublayer - 1]
    other = data["loss"] if below == "loss" else data["saved"][sublayer - 1]
    a, b = ranks(held), ranks(other)
    mid = (len(a) + 1) / 2
    over = sum((p - mid) * (q - mid) for p, q in zip(a, b, strict=True))
    size = math.sqrt(sum((p - mid) ** 2 for p in a) * sum((q - mid) ** 2 for q in b))
    return {
        "mean": sum(held) / len(held),
        "low": min(held),
        "at_low": held.index(min(held)),
        "high": max(held),
        "at_high": held.index(max(held)),
        "helped": sum(x > 0 for x in data["saved"][sublayer - 1]),
        "rank": over / size,
        "luck": 1.96 / math.sqrt(len(held) - 1),
    }


def strip_sentence(data: Mapping, sublayer: int, below: str) -> str:
    """The result in words; takes the arguments of `strip_numbers`."""
    found = strip_numbers(data, sublayer, below)
    least, most = (data["words"][found[key]].strip() for key in ("at_low", "at_high"))
    return (
        f"Sublayer {sublayer}, {data['kinds'][sublayer - 1]}: a channel holds back "
        f"{kit.share(found['mean'])} of the update on average, least at “{least}” "
        f"({kit.share(found['low'])}), most at “{most}” ({kit.share(found['high'])}). The update "
        f"lowers the loss at {found['helped']} of {len(data['loss'])} tokens. Rank correlation of "
        f"what is held back with the {BELOW[below]}: {kit.number(found['rank'])}; "
        f"luck alone stays within ±{kit.number(found['luck'])}."
    )


def held_back(story: Mapping, sublayer: int = 1, below: str = "saved") -> kit.Explorable:
    """Explorable: 1 − r̄ above each word of a recorded story, what the update is worth below it.

    story: the record that `strip_data` reads. `sublayer` (from 1) and `below` ("saved" or "loss")
    are where it starts.
    """
    data = strip_data(story)
    said = strip_sentence(data, sublayer, below)
    return kit.explorable(
        "held-back",
        script="strip.js",
        title="What does the gate hold back?",
        lead="Orange, above a word: the share of the update that the gate holds back there. Green, "
        "below: what you choose. Where should the tall orange bars stand?",
        controls=[
            kit.slider("sublayer", "sublayer", 1, len(data["kinds"]), 1, sublayer),
            kit.choice("below", "below the words", BELOW, below),
        ],
        picture="A story, a bar above each word for what the gate holds back, a bar below it",
        said=said,
        note="Recorded: a Review net of width 64, eight sublayers, on a held-out fable. Above: "
        "1 − r, mean over channels, full at 1. Below: nats for predicting the <em>next</em> word, "
        "square-root scale, full at 2 (saved) or 8 (loss); hollow where the update raises the "
        "loss. ▸ is the start. Luck: unrelated values stay within it in 19 of 20 samples.",
        data=data,
    )
