"""Style of figures: fonts, lines, colours and legends."""

import functools
import textwrap
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import matplotlib
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import AutoLocator, FixedLocator, FuncFormatter

P = ParamSpec("P")
Result = TypeVar("Result")

BLUE, VERMILION, GREEN, ORANGE = "#0072B2", "#D55E00", "#009E73", "#E69F00"
PURPLE, SKY, BLACK = "#CC79A7", "#56B4E9", "#000000"
"""The palette of Okabe and Ito, which is safe for colour-blind readers."""

COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, BLACK, SKY)
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)), (0, (3, 3)))
GREY, PALE = "0.45", "0.92"

LETTER = 0.07
"""Width of a letter of a title in inches, with some room."""

LOCK = threading.RLock()
"""Held while matplotlib's global settings are changed."""


@functools.cache
def style() -> dict[Any, Any]:
    """Settings of matplotlib for creating and saving figures, with the fonts that are installed."""
    path = Path(__file__).with_name("figures.mplstyle")
    settings = dict(matplotlib.rc_params_from_file(path, use_default_template=False))
    installed = set(font_manager.get_font_names())
    return settings | {"font.family": [x for x in settings["font.sans-serif"] if x in installed]}


def drawing(plot: Callable[P, Result]) -> Callable[P, Result]:
    """Decorates a function to run under the style; one at a time, since settings are global."""

    @functools.wraps(plot)
    def styled(*args: P.args, **kwargs: P.kwargs) -> Result:
        with LOCK, matplotlib.rc_context(style()):
            return plot(*args, **kwargs)

    return styled


def new_figure(size: tuple[float, float]) -> Figure:
    """An empty figure with constrained layout."""
    return Figure(figsize=size, layout="constrained")


def arranged(figure: Figure) -> Figure:
    """Fixes the layout and the ticks of a figure.

    Computing the layout again for every output would move panels by rounding errors, and files
    would not be reproducible.
    """
    figure.draw_without_rendering()
    for panel in figure.axes:
        # Other ticks after the layout would change the sizes of the panels.
        for axis in (panel.xaxis, panel.yaxis):
            if isinstance(axis.get_major_locator(), AutoLocator):
                axis.set_major_locator(FixedLocator(axis.get_majorticklocs().tolist()))
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


def line_look(index: int) -> dict[str, Any]:
    """Colour and dashes of a curve; dashes distinguish curves without colour."""
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": DASHES[index % len(DASHES)]}


def in_percent(*axes: Any) -> None:
    """Labels the ticks of axes from 0 to 1 in per cent."""
    for axis in axes:
        axis.set_major_formatter(FuncFormatter(_percentage))


def _percentage(share: float, _: int | None = None) -> str:
    return f"{round(100 * share, 6):g}"


def note(panel: Axes, x: float, y: float, text: str, **settings: Any) -> None:
    """Adds text to a panel at relative coordinates, on a white background."""
    ground = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.0}
    panel.text(x, y, text, transform=panel.transAxes, fontsize=7, bbox=ground, **settings)


def panel_title(panel: Axes, name: str, columns: int) -> None:
    """Sets the title of one of several panels in a row, on as many lines as it needs."""
    width = panel.figure.bbox.width / panel.figure.dpi / columns
    panel.set_title(textwrap.fill(name, max(int(width / LETTER), 1)))


def legend_above(
    figure: Figure, entries: Mapping[str, Any] | None = None, title: str | None = None
) -> None:
    """Adds a legend above the panels, with as many columns as fit.

    Args:
        figure: The figure.
        entries: What the labels stand for; by default everything in the panels that has a label.
        title: Title of the legend.
    """
    shown = _labelled(figure) if entries is None else entries
    for columns in range(len(shown), 0, -1):
        place: dict[str, Any] = {"loc": "outside upper center", "ncols": columns}
        legend = figure.legend(list(shown.values()), list(shown), title=title, **place)
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            return
        legend.remove()


def _labelled(figure: Figure) -> dict[str, Any]:
    """The first artist with each label."""
    found: dict[str, Any] = {}
    for panel in figure.axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    return found
