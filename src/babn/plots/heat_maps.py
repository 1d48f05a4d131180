"""Heat maps of attention: posterior mean next to std/mean."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from babn.errors import ConfigError
from babn.plots.attention_panels import choose, colour_bar, mean_shading, spread_shading
from babn.plots.sizes import SINGLE, TALLEST, Size, given_width
from babn.plots.style import arranged, drawing, new_figure
from babn.plots.tokens import label_axis, readable
from babn.prediction.attention_maps import AttentionMap

DOTS = 200
"""Dots per inch at which cells should be distinguishable."""

LETTER, LINE = 0.06, 0.085
"""Width of a letter of a label and height of the smallest label, in inches."""

BAR, TITLE, LEAST = 0.07, 0.25, 0.3
"""Thickness of a colour bar, height of a head's title, and minimum side of a panel."""


@drawing
def attention_figure(
    map: AttentionMap,
    tokens: Sequence[str],
    keys: Sequence[str] | None = None,
    *,
    example: int = 0,
    heads: int | Sequence[int] = 0,
    size: Size = None,
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
    shown = [x[:, : len(queries), : len(keyed)] for x in (values.mean, values.spread)]
    (rows, across), inches = _arrange(len(chosen), queries, keyed, size)
    figure = new_figure(inches)
    heights = [BAR * rows / inches[1], *[1] * rows]
    cells = figure.add_gridspec(rows + 1, 2 * across, height_ratios=heights)
    panels: list[Axes] = []
    for side, make in enumerate((mean_shading, spread_shading)):
        shading, first = make(shown[side]), side * across
        bar = figure.add_subplot(cells[0, first : first + across])
        colour_bar(figure, shading, cax=bar)
        for i, matrix in enumerate(shown[side]):
            row, column = divmod(i, across)
            panel = figure.add_subplot(cells[row + 1, first + column])
            panel.imshow(matrix, shading.colours, shading.norm, aspect="auto")
            panel.xaxis.set_visible(i + across >= len(chosen))
            panel.yaxis.set_visible(first + column == 0)
            panel.set_title(f"head {chosen[i]}" if len(chosen) > 1 and not side else "", loc="left")
            panels.append(panel)
    _label(figure, panels, queries, keyed)
    return arranged(figure)


def _check_tokens(map: AttentionMap, tokens: Sequence[str], keys: Sequence[str] | None) -> None:
    """Validates the numbers of tokens against the map."""
    for argument, given, most in (
        ("tokens", tokens, map.mean.shape[-2]),
        ("keys", tokens if keys is None else keys, map.mean.shape[-1]),
    ):
        if isinstance(given, str) or not 1 <= len(given) <= most:
            raise ConfigError(
                f"{argument} has {len(given)} entries and {map.name} {most}. Give a list of at "
                f"least one token and at most {most}."
            )
    if keys is None and map.mean.shape[-2] != map.mean.shape[-1]:
        raise ConfigError(
            f"keys is not given, and {map.name} has {map.mean.shape[-2]} queries and "
            f"{map.mean.shape[-1]} keys. Give the tokens of its keys as well."
        )


def _arrange(
    heads: int, queries: Sequence[str], keys: Sequence[str], size: Size
) -> tuple[tuple[int, int], tuple[float, float]]:
    """Rows, and heads side by side, for the largest panels; and the size of the figure."""
    width = given_width(size, SINGLE)
    given = size[1] if isinstance(size, tuple) else None
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
        if height <= (given or TALLEST) and min(wide, tall) > LEAST:
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
        panel.set_xlabel("key")
        panel.set_ylabel("query")
    figure.draw_without_rendering()
    for panel in panels:
        box = panel.get_window_extent().transformed(figure.dpi_scale_trans.inverted())
        pitches = box.width / len(keys), box.height / len(queries)
        label_axis(panel.xaxis, keys, pitches[0])
        label_axis(panel.yaxis, queries, pitches[1])
        # Sharp edges, unless a cell is smaller than two dots in print.
        panel.images[0].set_interpolation("nearest" if min(pitches) >= 2 / DOTS else "antialiased")
