"""Saves figures as files, and renders them as SVG elements."""

import io
import os
import re
from html import escape
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from babn.errors import ConfigError
from babn.files import replace_file
from babn.plots.style import drawing

FORMATS: dict[str, dict[str, Any]] = {
    ".pdf": {"dpi": 300, "metadata": {"CreationDate": None}},
    ".svg": {"dpi": 300, "metadata": {"Date": None}},
    ".png": {"dpi": 200},
}
"""Settings by suffix; without dates, so that files are reproducible."""


@drawing
def save(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Saves a figure as PDF, SVG, or PNG at 200 dpi, by the suffix of `path`.

    Text stays text: PDFs embed TrueType fonts, SVGs refer to theirs. Creates missing folders, and
    writes the file atomically.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise ConfigError(
            f"path={str(path)!r} ends in {suffix!r}. Give a name that ends in {', '.join(FORMATS)}."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    settings = {"format": suffix[1:], **FORMATS[suffix]}
    replace_file(path, lambda partial: figure.savefig(partial, **settings))
    return path


@drawing
def as_svg(figure: Figure, label: str = "") -> str:
    """Renders a figure as an `svg` element for an HTML page.

    Args:
        figure: The figure.
        label: Description of the figure for screen readers.
    """
    file = io.StringIO()
    figure.savefig(file, format="svg", **FORMATS[".svg"])
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", file.getvalue(), flags=re.DOTALL)
    named = f'<svg role="img" aria-label="{escape(label)}" ' if label else '<svg role="img" '
    return named + text[text.index("<svg ") + len("<svg ") :]
