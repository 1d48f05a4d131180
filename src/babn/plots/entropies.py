"""Histograms of the entropy of in-domain and out-of-domain examples."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from babn import metrics
from babn.errors import ConfigError
from babn.plots import style
from babn.plots.plot_data import as_array, check_some
from babn.plots.sizes import DOUBLE, SINGLE, Size, figure_size, given_width, grid
from babn.plots.style import drawing
from babn.prediction.result import Prediction

BARS = 20
PANEL = 1.3
"""Number of bars, and minimum width of a panel in inches."""

Entropies = Prediction | Tensor


@drawing
def entropy_histogram(
    inside: Entropies | Mapping[str, tuple[Entropies, Entropies]],
    outside: Entropies | None = None,
    *,
    size: Size = None,
) -> Figure:
    """Entropies of in-domain and out-of-domain examples, one panel for each method.

    Each panel shows the AUROC: the probability that an out-of-domain example has the higher
    entropy.

    Args:
        inside: Entropies of in-domain examples in nats, or a prediction, or a mapping from method
            names to pairs of inside and outside.
        outside: Entropies of out-of-domain examples, unless `inside` is a mapping.
        size: Width in inches, or width and height.
    """
    pairs = _by_method(inside, outside)
    width = given_width(size, SINGLE if len(pairs) < 3 else DOUBLE)
    rows, columns = grid(len(pairs), width, PANEL)
    tall = rows * max(1.3, 0.55 * min(width / columns, SINGLE) + 0.3) + 0.3
    figure = style.new_figure(figure_size(size, width, lambda _: tall))
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flatten()
    edges = _edges(pairs)
    for panel, (name, pair) in zip(panels, pairs.items(), strict=False):
        _draw_pair(panel, pair, edges)
        style.panel_title(panel, name, columns)
    _finish(panels.tolist(), len(pairs), columns)
    style.legend_above(figure)
    return style.arranged(figure)


Pairs = dict[str, tuple[Float[np.ndarray, "inside"], Float[np.ndarray, "outside"]]]


def _by_method(inside: Any, outside: Entropies | None) -> Pairs:
    """Entropies by method name; a single method has the empty name."""
    if isinstance(inside, Mapping) != (outside is None):
        raise ConfigError(
            f"inside is a {type(inside).__name__} and outside a {type(outside).__name__}. Give two "
            "tensors, or as inside alone a mapping from names to pairs of tensors."
        )
    if not isinstance(inside, Mapping):
        return {"": (_entropies("inside", inside), _entropies("outside", outside))}
    check_some(inside, "inside", "a mapping from names to pairs of tensors")
    return {
        name: (_entropies(f"inside[{name!r}][0]", one), _entropies(f"inside[{name!r}][1]", other))
        for name, (one, other) in inside.items()
    }


def _entropies(argument: str, source: Any) -> Float[np.ndarray, "example"]:
    """Finite entropies as an array."""
    values = source.entropy if isinstance(source, Prediction) else source
    found = as_array(values).flatten()
    if not len(found) or not np.isfinite(found).all():
        raise ConfigError(
            f"{argument} is empty or holds NaN or infinity, of {len(found)} values. Give at least "
            "one entropy, all of them finite."
        )
    return found


def _edges(pairs: Pairs) -> Float[np.ndarray, "edge"]:
    """Bar edges that all methods share, from the smallest entropy or 0 to the largest."""
    values = [x for pair in pairs.values() for x in pair]
    low, high = min(0.0, *(x.min() for x in values)), max(x.max() for x in values)
    return np.linspace(low, high if high > low else low + 1, BARS + 1)


def _draw_pair(panel: Axes, pair: Any, edges: Float[np.ndarray, "edge"]) -> None:
    """Draws one method: bars for inside, an outline for outside, so that both stay visible."""
    shares = [np.histogram(x, edges)[0] / len(x) for x in pair]
    panel.stairs(shares[0], edges, fill=True, color=style.SKY, label="in domain")
    panel.stairs(shares[1], edges, color=style.VERMILION, linewidth=1.2, label="out of domain")
    score = metrics.auroc(*(torch.as_tensor(x) for x in pair))
    style.note(panel, 0.97, 0.97, f"AUROC {score:.3f}", va="top", ha="right")


def _finish(panels: Sequence[Axes], used: int, columns: int) -> None:
    """Sets scales and labels, and hides unused axes."""
    top = max(panel.dataLim.y1 for panel in panels[:used])
    panels[0].set_ylim(0, 1.25 * top)
    for i, panel in enumerate(panels):
        panel.set_visible(i < used)
        panel.tick_params(labelbottom=i + columns >= used)
        style.in_percent(panel.yaxis)
        panel.set_xlabel("entropy (nats)" if i + columns >= used else "")
        panel.set_ylabel("share (%)" if i % columns == 0 else "")
