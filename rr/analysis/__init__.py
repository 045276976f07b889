"""Analysis of models and rules: probes by depth, gates, attention, numerics, rule checks."""
