"""`rr verify`: a record run again, what its verdict rests on, and what it refuses to run."""

import json
import math
import subprocess
import sys
from pathlib import Path

import new_rule
import pytest
import torch

import rr
from rr.errors import Interrupted, RRError, RunFailed
from rr.io import read_sealed, write_record
from rrstudy import cli, verify
from rrstudy.stats import read_record, recording
from rrstudy.verify import Verdict, find, repeatable

BODY = "nano:n_layer=1,d_model=16,n_head=1,seq_len=16"


@pytest.fixture(scope="module")
def made(tiny_corpus, tmp_path_factory):
    """(cache, a campaign's folder with two records) of runs that were trained here."""
    out, cache = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("cache")
    threads = torch.get_num_threads()
    given = {"corpus": tiny_corpus, "tokenizer": "bpe:300", "batch": 2, "eval_batches": 2}
    for rule, steps, budgets in (("review", 8, None), ("constant", None, [4, 8])):
        run = rr.plan(BODY, rule, **given, steps=steps, budgets=budgets)
        rr.train(run, out, rr.Request(threads=1), cache=cache, log=print)
    to = tmp_path_factory.mktemp("measured") / "tiny"
    recording.import_runs([out], to)
    yield cache, to
    torch.set_num_threads(threads)


def record_of(campaign, rule):
    return next(
        one for one in recording.read_table(campaign) if one.object("result.json")["rule"] == rule
    )


def changed(campaign, to, name, change, rule="review"):
    (home,) = recording.export(campaign, to, [record_of(campaign, rule).place.name])
    stated = read_sealed(home / name)
    change(stated)
    write_record(home / name, stated)
    return read_record(home)


@pytest.mark.parametrize("rule", ["review", "constant"])
def test_a_record_of_this_machine_gives_the_same_bits(made, tiny_corpus, rule):
    cache, campaign = made
    got = verify.verify(record_of(campaign, rule), corpus=tiny_corpus, cache=cache, log=print)
    assert got.same_bits and got.agrees and got.differ == {}
    assert got.repeated == got.recorded and not any(gap for _, gap in got.gaps)
    assert len(got.gaps) == {"review": 8, "constant": 9}[rule]  # step 4 on a branch, too


def test_the_first_steps_have_the_schedule_of_all(made, tiny_corpus):
    cache, campaign = made
    record = record_of(campaign, "review")
    got = verify.verify(record, corpus=tiny_corpus, steps=5, cache=cache, log=print)
    assert [step for step, _ in got.gaps] == [1, 2, 3, 4, 5]
    assert got.agrees and not any(gap for _, gap in got.gaps)
    assert got.same_bits is None and got.repeated is None
    for rule, steps, words in (("constant", 5, "decay branches"), ("review", 0, "steps must be")):
        with pytest.raises(RRError, match=words):
            record = record_of(campaign, rule)
            verify.verify(record, corpus=tiny_corpus, steps=steps, cache=cache)


@pytest.mark.parametrize("begun", [False, True])
def test_a_stop_before_the_first_line_is_a_stop(begun, made, tiny_corpus, monkeypatch):
    def stopped(run, out, *given, **options):
        folder = Path(out) / run.id
        folder.mkdir()
        if begun:
            (folder / "metrics.jsonl").touch()
        raise Interrupted("stopped")

    monkeypatch.setattr(verify, "train", stopped)
    with pytest.raises(Interrupted, match="before the steps that were asked for"):
        verify.verify(record_of(made[1], "review"), corpus=tiny_corpus, steps=5)


@pytest.mark.parametrize(("by", "code", "word"), [(0.001, 0, ": agrees"), (0.2, 3, "disagrees")])
def test_other_weights_are_judged_by_their_loss(
    by, code, word, made, tiny_corpus, tmp_path, capsys, monkeypatch
):
    def other_weights(result):
        result["weights_sha256"] = "0" * 64
        result["val_loss"] += by

    cache, campaign = made
    monkeypatch.setenv("RR_CACHE", str(cache))
    record = changed(campaign, tmp_path, "result.json", other_weights)
    assert cli.main(["verify", str(record.place), "--corpus", tiny_corpus]) == code
    lines = capsys.readouterr().out.splitlines()
    assert word in lines[-1] and f"{-by:+.2g}" in "".join(lines)


@pytest.mark.parametrize(
    ("parts", "gap", "agrees"),
    [
        (1e-6, 0.02, True),  # an unstable run, which amplified what was rounding
        (1e-6, 0.06, False),  # as much as other batches would
        (1e-3, 0.02, False),  # no rounding, from the first difference on
        (1e-3, 0.009, True),
    ],
)
def test_a_run_that_amplifies_rounding_still_agrees(parts, gap, agrees):
    gaps = [(1, 0.0), (5, -parts), (9, 0.1)]
    got = Verdict("x", 9, gaps, 4.0, 4.0 - gap, False, True, {})
    assert got.agrees == agrees
    assert f"at most {0.05 if parts < 1e-4 else 0.01}" in str(got)


def test_a_divergence_on_one_side_disagrees():
    gaps = [(1, 0.0), (2, math.inf)]
    assert not Verdict("x", 2, gaps, 3.0, None, False, False, {}).agrees
    assert Verdict("x", 2, [(1, 0.0)], None, None, False, True, {}).agrees  # both, alike
    assert not Verdict("x", 2, gaps, None, None, False, True, {}).agrees  # at other steps


# -- what is refused -------------------------------------------------------------------------------


def test_another_text_or_tokenizer_is_refused(made, tiny_corpus, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("another text\n<|endoftext|>\n" * 300)
    for corpus in (None, "fables", f"file:{other}"):
        with pytest.raises(RRError, match=r"was trained with corpus .*give --corpus"):
            repeatable(record_of(made[1], "review"), corpus)
    with pytest.raises(RRError, match=r"was trained with tokenizer bpe:300 .*give --tokenizer"):
        repeatable(record_of(made[1], "review"), tiny_corpus, "bpe:301")


def test_an_unknown_rule_is_refused_and_a_file_is_not_run(made, tiny_corpus, tmp_path):
    bait = tmp_path / "bait.py"
    bait.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Rule: pass\n")
    for rule in ("nonesuch", f"{bait}:Rule"):

        def foreign(stated, rule=rule):
            stated["run"]["rule"] = stated["run"]["model"]["rule"] = rule
            stated["run"]["rule_content"] = "0" * 64
            stated["id"] = rr.Run.from_spec(stated["run"], stated["source"]).id

        home = tmp_path / rule.rpartition("/")[2]
        record = changed(made[1], home, "run.json", foreign)
        result = record.object("result.json") | {"id": record.object("run.json")["id"]}
        write_record(record.place / "result.json", result)
        with pytest.raises(RRError):
            verify.verify(record, corpus=tiny_corpus, log=print)
    assert not (tmp_path / "ran").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU of the record may be here")
def test_a_record_of_another_machine_is_run_here_where_asked(made, tiny_corpus, tmp_path):
    def elsewhere(stated):
        stated["provenance"]["device"] = "NVIDIA H100 80GB HBM3"
        stated["provenance"]["packages"]["torch"] = "2.0.0"

    record = changed(made[1], tmp_path, "run.json", elsewhere)
    with pytest.raises(RRError, match="trained on NVIDIA H100.*give --device cpu"):
        verify.verify(record, corpus=tiny_corpus, cache=made[0], log=print)
    got = verify.verify(record, corpus=tiny_corpus, cache=made[0], device="cpu", log=print)
    assert got.agrees and got.differ["device"] == ("NVIDIA H100 80GB HBM3", "cpu")
    assert "packages" in got.differ and "2.0.0" in "".join(got.lines())


def test_a_rule_of_ones_own_is_verified_where_it_is_allowed(tiny_corpus, tmp_path):
    """In a process that has not allowed it before."""
    rule = f"{new_rule.new_rule('half-step', tmp_path)}:HalfStep"
    rr.allow_rule(rule)
    run = rr.plan(BODY, rule, corpus=tiny_corpus, tokenizer="bpe:300", steps=2, batch=2)
    folder = rr.train(run, tmp_path / "runs", rr.Request(threads=1), log=print)
    command = [sys.executable, "-m", "rrstudy.cli", "verify", folder, "--rule", rule]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "the same bits after 2 steps" in done.stdout, done.stderr


def test_a_damaged_record_is_refused(made, tmp_path):
    record = changed(made[1], tmp_path, "run.json", lambda stated: stated["run"].update(seed=7))
    with pytest.raises(RunFailed, match="is corrupt"):
        repeatable(record)
    path = (
        changed(made[1], tmp_path / "b", "result.json", lambda stated: None).place / "result.json"
    )
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))
    with pytest.raises(RunFailed, match="result.json is corrupt"):
        verify.verify(read_record(path.parent))


def test_records_are_found_by_their_first_letters(made):
    _, campaign = made
    ids = [record.place.name for record in recording.read_table(campaign)]
    assert find(ids[0], campaign).place.name == find(ids[0][:6], campaign.parent).place.name
    for name, says in (("", "2 records"), ("nonesuch", "0 records")):
        with pytest.raises(RRError, match=says):
            find(name, campaign)
    assert json.loads(find(ids[1], campaign).read("run.json"))["id"] == ids[1]
