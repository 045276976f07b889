"""Chapter 13's lab: type a text, and see what the gates of a trained model do with it."""

import ipywidgets as widgets
import torch

from rr.data.tokenizer import Vocabulary
from rr.errors import RRError
from rr.model.transformer import Model
from rrbook.gates import gates_of, losses, nothing, one_by_one, trace_gates

from .. import figures
from ..explorables.kit import number, share
from .lab import Drawn, Lab

SHOWN = 18  # tokens: more have no room for their names
TEXTS = [
    "Once there was a small fox who wanted a boat.",
    "Mila had a kite. Mila lost the kite. Mila was sad.",
]
SHOWS = {"mean gate r": "gate", "loss saved": "saved"}


def typed(model: Model, vocabulary: Vocabulary, text: str) -> tuple[torch.Tensor, list[str]]:
    """Token numbers (1, T) of an end-of-text and the text, cut to what is shown, and their words.

    Raises RRError for a text without tokens: there must be a next word to predict.
    """
    ids = [vocabulary.eot, *vocabulary.encode(text.strip())][: min(SHOWN, model.config.seq_len) + 1]
    if len(ids) < 2:
        raise RRError("the text is empty: type at least one word")
    words = ["▸", *(vocabulary.decode([i]).strip() or "⏎" for i in ids[1:])]
    return torch.tensor([ids]), words


def lab_inside(model: Model, vocabulary: Vocabulary) -> Lab:
    """Lab: the mean gate, or the loss that an update saves, for each token typed and sublayer.

    model: with additive gates; vocabulary: its own. Less than a second per move for small models.
    """
    rules = gates_of(model)
    names = [
        f"{'attention' if rule.site.kind == 'attn' else 'MLP'} {i}"
        for i, rule in enumerate(rules, 1)
    ]

    def draw(text: str, show: str) -> Drawn:
        figure, ax = figures.canvas(height=3.8)
        try:
            ids, words = typed(model, vocabulary, text)
        except RRError as error:
            ax.set_axis_off()
            return figure, f"{error}."
        idx, targets = ids[:, :-1], ids[:, 1:]
        gates = trace_gates(model, idx).r.double().mean(-1)[:, 0]
        without = one_by_one(model, idx, targets, nothing)
        worth = (without - losses(model, idx, targets))[:, 0]
        shown = gates if show == "gate" else worth
        figures.depth_map(ax, shown.tolist(), names, words[:-1], signed=show == "saved")
        ax.set_xlabel("the word that is read")
        ax.set_ylabel("")
        ax.tick_params(axis="x", rotation=60)
        flat = int(gates.argmin())
        row, column = divmod(flat, gates.shape[1])
        return figure, (
            f"{len(words) - 1} tokens, {len(names)} sublayers: the mean gate goes from "
            f"{number(gates.min().item())} ({names[row]}, at “{words[column]}”) to "
            f"{number(gates.max().item())}. {share((worth > 0).double().mean().item())} of the "
            "updates lower the loss of the next word."
        )

    controls = {
        "text": widgets.Text(TEXTS[0], description="text"),
        "show": widgets.Dropdown(options=SHOWS, value="gate", description="show"),
    }
    lead = (
        "The chapter’s own trained model reads what you type (at most "
        f"{SHOWN} tokens; press Enter). Try a name twice, or a word that no fable has."
    )
    grid = {"text": TEXTS, "show": list(SHOWS.values())}
    return Lab("inside", controls, draw, lead, grid)
