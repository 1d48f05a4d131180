"""Training curves."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from babn.plots.answers import check_some
from babn.plots.histories import Series, as_runs, step_numbers
from babn.plots.legends import collected, legend_above
from babn.plots.sizes import DOUBLE, SINGLE, Size, asked_width, figure_size, grid
from babn.plots.style import arranged, drawing, line_look, new_figure

PANEL = 1.6
"""Least width of a panel in inches."""

Runs = Series
"""A number for each step, or a row of them for each seed."""


@drawing
def training_curves(
    history: Mapping[str, Runs] | Mapping[str, Mapping[str, Runs]],
    steps: Series | None = None,
    *,
    label: str = "loss",
    size: Size = None,
) -> Figure:
    """Losses, divergences or metrics over training steps.

    Where a method ran with several seeds, the line is their mean and the band one standard
    deviation to either side.

    Args:
        history: For each method a number for each step, or a row of them for each seed. For several
            panels, a mapping from what is measured to such mappings.
        steps: Step numbers; counted from 1 if not given.
        label: What is measured, if there is one panel.
        size: Width in inches, or width and height.
    """
    panels = _by_panel(history, label)
    width = asked_width(size, SINGLE if len(panels) == 1 else DOUBLE)
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
    """Runs by method, by what is measured."""
    check_some(history, "history", "a mapping from names of methods to numbers over steps")
    nested = isinstance(next(iter(history.values())), Mapping)
    panels = history if nested else {label: history}
    for measure, methods in panels.items():
        check_some(methods, f"history[{measure!r}]", "at least one method")
    return panels


def _draw_runs(
    panel: Axes, index: int, name: str, runs: Runs, steps: Series | None, argument: str
) -> None:
    """The mean over seeds, with a band of one standard deviation if there are several."""
    values = as_runs(argument, runs)
    at = step_numbers(steps, values.shape[1], argument)
    mean = values.mean(0)
    panel.plot(at, mean, label=name, **line_look(index))
    if len(values) > 1:
        spread = np.std(values, axis=0, ddof=1)
        colour = line_look(index)["color"]
        panel.fill_between(at, mean - spread, mean + spread, color=colour, alpha=0.2, linewidth=0)
