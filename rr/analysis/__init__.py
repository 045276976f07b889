"""Analysis of models and rules: probes by depth, gates, attention, numerics, rule checks."""

from .. import lazy_names

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
__getattr__, __dir__ = lazy_names(__name__, _WHERE, __all__)
