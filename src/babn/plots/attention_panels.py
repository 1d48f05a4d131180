"""Panels of attention maps: selected values, their colours, and the layout in inches."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from babn.errors import ConfigError
from babn.plots.plot_data import as_array, check_index
from babn.plots.sizes import SINGLE, TALLEST, Size, given_width
from babn.plots.style import PALE
from babn.prediction.attention_maps import AttentionMap

BAR, BAR_TOP, BAR_BLOCK = 0.07, 0.19, 0.47
"""Thickness of a colour bar, the space above it, and the height with its name and ticks."""

GAP, PAIR_GAP, TITLE, NAME, EDGE = 0.1, 0.22, 0.18, 0.17, 0.06
"""Space between panels, between pairs, for a title, for an axis label, and at the edge."""

INSET = 0.08
"""Inset of a colour bar at each end, for the tick labels there."""

LEAST = 0.3
"""Minimum side of a panel."""

LINE = 0.085
"""Height of the smallest label."""


@dataclass(frozen=True)
class Chosen:
    """Mean and std/mean of the chosen heads for one example; std/mean is NaN at masked keys."""

    mean: Float[np.ndarray, "head query key"]
    spread: Float[np.ndarray, "head query key"]


def choose(map: AttentionMap, example: int, heads: Sequence[int]) -> Chosen:
    """The chosen heads of a map for one example."""
    if not isinstance(map, AttentionMap):
        raise ConfigError(
            f"map is a {type(map).__name__}. Give one of the maps that babn.attention_maps "
            "returned, such as maps[0] for the first layer."
        )
    batch, count = map.mean.shape[:2]
    check_index("example", example, batch, "the map's batch has")
    if not len(heads):
        raise ConfigError("heads is empty. Give the number of at least one head, such as [0].")
    for head in heads:
        check_index("heads", head, count, f"{map.name} has heads")
    mean = as_array(map.mean[example])[list(heads)]
    spread = as_array(map.relative_std[example])[list(heads)]
    return Chosen(mean, np.where(mean > 0, spread, np.nan))


@dataclass(frozen=True)
class Shading:
    """Colour map, its range, and the name of the values."""

    name: str
    colours: Colormap
    norm: Normalize


def mean_shading(mean: Float[np.ndarray, "..."]) -> Shading:
    """Blue, from zero to the largest weight."""
    _, high = _ends(mean)
    return Shading("posterior mean", _colours("Blues"), Normalize(0, high))


def spread_shading(spread: Float[np.ndarray, "..."]) -> Shading:
    """Orange, from the smallest to the largest value, or from zero if all are equal."""
    low, high = _ends(spread)
    low = low if high - low > 1e-3 * high else 0.0
    return Shading("std / mean", _colours("Oranges"), Normalize(low, high))


def _ends(values: Float[np.ndarray, "..."]) -> tuple[float, float]:
    """The smallest and the largest finite value; 0 and 1 if all are zero or NaN."""
    known = values[np.isfinite(values)]
    return (known.min(), known.max()) if known.any() else (0.0, 1.0)


def _colours(name: str) -> Colormap:
    """A colour map from light to dark, with grey for NaN."""
    return colormaps[name].with_extremes(bad=PALE)


@dataclass(frozen=True)
class Contents:
    """Number of heads, shape of a map, and space for the labels at its left and bottom."""

    heads: int
    queries: int
    keys: int
    left: float
    bottom: float


@dataclass(frozen=True)
class Layout:
    """Pairs of panels for each head, `across` of them side by side.

    Attributes:
        width: Width of the figure.
        height: Height of the figure.
        across: Pairs in a row.
        left: Left edge of the first panel.
        wide: Width of a panel.
        tall: Height of a panel.
        title: Height of the title above each row.
    """

    width: float
    height: float
    across: int
    left: float
    wide: float
    tall: float
    title: float

    def corner(self, head: int, side: int) -> tuple[float, float]:
        """Upper left corner of a panel of a head; `side` is 0 for the mean and 1 for std/mean."""
        row, pair = divmod(head, self.across)
        x = self.left + pair * (2 * self.wide + GAP + PAIR_GAP) + side * (self.wide + GAP)
        return x, BAR_BLOCK + (row + 1) * self.title + row * (self.tall + GAP)

    @property
    def span(self) -> float:
        """Width of all panels together."""
        return self.width - self.left - EDGE


def arrange(contents: Contents, size: Size) -> Layout:
    """The layout with the largest panels that fits the page or the given size."""
    width = given_width(size, SINGLE)
    height = size[1] if isinstance(size, tuple) else None
    layouts = [_layout(contents, width, height, a) for a in range(1, contents.heads + 1)]
    fitting = [
        x for x in layouts if x.height <= (height or TALLEST) and min(x.wide, x.tall) > LEAST
    ]
    if not fitting:
        raise ConfigError(
            f"size={size!r} has no room for heads={contents.heads}. Give a larger size, such as "
            "babn.plots.DOUBLE, or fewer heads."
        )
    return max(fitting, key=lambda x: min(x.wide, x.tall))


def _layout(contents: Contents, width: float, height: float | None, across: int) -> Layout:
    rows = math.ceil(contents.heads / across)
    title = TITLE if contents.heads > 1 else 0.0
    left = EDGE + NAME + contents.left
    gaps = across * GAP + (across - 1) * PAIR_GAP
    wide = (width - left - gaps - EDGE) / (2 * across)
    around = BAR_BLOCK + rows * title + (rows - 1) * GAP + contents.bottom + NAME + EDGE
    if height is None:
        tall = _height(contents, wide)
        height = around + rows * tall
    else:
        tall = (height - around) / rows
    return Layout(width, height, across, left, wide, tall, title)


def _height(contents: Contents, wide: float) -> float:
    """Height for square cells, unless the map is much wider or taller than a square."""
    least = max(min(LINE * contents.queries, wide), LEAST)
    return min(max(wide * contents.queries / contents.keys, least), 1.5 * wide)


def place(figure: Figure, x: float, y: float, wide: float, tall: float) -> Axes:
    """Adds axes with their upper left corner at (x, y)."""
    width, height = figure.get_size_inches()
    return figure.add_axes((x / width, 1 - (y + tall) / height, wide / width, tall / height))


def colour_bar(figure: Figure, shading: Shading, x: float, wide: float) -> None:
    """Adds a colour bar at the top of the figure."""
    axes = place(figure, x + INSET, BAR_TOP, wide - 2 * INSET, BAR)
    shown = ScalarMappable(shading.norm, shading.colours)
    bar = figure.colorbar(shown, cax=axes, orientation="horizontal")
    bar.locator = MaxNLocator(4, steps=[1, 2, 2.5, 5, 10])
    bar.outline.set_linewidth(0.4)
    axes.set_title(shading.name, pad=3)
    axes.tick_params(length=2, pad=1.5)
