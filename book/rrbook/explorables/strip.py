"""Chapter 13's explorable: what a gate holds back, word by word, and what the update is worth."""

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


def held_back(story: Mapping, sublayer: int = 1) -> kit.Explorable:
    """Explorable: 1 − r̄ above each word of a recorded story, what the update is worth below it.

    story: the record that `strip_data` reads. `sublayer` (from 1) is where it starts.
    """
    data = strip_data(story)
    return kit.explorable(
        "held-back",
        script="strip.js",
        title="What does the gate hold back?",
        lead="Orange, above a word: the share of the update that the gate holds back there. Green, "
        "below: what you choose. Where should the tall orange bars stand?",
        controls=[
            kit.slider("sublayer", "sublayer", 1, len(data["kinds"]), 1, sublayer),
            kit.choice("below", "below the words", BELOW, "saved"),
        ],
        picture="A story, a bar above each word for what the gate holds back, a bar below it",
        note="Recorded: a Review net of width 64, eight sublayers, on a held-out fable. Above: "
        "1 − r, mean over channels, full at 1. Below: nats for predicting the <em>next</em> word, "
        "square-root scale, full at 8 (saved; what is beyond is cut) or 4 (loss); hollow where the "
        "update raises the loss. ▸ is the start. Luck: unrelated values stay within it in 19 of 20 "
        "samples.",
        data=data,
    )
