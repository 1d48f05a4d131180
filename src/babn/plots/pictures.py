"""Images, and the positions of regions in pixels."""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from babn.errors import ConfigError

Shape = tuple[int, int]
"""Height and width."""


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


def faded(picture: Float[np.ndarray, "height width 3"]) -> Float[np.ndarray, "height width 3"]:
    """The picture in light grey, as a background for colours."""
    grey = picture @ np.array([0.299, 0.587, 0.114])
    return np.repeat(0.3 + 0.7 * grey[..., None], 3, axis=-1)


def corners(
    boxes: Tensor | np.ndarray | tuple[int, int], shape: Shape
) -> Int[np.ndarray, "region 4"]:
    """Left, top, right and bottom of each region in pixels, clipped to the image."""
    found = _patches(boxes, shape) if isinstance(boxes, tuple) else _checked(boxes)
    height, width = shape
    return np.clip(np.rint(found), 0, [width, height, width, height]).astype(int)


def _patches(grid: tuple[int, int], shape: Shape) -> Float[np.ndarray, "region 4"]:
    """The patches of a grid, row by row."""
    rows, columns = grid
    if not (1 <= rows <= shape[0] and 1 <= columns <= shape[1]):
        raise ConfigError(
            f"boxes={grid!r} is no grid of patches for an image of {shape[0]} by {shape[1]} pixels."
            " Give rows and columns from 1 on."
        )
    y, x = np.linspace(0, shape[0], rows + 1), np.linspace(0, shape[1], columns + 1)
    top, left = (z.flatten() for z in np.meshgrid(y[:-1], x[:-1], indexing="ij"))
    bottom, right = (z.flatten() for z in np.meshgrid(y[1:], x[1:], indexing="ij"))
    return np.stack([left, top, right, bottom], -1)


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
