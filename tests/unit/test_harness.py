"""`rr eval`: the harness's results are those counted from the model's own logits."""

import importlib.util
import json
import math

import pytest
import torch
from tiny import train

from rr.training.loading import load
from rrstudy import cli

SHAPE = "nano:d_model=32,n_head=2,n_layer=2,seq_len=32"
TASK = """task: {name}
dataset_path: json
dataset_kwargs:
  data_files: {data}
test_split: train
output_type: {kind}
doc_to_text: "{text}"
doc_to_target: {target}
{more}metric_list:
  - metric: {metric}
metadata:
  version: 1
"""
QUESTIONS = [
    {"question": "Ada sees", "choices": ["the sea", "bread for nights"], "answer": 0},
    {"question": "Then Ben", "choices": ["kite", "sleeps"], "answer": 1},
    {"question": "Dov", "choices": ["finds", "finds bread"], "answer": 0},
    {"question": "Then Ada sleeps for 7", "choices": ["nights", "sea", "kite"], "answer": 2},
]


@pytest.fixture(scope="module")
def trained(planned, tmp_path_factory):
    return train(planned(rung=SHAPE, steps=20, eval_batches=2), tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """Three tasks in files, one for each thing that the harness asks of a model."""
    folder = tmp_path_factory.mktemp("tasks")
    data = folder / "questions.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in QUESTIONS))
    words = {"data": data, "text": "{{question}}"}
    choice = TASK.format(name="own_choice", kind="multiple_choice", target="answer", metric="acc",
                         more="doc_to_choice: choices\n", **words)  # fmt: skip
    rolling = TASK.format(name="own_rolling", kind="loglikelihood_rolling",
                          metric="byte_perplexity", target='"{{question}} {{choices[0]}}. '
                          '{{question}} {{choices[0]}} and bread, the sea, a red kite and bread '
                          'again for 13 nights"',
                          more="", **{**words, "text": ""})  # fmt: skip
    greedy = TASK.format(name="own_text", kind="generate_until", metric="exact_match",
                         target='"{{choices[0]}}"', **words,
                         more='generation_kwargs: {until: ["."], max_gen_toks: 8}\n')  # fmt: skip
    for name, text in (("choice", choice), ("rolling", rolling), ("text", greedy)):
        (folder / f"{name}.yaml").write_text(text)
    return folder


def logp(model, ids: list[int], targets: list[int]) -> float:
    """The log-probability of the last tokens, by the model's own logits in one window."""
    said = model(torch.tensor([ids])).double().log_softmax(-1)[0]
    start = len(ids) - len(targets)
    return sum(said[start + i, target].item() for i, target in enumerate(targets))


def test_results_are_those_counted_from_the_models_own_logits(trained, tasks, capsys):
    pytest.importorskip("lm_eval", reason="pip install -e '.[eval]'")
    words = ["eval", str(trained), "--tasks", "own_choice", "own_rolling", "own_text",
             "--include", str(tasks), "--device", "cpu", "--batch", "3", "--json"]  # fmt: skip
    assert cli.main(words) == 0
    results = json.loads(capsys.readouterr().out.splitlines()[-1])
    model, _, vocabulary = load(trained, "cpu")
    right, total, size, exact = 0, 0.0, 0, 0
    for row in QUESTIONS:
        prompt = [vocabulary.eot, *vocabulary.encode(row["question"])]
        scores = []
        for option in row["choices"]:
            whole = [vocabulary.eot, *vocabulary.encode(f"{row['question']} {option}")]
            scores.append(logp(model, whole[:-1], whole[len(prompt) :]))
        right += scores.index(max(scores)) == row["answer"]
        text = f"{row['question']} {row['choices'][0]}"
        text = f"{text}. {text} and bread, the sea, a red kite and bread again for 13 nights"
        ids, past = vocabulary.encode(text), vocabulary.eot
        assert len(ids) > 32  # longer than the window, so that it is read in pieces
        total += logp(model, [past, *ids[:31]], ids[:32])
        total += logp(model, ids[-33:-1], ids[32:])
        size += len(text.encode())
        made = model.generate(torch.tensor([prompt]), 8, temperature=0, stop=vocabulary.eot)
        new = vocabulary.decode(i for i in made[0, len(prompt) :].tolist() if i != vocabulary.eot)
        exact += new.partition(".")[0] == row["choices"][0]
    assert results["own_choice"]["acc"] == pytest.approx(right / len(QUESTIONS))
    per_byte = math.log(results["own_rolling"]["byte_perplexity"])
    assert per_byte == pytest.approx(-total / size, rel=1e-4)
    assert results["own_text"]["exact_match"] == pytest.approx(exact / len(QUESTIONS))


def test_an_unknown_task_is_one_line(trained, tasks, capsys):
    pytest.importorskip("lm_eval", reason="pip install -e '.[eval]'")
    words = ["eval", str(trained), "--tasks", "own_choise", "--include", str(tasks)]
    assert cli.main(words) == 2
    error = capsys.readouterr().err
    assert "no task 'own_choise'" in error and "own_choice" in error.splitlines()[-1]


@pytest.mark.parametrize(("words", "told"), [
    (["--batch", "0"], "batch must be"), ([], "'.[eval]'"),
])  # fmt: skip
def test_bad_options_and_a_missing_harness_are_one_line(
    tmp_path, refuses, monkeypatch, words, told
):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert told in refuses("eval", tmp_path, "--tasks", "x", *words)
