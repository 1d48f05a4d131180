"""Heat maps of attention: posterior mean next to std/mean."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from babn.errors import ConfigError
from babn.plots.attention_panels import (
    GAP,
    Contents,
    Layout,
    Shading,
    arrange,
    choose,
    colour_bar,
    mean_shading,
    place,
    spread_shading,
)
from babn.plots.sizes import Size
from babn.plots.style import drawing
from babn.plots.tokens import LARGEST, label_axis, label_size, readable, room
from babn.prediction.attention_maps import AttentionMap

DOTS = 200
"""Dots per inch at which cells should be distinguishable."""


@dataclass(frozen=True)
class Labels:
    """Tokens of queries and keys, and their font sizes in points."""

    queries: list[str]
    keys: list[str]
    query_points: float = LARGEST
    key_points: float = LARGEST


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

    Several heads are placed below each other, and side by side if the page is not tall enough. All
    share their two scales. Masked pairs, whose weight is zero, are grey in std/mean.

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
    labels = Labels(queries, queries if keys is None else readable(keys))
    layout, labels = _fit(len(chosen), labels, size)
    shown = [x[:, : len(labels.queries), : len(labels.keys)] for x in (values.mean, values.spread)]
    shadings = mean_shading(shown[0]), spread_shading(shown[1])
    figure = Figure(figsize=(layout.width, layout.height))
    for side, (matrices, shading) in enumerate(zip(shown, shadings, strict=True)):
        panels = _draw_heads(figure, layout, side, matrices, shading)
        for i, panel in enumerate(panels):
            _label(panel, labels, layout, left=i % layout.across + side == 0)
            panel.xaxis.set_visible(i + layout.across >= len(chosen))
            panel.set_title(f"head {chosen[i]}" if len(chosen) > 1 and not side else "", loc="left")
    return figure


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


def _fit(heads: int, labels: Labels, size: Size) -> tuple[Layout, Labels]:
    """The layout and the label sizes; smaller labels leave room for larger panels."""
    queries, keys = labels.queries, labels.keys
    rooms = room(queries, LARGEST), room(keys, LARGEST)
    layout = arrange(Contents(heads, len(queries), len(keys), *rooms), size)
    sizes = label_size(layout.tall / len(queries)), label_size(layout.wide / len(keys))
    rooms = room(queries, sizes[0]), room(keys, sizes[1])
    layout = arrange(Contents(heads, len(queries), len(keys), *rooms), size)
    return layout, Labels(queries, keys, *sizes)


def _draw_heads(
    figure: Figure,
    layout: Layout,
    side: int,
    matrices: Float[np.ndarray, "head query key"],
    shading: Shading,
) -> list[Axes]:
    """Draws the panels of all heads for the mean or std/mean, and their colour bar."""
    half = (layout.span - GAP) / 2
    colour_bar(figure, shading, layout.left + side * (half + GAP), half)
    corners = [layout.corner(i, side) for i in range(len(matrices))]
    panels = [place(figure, *corner, layout.wide, layout.tall) for corner in corners]
    for panel, matrix in zip(panels, matrices, strict=True):
        _draw(panel, matrix, shading)
    return panels


def _draw(panel: Axes, matrix: Float[np.ndarray, "query key"], shading: Shading) -> None:
    """Draws cells with sharp edges, or smoothed if a cell is smaller than two dots in print."""
    scale = DOTS / panel.figure.dpi
    dots = scale * panel.bbox.height / matrix.shape[0], scale * panel.bbox.width / matrix.shape[1]
    smoothing = "nearest" if min(dots) >= 2 else "antialiased"
    colours: dict[str, Any] = {"cmap": shading.colours, "norm": shading.norm}
    panel.imshow(matrix, aspect="auto", interpolation=smoothing, **colours)
    panel.spines[:].set(visible=True, linewidth=0.4)


def _label(panel: Axes, labels: Labels, layout: Layout, left: bool) -> None:
    """Labels both axes with tokens, queries only at the left end of a row."""
    label_axis(panel.xaxis, labels.keys, layout.wide / len(labels.keys), labels.key_points)
    label_axis(panel.yaxis, labels.queries, layout.tall / len(labels.queries), labels.query_points)
    panel.tick_params(axis="x", rotation=90)
    panel.set_xlabel("key")
    panel.set_ylabel("query")
    panel.yaxis.set_visible(left)
