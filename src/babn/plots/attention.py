"""Heat maps of attention: posterior mean next to std/mean."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from babn.errors import ConfigError
from babn.plots import SINGLE
from babn.plots import figures as style
from babn.prediction.attention_maps import AttentionMap

DOTS = 200
"""Dots per inch at which cells should be distinguishable."""

LETTER, LINE = 0.06, 0.085
"""Width of a letter of a label and height of the smallest label, in inches."""

BAR, TITLE, LEAST = 0.07, 0.25, 0.3
"""Thickness of a colour bar, height of a head's title, and minimum side of a panel."""

LETTERS = 12
"""Length after which tokens are cut, in characters."""

LARGEST, SMALLEST = 7.0, 5.0
"""Sizes of labels in points."""

SPACING = 1.2 / 72
"""Line height in inches per point of font size."""

JOINERS = "\u200c\u200d"
"""Invisible characters that belong to the spelling of a word."""


@dataclass(frozen=True)
class Shading:
    """Colour map, its range, and the name of the values."""

    name: str
    colours: Colormap
    norm: Normalize

    def colour_bar(self, figure: Figure, **place: Any) -> None:
        """Adds a horizontal colour bar: `cax` are its axes, or `ax` the panel below it."""
        shown = ScalarMappable(self.norm, self.colours)
        bar = figure.colorbar(shown, orientation="horizontal", **place)
        bar.locator = MaxNLocator(4, steps=[1, 2, 2.5, 5, 10])
        bar.outline.set_linewidth(0.4)
        bar.ax.xaxis.set_ticks_position("bottom")
        bar.ax.set_title(self.name, pad=3)
        bar.ax.tick_params(length=2, pad=1.5)


def shadings(
    mean: Float[np.ndarray, "..."], spread: Float[np.ndarray, "..."]
) -> tuple[Shading, Shading]:
    """Blue for means, from zero to the largest; orange for std/mean, from the smallest.

    If all values of std/mean are equal, their scale begins at zero. NaN is grey.
    """
    blue, orange = (colormaps[name].with_extremes(bad=style.PALE) for name in ("Blues", "Oranges"))
    low, high = _ends(spread)
    low = low if high - low > 1e-3 * high else 0.0
    return (
        Shading("posterior mean", blue, Normalize(0, _ends(mean)[1])),
        Shading("std / mean", orange, Normalize(low, high)),
    )


def _ends(values: Float[np.ndarray, "..."]) -> tuple[float, float]:
    """The smallest and the largest finite value; 0 and 1 if all are zero or NaN."""
    known = values[np.isfinite(values)]
    return (known.min(), known.max()) if known.any() else (0.0, 1.0)


@style.drawing
def attention_figure(
    map: AttentionMap,
    tokens: Sequence[str],
    keys: Sequence[str] | None = None,
    *,
    example: int = 0,
    heads: int | Sequence[int] = 0,
    size: style.Size = None,
) -> Figure:
    """Posterior mean of attention next to its std/mean, with queries as rows and keys as columns.

    Several heads are placed below each other, and side by side if the page is not tall enough: the
    means at the left, std/mean at the right. All share their two scales. Masked pairs, whose weight
    is zero, are grey in std/mean.

    Args:
        map: One of the maps that `babn.attention_maps` returned.
        tokens: Tokens of the queries; later positions, such as padding, are not shown.
        keys: Tokens of the keys in cross-attention; by default the same as `tokens`.
        example: Index of the example in the batch.
        heads: Index of a head, or several.
        size: Width in inches, or width and height.
    """
    chosen = list(heads) if isinstance(heads, Sequence) else [heads]
    values = choose(map, example, chosen)
    _check_tokens(map, tokens, keys)
    queries = readable(tokens)
    keyed = queries if keys is None else readable(keys)
    shown = [x[:, : len(queries), : len(keyed)] for x in values]
    (rows, across), inches = _arrange(len(chosen), queries, keyed, size)
    figure = style.new_figure(inches)
    heights = [BAR * rows / inches[1], *[1] * rows]
    cells = figure.add_gridspec(rows + 1, 2 * across, height_ratios=heights)
    panels: list[Axes] = []
    for side, shading in enumerate(shadings(*shown)):
        first = side * across
        shading.colour_bar(figure, cax=figure.add_subplot(cells[0, first : first + across]))
        for i, matrix in enumerate(shown[side]):
            row, column = divmod(i, across)
            panel = figure.add_subplot(cells[row + 1, first + column])
            panel.imshow(matrix, shading.colours, shading.norm, aspect="auto")
            panel.xaxis.set_visible(i + across >= len(chosen))
            panel.yaxis.set_visible(first + column == 0)
            panel.set_title(f"head {chosen[i]}" if len(chosen) > 1 and not side else "", loc="left")
            panels.append(panel)
    _label(figure, panels, queries, keyed)
    return style.arranged(figure)


def choose(
    map: AttentionMap, example: int, heads: Sequence[int]
) -> tuple[Float[np.ndarray, "head query key"], Float[np.ndarray, "head query key"]]:
    """Mean and std/mean of some heads for one example; std/mean is NaN at masked keys."""
    if not isinstance(map, AttentionMap):
        raise ConfigError(
            f"map is a {type(map).__name__}. Give one of the maps that babn.attention_maps "
            "returned, such as maps[0] for the first layer."
        )
    batch, count = map.mean.shape[:2]
    style.check_index("example", example, batch, "the map's batch has")
    if not len(heads):
        raise ConfigError("heads is empty. Give the number of at least one head, such as [0].")
    for head in heads:
        style.check_index("heads", head, count, f"{map.name} has heads")
    mean = style.as_array(map.mean[example])[list(heads)]
    spread = style.as_array(map.relative_std[example])[list(heads)]
    return mean, np.where(mean > 0, spread, np.nan)


def _check_tokens(map: AttentionMap, tokens: Sequence[str], keys: Sequence[str] | None) -> None:
    """Validates the numbers of tokens against the map."""
    queries, count = map.mean.shape[-2:]
    if keys is None and queries != count:
        raise ConfigError(
            f"keys is not given, and {map.name} has {queries} queries and {count} keys. Give the "
            "tokens of its keys as well."
        )
    keyed = tokens if keys is None else keys
    for argument, given, most in (("tokens", tokens, queries), ("keys", keyed, count)):
        if isinstance(given, str) or not 1 <= len(given) <= most:
            raise ConfigError(
                f"{argument} has {len(given)} entries and {map.name} {most}. Give a list of at "
                f"least one token and at most {most}."
            )


def readable(tokens: Sequence[str]) -> list[str]:
    """Tokens for display: cut, with visible blanks and control characters."""
    return [style.shortened(_visible(token), LETTERS) for token in tokens]


def _visible(token: str) -> str:
    if not token.strip(" "):
        token = "␣" * len(token)
    # Cuts first, since a token may be a whole document.
    return "".join(
        c if c.isprintable() or c in JOINERS else c.encode("unicode_escape").decode("ascii")
        for c in token[: LETTERS + 1]
    )


def _arrange(
    heads: int, queries: Sequence[str], keys: Sequence[str], size: style.Size
) -> tuple[tuple[int, int], tuple[float, float]]:
    """Rows, and heads side by side, for the largest panels; and the size of the figure."""
    width, given = size if isinstance(size, tuple) else (size or SINGLE, None)
    left = 0.3 + LETTER * max(map(len, queries))
    below = 0.8 + LETTER * max(map(len, keys))
    found = []
    for across in range(1, heads + 1):
        rows = math.ceil(heads / across)
        wide = (width - left) / (2 * across)
        # Square cells, unless the map is much wider or taller than a square.
        lowest = max(min(LINE * len(queries), wide), LEAST)
        tall = min(max(wide * len(queries) / len(keys), lowest), 1.5 * wide)
        height = given or below + rows * (tall + TITLE)
        tall = (height - below) / rows - TITLE
        if height <= (given or style.TALLEST) and min(wide, tall) > LEAST:
            found.append((min(wide, tall), (rows, across), (width, height)))
    if not found:
        raise ConfigError(
            f"size={size!r} has no room for heads={heads}. Give a larger size, such as "
            "babn.plots.DOUBLE, or fewer heads."
        )
    return max(found)[1:]


def _label(
    figure: Figure, panels: Sequence[Axes], queries: Sequence[str], keys: Sequence[str]
) -> None:
    """Labels both axes with tokens, in the size that fits the panels of the layout."""
    for panel in panels:
        panel.spines[:].set(visible=True, linewidth=0.4)
        panel.set_xticks(range(len(keys)), keys, rotation=90)
        panel.set_yticks(range(len(queries)), queries)
        panel.set(xlabel="key", ylabel="query")
    figure.draw_without_rendering()
    for panel in panels:
        box = panel.get_window_extent().transformed(figure.dpi_scale_trans.inverted())
        pitches = box.width / len(keys), box.height / len(queries)
        label_axis(panel.xaxis, keys, pitches[0])
        label_axis(panel.yaxis, queries, pitches[1])
        # Sharp edges, unless a cell is smaller than two dots in print.
        panel.images[0].set_interpolation("nearest" if min(pitches) >= 2 / DOTS else "antialiased")


def label_axis(axis: Axis, labels: Sequence[str], pitch: float) -> None:
    """Labels an axis; keeps every second, third, ... label if all would overlap.

    Args:
        axis: The axis, with labels at 0, 1, 2 and so on.
        labels: All labels.
        pitch: Distance between labels in inches.
    """
    points = min(max(pitch / SPACING, SMALLEST), LARGEST)
    every = max(1, math.ceil(points * SPACING / pitch - 1e-6))
    places = list(range(0, len(labels), every))
    axis.set_ticks(places, [labels[i] for i in places], fontsize=points)
    axis.set_tick_params(length=0 if every == 1 else 2, pad=1.5)
