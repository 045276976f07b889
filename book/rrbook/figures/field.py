"""Figures of the field guide: every rule against one baseline."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rr.errors import RRError

from .data import keep, keep_row
from .results import compared
from .style import CARD, FAMILIES, HALO, LOOKS, SOFT, put_words, style_of


def mark_of(arm: str, family: str) -> tuple[str, str]:
    """Colour and marker of an arm: its rule's own, those of value rules their family's."""
    if family == "values" or arm.partition(":")[0] not in LOOKS:
        return FAMILIES[family]
    look = style_of(arm)
    return look["color"], look["marker"]


def rule_ranking(
    ax: Axes,
    rows: Sequence[Mapping],
    order: Sequence[str],
    families: Mapping[str, str],
    limit: float = 0.2,
    labels: Mapping[str, str] | None = None,
) -> Axes:
    """Paired differences of many arms from one baseline, a line each, best on top.

    In the first panel of a figure a mark stands beside each name, that of the rule in every figure.

    rows: of `rrstudy.stats.compare` by `as_rows`, with `holm` added: the p-value corrected for all
    these tests. A filled mark is one whose corrected p is below 0.05. order: arms from top to
    bottom, the baseline maybe among them. families: arm -> family. labels: arm -> words to show in
    its stead.
    A difference beyond `limit` (nats per token) stands at the edge with its number, and with an
    asterisk where it survives; an arm without one is named with the reason.
    """
    by_arm = {row["arm"]: row for row in rows}
    missing = [arm for arm in order if arm not in by_arm]
    if missing:
        raise RRError(f"no row for {', '.join(missing)}: `order` must name arms of `rows`")
    place_of = ax.get_subplotspec()
    key = place_of is None or place_of.is_first_col()
    across = ax.get_yaxis_transform()
    ax.axvline(0, color=SOFT, lw=1.2)
    ax.set_xlim(-limit, limit)
    for place, arm in enumerate(order):
        row, name = by_arm[arm], (labels or {}).get(arm, arm)
        colour, marker = mark_of(arm, families[arm])
        if key:
            ax.plot(-0.035, place, marker, color=colour, ms=6, clip_on=False, transform=across)
        if row["baseline"] is None:
            put_words(ax, 0, place, " baseline ", color=SOFT, path_effects=HALO)
            keep_row(ax, name, {"note": "baseline"}, down=True)
            continue
        keep_row(ax, name, compared(row) | {"corrected p": row["holm"]}, down=True)
        gap = row["difference"]
        sure = row["holm"] is not None and row["holm"] < 0.05
        lost = f"{len(row['diverged'])} diverged" if row["diverged"] else ""
        if gap is None:
            put_words(ax, limit, place, lost or "; ".join(row["notes"]), ha="right", color=SOFT)
            continue
        if abs(gap) > limit:
            edge = limit if gap > 0 else -limit
            at, arrow = (0.985, ">") if gap > 0 else (0.015, "<")
            fill = colour if sure else CARD
            ax.plot(at, place, arrow, color=colour, ms=6, mew=1.1, mfc=fill, transform=across)
            words = f"{gap:+.2f}{' *' * sure} {lost}".strip().replace("-", "−")
            side = "right" if gap > 0 else "left"
            put_words(ax, edge * 0.89, place, words, ha=side, color=SOFT)
            continue
        ax.plot([row["lo"], row["hi"]], [place, place], color=colour, lw=1.6)
        ax.plot(gap, place, marker, color=colour, ms=6, mew=1.1, mfc=colour if sure else CARD)
    ax.set_ylim(len(order) - 0.4, -0.6)
    words = [(labels or {}).get(arm, arm) for arm in order]
    ax.set_yticks(range(len(order)), words, fontsize=9)
    ax.tick_params(axis="y", length=0, pad=14 if key else 3)
    (base,) = {row["baseline"] for row in rows if row["baseline"]}
    ax.set_xlabel(f"loss − {base}\n(nats per token)")
    return ax


def gains_by_size(
    ax: Axes, lines: Sequence[tuple[str, str, Sequence[tuple[float, float]]]]
) -> None:
    """Differences of losses (nats per token) over model size: (words, rule whose look, points).

    A point is (parameters, rule − standard); a key below the panel has the words.
    """
    for words, rule, points in lines:
        sizes, gaps = zip(*points, strict=True)
        ax.plot(sizes, gaps, label=words, **style_of(rule))
        keep(ax, sizes, {words: gaps})
    ax.axhline(0, color=SOFT, lw=1.2)
    ax.set_xscale("log")
    ticks = sorted({size for _, _, points in lines for size, _ in points})
    ax.set_xticks(ticks, [f"{size / 1e6:,.5g}" for size in ticks])
    ax.minorticks_off()
    ax.set(xlabel="parameters (millions)", ylabel="loss − standard\n(nats per token)")
    ax.figure.legend(loc="outside lower center", ncols=2)


def family_key(fig: Figure, families: Sequence[str]) -> None:
    """A key to the colours and marks of these families, above the figure's panels."""
    handles = [
        Line2D([], [], color=FAMILIES[name][0], marker=FAMILIES[name][1], ls="-", label=name)
        for name in families
    ]
    fig.legend(
        handles=handles,
        loc="outside upper center",
        ncols=len(handles),
        handlelength=1.4,
        columnspacing=1.3,
    )
