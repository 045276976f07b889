"""*Fables*: an endless corpus of short stories whose exact probability is known.

A story is told by a probabilistic grammar that remembers: what is bound early (a name, a wish, a
number, three magic words) comes back later, and later choices depend on it. The grammar is
*instantaneous*: at every choice the beginnings of the alternatives differ, none being a prefix of
another, so a text has one derivation at most, and

    log p(text) = Σ over its choices of log(weight / sum of the weights to choose from)

exactly. The mean of −log p over held-out stories is then the loss, in nats, below which no model
can go but by luck: the entropy floor (`entropy_floor`).

The words that decide come from SHAKE-128, a standard, so a story never changes with a library.
"""

import hashlib
import math
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from struct import unpack
from typing import NamedTuple

import numpy as np

from ..errors import RRError

SEED = 0
STORIES = {"train": 20_000, "valid": 1_500}  # of the corpus `fables`


class Part(NamedTuple):
    """A piece of an option: fixed text, a variable, or a rule to expand."""

    text: str = ""  # fixed text, or the rule's name
    variable: str | None = None  # inserted; of a rule, the variable that completes its name
    is_rule: bool = False
    left_out: tuple[str, ...] = ()  # variables whose text the rule must not choose
    bound: str | None = None  # variable that remembers the rule's text


class Option(NamedTuple):
    """One alternative of a rule."""

    weight: int
    text: str  # as the grammar has it
    parts: tuple["Part", ...]  # the same, parsed
    features: tuple[tuple[str, str], ...]


class Choices(NamedTuple):
    """The alternatives at one point of a story."""

    options: tuple[Option, ...]
    picks: tuple[int, ...]  # each option's index, as often as its weight
    log_probs: tuple[float, ...]  # log(weight / sum of weights) of each option, nats


_PRONOUNS = {
    "she": "he=she; him=her; his=her; He=She; His=Her",
    "he": "he=he; him=him; his=his; He=He; His=His",
    "it": "he=it; him=it; his=its; He=It; His=Its",
}
_PART = re.compile(r"\[([^]]+)\]|\{([^}]+)\}")
_REFERENCE = re.compile(r"([^{:-]*)(?:\{(.+)\})?((?:-\w+)*)(?::(\w+))?")
CHOICES_AT_MOST = 128  # in one story; its random words are drawn at once


def parsed_grammar(grammar: str) -> dict[str, tuple[Option, ...]]:
    rules: dict[str, list[Option]] = {}
    for line in filter(None, grammar.splitlines()):
        head, _, rest = line.partition(" ")
        if head == "=":
            options = rules.setdefault(rest, [])
            continue
        text, _, assigned = rest.partition(" | ")
        features = []
        for feature in filter(None, assigned.split("; ")):
            for pair in _PRONOUNS.get(feature, feature).split("; "):
                name, _, value = pair.partition("=")
                features.append((name, value))
        options.append(Option(int(head), text, _parts(text), tuple(features)))
    return {name: tuple(options) for name, options in rules.items()}


def _parts(text: str) -> tuple[Part, ...]:
    parts, at = [], 0
    for match in _PART.finditer(text):
        parts.append(Part(text[at : match.start()]))
        at = match.end()
        if match[2]:
            parts.append(Part(variable=match[2]))
        else:
            reference = _REFERENCE.fullmatch(match[1])
            assert reference is not None, match[1]  # the grammar is part of rr
            rule, completes, out, bound = reference.groups()
            parts.append(Part(rule, completes, True, tuple(out.split("-")[1:]), bound))
    parts.append(Part(text[at:]))
    return tuple(part for part in parts if part.text or part.variable)


_NOTES = re.compile(r"^#.*\n", re.MULTILINE)
GRAMMAR = _NOTES.sub("", Path(__file__).with_suffix(".txt").read_text(encoding="utf-8"))
RULES = parsed_grammar(GRAMMAR)
IDENTITY = f"fables {hashlib.sha256(GRAMMAR.encode()).hexdigest()[:16]} seed={SEED} " + " ".join(
    f"{part}={count}" for part, count in STORIES.items()
)


@cache
def drawn_choices(rule: str, left_out: tuple[str, ...]) -> Choices:
    options = tuple(option for option in RULES[rule] if option.text not in left_out)
    total = sum(option.weight for option in options)
    picks = tuple(i for i, option in enumerate(options) for _ in range(option.weight))
    return Choices(options, picks, tuple(math.log(o.weight / total) for o in options))


class Telling:
    """One derivation of the grammar. `choose(choices, telling) -> index` makes each decision.

    text: so far, in pieces; known: the variables bound so far; log_prob: nats, so far.
    """

    def __init__(self, choose: Callable[[Choices, "Telling"], int]):
        self.choose = choose
        self.text: list[str] = []
        self.known: dict[str, str] = {}
        self.log_prob = 0.0
        self._expand("story", (), None)

    def _expand(self, rule: str, left_out: tuple[str, ...], bound: str | None) -> None:
        known, text = self.known, self.text
        choices = drawn_choices(rule, left_out)
        index = self.choose(choices, self)
        self.log_prob += choices.log_probs[index]
        option = choices.options[index]
        start = len(text)
        for part in option.parts:
            piece = part.text + known[part.variable] if part.variable else part.text
            if part.is_rule:
                self._expand(piece, tuple([known[name] for name in part.left_out]), part.bound)
            else:
                text.append(piece)
        if bound:
            known[bound] = "".join(text[start:])
        for name, value in option.features:
            known[f"{bound}.{name}" if bound and "." not in name else name] = value


def story(seed: int, index: int, split: str = "train") -> tuple[str, float]:
    """Story number `index` of an endless sequence, and its exact log-probability in nats.

    Each `split` ("train" or "valid") and `seed` has its own sequence; they are independent.
    """
    if split not in STORIES:
        raise RRError(f"split must be train or valid, got {split!r}")
    noise = hashlib.shake_128(f"fables {seed} {split} {index}".encode())
    words = iter(unpack(f"<{CHOICES_AT_MOST}Q", noise.digest(8 * CHOICES_AT_MOST)))

    def choose(choices: Choices, _: Telling) -> int:
        return choices.picks[next(words) * len(choices.picks) >> 64]

    telling = Telling(choose)
    return "".join(telling.text), telling.log_prob


def train() -> Iterator[str]:
    """The training stories of the corpus `fables`, in order."""
    return (story(SEED, i, "train")[0] for i in range(STORIES["train"]))


def valid() -> Iterator[str]:
    """The held-out stories of `fables`: independent draws from the same distribution."""
    return (story(SEED, i, "valid")[0] for i in range(STORIES["valid"]))


@cache  # half a second, and the same for every run
def _valid_log_probs(seed: int, stories: int) -> tuple[float, ...]:
    return tuple(story(seed, i, "valid")[1] for i in range(stories))


def entropy_floor(tokens, stories: int | None = None) -> tuple[float, float]:
    """(nats per token, standard error) of the held-out stories of an open `fables` corpus.

    stories: of the first so many alone, two at least.

    −Σᵢ sᵢ / Σᵢ tᵢ with sᵢ story i's log-probability and tᵢ its tokens, its end-of-text token
    included (which is certain: a story's end follows from its text). Compare it with the loss on
    each whole story after a leading end-of-text token, so that all tᵢ tokens are predicted.

    The ratio is of *these* stories. Its standard error, for independent stories, is that of an
    estimate of the grammar's entropy rate (delta method for a ratio).
    """
    if tokens.identity["corpus"] != IDENTITY:
        raise RRError(f"corpus {tokens.name} has no known entropy: only fables have one")
    logs = np.array(_valid_log_probs(SEED, STORIES["valid"]))[:stories]
    ends = np.flatnonzero(tokens.valid == tokens.eot)[:stories]
    lengths = np.diff(ends, prepend=-1)
    floor = -logs.sum() / lengths.sum()
    residuals = -logs - floor * lengths
    error = math.sqrt((residuals**2).sum() / (len(logs) - 1) / len(logs)) / lengths.mean()
    return float(floor), float(error)
