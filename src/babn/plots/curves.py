"""Training curves."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from babn.plots.plot_data import Series, as_runs, check_some, step_numbers
from babn.plots.sizes import DOUBLE, SINGLE, Size, figure_size, given_width, grid
from babn.plots.style import arranged, collected, drawing, legend_above, line_look, new_figure

PANEL = 1.6
"""Minimum width of a panel in inches."""

Runs = Series
"""One value for each step, or a row of them for each seed."""


@drawing
def training_curves(
    history: Mapping[str, Runs] | Mapping[str, Mapping[str, Runs]],
    steps: Series | None = None,
    *,
    label: str = "loss",
    size: Size = None,
) -> Figure:
    """Losses, KLs or metrics over training steps.

    For several seeds the line is their mean and the band one standard deviation to either side.

    Args:
        history: For each method one value per step, or a row of them for each seed. For several
            panels, a mapping from panel labels to such mappings.
        steps: Step numbers; by default counted from 1.
        label: Label of the panel, if there is only one.
        size: Width in inches, or width and height.
    """
    panels = _by_panel(history, label)
    width = given_width(size, SINGLE if len(panels) == 1 else DOUBLE)
    rows, columns = grid(len(panels), width, PANEL)
    tall = rows * max(0.45 * min(width / columns, SINGLE) + 0.5, 1.75) + 0.35
    figure = new_figure(figure_size(size, width, lambda _: tall))
    names = list(dict.fromkeys(name for methods in panels.values() for name in methods))
    for i, (measure, methods) in enumerate(panels.items()):
        panel = figure.add_subplot(rows, columns, i + 1)
        for name, runs in methods.items():
            place = f"history[{measure!r}][{name!r}]" if len(panels) > 1 else f"history[{name!r}]"
            _draw_runs(panel, names.index(name), name, runs, steps, place)
        panel.set_ylabel(measure)
        panel.set_xlabel("training step" if i + columns >= len(panels) else "")
    legend_above(figure, *collected(figure))
    return arranged(figure)


def _by_panel(history: Any, label: str) -> dict[str, dict[str, Runs]]:
    """Runs by panel and method."""
    check_some(history, "history", "a mapping from names of methods to numbers over steps")
    nested = isinstance(next(iter(history.values())), Mapping)
    panels = history if nested else {label: history}
    for measure, methods in panels.items():
        check_some(methods, f"history[{measure!r}]", "at least one method")
    return panels


def _draw_runs(
    panel: Axes, index: int, name: str, runs: Runs, steps: Series | None, argument: str
) -> None:
    """Draws the mean over seeds, with a band of one standard deviation."""
    values = as_runs(argument, runs)
    at = step_numbers(steps, values.shape[1], argument)
    mean = values.mean(0)
    panel.plot(at, mean, label=name, **line_look(index))
    if len(values) > 1:
        spread = np.std(values, axis=0, ddof=1)
        colour = line_look(index)["color"]
        panel.fill_between(at, mean - spread, mean + spread, color=colour, alpha=0.2, linewidth=0)
