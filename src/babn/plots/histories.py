"""Losses, metrics and the KL of each layer over training."""

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

from babn.plots.plot_data import (
    STEP,
    Series,
    as_runs,
    as_series,
    check_some,
    from_records,
    step_numbers,
)
from babn.plots.sizes import DOUBLE, SINGLE, Size, figure_size, given_width, grid
from babn.plots.style import DASHES, arranged, drawing, legend_above, line_look, new_figure

PANEL = 1.6
"""Minimum width of a panel in inches."""

WIDE_RANGE = 50
"""Ratio of the largest to the smallest KL from which on the scale is logarithmic."""

NAMED = 6
"""Largest number of layers that all have a tick on the colour bar."""

LOGGED = "kl/"
"""Prefix of layer names in a trainer's log."""


@drawing
def training_curves(
    history: Mapping[str, Series] | Mapping[str, Mapping[str, Series]],
    steps: Series | None = None,
    *,
    label: str = "loss",
    size: Size = None,
) -> Figure:
    """Losses, KLs or metrics over training steps.

    For several seeds the line is their mean and the band one standard deviation to either side.

    Args:
        history: For each method one value per step, or a row of them for each seed. For several
            panels, a mapping from panel labels to such mappings.
        steps: Step numbers; by default counted from 1.
        label: Label of the panel, if there is only one.
        size: Width in inches, or width and height.
    """
    panels = _by_panel(history, label)
    width = given_width(size, SINGLE if len(panels) == 1 else DOUBLE)
    rows, columns = grid(len(panels), width, PANEL)
    tall = rows * max(0.45 * min(width / columns, SINGLE) + 0.5, 1.75) + 0.35
    figure = new_figure(figure_size(size, width, lambda _: tall))
    names = list(dict.fromkeys(name for methods in panels.values() for name in methods))
    for i, (measure, methods) in enumerate(panels.items()):
        panel = figure.add_subplot(rows, columns, i + 1)
        for name, runs in methods.items():
            place = f"history[{measure!r}][{name!r}]" if len(panels) > 1 else f"history[{name!r}]"
            _draw_runs(panel, names.index(name), name, runs, steps, place)
        panel.set_ylabel(measure)
        panel.set_xlabel("training step" if i + columns >= len(panels) else "")
    legend_above(figure)
    return arranged(figure)


def _by_panel(history: Any, label: str) -> dict[str, dict[str, Series]]:
    """Series by panel and method."""
    check_some(history, "history", "a mapping from names of methods to numbers over steps")
    nested = isinstance(next(iter(history.values())), Mapping)
    panels = history if nested else {label: history}
    for measure, methods in panels.items():
        check_some(methods, f"history[{measure!r}]", "at least one method")
    return panels


def _draw_runs(
    panel: Axes, index: int, name: str, runs: Series, steps: Series | None, argument: str
) -> None:
    """Draws the mean over seeds, with a band of one standard deviation."""
    values = as_runs(argument, runs)
    at = step_numbers(steps, values.shape[1], argument)
    mean = values.mean(0)
    panel.plot(at, mean, label=name, **line_look(index))
    if len(values) > 1:
        spread = np.std(values, axis=0, ddof=1)
        colour = line_look(index)["color"]
        panel.fill_between(at, mean - spread, mean + spread, color=colour, alpha=0.2, linewidth=0)


@drawing
def kl_history(
    history: Mapping[str, Series] | Sequence[Mapping[str, Any]],
    steps: Series | None = None,
    *,
    size: Size = None,
) -> Figure:
    """KL of each layer over training steps, darker for earlier layers.

    Layers that are named as by `babn.kl_per_layer`, chain/step, have the colour of their step and
    the dashes of their chain. The colour bar counts layers from 1.

    Args:
        history: The KL of each layer over steps, in nats; or for each step what
            `babn.kl_per_layer` returned, with an optional number as `"step"`; or a trainer's
            `state.log_history`.
        steps: Step numbers; by default counted from 1.
        size: Width in inches, or width and height.
    """
    layers, steps = _by_layer(history, steps)
    chains = list(dict.fromkeys(_chain(name) for name in layers))
    depths = {name: _depth(name, list(layers)) for name in layers}
    # Without the lightest colours, which are illegible on white.
    shades = np.linspace(0, 0.9, max(depths.values()) + 1)
    palette = ListedColormap(colormaps["viridis"](shades))
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
    check_some(history, "history", "the KL of each layer over steps")
    return {name: as_series(f"history[{name!r}]", x) for name, x in history.items()}, steps


def _logged(records: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """The KL of layers in a trainer's log; other records unchanged."""
    kept = [
        {
            name.removeprefix(LOGGED): value
            for name, value in record.items()
            if name.startswith(LOGGED) or name == STEP
        }
        for record in records
        if any(name.startswith(LOGGED) for name in record)
    ]
    return kept or records


def _chain(name: str) -> str:
    """The chain in a layer's name, or an empty string."""
    chain, slash, step = name.rpartition("/")
    return chain if slash and step.isdecimal() else ""


def _depth(name: str, names: list[str]) -> int:
    """Index of a layer in its chain."""
    return [other for other in names if _chain(other) == _chain(name)].index(name)


def _scale(panel: Axes, values: Float[np.ndarray, "value"]) -> None:
    """Sets a logarithmic scale if values differ by orders of magnitude."""
    known = values[np.isfinite(values)]
    if len(known) and known.min() > 0 and known.max() > WIDE_RANGE * known.min():
        panel.set_yscale("log")
        marks = (1, 2, 5) if known.max() < 1000 * known.min() else (1,)
        panel.yaxis.set_major_locator(LogLocator(subs=marks))
        panel.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        panel.yaxis.set_minor_formatter(NullFormatter())


def _colour_bar(panel: Axes, palette: Colormap) -> None:
    """Adds a colour bar of layers, counted from 1."""
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
    """Adds a legend of the chains' dashes."""
    panel = figure.axes[0]
    legend_above(
        figure,
        {
            chain or "other": panel.plot([], [], color="0.3", linestyle=DASHES[i % len(DASHES)])[0]
            for i, chain in enumerate(chains)
        },
    )
