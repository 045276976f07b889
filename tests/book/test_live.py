"""The live network in a real browser: its logits are those of `rr` at every setting."""

import json
import re

import pytest

from rrbook.explore import live_network
from tests.explorables import NET
from tests.live import SENTENCES, STOPS, computed, vocabulary_of

pytestmark = pytest.mark.browser
# Sets the controls as a reader does, and says what the page has computed.
SET = """([values, scope]) => { const form = document.querySelector("form");
    for (const [name, value] of Object.entries(values)) form.elements[name].value = value;
    document.querySelector(`input[value=${scope}]`).checked = true;
    form.dispatchEvent(new Event("input"));
    return [form.ids, form.logits, document.querySelector(".rr-said").textContent]; }"""


@pytest.fixture(scope="module")
def page(browser):
    """The figure in a page of its own, from a file: nothing is asked for, nothing goes wrong."""
    page, errors = browser.new_page(viewport={"width": 390, "height": 844}), []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: errors.append(f"asked for {request.url}"))
    page.set_content(f"<!doctype html><meta charset=utf-8><body>{live_network(NET).html}</body>")
    yield page
    page.close()
    assert errors == []


@pytest.mark.parametrize("sentence", SENTENCES)
def test_the_pages_logits_are_rrs_at_every_setting(page, tmp_path, sentence):
    vocabulary, n = vocabulary_of(NET, tmp_path / "vocabulary"), 2 * NET["shape"]["n_layer"]
    places = [*range(n), "all"]
    said = set()
    for place in places:
        for gate, value in STOPS.items():
            scope, at = ("all", 1) if place == "all" else ("one", place + 1)
            set_to = {"sentence": sentence, "place": at, "gate": gate}
            ids, logits, words = page.evaluate(SET, [set_to, scope])
            assert ids == [vocabulary.eot, *vocabulary.encode(sentence)]
            gates = [value if place in (s, "all") else None for s in range(n)]
            assert logits == pytest.approx(computed(NET, ids, gates)[0], abs=1e-4), (place, value)
            said.add(words)
    assert len(said) > 3 * n  # closed, half and open differ at every sublayer


def test_the_page_says_what_rr_says_of_the_next_piece_and_the_chosen_channels(page, tmp_path):
    import torch

    vocabulary = vocabulary_of(NET, tmp_path / "vocabulary")
    settings = {"sentence": SENTENCES[0], "place": 6, "gate": "learned", "word": 0, "channel": 9}
    ids, _, words = page.evaluate(SET, [settings, "all"])
    logits, seen = computed(NET, ids, [None] * 2 * NET["shape"]["n_layer"])
    chance, best = torch.tensor(logits).softmax(-1).max(-1)
    piece = vocabulary.decode([int(best)]).replace(" ", "␣")
    assert f"would go on with “{piece}” ({100 * chance:.2f}\u00a0%)" in words
    assert page.locator(".rr-picks button").first.inner_text() == f"+ “{piece}”"
    rows = page.locator("table.rr-numbers tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.cells].map(cell => cell.textContent.replace('−', '-')))"
    )
    shown = [[float(cell) for cell in row] for row in rows]
    h, u, after = seen[5]
    for k, (channel, *row) in enumerate(shown):
        i = 8 + k
        assert channel == i + 1
        assert row == pytest.approx([h[i], u[i], (after[i] - h[i]) / u[i], after[i]], abs=0.006)


def test_a_picked_piece_goes_on_with_the_sentence_by_keyboard(page):
    page.evaluate(SET, [{"sentence": SENTENCES[0], "gate": "learned", "word": 0}, "all"])
    first = page.locator(".rr-picks button").first
    longer, before = first.get_attribute("value"), page.locator(".rr-said").inner_text()
    assert longer.startswith(SENTENCES[0]) and len(longer) > len(SENTENCES[0])
    first.focus()
    page.keyboard.press("Enter")
    assert page.locator("input[name=sentence]").input_value() == longer
    assert page.locator(".rr-said").inner_text() != before
    assert first.evaluate("b => b === document.activeElement")
    page.locator("input[name=gate]:checked").focus()
    page.keyboard.press("ArrowLeft")
    assert page.locator("input[name=gate]:checked").get_attribute("value") == "closed"
    assert page.locator(".rr-said").inner_text().startswith("With all gates closed ")


def test_the_pieces_run_from_left_to_right_and_are_named(page):
    ids, _, _ = page.evaluate(
        SET, [{"sentence": "Once a fox", "gate": "learned", "word": 0}, "all"]
    )
    slider, said = page.locator("input[name=word]"), page.locator(".rr-said")
    slider.focus()
    seen = [slider.get_attribute("aria-valuetext")]
    for _ in ids[1:]:
        page.keyboard.press("ArrowLeft")
        seen.insert(0, slider.get_attribute("aria-valuetext"))
        assert f"At {seen[0]}, in sublayer" in said.inner_text()
    assert seen == ["the start", "“Once”", "“␣a”", "“␣fox”"]


def test_the_bars_of_all_settings_have_one_scale_and_small_chances_are_said_alike(page):
    """A length in the picture per chance is the same at every setting: that of 0 to 100 %."""
    ratios, texts = [], []
    for gate in STOPS:
        page.evaluate(SET, [{"sentence": SENTENCES[0], "gate": gate}, "all"])
        bars = page.locator("svg.rr-picture rect").evaluate_all(
            "rects => rects.slice(0, 12).map(x => x.width.baseVal.value)"
        )
        words = page.locator("svg.rr-picture text.halo").all_text_contents()
        texts += words
        ratios += [
            length / float(text.split("\u00a0")[0])
            for length, text in zip(bars[::2], words, strict=True)
            if float(text.replace("< ", "").split("\u00a0")[0]) > 10
        ]
    assert len(ratios) > 4 and max(ratios) < 1.02 * min(ratios)
    assert all(re.fullmatch("(< 0\\.01|\\d+\\.\\d\\d)\u00a0%", text) for text in texts)
    assert any(text.startswith("<") for text in texts)


def test_a_sample_takes_the_place_of_the_sentence(page):
    sample = page.locator(".rr-samples button").last
    sample.click()
    text = page.locator("input[name=sentence]").input_value()
    assert sample.inner_text() == f"{text} …"


def test_a_long_text_is_read_from_its_end(page):
    ids, _, words = page.evaluate(SET, [{"sentence": "the sea " * 99, "gate": "learned"}, "all"])
    assert len(ids) == NET["shape"]["seq_len"] and ids[0] == NET["eot"] != ids[1]
    assert f"reads the last {len(ids) - 1} pieces alone" in words


def test_a_readers_own_net_is_loaded_and_another_file_is_refused(page, tmp_path):
    shape = NET["shape"] | {"n_layer": NET["shape"]["n_layer"] - 1}
    last = f"layers.{shape['n_layer']}."
    import base64
    import math

    data, kept, tensors, at = base64.b64decode(NET["weights"]), b"", [], 0
    for name, dims in NET["tensors"]:
        size = 2 * math.prod(dims)
        if not name.startswith(last):
            tensors.append([name, dims])
            kept += data[at : at + size]
        at += size
    mine = NET | {"shape": shape, "tensors": tensors, "weights": base64.b64encode(kept).decode()}
    path, other = tmp_path / "mine.json", tmp_path / "other.json"
    path.write_text(json.dumps(mine))
    chosen, said = page.locator("input[type=file]"), page.locator(".rr-said")
    for wrong in ('{"a": 1}', json.dumps(mine | {"tensors": tensors[1:]}), "no JSON"):
        chosen.set_input_files([])
        page.evaluate("document.querySelector('form').error = ''")
        other.write_text(wrong)
        chosen.set_input_files(other)
        page.wait_for_function("document.querySelector('form').error")
        said.get_by_text("other.json is no net of rrbook.net").wait_for()
    chosen.set_input_files(path)
    page.wait_for_function("n => document.querySelectorAll('[name=place] option').length === n",
                           arg=2 * shape["n_layer"])  # fmt: skip
    assert "no net" not in said.inner_text()
    ids, logits, _ = page.evaluate(SET, [{"sentence": SENTENCES[0], "gate": "learned"}, "all"])
    assert logits == pytest.approx(computed(mine, ids, [None] * 2 * shape["n_layer"])[0], abs=1e-4)
