"""What a model does: probes by depth, gates, attention, numerics, and checks of a rule."""
