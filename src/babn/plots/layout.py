"""Layout of attention figures, in inches from the top left."""

import math
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from babn.errors import ConfigError
from babn.plots.map_values import Shading
from babn.plots.sizes import SINGLE, TALLEST, Size, given_width

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
