"""Panels of attention maps: selected values, their colours and colour bars."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from babn.errors import ConfigError
from babn.plots.plot_data import as_array, check_index
from babn.plots.style import PALE
from babn.prediction.attention_maps import AttentionMap


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


def colour_bar(figure: Figure, shading: Shading, **place: Any) -> None:
    """Adds a horizontal colour bar: `cax` are its axes, or `ax` the panel that it is above of."""
    shown = ScalarMappable(shading.norm, shading.colours)
    bar = figure.colorbar(shown, orientation="horizontal", **place)
    bar.locator = MaxNLocator(4, steps=[1, 2, 2.5, 5, 10])
    bar.outline.set_linewidth(0.4)
    bar.ax.xaxis.set_ticks_position("bottom")
    bar.ax.set_title(shading.name, pad=3)
    bar.ax.tick_params(length=2, pad=1.5)
