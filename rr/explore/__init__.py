"""Explorables that live without a kernel, and ipywidgets labs that drive the real code."""

from .cliff import depth_cliff
from .gate import gate_playground
from .kit import Explorable
from .stream import stream_share

__all__ = ["Explorable", "depth_cliff", "gate_playground", "stream_share"]
