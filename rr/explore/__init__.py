"""Explorables that live without a kernel, and ipywidgets labs that drive the real code."""

from importlib import import_module

from .audit import audit_rows, audit_table, claim_map, verdict
from .cliff import depth_cliff
from .emergence import size_or_training
from .evidence import verdict_table
from .field import rule_field
from .floats import float_formats
from .gallery import rule_gallery
from .gate import gate_playground
from .kit import Explorable
from .looking import depth_attention
from .loops import loop_growth
from .luck import winners_luck
from .roofline import step_roofline
from .running import lost_work
from .stream import stream_share
from .strip import held_back
from .values import value_dilution

# name -> module; labs need torch, matplotlib and ipywidgets, explorables need nothing
_LABS = {
    "lab": "labs",
    "cut_off": "running_lab",
    "final_weights": "running_lab",
    "lab_apart": "numerics_lab",
    "lab_audit": "audit_lab",
    "lab_cut": "running_lab",
    "lab_depth": "labs",
    "lab_gate": "labs",
    "lab_inside": "strip_lab",
    "lab_stream": "labs",
    "lab_depth_attention": "looking_lab",
    "lab_evidence": "evidence_lab",
    "lab_field": "field_lab",
    "lab_loops": "loops_lab",
    "lab_power": "emergence_lab",
    "lab_race": "race_lab",
    "lab_speed": "speed_lab",
    "lab_values": "values_lab",
    "looped_model": "loops_lab",
    "simulated_study": "evidence_lab",
}
__all__ = ["Explorable", "audit_rows", "audit_table", "claim_map", "depth_attention",
           "depth_cliff", "float_formats", "gate_playground", "held_back", "loop_growth",
           "lost_work", "rule_field", "rule_gallery", "size_or_training", "step_roofline",
           "stream_share", "value_dilution", "verdict", "verdict_table", "winners_luck",
           *_LABS]  # fmt: skip


def __getattr__(name: str):
    if name in _LABS:
        return getattr(import_module(f".{_LABS[name]}", __name__), name)
    raise AttributeError(f"module 'rr.explore' has no attribute {name!r}")
