"""Figures as files."""

import os
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
"""Settings by suffix; without dates, so that the same figure gives the same bytes."""


@drawing
def save(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Writes a figure as its suffix says: pdf, svg, or png at 200 dpi.

    Text stays text: PDFs carry TrueType fonts, SVGs name theirs. Missing folders are made. The file
    is written beside its place and moved there, so that an interruption leaves an old one whole.
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
