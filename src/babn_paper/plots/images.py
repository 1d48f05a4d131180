"""Attention to the regions of an image."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from babn.errors import ConfigError
from babn.plots import SINGLE
from babn.plots.attention import Shading, choose, readable, shadings
from babn.plots.figures import Size, arranged, check_index, drawing, figure_size
from babn.prediction.attention_maps import AttentionMap

OUTLINED = 3
"""Number of regions with the largest weights that are outlined."""

AROUND = 0.7
"""Height of a colour bar with its title, and of the query's word, in inches."""

Boxes = Tensor | np.ndarray | tuple[int, int]
"""Corners of regions, or rows and columns of a grid of patches."""

Shape = tuple[int, int]
"""Height and width of an image."""

FAINTEST, STRONGEST = 0.3, 0.8
"""Opacity of the smallest and of the largest value."""


@drawing
def attention_on_image(
    map: AttentionMap,
    image: Tensor | np.ndarray,
    boxes: Boxes,
    query: int = 0,
    *,
    word: str | None = None,
    example: int = 0,
    head: int = 0,
    first: int = 0,
    size: Size = None,
) -> Figure:
    """Posterior mean and std/mean of one query's attention, drawn on the image.

    Where regions overlap, the one with the largest mean weight is on top, in both panels. The three
    regions with the largest weights are outlined and labelled, unless the regions are patches.

    Args:
        map: One of the maps that `babn.attention_maps` returned, with regions as keys.
        image: Height by width, with three channels first or last; 0 to 255, or floats from 0 to 1.
        boxes: Left, top, right and bottom of each region in pixels, or rows and columns of a grid
            of patches.
        query: Index of the query.
        word: The query's word, which is shown below.
        example: Index of the example in the batch.
        head: Index of the head.
        first: Index of the first region's key, such as 1 after a class token.
        size: Width in inches, or width and height.
    """
    picture = as_picture(image)
    places = corners(boxes, picture.shape[:2])
    weights = _weights(map, example, head, query, slice(first, first + len(places)))
    ratio = picture.shape[0] / picture.shape[1]
    inches = figure_size(size, SINGLE, lambda width: ratio * width / 2 + AROUND)
    figure = Figure(figsize=inches, layout="compressed")
    panels = list(figure.subplots(1, 2))
    found = draw_regions(panels, picture, places, weights, not isinstance(boxes, tuple))
    for panel, shading in zip(panels, found, strict=True):
        panel.set_axis_off()
        shading.colour_bar(figure, ax=panel, location="top")
    if word:
        figure.supxlabel(f"query: {readable([word])[0]}", fontsize=8)
    return arranged(figure)


def _weights(
    map: AttentionMap, example: int, head: int, query: int, keys: slice
) -> tuple[Float[np.ndarray, "region"], Float[np.ndarray, "region"]]:
    """Mean and std/mean of the keys that are regions."""
    mean, spread = choose(map, example, [head])
    queries, count = map.mean.shape[-2:]
    check_index("query", query, queries, f"{map.name} has queries")
    check_index("first", keys.start, count, f"{map.name} has keys")
    if keys.stop > count:
        raise ConfigError(
            f"boxes has {keys.stop - keys.start} regions and {map.name} {count - keys.start} keys "
            f"from first={keys.start} on. Give at most as many regions."
        )
    return mean[0, query, keys], spread[0, query, keys]


def draw_regions(
    panels: Sequence[Axes],
    picture: Float[np.ndarray, "height width 3"],
    places: Int[np.ndarray, "region 4"],
    weights: tuple[Float[np.ndarray, "region"], Float[np.ndarray, "region"]],
    outlined: bool,
) -> tuple[Shading, Shading]:
    """Draws mean and std/mean over the picture in grey, each in a panel; returns their colours.

    The region with the largest mean is on top.

    Args:
        panels: The panels of mean and std/mean.
        picture: The image.
        places: Corners of the regions.
        weights: Mean and std/mean of each region.
        outlined: Whether the regions with the largest means are outlined and labelled.
    """
    grey = picture @ np.array([0.299, 0.587, 0.114])
    background = np.repeat(0.3 + 0.7 * grey[..., None], 3, axis=-1)
    order = np.argsort(weights[0], kind="stable")
    found = shadings(*weights)
    for panel, values, shading in zip(panels, weights, found, strict=True):
        panel.imshow(background)
        painted = _painted(places[order], values[order], shading, picture.shape[:2])
        panel.imshow(painted, interpolation="nearest")
        if outlined:
            _outline(panel, places[order][-OUTLINED:], values[order][-OUTLINED:])
    return found


def _painted(
    places: Int[np.ndarray, "region 4"],
    values: Float[np.ndarray, "region"],
    shading: Shading,
    shape: Shape,
) -> Float[np.ndarray, "height width 4"]:
    """Colours of the regions, later ones on top; the rest is transparent."""
    painted = np.zeros((*shape, 4))
    levels = shading.norm(np.ma.masked_invalid(values))
    colours = shading.colours(levels)
    colours[:, 3] = FAINTEST + (STRONGEST - FAINTEST) * levels.filled(0)
    for (left, top, right, bottom), colour in zip(places, colours, strict=True):
        painted[top:bottom, left:right] = colour
    return painted


def _outline(
    panel: Axes, places: Int[np.ndarray, "region 4"], values: Float[np.ndarray, "region"]
) -> None:
    """Draws frames with the values in their upper left corners."""
    frame: dict[str, Any] = {"fill": False, "edgecolor": "black", "linewidth": 0.8}
    ground = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.8}
    for (left, top, right, bottom), value in zip(places, values, strict=True):
        corner = left - 0.5, top - 0.5
        panel.add_patch(Rectangle(corner, right - left, bottom - top, **frame))
        panel.text(*corner, f"{value:.2f}", fontsize=6, va="top", clip_on=True, bbox=ground)


def as_picture(image: Tensor | np.ndarray) -> Float[np.ndarray, "height width 3"]:
    """The image as RGB values from 0 to 1, channels last."""
    picture = torch.as_tensor(image).detach().cpu()
    if picture.ndim == 3 and picture.shape[0] in (1, 3) and picture.shape[-1] not in (1, 3):
        picture = picture.movedim(0, -1)
    picture = picture[..., None] if picture.ndim == 2 else picture
    if picture.ndim != 3 or picture.shape[-1] not in (1, 3) or not picture.numel():
        raise ConfigError(
            f"image has shape {tuple(image.shape)}. Give height by width, with one or three "
            "channels first or last, and no batch axis."
        )
    colours = picture.double() if picture.is_floating_point() else picture.double() / 255
    if not (colours >= 0).all() or not (colours <= 1).all():
        raise ConfigError(
            f"image holds values from {float(picture.min()):.3g} to {float(picture.max()):.3g}. "
            "Give integers from 0 to 255, or floats from 0 to 1; undo the normalisation of a "
            "processor."
        )
    return colours.expand(*colours.shape[:2], 3).numpy()


def corners(boxes: Boxes, shape: Shape) -> Int[np.ndarray, "region 4"]:
    """Left, top, right and bottom of each region in pixels, clipped to the image."""
    found = _patches(boxes, shape) if isinstance(boxes, tuple) else _checked(boxes)
    return np.clip(np.rint(found), 0, [*shape[::-1]] * 2).astype(int)


def _patches(grid: tuple[int, int], shape: Shape) -> Float[np.ndarray, "region 4"]:
    """The patches of a grid, row by row."""
    rows, columns = grid
    if not (1 <= rows <= shape[0] and 1 <= columns <= shape[1]):
        raise ConfigError(
            f"boxes={grid!r} does not fit an image of {shape[0]} by {shape[1]} pixels. Give rows "
            "and columns of patches, at least one and at most one per pixel."
        )
    y, x = np.linspace(0, shape[0], rows + 1), np.linspace(0, shape[1], columns + 1)
    return np.array([(x[j], y[i], x[j + 1], y[i + 1]) for i in range(rows) for j in range(columns)])


def _checked(boxes: Tensor | np.ndarray) -> Float[np.ndarray, "region 4"]:
    found = torch.as_tensor(boxes).detach().cpu().double().numpy()
    if found.ndim != 2 or found.shape[-1] != 4 or not len(found):
        raise ConfigError(
            f"boxes has shape {found.shape}. Give left, top, right and bottom of each region, or a "
            "pair of rows and columns."
        )
    wrong = ~((found[:, 0] < found[:, 2]) & (found[:, 1] < found[:, 3]))
    if wrong.any():
        raise ConfigError(
            f"boxes holds {found[wrong][0].tolist()}. Give left, top, right and bottom in pixels, "
            "with left below right and top below bottom."
        )
    return found
