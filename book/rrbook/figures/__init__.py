"""One function a figure: data in, Axes out, one style (no torch).

audit      shares of a model by size, what its parameters are spent on
data       what a panel shows, as a table for readers who do not see it
style_of   colours, letters, lines named at their ends
first      what attention reads, the paths through two layers, the wiring of a gate
field      every rule against one baseline
depth      where depth attention looks, loss against block size
emergence  the plane of size and training, gaps along either, power by seeds
evidence   shared noise of seeds, one test against another, a gap against size
inside     a trained gate: its values, what they are worth, which tokens it singles out
loops      size against passes, cosines of increments, learning rates
numerics   what each source of noise moves, how fast two trainings part
streams    a stream, its gates and its gradients, by depth
running    what interruptions destroy, checkpoints against warnings, attempts at a run
report     one run's curve, gradients, gates and calibration; a folder's gaps by size
speed      a step's parts, what each change of path takes off
results    what runs came to: curves, paired differences, shares
svg        a figure in the colours of its page
training   the gap of two arms along the run, what another learning rate costs
values     a quantity by block, a sweep of λ, what caches hold
"""

# ruff: noqa: F401  (what this room offers)
from .audit import parameter_bar, shares_by_size
from .data import keep, keep_row
from .depth import block_sizes, depth_map
from .emergence import gaps_along, power_curve, size_and_tokens
from .evidence import (
    gap_against_size,
    seed_deviations,
    simulated_tests,
    two_tests,
    values_by_size,
)
from .field import family_key, rule_ranking
from .first import gate_wiring, paths, reads_map
from .inside import by_fifth, cost_of, gate_bands, kind_key, seeds_by_sublayer, variance_shares
from .loops import cosine_matrix, rates_by_passes, size_by_passes, size_grid
from .numerics import losses_apart, spread_by_source
from .report import gaps_by_size, gates_by_sublayer, norm_curve, reliability, run_curve
from .results import bar_share, loss_curves, paired_differences
from .running import attempts, destroyed_work, notices
from .speed import beside, stacked_parts, undone, waterfall
from .streams import depth_plot, gate_histogram, gradient_by_depth, norm_places, stream_norms
from .style import (
    BLUE,
    CARD,
    GREEN,
    GRID,
    HALO,
    INK,
    ORANGE,
    PURPLE,
    SKY,
    SOFT,
    VERMILLION,
    canvas,
    label_ends,
    note,
    readable,
    style,
    style_of,
)
from .training import gap_bands, rate_basins
from .values import by_block, cache_bars, value_style
