"""Loads models from folders, and validates the path of the page."""

from pathlib import Path
from typing import Any

import torch

from babn.errors import FormatError, import_extra
from babn.evaluation.html_pages import TargetError, written_by
from babn.model_folders import find_folder
from babn.persistence import MODEL_FILES, load
from babn.text.pretrained import quiet
from babn.viewer.document import AUTHOR
from babn.viewer.text_inputs import Tokenizer

TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "*.model")
"""A folder with a tokenizer has at least one of these files."""


def open_model(folder: str | Path) -> tuple[Any, Tokenizer]:
    """Loads a converted model in single precision and its tokenizer.

    Args:
        folder: A folder that `save_pretrained` wrote, the folder of a run, whose model is in its
            subfolder `model`, or a name on the hub.
    """
    transformers = import_extra("transformers", "The viewer needs transformers", "viewer")
    folder = find_folder(folder, MODEL_FILES)
    if (folder / "model" / "config.json").exists():
        folder = folder / "model"
    with quiet():
        model = load(folder).float().eval()
    remedy = "Save it there with tokenizer.save_pretrained."
    if not any(any(folder.glob(name)) for name in TOKENIZERS):
        raise FormatError(f"{folder} has no tokenizer. {remedy}")
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise FormatError(f"The tokenizer in {folder} cannot be read: {error}. {remedy}") from error
    return model.to("cuda" if torch.cuda.is_available() else "cpu"), tokenizer


def check_target(file: Path) -> None:
    """Validates that a file is new or was written by `babn view`.

    Called before the model runs, so that the error comes early.
    """
    if file.is_dir():
        raise TargetError(f"--out {file} is a folder. Give the name of a file.")
    if file.exists() and not written_by(file, AUTHOR):
        raise TargetError(f"--out {file} was not written by babn view. Give another name.")
    if not file.parent.is_dir():
        raise TargetError(f"--out {file}: the folder {file.parent} does not exist. Make it first.")
