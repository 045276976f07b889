"""The explorables, each with data to show; made by the tests, not when this file is read."""

import csv
import json

from rr import DATA
from rrbook import explore

RECORDED = [
    {
        "rule": rule,
        "sublayers": n,
        "bias": bias,
        "seed": seed,
        "steps": [0, 50, 100],
        "held_out": 3.0 + n / 100 + seed / 10 - bias,
        "loss": [7.0, 6.0, 3.0 + n / 100 + seed / 10 - bias],
    }
    for rule, bias in (("additive", 0), ("convex", 0), ("convex", -3))
    for n in (4, 16, 32)
    for seed in (0, 1)
]


def rows(name: str) -> list[dict]:
    with (DATA / "published" / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


PUBLISHED = [
    row | {"seed": int(row["seed"]), "val_loss": float(row["val_loss"])}
    for row in rows("review_residuals")
]
CLAIMS = rows("claims")
STORY = json.loads((DATA / "measured" / "13_inside_the_gate" / "story.json").read_text())
NET = json.loads((DATA / "measured" / "live_net" / "net.json").read_text(encoding="utf-8"))
STARTS = {
    "live-network": lambda: explore.live_network(NET),
    "held-back": lambda: explore.held_back(STORY, 2),
    "stream-share": explore.stream_share,
    "gate-playground": explore.gate_playground,
    "gated-write": explore.gated_write,
    "depth-cliff": lambda: explore.depth_cliff(RECORDED),
    "verdict-table": lambda: explore.verdict_table(PUBLISHED),
    "depth-attention": explore.depth_attention,
    "loop-growth": explore.loop_growth,
    "rule-field": explore.rule_field,
    "value-dilution": explore.value_dilution,
    "float-formats": explore.float_formats,
    "lost-work": explore.lost_work,
    "size-or-training": lambda: explore.size_or_training(PUBLISHED),
    "step-roofline": explore.step_roofline,
    "winners-luck": explore.winners_luck,
}
