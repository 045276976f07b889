"""Analysis of models and rules: probes by depth, gates, rule checks.

A probe takes an `rr.Model`, a model that a rule is attached to (`rr.attach`), or any module that
holds one `rr.Residuals` and is called as model(idx); for losses it must return logits. The latter
two are measured in the mode that they are in: where they have dropout, call model.eval() first. A
probe raises RRError for other modules. Entries that say `Model` take no other.

Shapes: B windows, T tokens, d channels, L blocks, N passes, S = 2·L·N sublayers. Token ids
idx and targets are (B, T), int64. Losses are in nats per token.

Example:
    >>> import torch, rr
    >>> from rr.analysis import rms, trace
    >>> shape = rr.ModelConfig(64, n_layer=1, n_head=2, d_model=8, d_ff=16, rule="review")
    >>> writes = trace(rr.Model(shape), torch.arange(8)[None])
    >>> [(write.kind, rms(write.r)) for write in writes]  # an untrained gate is one half
    [('attn', 0.5), ('mlp', 0.5)]
"""

from .. import lazy_names

_MODULES = {
    "GateTrace": "gates",
    "StreamLens": "probes",
    "StreamMixing": "probes",
    "WriteTrace": "probes",
    "check": "rule_checks",
    "depth_attention": "probes",
    "embedding_share": "probes",
    "gradient_by_depth": "probes",
    "hooked": "network",
    "increment_cosines": "probes",
    "jacobian_gain": "probes",
    "norms_by_depth": "probes",
    "rms": "probes",
    "stream_lens": "probes",
    "stream_mixing": "probes",
    "trace": "probes",
    "trace_gates": "gates",
}
__all__ = [*_MODULES]
__getattr__, __dir__ = lazy_names(__name__, _MODULES, __all__)
