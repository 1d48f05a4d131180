"""Figures inside pages."""

import io
import re
from html import escape

from matplotlib.figure import Figure

from babn.plots.files import FORMATS
from babn.plots.style import drawing


@drawing
def as_svg(figure: Figure, label: str = "") -> str:
    """A figure as an `svg` element for a page, which takes the page's width if that is smaller.

    Args:
        figure: The figure.
        label: What it shows, for readers who do not see it.
    """
    file = io.StringIO()
    figure.savefig(file, format="svg", **FORMATS[".svg"])
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", file.getvalue(), flags=re.DOTALL)
    named = f'<svg role="img" aria-label="{escape(label)}" ' if label else '<svg role="img" '
    return named + text[text.index("<svg ") + len("<svg ") :]
