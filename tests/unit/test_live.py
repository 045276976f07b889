"""The live network's arithmetic, in a JavaScript engine, beside `rr`: tokens, logits, streams."""

import json

import numpy as np
import pytest
import torch
from tiny import train

import rr
from rr.data.batches import gather
from rr.errors import RRError
from rrbook import net as nets
from rrstudy import stats
from tests.live import computed, settings, vocabulary_of

TEXTS = (
    "Ada sees a red kite. Then Ada sleeps for 3 nights.",
    "  two blanks,\n\na line\tand it's we'll I'VE\u00a0\u2003x  ",
    "na\u00efve \u2014 \u201c\u65e5\u672c\u8a9e\u201d \U0001f600 \u0661\u0662 x\u0301 _a1",
    " \ufeff\u0085. \u180e x",  # what JavaScript's own \s and Unicode's blanks disagree about
    "one<|endoftext|>two",
    "",
)
FORWARD = """((net, ids, gates) => {
    const made = netForward(openNet(net), ids, gates);
    const last = step => ["h", "u", "next", "r"].map(name => Array.from(step.at(-1)[name]));
    return {logits: Array.from(made.logits), steps: made.steps.map(last)}; })"""


@pytest.fixture
def net(planned, tmp_path):
    """The file of a run of a few steps at a high rate, so that its gates have moved."""

    def make(rule="review", **changes):
        run = planned(rule=rule, lr=0.03, **changes)
        return nets.net_of(train(run, tmp_path / "runs"))

    return make


@pytest.mark.parametrize("rule", ["review", "constant:c=0.3", "standard"])
def test_the_pages_arithmetic_is_rrs_at_every_setting(net, script, tmp_path, rule):
    made = net(rule)
    vocabulary = vocabulary_of(made, tmp_path / "vocabulary")
    encode = "((net, text) => encodeText(openNet(net), text))"
    tokens = script("net", encode, *([made, text] for text in TEXTS))
    assert tokens == [vocabulary.encode(text) for text in TEXTS]
    ids, gates = [made["eot"], *tokens[0][:15]], settings(4)
    pages = script("net", FORWARD, *([made, ids, setting] for setting in gates))
    for setting, page in zip(gates, pages, strict=True):
        logits, seen = computed(made, ids, setting)
        assert page["logits"] == pytest.approx(logits, abs=1e-4)
        for (h, u, after), step, value in zip(seen, page["steps"], setting, strict=True):
            for theirs, ours in zip(step, (h, u, after), strict=False):
                assert theirs == pytest.approx(ours, abs=1e-5)
            expected = np.array(h) + np.array(step[3]) * u
            assert expected == pytest.approx(np.array(after), abs=1e-5)
            assert value is None or set(step[3]) == {value}
    if rule == "review":  # gates that stand at one half would be no test
        assert np.ptp([r for step in page["steps"] for r in step[3]]) > 0.02


def test_the_file_holds_the_run_and_rounds_its_weights_to_sixteen_bits(net, tmp_path):
    made = json.loads(json.dumps(net("review")))
    [folder] = (tmp_path / "runs").iterdir()
    model, run, _ = rr.load(folder)
    again = nets.model_of(made)
    assert made["run"] == run.id and len(made["tokens"]) == 300
    for (name, p), q in zip(again.named_parameters(), model.parameters(), strict=True):
        assert p.detach().numpy() == pytest.approx(
            q[: len(p)].detach().numpy(), rel=1e-3, abs=1e-7
        ), name


def test_the_books_net_is_that_of_its_record():
    place = rr.DATA / "measured" / "live_net"
    made = json.loads((place / "net.json").read_text(encoding="utf-8"))
    [record] = stats.as_rows(stats.read_results(place))
    assert (made["run"], made["rule"]) == (record["id"], record["rule"])
    tokens = rr.open_corpus(record["corpus"], record["tokenizer"], log=lambda line: None)
    x, y = gather(tokens.valid, np.arange(0, 64 * 128, 128), 128)
    with torch.no_grad():
        loss = nets.model_of(made)(x, y).item()
    # 64 of 2,000 windows: a net of other weights would be nats away
    assert loss == pytest.approx(record["val_loss"], abs=0.05)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"rule": "review:rank=4"}, "computes standard, constant, review only"),
        ({"rule": "highway"}, "computes standard, constant, review only"),
        ({"flavour": "llama"}, "flavour gpt2"),
        ({"loops": 2}, "one pass only"),
    ],
)
def test_what_the_page_cannot_compute_is_refused_in_one_line(net, changes, why):
    with pytest.raises(RRError, match=why):
        net(**changes)
