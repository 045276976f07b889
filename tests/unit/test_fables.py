"""Fables: one derivation a text, probabilities that sum to one, stories that never change."""

import hashlib
import itertools
import math
import re
from collections import defaultdict
from fractions import Fraction

import numpy as np
import pytest

from rr.data import baselines, fables, open_corpus
from rr.errors import RRError

# ---- the alternatives of every rule begin differently: a proof, not a sample


def _rules_named(name: str, completed: bool) -> list[str]:
    return [rule for rule in fables.RULES if rule.startswith(name)] if completed else [name]


def _values() -> dict[str, set[str]]:
    """Every value that each remembered name can take anywhere (a superset of what it can here)."""
    values: dict[str, set[str]] = defaultdict(set)
    for option in itertools.chain(*fables.RULES.values()):
        for name, value in option.features:
            values[name].add(value)
        for rule, completes, tells, _, bound in option.parts:
            for full in _rules_named(rule, bool(completes)) if tells and bound else ():
                for one in fables.RULES[full]:
                    values[bound].add(one.text)
                    for name, value in one.features:
                        values[f"{bound}.{name}"].add(value)
    return values


VALUES = _values()


def _steps(parts, known):
    """(literal, parts that follow, what is known) for each way to take the first step of parts."""
    (text, variable, tells, _, bound), rest = parts[0], parts[1:]
    if not tells and variable is None:
        yield text, rest, known
    elif not tells:
        for value in [known[variable]] if variable in known else sorted(VALUES[variable]):
            yield value, rest, {**known, variable: value}
    else:
        forget = {k: v for k, v in known.items() if not bound or k.split(".")[0] != bound}
        for full in _rules_named(text, bool(variable)):
            for option in fables.RULES[full]:
                yield "", (*option.parts, *rest), forget


def _clash(a: str, a_parts, b: str, b_parts, known) -> str | None:
    """A beginning that two alternatives share, one of them being at its end; None where none is."""
    length = min(len(a), len(b))
    if a[:length] != b[:length]:
        return None
    a, b = a[length:], b[length:]
    if not a and not a_parts or not b and not b_parts:
        return repr((a, b))
    if a:
        steps = ((a, a_parts, b + text, rest, new) for text, rest, new in _steps(b_parts, known))
    else:
        steps = ((text, rest, b, b_parts, new) for text, rest, new in _steps(a_parts, known))
    return next((clash for step in steps if (clash := _clash(*step))), None)


def test_no_alternative_begins_as_another():
    for options in fables.RULES.values():
        for one, other in itertools.combinations(options, 2):
            assert not _clash("", one.parts, "", other.parts, {}), (one.text, other.text)


@pytest.mark.parametrize(
    "grammar",
    [
        "= story\n1 a fox\n1 a fox ran",
        "= story\n1 [x] ran\n1 a fox\n= x\n1 a fox\n1 a dog",
        "= story\n1 [x:v] {v.f}s\n1 a {v.f}\n= x\n1 a | f=c",
    ],
)
def test_the_proof_can_fail(monkeypatch, grammar):
    """An alternative that begins another is caught, through variables and nested rules as well."""
    monkeypatch.setattr(fables, "RULES", fables.parsed_grammar(grammar))
    monkeypatch.setitem(globals(), "VALUES", _values())
    one, other = fables.RULES["story"]
    assert _clash("", one.parts, "", other.parts, {})


# ---- probabilities


def test_probabilities_of_a_small_grammar_sum_to_one(monkeypatch):
    """All choice vectors of a cut-down grammar: texts all differ, probabilities sum to exactly 1.

    Kept whole: the rules where the story forks; of every other rule, the first alternative.
    """
    whole = ("deed.yes deed.no need.bread hint gift.kind gift.cold crossing.words crossing.none "
             "home.yes home.no strange").split()  # fmt: skip
    small = {
        name: options if name in whole else options[: 3 if name == "word" else 1]
        for name, options in fables.RULES.items()
    }
    monkeypatch.setattr(fables, "RULES", small)
    monkeypatch.setattr(fables, "drawn_choices", fables.drawn_choices.__wrapped__)
    total, texts, pending = Fraction(0), [], [[]]
    while pending:
        prefix, chosen, share = pending.pop(), [], Fraction(1)

        def choose(choices, _, prefix=prefix, chosen=chosen):
            nonlocal share
            at = len(chosen)
            index = prefix[at] if at < len(prefix) else 0
            chosen.append((index, len(choices.options)))
            share *= Fraction(choices.options[index].weight, len(choices.picks))
            return index

        telling = fables.Telling(choose)
        total += share
        texts.append("".join(telling.text))
        assert telling.log_prob == pytest.approx(math.log(share), abs=1e-12)
        for at in range(len(prefix), len(chosen)):
            for index in range(1, chosen[at][1]):
                pending.append([i for i, _ in chosen[:at]] + [index])
    assert total == 1
    assert len(texts) == len(set(texts)) > 500


def derivation(text: str) -> tuple[list[int], float]:
    """The one derivation of a story, as the index of each choice, and its log-probability, nats.

    RRError where the grammar cannot generate the text.
    """
    chosen: list[int] = []

    def choose(choices, telling) -> int:
        start = "".join(telling.text)
        fits = [
            i
            for i, option in enumerate(choices.options)
            if text.startswith(start) and begins(option, telling.known, text, len(start))
        ]
        if len(fits) != 1:
            raise RRError(f"not a fable: {len(fits)} ways to continue after {start[-40:]!r}")
        chosen.append(fits[0])
        return fits[0]

    telling = fables.Telling(choose)
    if "".join(telling.text) != text:
        raise RRError("not a fable: the text does not end as a fable does")
    return chosen, telling.log_prob


def begins(option, known: dict[str, str], text: str, at: int) -> bool:
    """Whether `text` from `at` on can begin with `option`, as far as its text is fixed."""
    for part in option.parts:
        piece = part.text + known[part.variable] if part.variable else part.text
        if part.is_rule:
            return any(begins(nested, known, text, at) for nested in fables.RULES[piece])
        if not text.startswith(piece, at):
            return False
        at += len(piece)
    return True


def test_every_choice_is_recovered_from_the_text_alone():
    vectors = set()
    for index in range(400):
        text, log_prob = fables.story(7, index)
        chosen, parsed = derivation(text)
        vectors.add(tuple(chosen))
        assert parsed == pytest.approx(log_prob, abs=1e-9)
        assert len(chosen) <= fables.CHOICES_AT_MOST // 2
    assert len(vectors) == 400


def test_what_is_no_fable_has_no_derivation():
    text, _ = fables.story(0, 0)
    name = text.split("named ")[1].split(".")[0]
    # agreement across sentences is part of the grammar: another name in one place breaks it
    other = text.replace(name, "Wren" if name != "Wren" else "Mara", 1)
    for wrong in (text[:-1], text + " ", "Once upon a time.", other):
        with pytest.raises(RRError, match="not a fable"):
            derivation(wrong)


def test_shares_are_the_weights():
    """Counted in 10,000 stories: doubts come as often as their weight says (4 s.e.)."""
    doubts = [" They still say " in fables.story(3, i)[0] for i in range(10_000)]
    p = 6 / (6 + 3 + 2)
    assert abs(np.mean(doubts) - p) < 4 * math.sqrt(p * (1 - p) / len(doubts))


# ---- stories


def test_stories_never_change():
    """Pinned: a grammar changed on purpose changes this hash, and the corpus's identity with it."""
    stories = "\n".join(fables.story(0, i)[0] for i in range(100))
    assert hashlib.sha256(stories.encode()).hexdigest()[:16] == "65d78f712fe7fac9"


def test_rows_are_independent_of_order_and_differ():
    assert len({fables.story(0, 5)[0], fables.story(1, 5)[0], fables.story(0, 5, "valid")[0]}) == 3
    assert fables.story(0, 10**12)[0]
    with pytest.raises(RRError, match="train or valid"):
        fables.story(0, 0, "test")


def test_no_story_occurs_twice_and_none_is_in_both_parts():
    train = set(fables.train())
    assert len(train) == fables.STORIES["train"]
    assert not train & set(fables.valid())


def test_what_was_said_comes_back():
    """The long range: magic words and the number of days return verbatim."""
    magic = 0
    for i in range(300):
        text, _ = fables.story(11, i)
        if hint := re.search(r"say (\w+), (\w+), (\w+)\.", text):
            a, b, c = hint.groups()
            assert f'"{a}, {b}, {c},"' in text or f'"{a}, {c}, {b},"' in text
            magic += 1
        far, back = re.findall(r"(\w+) days", text)
        assert far.lower() == back
    assert magic > 60


# ---- the floor


@pytest.fixture(scope="module")
def tokens():
    return open_corpus("fables", log=lambda line: None)


def test_every_story_fits_one_window(tokens):
    for part in (tokens.train, tokens.valid):
        ends = np.flatnonzero(part == tokens.eot)
        lengths = np.diff(ends, prepend=-1)
        assert ends[-1] == len(part) - 1
        assert lengths.max() < 240 and 150 < lengths.mean() < 200
    assert 2_500_000 < len(tokens.train) < 4_000_000


def test_entropy_floor_is_that_of_the_held_out_stories(tokens):
    floor, error = fables.entropy_floor(tokens)
    texts = tokens.decode(tokens.valid).split("<|endoftext|>")[:-1]
    logs = [derivation(text)[1] for text in texts[:300]]  # a second way to each probability
    stories = [fables.story(fables.SEED, i, "valid") for i in range(fables.STORIES["valid"])]
    assert texts == [text for text, _ in stories]
    assert logs == pytest.approx([log for _, log in stories[:300]], abs=1e-9)
    assert floor == pytest.approx(-sum(log for _, log in stories) / len(tokens.valid), rel=1e-12)

    assert 0.2 < floor < 0.4 < 1.5 < baselines(tokens)["bigram_nats"] < 2.5

    # its standard error, by the bootstrap
    s = -np.array([log for _, log in stories])
    t = np.diff(np.flatnonzero(tokens.valid == tokens.eot), prepend=-1)
    draws = np.random.default_rng(0).integers(0, len(s), (2000, len(s)))
    assert error == pytest.approx((s[draws].sum(1) / t[draws].sum(1)).std(), rel=0.1)
