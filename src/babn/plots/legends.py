"""Legends above the panels."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure


def legend_above(
    figure: Figure, handles: Sequence[Any], labels: Sequence[str], title: str | None = None
) -> None:
    """A legend for the whole figure, in as many columns as its width has room for."""
    for columns in range(len(labels), 0, -1):
        place: dict[str, Any] = {"loc": "outside upper center", "ncols": columns}
        legend = figure.legend(handles, labels, title=title, **place)
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            return
        legend.remove()


def collected(figure: Figure) -> tuple[list[Any], list[str]]:
    """Handles and labels of all panels, each label once."""
    found: dict[str, Any] = {}
    for panel in figure.axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    return list(found.values()), list(found)
