"""Explorables that live without a kernel, and ipywidgets labs that drive the real code."""

# ruff: noqa: F401  (what this room offers)
from importlib import import_module

from .explorables.audit import audit_rows, audit_table, claim_map, verdict
from .explorables.cliff import depth_cliff
from .explorables.emergence import size_or_training
from .explorables.evidence import verdict_table
from .explorables.field import rule_field
from .explorables.floats import float_formats
from .explorables.gallery import annotated_card, rule_gallery
from .explorables.gate import gate_playground
from .explorables.live import live_network
from .explorables.looking import depth_attention
from .explorables.loops import loop_growth
from .explorables.luck import winners_luck
from .explorables.roofline import step_roofline
from .explorables.running import lost_work
from .explorables.stream import stream_share
from .explorables.strip import held_back
from .explorables.values import value_dilution
from .explorables.walk import sentence_walk
from .explorables.write import gated_write

# name -> module; labs need torch, matplotlib and ipywidgets, explorables need nothing
_LABS = {
    "Lab": "lab",
    "cut_off": "running",
    "final_weights": "running",
    "lab_apart": "numerics",
    "lab_audit": "audit",
    "lab_cut": "running",
    "lab_depth": "depth",
    "lab_gate": "gate",
    "lab_inside": "strip",
    "lab_stream": "stream",
    "lab_depth_attention": "looking",
    "lab_evidence": "evidence",
    "lab_field": "field",
    "lab_loops": "loops",
    "lab_power": "emergence",
    "lab_race": "race",
    "lab_speed": "speed",
    "lab_values": "values",
    "simulated_study": "evidence",
}


def __getattr__(name: str):
    if name in _LABS:
        return getattr(import_module(f"rrbook.labs.{_LABS[name]}"), name)
    raise AttributeError(f"module 'rrbook.explore' has no attribute {name!r}")
