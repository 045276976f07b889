"""Probes of depth attention, and of updates under any rule, against computations by hand."""

from dataclasses import replace

import matplotlib
import pytest
import torch

matplotlib.use("Agg")


from rr.analysis import probes
from rr.config import RRError  # noqa: E402
from rr.model import (  # noqa: E402
    Model,
    initialise,
    ladder,  # noqa: E402
)
from rr.ops import rms_norm  # noqa: E402
from rrbook.explore import lab_depth_attention  # noqa: E402
from rrbook.labs import looking  # noqa: E402
from rrbook.labs.depth import letters  # noqa: E402
from rrbook.labs.looking import short_looking  # noqa: E402

IDX, TARGETS = torch.randint(70, (2, 3, 16), generator=torch.Generator().manual_seed(0))


def model_of(rule, scramble=0.3, n_layer=2):
    config = ladder.arm(f"nano:n_layer={n_layer},d_model=32,n_head=2,seq_len=16", rule, 70)
    model = initialise(Model(config), 0).double()
    source = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p += scramble * torch.randn(p.shape, generator=source).double()
    return model


@pytest.mark.parametrize("size", [1, 2, 4])
def test_depth_attention_looks_where_its_weights_say(size):
    """α recomputed from the updates by the equation, block sums and all; each row sums to 1."""
    model, updates, x0 = model_of(f"attnres:size={size}"), [], []
    hooks = [
        layer.get_submodule(name).register_forward_hook(
            lambda module, given, out: updates.append(out[0] if isinstance(out, tuple) else out)
        )
        for layer in model.layers
        for name in ("attn", "mlp")
    ]
    found = probes.depth_attention(model, IDX)
    for hook in hooks:
        hook.remove()
    x0 = model.token(IDX) + model.position(torch.arange(16))
    for reader, rule in enumerate([*model.rules, model.final_rule]):
        done = [
            torch.stack(updates[i : min(i + size, reader)]).sum(0) for i in range(0, reader, size)
        ]
        v = torch.stack([x0, *done])
        key = v / (v.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * rule.key_gain
        score = torch.exp(key @ rule.query)
        alpha = (score / score.sum(0)).mean((1, 2)).detach()
        torch.testing.assert_close(found[reader, : len(v)], alpha)
        assert not found[reader, len(v) :].any()
    assert found.shape == (5, 4 // size + 1)
    torch.testing.assert_close(found.sum(1), torch.ones(5, dtype=torch.float64))


def test_only_depth_attention_has_weights_over_depth():
    with pytest.raises(RRError, match="denseformer has no depth attention"):
        probes.depth_attention(model_of("denseformer"), IDX)


# -- what the book shows of it ------------------------------------------------------------------


@pytest.mark.parametrize("size", ["1", "4", "all"])
@pytest.mark.parametrize("tilt", [2.5, -4.0])
@pytest.mark.parametrize("seeded", [False, True])
def test_the_explorables_shares_are_what_the_real_rule_reads(script, size, tilt, seeded):
    """`attnres` on orthogonal writes: the square of each coordinate is its share of the variance.

    The queries are chosen so that the rule's own logits are the toy's.
    """
    n, block = 8, 8 if size == "all" else int(size)
    [found] = script("looking", "lookingNumbers", [n, size, tilt, seeded])
    writes = 1e3 * torch.eye(n + 1, dtype=torch.float64)
    model = model_of(f"attnres:size={block}", scramble=0.0, n_layer=n // 2)
    rules, state = [*model.rules, model.final_rule], [writes[0].view(1, 1, -1)]
    for before, rule in enumerate(rules):
        rule = type(rule)(replace(rule.site, d_model=n + 1), model.config, size=block).double()
        keys = rms_norm(torch.stack(state)).flatten(0, 2)
        wanted = tilt * torch.arange(len(state)).double() / max(1, len(state) - 1)
        with torch.no_grad():
            rule.query.copy_(torch.linalg.pinv(keys) @ wanted)
        alpha = rule.weights(state).flatten()
        torch.testing.assert_close(alpha, torch.tensor(found["alpha"][before], dtype=alpha.dtype))
        read = rule.read(state)[0].flatten()
        shares = (read**2 / (read**2).sum())[: before + 1]
        torch.testing.assert_close(shares, torch.tensor(found["shares"][before], dtype=alpha.dtype))
        plain = writes[: before + 1].sum(0)
        cosine = (read @ plain / read.norm() / plain.norm()).item()
        assert found["cosine"][before] == pytest.approx(cosine)
        if before < n:
            u = writes[before + 1].view(1, 1, -1)
            if seeded and before % block == 0:
                u = u + state[0]
            state = rule.write(state, u)


def test_the_explorables_words(script):
    calls = [8, "2", 0.0, False], [8, "all", 0.0, True]
    plain, said = script("looking", "lookingSentence", *calls)
    assert plain == (
        "After 8 sublayers 5 vectors per token are kept (standard: 1). The head reads every write "
        "in the same share, 1/9 of the variance: the standard stream, up to its length."
    )
    # the mean of e and e + u₁ + … + u₈ holds 2e: 4 parts of 12
    assert "the embedding holds 33.3\u00a0% of the variance and the last write 8.33\u00a0%" in said


def test_the_lab_trains_the_real_rule_and_shows_where_it_looks(monkeypatch):
    with monkeypatch.context() as idle:  # until what it is asked for is small
        even = torch.full((9, 9), 1 / 9, dtype=torch.float64)
        idle.setattr(
            looking, "short_looking", lambda size, *_: (even[:, : 8 // size + 1], 2.0, 2.0)
        )
        made = lab_depth_attention()
        made.controls["size"].value = 4
    made.controls["steps"].value = 20
    said = made.picture.value
    assert "Blocks of 4, 20 steps" in said and "even shares would be 33.3" in said
    alpha, loss, standard = short_looking(4, 20, True, letters())
    assert alpha.shape == (9, 3) and abs(loss - standard) < 1
    torch.testing.assert_close(alpha.sum(1), torch.ones(9, dtype=torch.float64))
    assert (alpha[-1] - 1 / 3).abs().max() > 1e-3  # it has begun to choose
