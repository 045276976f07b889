"""What the book shows of depth attention: its explorable against the real rule, and its lab."""

from dataclasses import replace

import pytest
import torch
from small import model_of

from rr.ops import rms_norm
from rrbook.explore import lab_depth_attention
from rrbook.labs import looking
from rrbook.labs.depth import letters
from rrbook.labs.looking import short_looking


@pytest.mark.parametrize(
    ("size", "tilt", "seeded"),
    [
        ("1", 2.5, False),
        ("1", -4.0, True),
        ("4", -4.0, False),
        ("4", 2.5, True),
        ("all", 2.5, True),
    ],
)
def test_the_explorables_shares_are_what_the_real_rule_reads(script, size, tilt, seeded):
    """`attnres` on orthogonal writes: the square of each coordinate is its share of the variance.

    The queries are chosen so that the rule's own logits are the toy's.
    """
    n, block = 8, 8 if size == "all" else int(size)
    [found] = script("looking", "lookingNumbers", [n, size, tilt, seeded])
    writes = 1e3 * torch.eye(n + 1, dtype=torch.float64)
    model = model_of(f"attnres:size={block}")
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
