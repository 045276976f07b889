"""A word of direction needs an interval: README, the pages of results and the chapters.

"Lower", "ahead", "better" and the like are said of a measured difference only where its 95 %
interval excludes zero, "equal" and "no lead" only where it lies within the bound that *What we
know* names, and "cannot tell"
only where an interval includes zero. The intervals of a sentence are those that its roles show.
For a bare mean and for a sentence without a role, `BEHIND` says which they are; a sentence or a
number that is not about a measured difference of losses stands in `ELSE`, by a part of it.
"""

import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "book" / "tools"))
from advice import BOUND  # noqa: E402
from known import number  # noqa: E402

PAGES = ("README.md", *(f"book/{name}.md" for name in (
    "intro", "what_we_know", "which_rule", "at_scale", "questions", "what_failed")))  # fmt: skip
OF_OTHERS = ("book/at_scale.md", "book/questions.md")  # no such sentence on our own runs
CHAPTERS = sorted((ROOT / "notebooks").glob("*.ipynb"))

DIRECTION = re.compile(
    r"\b(lead|leads|ahead|behind|lower|lowest|higher|worse|better|helps?|beats?)\b", re.I
)
EQUAL = re.compile(
    r"\bno (lead(?! that survives)|lower|higher|better|worse|difference)\b|about nothing|"
    r"\bequal(ly)?\b(?!-?[ -](many|size|parameters|time|total|training|tokens|loss|half|gate))",
    re.I,
)
UNSURE = re.compile(
    r"\bcannot (?:\w+ )?tell\b|\bunknown\b|\bopen\b|includes? zero|may be chance", re.I
)
INTERVAL = re.compile(r"([−+-]?\d+\.\d+) to ([−+-]?\d+\.\d+)")
ROLE = re.compile(r"\{(?:known|glue:text)\}`([^`]+)`")

LATE = "e2_training[steps=4800]: "
FIELD = ("unet", "state-gate", "review", "standard + constant")
VALUES = "e4_values[batch={},steps=4800]: standard + constant - standard{}"
LARGE = " + constant:lam=0.0,own=2.236067977"
MUON = [f"g2_muon: {arm} - {base}" for arm in ("unet", "standard + constant")
        for base in ("standard", "constant")]  # fmt: skip

# A part of a sentence, or a chapter and its glued number: the intervals that it rests on.
BEHIND = {
    # README.md
    "it has a lower loss than the plain network": [
        *(f"{name}: review - {base}" for base in ("standard", "constant") for name in (
            "02_gate_equation", "mini_arms", "e1_rates[rung=mini]", "f2_field",
            "e2_training[steps=300]", "e2_training[steps=1200]")),
    ],
    "So has a gate of equal size that reads only the stream": [
        *(f"{name}: state-gate - {base}" for base in ("standard", "constant") for name in (
            "mini_arms", "e1_rates[rung=mini]", "f2_field",
            "e2_training[steps=300]", "e2_training[steps=1200]")),
    ],
    "In twenty pairs Review's perplexity is": ["f1_pairs: review - constant"],
    "on five new seeds we cannot tell whether it helps": [
        "g4_skips: standard + constant - standard"],
    "After 4,800 steps three seeds cannot tell": [f"{LATE}review - constant"],
    "under Muon the network that halves is ahead": [
        "f4_muon: review - constant", "f4_muon: state-gate - constant",
        "g2_muon: state-gate - constant"],
    "there they have a lower loss than the standard residual and": MUON,
    "Review and `state-gate` have a higher loss than `constant` there": [
        "f4_muon: review - constant", "g2_muon: state-gate - constant"],
    # the landing page
    "the third, by itself, is worse than the plain sum": ["f2_field: gated-residual - standard"],
    "A learned gate beats always halving": ["f1_pairs: review - constant"],
    "under Muon, another optimiser, the network that halves is ahead of both gates": [
        "f4_muon: review - constant", "g2_muon: state-gate - constant"],
    # What we know
    "the Review gate beats a constant ½, and so does": [
        "f1_pairs: review - constant", "f1_pairs: state-gate - constant"],
    "Whether that lasts we cannot tell; under Muon constant ½ is ahead": [
        "f4_muon: review - constant", f"{LATE}review - constant"],
    "Twenty new seeds give a smaller lead": ["f1_pairs: review - constant"],
    "So on these seeds the lead shrinks from there on": [
        "review - constant, change along the run", f"{LATE}review - constant"],
    # Which rule
    "So the first values help there, by more than their size": [
        f"g2_muon: standard + constant - standard{x}" for x in ("", LARGE)],
    "each finished lower than both baselines": [
        f"f2_field: {arm} - {base}" for base in ("standard", "constant")
        for arm in ("unet", "state-gate", "rezero:init=paper")]
        + [f"g1_misfits: standard + constant - {base}" for base in ("standard", "constant")],
    # What failed
    "it is higher than constant ½, too": [f"f2_field: gated-residual - {base}"
                                          for base in ("standard", "constant")],
    # the chapters
    "02 lead": ["02_gate_equation: review - constant"],
    "04 field_below": [f"f2_field: {arm} - {base}" for arm in FIELD
                       for base in ("standard", "constant")],
    "04 norm_least": ["g5_norms: norm-place - standard"],
    "04 norm_most": ["g5_norms: norm-place:place=output - standard"],
    "04 reading_costs": ["f1_pairs: review - state-gate"],
    "05 lead_64": [VALUES.format(8, LARGE)],
    "05 plain_64": [VALUES.format(8, "")],
    "05 lead_256": [VALUES.format(2, LARGE)],
    "06 again_fables": ["1/N - 1/√N at eight passes, mean of the rates"],
    "06 again_tinystories": ["1/N - 1/√N at eight passes, TinyStories"],
    "06 low_8": ["eight passes - one pass"],
    "07 price_mean": ["07_depth_attention: attnres - attnres:neutral=1"],
    "from a constant ½ without the wider MLP Review finishes higher": [
        "review - unwidened constant, 4,800 steps"],
    "14 early_review": ["e2_training: review - constant, steps 601-1200"],
    "14 late_review_mean": ["review - constant, change along the run"],
}  # fmt: skip

ELSE = (
    # what a word means, what is asked, what was matched
    "which rival a new rule has to beat", "how one would know that it is better",
    "below zero the first is better", "below zero the rule is better", "*Unknown* means that",
    "planned to show that the two are equal", "were planned to show", "equally many parameters",
    "widened to equal parameters", "Does depth attention help", "Does the value residual help",
    "Does a looped net beat", "holds the parameters equal", "We did not compare at equal time",
    "*Run* is a whole run at equal size", "At equal size a run with Review takes",
    "or it is higher at a rate", "At equal training, ten times the size",
    "leads you from the rented machine",
    "`rr train --help` list", "has the lowest mean of all",
    "lead lost from our smaller to our larger network",
    "most report a lower loss",  # of others: the comparisons
    # a comparison with the bigram table, of which test_readme_results has every run
    "than a bigram table", "than a {term}`bigram table", "All networks are worse than",
    # one published column, of which chapter 11 has the tests
    "at 1B Review is worse calibrated",
    # runs of three rules that end on the plateau of the unigram loss: chapter 4 has them
    "DeepNorm is clearly worse", "its authors' start it finishes far lower",
    "finish far higher than with their authors' weights", "DeepNorm alone is told apart",
    # counted by seed or read off means, and the sentence says so
    "At every N there is a seed",
    "On the seed that chose the rates",
    "the interval of the change includes zero",
    # glued numbers of chapters that are no differences between trained networks
    "00 gap_percent", "01 floor", "01 recorded", "01 unigram", "04 standard_",
    "04 nano_", "04 mini_", "05 holm_", "05 missed_", "05 rank_", "05 ece_",
    "05 best_short", "05 all_seeds", "05 two_short", "05 half_short", "05 v5_", "05 sv_needs",
    "06 bigram", "06 lowest", "06 highest", "06 floor", "06 cost_", "06 hangs", "06 five_p",
    "06 low_", "06 agree_", "06 ece_", "06 chosen_", "06 was", "07 pub_", "07 half_left",
    "07 rate_",
    "11 gap_1b", "11 welch_", "11 paired_", "11 bartlett_", "12 widest", "13 in_", "14 cost",
    "14 sd_grows", "14 together", "14 grow_most", "15 sure", "15 n_near", "15 luck", "16 num_",
    "16 lead_",
    "17 save_", "01 bigram",
)  # fmt: skip


def sentences(text: str) -> Iterator[str]:
    """Sentences of Markdown, and the rows of its tables, each in one line."""
    text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.S)
    text = re.sub(r"^(`{3,})[^`\n]*\n.*?^\1\s*$", "", text, flags=re.S | re.M)
    for block in re.split(r"\n\s*\n|\n(?=[|\-*:#] ?)", text):
        block = " ".join(block.split())
        end = r"(?<=[.?!])(?:\*\*|[*)\"])?\s+(?=\S)"
        yield from [block] if block.startswith("|") else re.split(end, block)


@cache
def shown(name: str) -> str:
    """What the role `known` shows; of a mean or percent, the difference with its interval."""
    return number(name.removesuffix(", percent").removesuffix(", mean"))


def ends(text: str) -> tuple[float, float] | None:
    """The interval in a text."""
    match = INTERVAL.search(text)
    return match and tuple(float(end.replace("−", "-")) for end in match.groups())


def of_page(sentence: str) -> list[tuple[float, float]]:
    """The intervals that a page's sentence rests on."""
    names = ROLE.findall(sentence)
    names += [name for part, behind in BEHIND.items() if part in sentence for name in behind]
    return [found for name in names if (found := ends(shown(name)))]


def of_chapter(chapter: str, sentence: str, glued: dict[str, str]) -> list[tuple[float, float]]:
    """The same of a chapter's, whose numbers are glued. A bare one must have its place above."""
    found, pair = [], re.findall(r"`(\w+_lo)(?::[^`]*)?`[^`]*`(\w+_hi)", sentence)
    found += [(float(glued[low]), float(glued[high])) for low, high in pair]
    for key in {role.partition(":")[0] for role in ROLE.findall(sentence)} - {*sum(pair, ())}:
        name, own = f"{chapter} {key}", ends(glued[key])
        behind = BEHIND.get(name, [])
        if own is None and not behind and not pair:
            assert any(name.startswith(part) for part in ELSE), f"{name}: which interval is it?"
        found += [own] if own else [ends(shown(one)) for one in behind]
        for one in behind[:1] if own is None else ():  # it is that number, up to its sign
            bare = re.fullmatch(r"'?[−+-]?(\d+\.\d+)'?", glued[key])
            mean = float(re.search(r"\d+\.\d+", shown(one))[0])
            change = "change" in one or key.startswith("low_")
            assert bare is None or change or float(bare[1]) == pytest.approx(mean, abs=6e-4), name
    return found


def judge(sentence: str, intervals: list[tuple[float, float]]) -> None:
    """Raise AssertionError where a word says more than the intervals."""
    told = " ".join(f"({low:+.4f} to {high:+.4f})" for low, high in intervals)
    zero = [low <= 0 <= high for low, high in intervals]
    plain = EQUAL.sub("", sentence)
    if UNSURE.search(sentence):
        assert any(zero), f"nothing here includes zero: {sentence} {told}"
        return
    if EQUAL.search(sentence):
        near = [-BOUND <= low and high <= BOUND for low, high in intervals]
        assert all(near), f"an interval is wider than ±{BOUND}: {sentence} {told}"
    elif DIRECTION.search(plain):
        assert not any(zero), f"an interval includes zero: {sentence} {told}"


def directed(sentence: str) -> bool:
    bare = re.sub(r"`[^`]*`|\]\([^)]*\)", "", ROLE.sub("", sentence))
    return bool(DIRECTION.search(bare) or EQUAL.search(bare))


@pytest.mark.parametrize("page", PAGES)
def test_a_page_says_no_more_than_its_intervals(page):
    found = 0
    for sentence in sentences((ROOT / page).read_text(encoding="utf-8")):
        if not directed(sentence) or any(part in sentence for part in ELSE):
            continue
        intervals = of_page(sentence)
        assert intervals, f"which interval is behind it? {sentence}"
        judge(sentence, intervals)
        found += 1
    assert bool(found) == (page not in OF_OTHERS)


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem[:2])
def test_a_chapter_says_no_more_than_its_intervals(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    glued = {}
    for output in (output for cell in cells for output in cell.get("outputs", ())):
        if name := output.get("metadata", {}).get("scrapbook", {}).get("name"):
            kinds = ("application/papermill.record/text/plain", "text/plain")
            glued[name] = next("".join(output["data"][k]) for k in kinds if k in output["data"])
    texts = ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    for sentence in (one for text in texts for one in sentences(text)):
        if ROLE.search(sentence) and directed(sentence):
            if not any(part in sentence for part in ELSE):
                judge(sentence, of_chapter(path.stem[:2], sentence, glued))


def test_what_is_listed_is_still_said():
    """An entry of the lists above that no text has any more is taken away."""
    texts = [(ROOT / page).read_text(encoding="utf-8") for page in PAGES]
    whole = " ".join(" ".join(texts).split())
    of_chapters = {path.stem[:2]: path.read_text(encoding="utf-8") for path in CHAPTERS}
    for part in (*BEHIND, *ELSE):
        chapter, _, key = part.partition(" ")
        if chapter in of_chapters:
            assert f"{{glue:text}}`{key}" in of_chapters[chapter], part
        else:
            book = " ".join(of_chapters.values())
            assert part in whole or part in book.replace('\\n",\n    "', " "), part


@pytest.mark.parametrize(
    ("sentence", "interval", "holds"),
    [
        ("Skips lead.", (-0.06, -0.05), True),
        ("Depth attention leads by little.", (-0.023, 0.003), False),
        ("In longer runs we find no lead.", (-0.078, 0.206), False),
        ("In longer runs there is no lead.", (-0.004, 0.006), True),
        ("In longer runs we cannot tell which is ahead.", (-0.078, 0.206), True),
        ("We cannot tell which is ahead.", (-0.06, -0.05), False),
    ],
)
def test_a_word_is_held_to_an_interval(sentence, interval, holds):
    if holds:
        judge(sentence, [interval])
    else:
        with pytest.raises(AssertionError):
            judge(sentence, [interval])
