"""Formats against torch's casts, changed runs against the trainer, and what chapter 16 shows."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny import result_of, train

import rr
from rr.errors import RRError
from rr.training.checkpoint import weights_sha256
from rr.training.device import resolve_precision
from rrbook.labs.depth import letters
from rrbook.numerics import Change, Tf32Products, nudge, tf32, trained
from rrstudy import stats

CASTS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
DATA = rr.DATA / "measured" / "16_numerics"
# a CPU that emulates bf16 computes in float32 instead: then nothing changes
BF16 = resolve_precision(torch.device("cpu"), "bf16") == "bf16"


# ---- formats -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASTS)
def test_rounding_is_torchs_own_cast(script, name):
    """From denormals of fp16 to its overflow; float32 first, since torch casts by way of it."""
    source = torch.Generator().manual_seed(0)
    x = torch.randn(4000, generator=source) * torch.logspace(-8.5, 5, 4000)
    x = torch.cat([x, torch.tensor([0.0, 1.0, -2.0, 65519.0, 65520.0, 2.0**-25, 1 + 2**-8])])
    rounded = script("floats", "rounded", *([v, name] for v in x.tolist()))
    assert list(map(float, rounded)) == x.to(CASTS[name]).double().tolist()
    step = torch.finfo(CASTS[name]).eps
    spacings = script("floats", "spacing", [1, name], [3.9, name], [0.9, name])
    assert spacings == [step, 2 * step, step / 2]


def test_tf32_keeps_eleven_bits(script):
    x = torch.randn(4000, generator=torch.Generator().manual_seed(0))
    rounded = script("floats", "rounded", *([v, "tf32"] for v in x.tolist()))
    assert tf32(x).double().tolist() == rounded
    tie = torch.tensor([1 + 2.0**-11, -1 - 2.0**-11])  # away from zero, as the hardware converts
    assert tf32(tie).tolist() == [1 + 2.0**-10, -1 - 2.0**-10]
    assert tf32(tf32(x)).equal(tf32(x)) and tf32(x.double()).equal(x.double())


def test_tf32_products_are_those_of_rounded_inputs_in_both_directions():
    source = torch.Generator().manual_seed(0)
    x, w = (torch.randn(shape, generator=source).requires_grad_() for shape in ((5, 7), (3, 7)))
    g = torch.randn(5, 3, generator=source)
    with Tf32Products():
        y = torch.nn.functional.linear(x, w)
        y.backward(g)
    a, b, c = (tf32(t.detach()).double() for t in (x, w, g))
    for product, exact in ((y, a @ b.t()), (x.grad, c @ b), (w.grad, c.t() @ a)):
        torch.testing.assert_close(product.double(), exact, rtol=1e-6, atol=1e-6)
    assert (y - torch.nn.functional.linear(x, w)).abs().max() > 1e-5


def test_sums_follow_numpys_own_half_precision(script):
    parts = np.array([1 / k for k in range(1, 301)]).astype(np.float16)
    total = sum(1 / k for k in range(300, 0, -1))  # of the numbers, not of what fp16 has of them
    down = up = np.float16(0)
    for part, back in zip(parts, parts[::-1], strict=True):
        down, up = down + part, up + back
    half = parts
    while len(half) > 1:
        rest = half[len(half) - len(half) % 2 :]
        half = np.concatenate([half[: len(half) // 2 * 2 : 2] + half[1::2], rest])
    [errors] = script("floats", "harmonic", [300, "fp16"])
    for order, value in (("down", down), ("up", up), ("pairs", half[0])):
        assert errors[order] == pytest.approx(abs(float(value) - total) / total, rel=1e-9)


def test_neighbours_are_all_numbers_of_the_format(script):
    cases = [(2.51, "bf16"), (4.0, "bf16"), (0.3, "fp16"), (2.51, "fp32"), (1e-9, "fp16")]
    *drawn, too_many, none = script("floats", "neighbours", *map(list, cases))
    for (x, name), marks in zip(cases, drawn, strict=False):
        every = np.arange(0.98 * x / 2**-16, 1.02 * x / 2**-16 + 1).round() * 2**-16
        of_format = torch.from_numpy(every).to(CASTS[name]).double()
        inside = sorted({v for v in of_format.tolist() if abs(v - x) <= 0.02 * x})
        assert marks == inside
    assert too_many is None and none == []


# ---- changed runs ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(planned, tiny_corpus):
    tokens = rr.open_corpus(tiny_corpus, "bpe:300", log=lambda line: None)
    return planned(steps=4, eval_batches=3), tokens


@pytest.mark.parametrize("depth_lr", [False, True])
def test_the_plain_run_is_the_trainers_bit_for_bit(small, tmp_path, depth_lr):
    run, tokens = small
    run = replace(run, recipe=replace(run.recipe, depth_lr=depth_lr))
    result = result_of(train(run, tmp_path, device="cpu"))
    model, losses = trained(run, tokens.train)
    assert weights_sha256(model) == result["weights_sha256"] and len(losses) == run.recipe.steps


def test_each_change_is_made_and_threads_are_put_back(small):
    run, tokens = small
    before = torch.get_num_threads()
    plain, losses = trained(run, tokens.train)
    bits = {weights_sha256(plain)}
    changes = [  # and by how much the loss differs before the first update
        (Change(shuffle=1), 0, 1e-5),
        (Change(nudge=1), 0, 1e-5),
        (Change(micro=1), 0, 1e-5),
        (Change(double=True), 0, 1e-5),
        (Change(attention="math"), 0, 1e-5),
        (Change(tf32=True), 0, 0.02),
        (Change(init=1), 1e-3, 1),
        (Change(batches=1), 1e-3, 1),
    ]
    if BF16:
        changes.append((Change(path="eager"), 0, 0.02))
    for change, low, high in changes:
        model, changed = trained(run, tokens.train, change)
        assert low <= abs(changed[0] - losses[0]) < high, change
        assert weights_sha256(model) not in bits, f"{change} changed nothing"
        bits.add(weights_sha256(model))
    assert weights_sha256(trained(run, tokens.train)[0]) == weights_sha256(plain)
    other, _ = trained(run.with_seed(1), tokens.train)
    both, _ = trained(run, tokens.train, Change(init=1, batches=1))
    assert weights_sha256(both) == weights_sha256(other)
    trained(replace(run, recipe=replace(run.recipe, steps=1)), tokens.train, Change(threads=2))
    assert torch.get_num_threads() == before


def test_a_nudge_is_the_next_float_of_one_weight(small):
    run, _ = small
    models = [rr.model.initialise(rr.Model(run.model), 0) for _ in range(2)]
    nudge(models[1], 3)
    pairs = zip(*(m.state_dict().values() for m in models), strict=True)
    moved = [(a[a != b], b[a != b]) for a, b in pairs if not a.equal(b)]
    ((a, b),) = moved
    assert len(a) == 1 and b.item() == np.nextafter(np.float32(a.item()), np.float32(np.inf))


def test_bad_input_is_refused_in_one_line(small):
    run, tokens = small
    with pytest.raises(RRError, match="unknown attention kernel 'flsh': did you mean flash"):
        trained(run, tokens.train, Change(attention="flsh"))
    with pytest.raises(RRError, match="protocol must be clean"):
        trained(replace(run, protocol="paper"), tokens.train)


# ---- what the chapter shows --------------------------------------------------------------------


def test_lab_trains_both_and_knows_when_nothing_differs(monkeypatch):
    pytest.importorskip("ipywidgets")
    from rrbook.labs import numerics
    from rrbook.labs.numerics import CHANGES, apart, lab_apart

    stream = letters(20).numpy()
    assert apart("review", CHANGES["nothing"], 6, 1e-2, stream) == [0] * 6
    gaps = apart("review", CHANGES["bf16"], 6, 1e-2, stream)
    assert 0 < max(gaps) < 0.1 if BF16 else max(gaps) == 0
    with monkeypatch.context() as idle:  # until what it is asked for is small
        idle.setattr(numerics, "apart", lambda rule, change, steps, *_: [1e-6] * steps)
        made = lab_apart()
    made.controls["steps"].value = 20
    assert "one weight, one bit, review" in made.picture.value
    made.controls["change"].value = "nothing"
    assert "the losses are the same at 20 of 20 steps" in made.picture.value


def test_the_record_holds_what_the_trainer_made():
    """runs.json against the two runs of `rr train`, and changes that change no bit or some."""
    rows = json.loads((DATA / "runs.json").read_text())["runs"]
    plain = {(row["rule"], row["lr"]): row for row in rows if row["source"] == "plain"}
    for result in stats.as_rows(stats.read_results(DATA)):
        assert plain[result["rule"], result["lr"]]["weights_sha256"] == result["weights_sha256"]
    same = set()
    for row in rows:
        if row["weights_sha256"] == plain[row["rule"], row["lr"]]["weights_sha256"]:
            same.add(row["source"])
        Change(**row["change"])  # every field is still known
        assert len(row["losses"]) == 150 and np.isfinite(row["val_loss"])
        if row["source"] == "plain":
            assert np.mean(row["windows"]) == pytest.approx(row["val_loss"], rel=1e-7)
    # the fast gate is another code path, but not for the arm without a gate
    assert same == {"plain", "again", "threads", "code path"}
