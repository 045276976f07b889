"""Chapter 0's explorable: one sentence on its way through a small transformer, step by step."""

from collections.abc import Mapping, Sequence

from . import kit


def sentence_walk(words: Sequence[str], stops: Sequence[Mapping], word: int) -> kit.Explorable:
    """Explorable: the vectors of a sentence's tokens after each step of a transformer.

    words: the n tokens, and the one that follows them where there is one. stops: what stands there
    after each step, as dicts: `name`; `kind` (embedding, norm, attention, mlp, add or head);
    `cells`, n rows of channels; `size`, the root mean square of each row; `reads`, for attention
    the n × n shares; `next`, for each token the likeliest next one, its probability. word: where
    it starts, from 1.
    """
    data = {
        "words": [each.strip() or "▸" for each in words],
        "stops": [
            {key: _short(value) for key, value in stop.items() if value is not None}
            for stop in stops
        ],
    }
    return kit.explorable(
        "sentence-walk",
        script="walk.js",
        title="A sentence walks through a transformer",
        lead="Move the first slider from left to right. A row is a word's vector, a bar one of its "
        "numbers. On the right: what the net would say next.",
        controls=[
            kit.slider("stop", "step", 0, len(stops) - 1, 1, 0),
            kit.slider("word", "word", 1, len(stops[0]["size"]), 1, word),
        ],
        picture="One row per word, a bar for each number of its vector, and the word that the net "
        "expects next; at attention, arcs from the chosen word to the words that it reads",
        note="Blue: the stream. Light blue: what a sublayer reads. Green: the update of attention. "
        "Amber: the update of the MLP. Up is positive; 16 channels are drawn. Each step has a "
        "scale of its own: the words below give sizes. ▸ begins a story.",
        data=data,
    )


def _short(value: object) -> object:
    """Numbers with three digits behind the point, in lists of any depth."""
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, str):
        return value.strip()
    return [_short(each) for each in value] if isinstance(value, list | tuple) else value
