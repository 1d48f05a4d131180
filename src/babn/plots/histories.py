"""Losses, metrics and the KL of each layer over training."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, Colormap, ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter
from torch import Tensor

from babn.errors import ConfigError
from babn.plots import SINGLE
from babn.plots.figures import (
    DASHES,
    Size,
    arranged,
    check_some,
    drawing,
    figure_size,
    legend_above,
    line_look,
    new_figure,
    panel_grid,
)

Series = Sequence[Any] | Tensor | np.ndarray
"""One value for each step, as numbers or as tensors with a single element."""

PANEL = 1.6
"""Minimum width of a panel in inches."""

WIDE_RANGE = 50
"""Ratio of the largest to the smallest KL from which on the scale is logarithmic."""

NAMED = 6
"""Largest number of layers that all have a tick on the colour bar."""

LOGGED, STEP = "kl/", "step"
"""Prefix of layer names in a trainer's log, and key of the step number in a record."""


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
    check_some(history, "history", "a mapping from names of methods to numbers over steps")
    nested = isinstance(next(iter(history.values())), Mapping)
    panels: Any = history if nested else {label: history}
    figure, rows, columns = panel_grid(
        len(panels), size, lambda x: max(0.45 * x + 0.5, 1.75), least=PANEL
    )
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


def _draw_runs(
    panel: Axes, index: int, name: str, runs: Series, steps: Series | None, argument: str
) -> None:
    """Draws the mean over seeds, with a band of one standard deviation."""
    values = np.atleast_2d(_numbers(argument, runs, (1, 2)))
    at = _steps(steps, values.shape[1])
    mean = values.mean(0)
    panel.plot(at, mean, label=name, **line_look(index))
    if len(values) > 1:
        spread = np.std(values, axis=0, ddof=1)
        colour = line_look(index)["color"]
        panel.fill_between(at, mean - spread, mean + spread, color=colour, alpha=0.2, linewidth=0)


def _numbers(argument: str, values: Series, axes: tuple[int, ...]) -> Float[np.ndarray, "..."]:
    """The values of one run over steps, or of several runs, as an array."""
    try:
        found = np.asarray(_plain(values), dtype=float)
    except (TypeError, ValueError):  # rows of different lengths
        found = np.empty(0)
    if found.ndim not in axes or not found.size:
        seeds = ", nor a row of equal length for each seed" if 2 in axes else ""
        raise ConfigError(f"{argument} is not one number for each step{seeds}. Give such numbers.")
    return found


def _plain(values: Any) -> Any:
    """The values as nested lists."""
    if isinstance(values, Tensor):
        return values.detach().to("cpu", torch.float64).tolist()
    return [_plain(each) for each in values] if isinstance(values, Sequence) else values


def _steps(steps: Series | None, length: int) -> Float[np.ndarray, "step"]:
    """The step numbers; by default counted from 1."""
    return np.arange(1.0, length + 1) if steps is None else _numbers("steps", steps, (1,))


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
        history: The KL of each layer over steps, in nats; or a list of the results of
            `babn.kl_per_layer`, each with an optional number as `"step"`; or a trainer's
            `state.log_history`.
        steps: Step numbers; by default counted from 1.
        size: Width in inches, or width and height.
    """
    if not isinstance(history, Mapping):
        history, logged = _columns(history)
        steps = logged if steps is None else steps
    check_some(history, "history", "the KL of each layer over steps")
    layers = {name: _numbers(f"history[{name!r}]", x, (1,)) for name, x in history.items()}
    chains: dict[str, list[str]] = {}
    for name in layers:
        chains.setdefault(_chain(name), []).append(name)
    # Without the lightest colours, which are illegible on white.
    shades = np.linspace(0, 0.9, max(map(len, chains.values())))
    palette = ListedColormap(colormaps["viridis"](shades))
    figure = new_figure(figure_size(size, SINGLE, lambda width: min(0.4 * width + 0.9, 2.7)))
    panel = figure.subplots()
    for name, values in layers.items():
        chain = _chain(name)
        dashes = DASHES[list(chains).index(chain) % len(DASHES)]
        look: dict[str, Any] = {"color": palette(chains[chain].index(name)), "linestyle": dashes}
        panel.plot(_steps(steps, len(values)), values, label=name, **look)
    _scale(panel, np.concatenate(list(layers.values())))
    panel.set(xlabel="training step", ylabel="KL divergence (nats)")
    _colour_bar(panel, palette)
    if len(chains) > 1:
        place: dict[str, Any] = {"loc": "outside upper center", "ncols": len(chains)}
        dashed = [
            Line2D([], [], color="0.3", linestyle=DASHES[i % len(DASHES)])
            for i in range(len(chains))
        ]
        figure.legend(dashed, [chain or "other" for chain in chains], **place)
    return arranged(figure)


def _columns(
    records: Sequence[Mapping[str, Any]],
) -> tuple[dict[str, list[Any]], list[Any] | None]:
    """The KL of each layer, and the steps if there are any, from one record for each step.

    Of a trainer's log, only the KL of layers is used.
    """
    if logged := [x for x in records if any(name.startswith(LOGGED) for name in x)]:
        records = [
            {
                name.removeprefix(LOGGED): value
                for name, value in record.items()
                if name.startswith(LOGGED) or name == STEP
            }
            for record in logged
        ]
    check_some(records, "history", "one mapping for each step")
    columns = {name: [record[name] for record in records] for name in records[0]}
    return columns, columns.pop(STEP, None)


def _chain(name: str) -> str:
    """The chain in a layer's name, or an empty string."""
    chain, slash, step = name.rpartition("/")
    return chain if slash and step.isdecimal() else ""


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
