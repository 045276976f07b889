"""Analysis of models and rules: probes by depth, gates, attention, numerics, rule checks."""

from importlib import import_module

_WHERE = {
    "AttentionTrace": "attention",
    "Change": "numerics",
    "GateTrace": "gates",
    "StreamMixing": "probes",
    "WriteTrace": "probes",
    "anatomy": "rule_anatomy",
    "check": "rule_checks",
    "depth_attention": "probes",
    "distribution": "gates",
    "embedding_share": "probes",
    "entropy": "attention",
    "gradient_by_depth": "probes",
    "hooked": "network",
    "increment_cosines": "probes",
    "jacobian_gain": "probes",
    "norms_by_depth": "probes",
    "rms": "probes",
    "stream_mixing": "probes",
    "trace": "probes",
    "trace_attention": "attention",
    "trace_gates": "gates",
    "trained": "numerics",
    "value_gradients": "attention",
}
__all__ = [*_WHERE]


def __getattr__(name: str):
    # Lazy, so that the package costs nothing to import, and no module needs all the others.
    if name in _WHERE:
        return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
