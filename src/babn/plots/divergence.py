"""The divergence of each layer over training."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, Colormap, ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from babn.plots.answers import check_some
from babn.plots.histories import STEP, Series, as_series, from_records, step_numbers
from babn.plots.legends import legend_above
from babn.plots.sizes import SINGLE, Size, figure_size
from babn.plots.style import DASHES, arranged, drawing, new_figure

WIDE_RANGE = 50
"""Above this ratio of the largest to the least divergence the scale is logarithmic."""

NAMED = 6
"""Up to so many layers each has its mark on the colour bar."""

LOGGED = "kl/"
"""What the names of layers begin with in a trainer's log."""


@drawing
def kl_history(
    history: Mapping[str, Series] | Sequence[Mapping[str, Any]],
    steps: Series | None = None,
    *,
    size: Size = None,
) -> Figure:
    """Divergence of each layer over training steps, darker for the earlier layers.

    Layers named as by `babn.kl_per_layer`, chain and step with a slash between, have the colour of
    their step and the dashes of their chain. The colour bar counts layers from 1.

    Args:
        history: Divergences in nats of each layer over steps; for each step what
            `babn.kl_per_layer` gave, with its number as `"step"` if it is known; or a trainer's
            `state.log_history`.
        steps: Step numbers; counted from 1 if not given.
        size: Width in inches, or width and height.
    """
    layers, steps = _by_layer(history, steps)
    chains = list(dict.fromkeys(_chain(name) for name in layers))
    depths = {name: _depth(name, list(layers)) for name in layers}
    palette = _palette(max(depths.values()) + 1)
    figure = new_figure(figure_size(size, SINGLE, lambda width: min(0.4 * width + 0.9, 2.7)))
    panel = figure.subplots()
    for name, values in layers.items():
        dashes = DASHES[chains.index(_chain(name)) % len(DASHES)]
        at = step_numbers(steps, len(values), f"history[{name!r}]")
        panel.plot(at, values, color=palette(depths[name]), linestyle=dashes, label=name)
    _scale(panel, np.concatenate(list(layers.values())))
    panel.set(xlabel="training step", ylabel="KL divergence (nats)")
    _colour_bar(panel, palette)
    if len(chains) > 1:
        _chain_legend(figure, chains)
    return arranged(figure)


def _by_layer(history: Any, steps: Series | None) -> tuple[dict[str, Any], Series | None]:
    if not isinstance(history, Mapping):
        history, found = from_records(_logged(history), "history")
        steps = found if steps is None else steps
    check_some(history, "history", "divergences of each layer over steps")
    return {name: as_series(f"history[{name!r}]", x) for name, x in history.items()}, steps


def _logged(records: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Of a trainer's log the divergences of layers alone; other records as they are."""
    kept = [
        {name.removeprefix(LOGGED): value for name, value in record.items() if _belongs(name)}
        for record in records
        if any(name.startswith(LOGGED) for name in record)
    ]
    return kept or records


def _belongs(name: str) -> bool:
    return name.startswith(LOGGED) or name == STEP


def _chain(name: str) -> str:
    """What a layer's name says before its step; nothing if it gives none."""
    chain, slash, step = name.rpartition("/")
    return chain if slash and step.isdecimal() else ""


def _depth(name: str, names: list[str]) -> int:
    """How many layers of the same chain come before."""
    return [other for other in names if _chain(other) == _chain(name)].index(name)


def _palette(depth: int) -> Colormap:
    """One colour for each depth; the lightest would be lost on white."""
    return ListedColormap(colormaps["viridis"](np.linspace(0, 0.9, depth)))


def _scale(panel: Axes, values: Float[np.ndarray, "value"]) -> None:
    """A logarithmic scale where divergences differ by orders of magnitude."""
    known = values[np.isfinite(values)]
    if len(known) and known.min() > 0 and known.max() > WIDE_RANGE * known.min():
        panel.set_yscale("log")
        marks = (1, 2, 5) if known.max() < 1000 * known.min() else (1,)
        panel.yaxis.set_major_locator(LogLocator(subs=marks))
        panel.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        panel.yaxis.set_minor_formatter(NullFormatter())


def _colour_bar(panel: Axes, palette: Colormap) -> None:
    """Which colour is which layer, counted from 1."""
    depth = palette.N
    norm = BoundaryNorm(np.arange(depth + 1) + 0.5, depth)
    every = 1 if depth <= NAMED else -(-depth // NAMED)
    bar = panel.figure.colorbar(
        ScalarMappable(norm, palette), ax=panel, pad=0.02, aspect=30, label="layer"
    )
    inner = [x for x in range(every, depth, every) if min(x - 1, depth - x) > every / 2]
    marks = sorted({1, *inner, depth})
    bar.set_ticks(marks, labels=[str(mark) for mark in marks])
    bar.ax.tick_params(length=0)
    bar.minorticks_off()
    bar.outline.set_visible(False)


def _chain_legend(figure: Figure, chains: list[str]) -> None:
    """Which dashes are which chain."""
    panel = figure.axes[0]
    looks = [DASHES[i % len(DASHES)] for i in range(len(chains))]
    lines = [panel.plot([], [], color="0.3", linestyle=look)[0] for look in looks]
    legend_above(figure, lines, [chain or "other" for chain in chains])
