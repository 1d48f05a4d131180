"""Critical difference diagrams (Demšar 2006) of mean ranks."""

from collections.abc import Mapping

from matplotlib.figure import Figure

from babn.plots import DOUBLE
from babn.plots.figures import BLACK, PALE, arranged, drawing, new_figure

ROW = 0.16
"""Height of a method in inches."""


@drawing
def critical_difference(
    ranks: Mapping[str, float], distance: float, *, label: str = "mean rank"
) -> Figure:
    """Mean ranks of methods, with bars over those that do not differ significantly.

    Args:
        ranks: Mean rank of each method; 1 is the best.
        distance: Smallest significant difference, such as that of the Nemenyi test.
        label: Label of the axis.
    """
    ordered = sorted(ranks.items(), key=lambda item: item[1])
    bars = alike([rank for _, rank in ordered], distance)
    figure = new_figure((DOUBLE, ROW * (len(ordered) + len(bars)) + 0.6))
    panel = figure.subplots()
    for row, (name, rank) in enumerate(ordered):
        panel.plot([rank], [-row - 1], "o", color=BLACK, markersize=3, clip_on=False)
        panel.annotate(
            name, (rank, -row - 1), (5, 0), textcoords="offset points", va="center", fontsize=7
        )
    for row, (first, last) in enumerate(bars):
        ends = [ordered[first][1] - 0.05, ordered[last][1] + 0.05]
        height = -len(ordered) - 1 - 0.6 * (row + 1)
        panel.plot(ends, [height, height], color=BLACK, linewidth=2.5, solid_capstyle="butt")
    panel.xaxis.tick_top()
    panel.xaxis.set_label_position("top")
    panel.set_xlabel(f"{label} (critical difference {distance:.2f})")
    panel.set_xlim(1.0, 1.3 * len(ordered))  # room for the name of the last method
    panel.set_xticks(range(1, len(ordered) + 1))
    panel.set_ylim(-len(ordered) - 1.5 - 0.6 * len(bars), 0)
    panel.grid(axis="x", color=PALE, linewidth=0.6)
    panel.set_axisbelow(True)
    panel.set_yticks([])
    panel.spines[["left", "bottom"]].set_visible(False)
    panel.spines["top"].set_visible(True)
    return arranged(figure)


def alike(ranks: list[float], distance: float) -> list[tuple[int, int]]:
    """First and last index of every maximal group of sorted ranks within a distance."""
    found: list[tuple[int, int]] = []
    for first, rank in enumerate(ranks):
        last = max(i for i, other in enumerate(ranks) if other - rank <= distance)
        if last > first and (not found or last > found[-1][1]):
            found.append((first, last))
    return found
