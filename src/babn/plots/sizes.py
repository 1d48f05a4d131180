"""Sizes of figures, in inches."""

import math
from collections.abc import Callable

from babn.errors import ConfigError

SINGLE, DOUBLE = 3.3, 6.8
"""Widths of one and two columns of a printed page."""

TALLEST = 9.0
"""Height of a printed page."""

Size = float | tuple[float, float] | None
"""A width, a width and a height, or `None` for a default size."""


def figure_size(size: Size, width: float, height: Callable[[float], float]) -> tuple[float, float]:
    """Width and height of a figure.

    Args:
        size: The caller's size.
        width: The default width.
        height: Returns the default height for a width.
    """
    if isinstance(size, tuple):
        wide, tall = (_checked(length, size) for length in size)
        return wide, tall
    wide = width if size is None else _checked(size, size)
    return wide, min(height(wide), TALLEST)


def given_width(size: Size, width: float) -> float:
    """The caller's width, or `width` by default."""
    return figure_size(size, width, lambda _: 1.0)[0]


def grid(count: int, width: float, least: float) -> tuple[int, int]:
    """Rows and columns for `count` panels that are at least `least` inches wide."""
    columns = min(count, max(1, int(width / least)))
    return math.ceil(count / columns), columns


def _checked(length: float, size: Size) -> float:
    if not 1 <= length <= 100 or not math.isfinite(length):
        raise ConfigError(
            f"size={size!r} is not possible. Give a width in inches from 1 to 100, such as "
            "babn.plots.SINGLE or babn.plots.DOUBLE, or a pair of width and height."
        )
    return float(length)
