"""Data sets of the Hugging Face hub, through the `datasets` package."""

from importlib import import_module
from typing import Any

from babn.errors import DataError, MissingExtraError
from babn_paper.tasks.lines import Row


def read_hub(path: str, name: str | None, split: str) -> tuple[list[Row], str]:
    """The rows of a split, and its fingerprint.

    Args:
        path: The data set, such as `"nyu-mll/glue"`.
        name: Which of its configurations.
        split: Such as `"validation"`.
    """
    place = f"hub:{path}{f'/{name}' if name else ''}/{split}"
    found = _load(place, path, name, split)
    rows = [Row(dict(values), f"{place}:{number}") for number, values in enumerate(found, 1)]
    if not rows:
        raise DataError(f"{place} has no rows. Give another part or a folder.")
    return rows, str(found._fingerprint)


def _load(place: str, path: str, name: str | None, split: str) -> Any:
    try:
        datasets = import_module("datasets")
    except ModuleNotFoundError as error:
        if error.name != "datasets":
            raise
        raise MissingExtraError(
            f"data='hub' needs the datasets package: pip install 'babn[data]'. Or give a folder, "
            f"to read {place} from files."
        ) from error
    try:
        return datasets.load_dataset(path, name, split=split)
    except Exception as error:  # a failed download has many types, which differ between versions
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise DataError(
            f"{place} cannot be loaded: {reason}. Check the connection, or give a folder."
        ) from error
