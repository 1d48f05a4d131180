"""Selects values of an attention map, and their colours."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from matplotlib import colormaps
from matplotlib.colors import Colormap, Normalize

from babn.errors import ConfigError
from babn.plots.plot_data import as_array
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


def check_index(argument: str, value: int, count: int, owner: str) -> None:
    """Validates that an index is from 0 to `count` - 1."""
    if isinstance(value, bool) or not 0 <= value < count:
        raise ConfigError(
            f"{argument}={value!r} does not exist: {owner} 0 to {count - 1}. Give one of those."
        )


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
