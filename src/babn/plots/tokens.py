"""Tokens as axis labels: any characters, and as many labels as fit."""

import functools
import logging
import math
from collections.abc import Sequence

from matplotlib import font_manager
from matplotlib.axis import Axis

from babn.plots.style import style

LETTERS = 12
"""Length after which tokens are cut, in characters."""

LARGEST, SMALLEST = 7.0, 5.0
"""Sizes of labels in points."""

LINE = 1.2 / 72
"""Line height in inches per point of font size."""

JOINERS = "\u200c\u200d"
"""Invisible characters that belong to the spelling of a word."""

BOX = "□"

logger = logging.getLogger(__name__)


def readable(tokens: Sequence[str]) -> list[str]:
    """Tokens for display: cut, with visible blanks and control characters.

    Characters that no installed font has are replaced by a box.
    """
    shown = [_visible(token) for token in tokens]
    missing = sorted({c for token in shown for c in token if not _has_glyph(c)})
    if missing:
        logger.warning(
            "No installed font has %s, drawn as boxes. Install one that does, such as Noto Sans "
            "or Noto Sans CJK.",
            ", ".join(f"{c} (U+{ord(c):04X})" for c in missing[:5]) + " ..." * (len(missing) > 5),
        )
    return [_cut("".join(BOX if c in missing else c for c in token)) for token in shown]


def label_axis(axis: Axis, labels: Sequence[str], pitch: float) -> None:
    """Labels an axis, with every second, third, ... label only if all would overlap.

    Args:
        axis: The axis, with labels at 0, 1, 2 and so on.
        labels: All labels.
        pitch: Distance between labels in inches.
    """
    points = min(max(pitch / LINE, SMALLEST), LARGEST)
    every = max(1, math.ceil(points * LINE / pitch - 1e-6))
    places = list(range(0, len(labels), every))
    axis.set_ticks(places, [labels[i] for i in places], fontsize=points)
    axis.set_tick_params(length=0 if every == 1 else 2, pad=1.5)


def _visible(token: str) -> str:
    if not token.strip(" "):
        token = "␣" * len(token)
    # Cuts first, since a token may be a whole document.
    return "".join(
        c if c.isprintable() or c in JOINERS else _escape(c) for c in token[: LETTERS + 1]
    )


def _cut(token: str) -> str:
    return token if len(token) <= LETTERS else token[: LETTERS - 1] + "…"


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


@functools.cache
def _has_glyph(character: str) -> bool:
    paths = [font_manager.findfont(name) for name in style()["font.family"]]
    found = any(font_manager.get_font(path).get_char_index(ord(character)) for path in paths)
    return found or character in JOINERS
