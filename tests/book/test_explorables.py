"""Explorables in a real browser: their script against their Python, keyboard, phone, re-rendering.

The pages are made here from `rr.explore`; that the built book carries them is tested elsewhere.
"""

import csv
import itertools
import json

import pytest

from rr import DATA
from rr.explore import (
    audit_rows,
    audit_table,
    claim_map,
    depth_attention,
    depth_cliff,
    float_formats,
    gate_playground,
    held_back,
    loop_growth,
    lost_work,
    rule_field,
    size_or_training,
    step_roofline,
    stream_share,
    value_dilution,
    verdict_table,
    winners_luck,
)
from rr.explore.audit import PAPERS, VERDICTS, audit_sentence, audit_shown
from rr.explore.cliff import cliff_numbers, cliff_sentence, recorded_near
from rr.explore.emergence import toy_sentence
from rr.explore.evidence import (
    CORRECTIONS,
    TESTS,
    verdict_data,
    verdict_numbers,
    verdict_sentence,
)
from rr.explore.field import TOY, field_numbers, field_sentence
from rr.explore.floats import FORMATS, float_numbers, float_sentence
from rr.explore.gate import gate_numbers, gate_sentence
from rr.explore.kit import HERE, number, share
from rr.explore.looking import looking_numbers, looking_sentence
from rr.explore.loops import SCALES, loop_numbers, loop_sentence
from rr.explore.luck import luck_numbers, luck_sentence
from rr.explore.roofline import CARDS, FUSION, PATHS, RUNGS, step_data, step_numbers, step_sentence
from rr.explore.running import lost_numbers, lost_sentence
from rr.explore.stream import RULES, stream_numbers, stream_sentence
from rr.explore.strip import strip_data, strip_layout, strip_numbers, strip_sentence
from rr.explore.values import RULES as VALUE_RULES
from rr.explore.values import value_numbers, value_sentence

pytestmark = pytest.mark.browser

RECORDED = [
    {
        "rule": rule, "sublayers": n, "bias": bias, "seed": seed, "steps": [0, 50, 100],
        "loss": [7.0, 6.0, 3.0 + n / 100 + seed / 10 - bias],
    }
    for rule, bias in (("review", 0), ("review-convex", 0), ("review-convex", -3))
    for n in (4, 16, 32)
    for seed in range(2 if n == 4 else 1)
]  # fmt: skip

with (DATA / "published" / "review_residuals.csv").open() as file:
    PUBLISHED = [r | {"seed": int(r["seed"]), "val_loss": float(r["val_loss"])}
                 for r in csv.DictReader(file)]  # fmt: skip
LADDER = list({r["rung"]: [r["rung"], 1e6 * float(r["params_M"]), int(r["steps"])]
               for r in PUBLISHED if r["arm"] == "review"}.values())  # fmt: skip
STORY = json.loads((DATA / "measured" / "13_inside_the_gate" / "story.json").read_text())


@pytest.fixture
def show(browser):
    """show(*explorables, width=…) -> page; fails at the end if the page raised an error."""
    contexts, errors = [], []

    def make(*shown, width=800, **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: errors.append(f"asked for {request.url}"))
        body = "".join(one.html for one in shown)
        page.set_content(f"<!doctype html><meta charset=utf-8><body>{body}</body>")
        return page

    yield make
    for context in contexts:
        context.close()
    assert errors == []


def test_script_and_python_find_the_same_numbers_and_words(show):
    page = show()
    source = "\n".join(
        (HERE / name).read_text(encoding="utf-8")
        for name in ("kit.js", "stream.js", "gate.js", "cliff.js", "loops.js", "evidence.js",
                     "luck.js", "looking.js", "running.js",
                     "values.js", "floats.js", "roofline.js")
    )

    def ask(expression, arguments):
        """[expression of x for x in arguments], computed by the script."""
        return page.evaluate(f"""list => {{ {source}
            return list.map(x => {expression}); }}""", arguments)  # fmt: skip

    def same(found, expected, tiny=0.0):
        if isinstance(expected, dict):
            assert found.keys() == expected.keys()
            for key in expected:
                same(found[key], expected[key], tiny)
        elif isinstance(expected, str):
            assert found == expected
        else:
            assert found == pytest.approx(expected, rel=1e-11, abs=tiny)

    cases = [[n, rule] for n in (2, 3, 9, 32, 64) for rule in RULES]
    for found, x in zip(ask("streamNumbers(x[0], x[1])", cases), cases, strict=True):
        same(found, stream_numbers(*x))
    assert ask("streamSentence(x[0], x[1])", cases) == [stream_sentence(*x) for x in cases]

    cases = [
        {"angle": angle, "size": size, "rule": rule, "state": state, "update": 1.5, "bias": bias}
        for angle in (-180, -70, 0, 115)
        for size in (0, 0.7, 1.5)
        for rule in ("standard", "constant", "state", "review")
        for state, bias in ((0, 0), (2.5, -4))
    ]
    for found, x in zip(ask("gateNumbers(x)", cases), cases, strict=True):
        expected = {key: list(value) for key, value in gate_numbers(**x).items()}
        same(found, expected, tiny=1e-15)  # the sine of 180° is not quite 0
    assert ask("gateSentence(x)", cases) == [gate_sentence(**x) for x in cases]

    cases = [[n, bias] for n in (4, 10, 24, 33, 64) for bias in (0, -0.25, -1.5, -2, -4)]
    for found, x in zip(ask("cliffNumbers(x[0], x[1])", cases), cases, strict=True):
        same(found, cliff_numbers(*x))
    assert ask("cliffSentence(x[0], x[1])", cases) == [cliff_sentence(*x) for x in cases]
    with_runs = [[*x, RECORDED] for x in cases]
    near = ask("recordedNear(x[2], x[0], x[1])", with_runs)
    assert near == [json.loads(json.dumps(recorded_near(RECORDED, *x))) for x in cases]
    said = ask("cliffSentence(x[0], x[1], x[2])", with_runs)
    assert said == [cliff_sentence(*x, RECORDED) for x in cases]

    cases = [
        [blocks, passes, cosine, chosen]
        for blocks, passes in ((1, 1), (1, 64), (4, 16), (16, 3), (7, 31))
        for cosine in (0, 0.35, 1)
        for chosen in SCALES
    ]
    for found, x in zip(ask("loopNumbers(x[0], x[1], x[2], x[3])", cases), cases, strict=True):
        same(found, loop_numbers(*x))
    said = ask("loopSentence(x[0], x[1], x[2], x[3])", cases)
    assert said == [loop_sentence(*x) for x in cases]

    cases = [
        {"rule": rule, "lam": lam, "even": even, "blocks": blocks}
        for rule in VALUE_RULES
        for lam, even, blocks in ((0, 0, 2), (0.5, 1, 8), (2, 0.3, 16), (5, 1, 3))
    ]
    for found, x in zip(
        ask("valueNumbers(x.rule, x.lam, x.even, x.blocks)", cases), cases, strict=True
    ):
        same(found, value_numbers(**x), tiny=1e-15)
    assert ask("valueSentence(x)", cases) == [value_sentence(**x) for x in cases]

    data = verdict_data(PUBLISHED)
    cases = [
        {"test": test, "correction": correction, "alpha": 0.05, "baseline": base, **picked}
        for test in TESTS
        for correction in CORRECTIONS
        for base, picked in (
            ("both", dict.fromkeys(data, True)),
            ("standard", {rung: rung == "1B" for rung in data}),
            ("highway", dict.fromkeys(data, False)),
        )
    ]
    asked = [[data, values] for values in cases]
    for found, x in zip(ask("verdictNumbers(x[0], x[1])", asked), cases, strict=True):
        for mine, expected in zip(found, verdict_numbers(data, x), strict=True):
            same(mine, expected, tiny=1e-12)
    said = ask("verdictSentence(x[0], x[1])", asked)
    assert said == [verdict_sentence(data, x) for x in cases]

    keys = ("rules", "seeds", "sd", "lead")
    cases = [(n, k, sd, lead) for n in (2, 30) for k in (2, 20) for sd in (0.005, 0.05)
             for lead in (0, 0.035, 0.1)]  # fmt: skip
    asked = [dict(zip(keys, x, strict=True)) for x in cases]
    for found, x in zip(ask("luckNumbers(x)", asked), cases, strict=True):
        same(found, luck_numbers(*x))
    assert ask("luckSentence(x)", asked) == [luck_sentence(*x) for x in cases]

    asked = [{"power": power, "format": name, "terms": terms}
             for name in FORMATS for power in (-8.5, 0.4, 4.5) for terms in (4, 9)]
    for found, x in zip(ask("floatNumbers(x)", asked), asked, strict=True):
        same(found, float_numbers(**x), tiny=1e-300)
    assert ask("floatSentence(x)", asked) == [float_sentence(**x) for x in asked]

    counts, keys = step_data(), ("rung", "path", "card", "share", "fusion")
    cases = [dict(zip(keys, x, strict=True))
             for x in itertools.product(RUNGS, PATHS, CARDS, (10, 60, 100), FUSION)]  # fmt: skip
    asked = [[counts, x] for x in cases]
    for found, x in zip(ask("stepNumbers(x[0], x[1])", asked), cases, strict=True):
        expected = step_numbers(counts, **x)
        assert (found is None) == (expected is None)
        if found is not None:
            same(found, expected)
    assert ask("stepSentence(x[0], x[1])", asked) == [step_sentence(counts, **x) for x in cases]

    keys = ("price", "between", "save", "every", "back")
    cases = [(price, m, c, t, r) for price in (0.1, 2.5) for m in (0.5, 8, 48) for c in (1, 120)
             for t in (1, 30, 120) for r in (0, 60)]  # fmt: skip
    asked = [dict(zip(keys, x, strict=True)) for x in cases]
    for found, x in zip(ask("lostNumbers(x)", asked), cases, strict=True):
        same(found, lost_numbers(*x))
    assert ask("lostSentence(x)", asked) == [lost_sentence(*x) for x in cases]

    cases = [[n, size, tilt, seeded] for n in (4, 24) for size in ("1", "4", "all")
             for tilt in (0, 3.5, -6) for seeded in (False, True)]  # fmt: skip
    for found, x in zip(ask("lookingNumbers(x[0], x[1], x[2], x[3])", cases), cases, strict=True):
        for key, expected in looking_numbers(*x).items():
            for mine, other in zip(found[key], expected, strict=True):
                same(mine, other)
    said = ask("lookingSentence(x[0], x[1], x[2], x[3])", cases)
    assert said == [looking_sentence(*x) for x in cases]

    values = [
        0,
        1,
        -3,
        0.5,
        1 / 3,
        0.03125,
        12.345,
        999.6,
        1000,
        9.96e-10,
        2**-64,
        0.00098,
        -2.5e-7,
    ]
    assert ask("number(x)", values) == [number(x) for x in values]
    assert ask("share(x)", [1 / 33, 1e-4, 9e-5]) == [share(x) for x in (1 / 33, 1e-4, 9e-5)]


def test_the_toy_stream_of_the_script_is_rrs_own_rules(show):
    page = show()
    source = "\n".join((HERE / name).read_text(encoding="utf-8") for name in ("kit.js", "field.js"))
    cases = [
        {"rule": rule, "sublayers": n, "start": start, "bias": bias}
        for rule in TOY
        for n, start, bias in ((4, "unit", 0.5), (20, "own", -2.0))
    ]
    ask = f"list => {{ {source}\n return list.map(x => [fieldNumbers(x), fieldSentence(x)]); }}"
    for (found, said), case in zip(page.evaluate(ask, cases), cases, strict=True):
        for key, values in field_numbers(**case).items():
            assert found[key] == pytest.approx(values, rel=1e-9, abs=1e-300), (case, key)
        assert said == field_sentence(**case)


def test_strip_script_and_python_agree(show):
    page, data = show(), strip_data(STORY)
    source = "\n".join((HERE / name).read_text(encoding="utf-8") for name in ("kit.js", "strip.js"))
    cases = [[data, s, below, 300] for s in (1, 4, 8) for below in ("saved", "loss")]
    ask = f"""list => {{ {source}\n return list.map(x => [stripNumbers(x[0], x[1], x[2]),
        stripSentence(x[0], x[1], x[2]), stripLayout(x[0].words, x[3])]); }}"""
    for (found, said, places), x in zip(page.evaluate(ask, cases), cases, strict=True):
        assert found == pytest.approx(strip_numbers(*x[:3]))
        assert said == strip_sentence(*x[:3])
        assert places == [pytest.approx(list(p)) for p in strip_layout(data["words"], x[3])]


STEP = {"rung": "320M", "path": "reference", "card": "H100", "fusion": "none"}
STARTS = {
    "held-back": (
        held_back(STORY, 2), strip_sentence(strip_data(STORY), 2, "saved"),
        strip_sentence(strip_data(STORY), 3, "saved"),
    ),
    "stream-share": (stream_share(), stream_sentence(16, "sum"), stream_sentence(17, "sum")),
    "gate-playground": (gate_playground(), None, None),
    "depth-cliff": (
        depth_cliff(RECORDED), cliff_sentence(32, 0, RECORDED), cliff_sentence(34, 0, RECORDED),
    ),
    "verdict-table": (verdict_table(PUBLISHED), None, None),
    "depth-attention": (
        depth_attention(), looking_sentence(8, "2", 0, False),
        looking_sentence(8, "2", 0.5, False),
    ),
    "loop-growth": (
        loop_growth(), loop_sentence(4, 16, 0.8, "passes"), loop_sentence(4, 17, 0.8, "passes"),
    ),
    "rule-field": (
        rule_field(), field_sentence("review-convex", 32), field_sentence("review-convex", 36),
    ),
    "value-dilution": (
        value_dilution(), value_sentence(rule="constant", lam=2, even=1, blocks=8),
        value_sentence(rule="constant", lam=2.5, even=1, blocks=8),
    ),
    "float-formats": (
        float_formats(), float_sentence(0.4, "bf16", 10), float_sentence(0.5, "bf16", 10),
    ),
    "lost-work": (
        lost_work(), lost_sentence(2.5, 8, 10, 30, 5), lost_sentence(2.5, 8, 10, 31, 5),
    ),
    "size-or-training": (
        size_or_training(PUBLISHED), toy_sentence(LADDER, 1.1, 0.0, 0.3, "steps", "ratio"),
        toy_sentence(LADDER, 1.11, 0.0, 0.3, "steps", "ratio"),
    ),
    "step-roofline": (
        step_roofline(), step_sentence(step_data(), share=60, **STEP),
        step_sentence(step_data(), share=65, **STEP),
    ),
    "winners-luck": (
        winners_luck(), luck_sentence(30, 3, 0.02, 0.01), luck_sentence(31, 3, 0.02, 0.01),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STARTS)
def test_arrow_key_changes_picture_and_words(show, name):
    made, before, after = STARTS[name]
    page = show(made)
    picture, said = page.locator("svg.rr-picture"), page.locator(".rr-said")
    drawn, words = picture.inner_html(), said.inner_text()
    assert before is None or words == before
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.type") == "range"
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"  # the focus can be seen
    page.keyboard.press("ArrowRight")
    assert picture.inner_html() != drawn and said.inner_text() != words
    assert after is None or said.inner_text() == after
    page.keyboard.press("ArrowLeft")
    assert picture.inner_html() == drawn and said.inner_text() == words


def test_every_control_reached_by_tab_changes_the_words(show):
    for made, *_ in STARTS.values():
        page = show(made)
        inputs = page.locator("form input:not([type=radio]), form select")
        for i in range(inputs.count()):
            words = page.locator(".rr-said").inner_text()
            inputs.nth(i).focus()
            lowest = inputs.nth(i).input_value() == "0"
            ticked = inputs.nth(i).get_attribute("type") == "checkbox"
            page.keyboard.press("Space" if ticked else "ArrowLeft" if lowest else "ArrowDown")
            assert page.locator(".rr-said").inner_text() != words, (made, i)


def test_gate_rules_by_keyboard_disable_what_they_do_not_read(show):
    page = show(gate_playground())
    page.locator("input[type=radio]:checked").focus()
    disabled = {}
    for _ in range(4):
        page.keyboard.press("ArrowRight")
        chosen = page.locator("input[type=radio]:checked").input_value()
        disabled[chosen] = page.locator("input:disabled").evaluate_all("e => e.map(x => x.name)")
    assert disabled == {
        "standard": ["state", "update", "bias"], "constant": ["state", "update", "bias"],
        "state": ["update"], "review": [],
    }  # fmt: skip


def test_two_copies_on_one_page_live_apart(show):
    page = show(gate_playground(), stream_share(), gate_playground())
    said = page.locator(".rr-said")
    before = said.all_inner_texts()
    page.locator("figure").nth(2).locator("input[value=standard]").check()
    page.locator("figure").nth(1).locator("select").select_option("convex")
    after = said.all_inner_texts()
    assert after[0] == before[0] and after[1] != before[1] and after[2] != before[2]
    assert page.locator("figure").nth(0).locator("input[value=review]").is_checked()


def test_drawn_again_into_a_page_that_is_already_loaded(show):
    """As JupyterLab does: set innerHTML, then replace each script by a copy, which runs."""
    page = show(stream_share())
    page.evaluate(
        """html => { for (let i = 0; i < 2; i++) {
            const host = document.createElement("div");
            host.innerHTML = html;
            for (const old of host.querySelectorAll("script")) {
                const copy = document.createElement("script");
                copy.textContent = old.textContent;
                old.replaceWith(copy);
            }
            document.body.appendChild(host);
        } }""",
        stream_share().html,
    )
    assert page.locator("svg.rr-picture path").count() > 3
    said = page.locator(".rr-said").all_inner_texts()
    assert said == [stream_sentence(16, "sum")] * 3
    page.locator("input[type=range]").nth(1).press("ArrowRight")
    assert page.locator(".rr-said").nth(1).inner_text() == stream_sentence(17, "sum")
    assert page.locator(".rr-said").nth(2).inner_text() == stream_sentence(16, "sum")


@pytest.mark.parametrize("width", [360, 390, 1000])
def test_nothing_sticks_out(show, width):
    page = show(*(made for made, *_ in STARTS.values()), width=width)
    for rule in ("sum", "half", "convex"):
        page.locator("[data-explorable=stream-share] select").select_option(rule)
        page.locator("input[name=sublayers]").first.fill("64")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        outside = page.locator("figure").evaluate_all(
            """figures => figures.flatMap(f => { const box = f.getBoundingClientRect();
                return [...f.querySelectorAll("svg text")].filter(t => {
                    const b = t.getBoundingClientRect();
                    return b.left < box.left - 1 || b.right > box.right + 1; })
                .map(t => t.textContent); })"""
        )
        assert outside == []
    small = page.locator("svg text").evaluate_all(
        "list => Math.min(...list.map(t => t.getBoundingClientRect().height))"
    )
    assert small >= 12  # pixels of line height: letters stay readable on a phone


@pytest.mark.parametrize("name", STARTS)
def test_without_scripts_the_static_picture_shows(show, name):
    page = show(STARTS[name][0], java_script_enabled=False)
    assert page.locator("noscript svg").is_visible() and not page.locator("form").is_visible()
    assert page.locator("noscript p").is_visible()


def test_dark_theme_changes_the_colours(show):
    page = show(stream_share())
    card = "getComputedStyle(document.querySelector('figure')).backgroundColor"
    light = page.evaluate(card)
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    dark = page.evaluate(card)
    assert light == "rgb(255, 255, 255)" and dark != light


def claims():
    """Judged claims, a verdict of each kind by turns."""
    with (DATA / "published" / "claims.csv").open() as file:
        read = list(csv.DictReader(file))
    kinds = ([True] * 9, [True, False, None] * 3, [False] * 9, [None] * 9)
    parts = [claim["parts"].split(" | ") for claim in read]
    return audit_rows(read, {
        claim["id"]: ("shown", kinds[place % 4][: len(parts[place])])
        for place, claim in enumerate(read)
    })  # fmt: skip


@pytest.mark.parametrize("table_first", [False, True])
def test_the_table_of_claims_follows_the_choice_by_keyboard(show, table_first):
    rows = claims()
    made = [claim_map(rows), audit_table(rows)]
    page = show(*(made[::-1] if table_first else made))
    line, values = page.locator("tr[data-claim]:visible"), {}

    def follows():
        ids = line.evaluate_all("rows => rows.map(row => row.dataset.claim)")
        assert ids == audit_shown(rows, values)
        assert page.locator(".rr-said").inner_text() == audit_sentence(rows, values)
        assert page.locator("svg.rr-picture text.b").count() == len(ids)

    for name, options in (("paper", ["all", *PAPERS]), ("verdict", ["all", *VERDICTS]),
                          ("order", ["paper", "verdict"])):  # fmt: skip
        values[name] = options[0]
        page.locator(f"select[name={name}]").focus()
        for option in options[1:]:
            page.keyboard.press("ArrowDown")
            values = {"paper": "all", "verdict": "all", "order": "paper"} | values
            values[name] = option
            follows()
    # from the last paper and verdict back to everything, now by verdict
    for name, options in (("paper", PAPERS), ("verdict", VERDICTS)):
        page.locator(f"select[name={name}]").focus()
        for _ in options:
            page.keyboard.press("ArrowUp")
        values[name] = "all"
        follows()
    assert line.count() == len(rows)


@pytest.mark.parametrize("width", [360, 1000])
def test_the_table_of_claims_fits_and_stands_without_scripts(show, width):
    rows = claims()
    page = show(claim_map(rows), audit_table(rows), width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    inside = page.locator("svg.rr-picture").evaluate(
        """svg => { const box = svg.getBoundingClientRect(), rows = {};
            for (const t of svg.querySelectorAll("text")) {
                const b = t.getBoundingClientRect();
                if (b.left < box.left - 1 || b.right > box.right + 1) return "outside";
                (rows[t.getAttribute("y")] ||= []).push(b);
            }
            return Object.values(rows).every(list => list.sort((a, b) => a.left - b.left)
                .every((b, i) => !i || list[i - 1].right < b.left)); }"""
    )
    assert inside is True  # no word lies on another
    still = show(claim_map(rows), audit_table(rows), width=width, java_script_enabled=False)
    assert still.locator("tr[data-claim]:visible").count() == len(rows)
    assert still.locator("noscript svg").is_visible() and not still.locator("form").is_visible()
