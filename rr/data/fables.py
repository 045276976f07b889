"""*Fables*: an endless corpus of short stories whose exact probability is known.

A story is told by a probabilistic grammar that remembers: what is bound early (a name, a wish, a
number, three magic words) comes back later, and later choices depend on it. The grammar is
*instantaneous*: at every choice the beginnings of the alternatives differ, none being a prefix of
another, so a text has one derivation at most, and

    log p(text) = Σ over its choices of log(weight / sum of the weights to choose from)

exactly. The mean of −log p over held-out stories is then the loss, in nats, below which no model
can go but by luck: the entropy floor (`entropy_floor`). `parse` recovers the derivation.

The words that decide come from SHAKE-128, a standard, so a story never changes with a library.
"""

import hashlib
import math
import re
from collections.abc import Callable, Iterator
from functools import cache
from struct import unpack
from typing import NamedTuple

import numpy as np

from ..config import RRError
from .fables_grammar import GRAMMAR

SEED = 0
STORIES = {"train": 20_000, "valid": 1_500}  # of the corpus `fables`


class Option(NamedTuple):
    """One alternative of a rule."""

    weight: int
    text: str  # as written above
    parts: tuple[tuple, ...]  # the same, taken apart (`_parts`)
    features: tuple[tuple[str, str], ...]


class Choices(NamedTuple):
    """What there is to choose from at one point of a story."""

    options: tuple[Option, ...]
    picks: tuple[int, ...]  # each option's number, as often as it has weight
    log_probs: tuple[float, ...]  # log(weight / sum of weights) of each option, nats


_PRONOUNS = {
    "she": "he=she; him=her; his=her; He=She; His=Her",
    "he": "he=he; him=him; his=his; He=He; His=His",
    "it": "he=it; him=it; his=its; He=It; His=Its",
}
_PART = re.compile(r"\[([^]]+)\]|\{([^}]+)\}")
_REFERENCE = re.compile(r"([^{:-]*)(?:\{(.+)\})?((?:-\w+)*)(?::(\w+))?")
_CHOICES_AT_MOST = 128  # in one story; its random words are drawn at once


def _parsed(grammar: str) -> dict[str, tuple[Option, ...]]:
    rules: dict[str, list[Option]] = {}
    for line in filter(None, grammar.splitlines()):
        head, _, rest = line.partition(" ")
        if head == "=":
            options = rules.setdefault(rest, [])
            continue
        text, _, told = rest.partition(" | ")
        features = []
        for feature in filter(None, told.split("; ")):
            for pair in _PRONOUNS.get(feature, feature).split("; "):
                name, _, value = pair.partition("=")
                features.append((name, value))
        options.append(Option(int(head), text, _parts(text), tuple(features)))
    return {name: tuple(options) for name, options in rules.items()}


def _parts(text: str) -> tuple[tuple, ...]:
    """In order: (False, text, None, (), None) | (False, "", variable, (), None) |
    (True, rule, variable that completes its name, variables left out, variable bound)."""
    parts, at = [], 0
    for match in _PART.finditer(text):
        parts.append((False, text[at : match.start()], None, (), None))
        at = match.end()
        if match[2]:
            parts.append((False, "", match[2], (), None))
        else:
            rule, completes, out, bound = _REFERENCE.fullmatch(match[1]).groups()
            parts.append((True, rule, completes, tuple(out.split("-")[1:]), bound))
    parts.append((False, text[at:], None, (), None))
    return tuple(part for part in parts if part[1] or part[2])


RULES = _parsed(GRAMMAR)
IDENTITY = f"fables {hashlib.sha256(GRAMMAR.encode()).hexdigest()[:16]} seed={SEED} " + " ".join(
    f"{part}={count}" for part, count in STORIES.items()
)


@cache
def _choices(rule: str, left_out: tuple[str, ...]) -> Choices:
    options = tuple(option for option in RULES[rule] if option.text not in left_out)
    total = sum(option.weight for option in options)
    picks = tuple(i for i, option in enumerate(options) for _ in range(option.weight))
    return Choices(options, picks, tuple(math.log(o.weight / total) for o in options))


class Telling:
    """One story being told. `choose(choices, telling) -> index` makes each decision.

    told: the text so far, in pieces; known: what is remembered; log_prob: nats, so far.
    """

    def __init__(self, choose: Callable[[Choices, "Telling"], int]):
        self.choose = choose
        self.told: list[str] = []
        self.known: dict[str, str] = {}
        self.log_prob = 0.0
        self._tell("story", (), None)

    def _tell(self, rule: str, left_out: tuple[str, ...], bound: str | None) -> None:
        known, told = self.known, self.told
        choices = _choices(rule, left_out)
        index = self.choose(choices, self)
        self.log_prob += choices.log_probs[index]
        option = choices.options[index]
        start = len(told)
        for tells, text, variable, out, binds in option.parts:
            if tells:
                rule = text + known[variable] if variable else text
                self._tell(rule, tuple([known[name] for name in out]) if out else (), binds)
            else:
                told.append(known[variable] if variable else text)
        if bound:
            known[bound] = "".join(told[start:])
        for name, value in option.features:
            known[f"{bound}.{name}" if bound and "." not in name else name] = value


def story(seed: int, index: int, split: str = "train") -> tuple[str, float]:
    """Story number `index` of an endless row, and its exact log-probability in nats.

    `split` ("train" or "valid") and `seed` each begin another row; rows are independent.
    """
    if split not in STORIES:
        raise RRError(f"split {split!r}: train or valid is accepted")
    noise = hashlib.shake_128(f"fables {seed} {split} {index}".encode())
    words = iter(unpack(f"<{_CHOICES_AT_MOST}Q", noise.digest(8 * _CHOICES_AT_MOST)))

    def choose(choices: Choices, _: Telling) -> int:
        return choices.picks[next(words) * len(choices.picks) >> 64]

    telling = Telling(choose)
    return "".join(telling.told), telling.log_prob


def train() -> Iterator[str]:
    """The training stories of the corpus `fables`, in order."""
    return (story(SEED, i, "train")[0] for i in range(STORIES["train"]))


def valid() -> Iterator[str]:
    """Its held-out stories: independent draws from the same distribution."""
    return (story(SEED, i, "valid")[0] for i in range(STORIES["valid"]))


def parse(text: str) -> tuple[list[int], float]:
    """The one derivation of a story, as the index of each choice, and its log-probability, nats.

    Raises RRError where the grammar cannot tell the text.
    """
    chosen: list[int] = []

    def choose(choices: Choices, telling: Telling) -> int:
        at = sum(map(len, telling.told))
        fits = [
            i
            for i, option in enumerate(choices.options)
            if text.startswith("".join(telling.told)) and _begins(option, telling.known, text, at)
        ]
        if len(fits) != 1:
            raise RRError(f"no fable: {len(fits)} ways to go on after {text[:at][-40:]!r}")
        chosen.append(fits[0])
        return fits[0]

    telling = Telling(choose)
    if "".join(telling.told) != text:
        raise RRError("no fable: the text goes on, or ends otherwise, than a fable does")
    return chosen, telling.log_prob


def _begins(option: Option, known: dict[str, str], text: str, at: int) -> bool:
    """Whether `text` from `at` on can be the beginning of `option`, as far as that is fixed."""
    for tells, fixed, variable, _, _ in option.parts:
        if tells:
            rule = fixed + known[variable] if variable else fixed
            return any(_begins(nested, known, text, at) for nested in RULES[rule])
        piece = known[variable] if variable else fixed
        if not text.startswith(piece, at):
            return False
        at += len(piece)
    return True


def entropy_floor(tokens) -> tuple[float, float]:
    """(nats a token, its standard error) of the held-out stories of an open `fables` corpus.

    −Σᵢ sᵢ / Σᵢ tᵢ with sᵢ story i's log-probability and tᵢ its tokens, its end-of-text token
    included (which is certain: a story's end follows from its text). To be compared with the loss
    on each whole story after a leading end-of-text token, so that all tᵢ tokens are predicted.

    The quotient belongs to *these* stories; its standard error, for stories as independent draws,
    says how far it may lie from the grammar's own entropy rate (linearised quotient).
    """
    if tokens.identity["corpus"] != IDENTITY:
        raise RRError(f"corpus {tokens.name} has no known entropy: only fables have")
    logs = np.array([story(SEED, i, "valid")[1] for i in range(STORIES["valid"])])
    ends = np.flatnonzero(tokens.valid == tokens.eot)
    lengths = np.diff(ends, prepend=-1)
    floor = -logs.sum() / lengths.sum()
    residuals = -logs - floor * lengths
    error = math.sqrt((residuals**2).sum() / (len(logs) - 1) / len(logs)) / lengths.mean()
    return float(floor), float(error)
