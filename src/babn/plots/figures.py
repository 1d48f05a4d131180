"""Creates figures in the style of babn, and saves them as files or as SVG elements."""

import functools
import io
import math
import os
import re
import textwrap
import threading
from collections.abc import Callable, Sized
from html import escape
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import matplotlib
import numpy as np
from jaxtyping import Float
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import AutoLocator, FixedLocator
from torch import Tensor

from babn.errors import ConfigError
from babn.files import replace_file
from babn.plots import DOUBLE, SINGLE

P = ParamSpec("P")
Result = TypeVar("Result")

BLUE, VERMILION, GREEN, ORANGE = "#0072B2", "#D55E00", "#009E73", "#E69F00"
PURPLE, SKY, BLACK = "#CC79A7", "#56B4E9", "#000000"
"""The palette of Okabe and Ito, which is safe for colour-blind readers."""

COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, BLACK, SKY)
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)), (0, (3, 3)))
GREY, PALE = "0.45", "0.92"

TALLEST = 9.0
"""Height of a printed page in inches."""

NARROWEST = 1.3
"""Minimum width of a panel in inches."""

LETTER = 0.07
"""Width of a letter of a title in inches, with some room."""

FORMATS: dict[str, dict[str, Any]] = {
    ".pdf": {"dpi": 300, "metadata": {"CreationDate": None}},
    ".svg": {"dpi": 300, "metadata": {"Date": None}},
    ".png": {"dpi": 200},
}
"""Settings by suffix; without dates, so that files are reproducible."""

LOCK = threading.RLock()
"""Held while matplotlib's global settings are changed."""

Size = float | tuple[float, float] | None
"""A width, a width and a height, or `None` for a default size."""


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


@drawing
def save(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Saves a figure as PDF, SVG, or PNG at 200 dpi, by the suffix of `path`.

    Text stays text: PDFs embed TrueType fonts, SVGs refer to theirs. Creates missing folders, and
    writes the file atomically.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise ConfigError(
            f"path={str(path)!r} ends in {suffix!r}. Give a name that ends in {', '.join(FORMATS)}."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    settings = {"format": suffix[1:], **FORMATS[suffix]}
    replace_file(path, lambda partial: figure.savefig(partial, **settings))
    return path


@drawing
def as_svg(figure: Figure, label: str = "") -> str:
    """Renders a figure as an `svg` element for an HTML page.

    Args:
        figure: The figure.
        label: Description of the figure for screen readers.
    """
    file = io.StringIO()
    figure.savefig(file, format="svg", **FORMATS[".svg"])
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", file.getvalue(), flags=re.DOTALL)
    named = f'<svg role="img" aria-label="{escape(label)}" ' if label else '<svg role="img" '
    return named + text[text.index("<svg ") + len("<svg ") :]


def new_figure(size: tuple[float, float]) -> Figure:
    """An empty figure with constrained layout."""
    return Figure(figsize=size, layout="constrained")


def figure_size(size: Size, width: float, height: Callable[[float], float]) -> tuple[float, float]:
    """Width and height of a figure.

    Args:
        size: The caller's size.
        width: The default width.
        height: Returns the default height for a width.
    """
    if isinstance(size, tuple):
        return size
    wide = width if size is None else size
    return wide, min(height(wide), TALLEST)


def panel_grid(count: int, size: Size, height: Callable[[float], float]) -> tuple[Figure, int, int]:
    """An empty figure, and the numbers of rows and columns for `count` panels in it.

    Args:
        count: Number of panels; from three on the figure is two columns wide by default.
        size: The caller's size.
        height: Returns the default height of a row for the width of a panel.
    """
    width = figure_size(size, SINGLE if count < 3 else DOUBLE, height)[0]
    columns = min(count, max(1, int(width / NARROWEST)))
    rows = math.ceil(count / columns)
    tall = rows * height(min(width / columns, SINGLE)) + 0.3
    return new_figure(figure_size(size, width, lambda _: tall)), rows, columns


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
        axis.set_major_formatter(_percentage)


def _percentage(share: float, _: int) -> str:
    return f"{round(100 * share, 6):g}"


def note(panel: Axes, x: float, y: float, text: str, **settings: Any) -> None:
    """Adds text to a panel at relative coordinates, on a white background."""
    ground = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.0}
    panel.text(x, y, text, transform=panel.transAxes, fontsize=7, bbox=ground, **settings)


def panel_title(panel: Axes, name: str, columns: int) -> None:
    """Sets the title of one of several panels in a row, on as many lines as it needs."""
    width = panel.figure.bbox.width / panel.figure.dpi / columns
    panel.set_title(textwrap.fill(name, max(int(width / LETTER), 1)))


def shortened(text: str, most: int) -> str:
    """The text, cut if it has more than `most` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def legend_above(figure: Figure, title: str | None = None) -> None:
    """Adds a legend of all labels above the panels, with as many columns as fit."""
    shown: dict[str, Any] = {}
    for panel in figure.axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            shown.setdefault(label, handle)
    for columns in range(len(shown), 0, -1):
        place: dict[str, Any] = {"loc": "outside upper center", "ncols": columns}
        legend = figure.legend(list(shown.values()), list(shown), title=title, **place)
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            return
        legend.remove()


def as_array(values: Float[Tensor, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """The values as a NumPy array."""
    return values.detach().cpu().double().numpy()


def check_some(values: Sized, argument: str, remedy: str) -> None:
    """Validates that a collection is not empty."""
    if not len(values):
        raise ConfigError(f"{argument} is empty, so there is nothing to draw. Give {remedy}.")


def check_index(argument: str, value: int, count: int, owner: str) -> None:
    """Validates that an index is from 0 to `count` - 1."""
    if isinstance(value, bool) or not 0 <= value < count:
        raise ConfigError(
            f"{argument}={value!r} does not exist: {owner} 0 to {count - 1}. Give one of those."
        )
