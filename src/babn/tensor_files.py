"""Tensors in files that notice any change: safetensors with a checksum of everything in them."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save_file
from torch import Tensor

from babn.errors import FormatError, StorageError
from babn.files import replace_file

CHECKSUM = "sha256"
"""Where a file's own description holds the checksum."""

SMALL = 2**26
"""Files of up to so many bytes are read whole: safetensors 0.8.0 loses a little memory for
each tensor that it takes out of an open file, which adds up where many are read."""


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str] | None = None
) -> str:
    """Writes tensors with some words about them; an interruption leaves the old file whole.

    Returns:
        The checksum.
    """
    plain = {name: x.detach().cpu().contiguous() for name, x in tensors.items()}
    noted = {**(about or {}), CHECKSUM: checksum(plain, about or {})}

    def write(partial: Path) -> None:
        try:
            save_file(plain, partial, noted)
        except SafetensorError as error:  # how it tells of a full disk
            raise StorageError.of(path, error) from error

    replace_file(path, write)
    return noted[CHECKSUM]


def read_tensors(path: Path, remedy: str = "") -> tuple[dict[str, Tensor], dict[str, str]]:
    """What `write_tensors` wrote, and what it said about it.

    Files without a checksum, as earlier versions and others write them, are taken as they are.

    Args:
        path: The file.
        remedy: What to do about a damaged one, for the error.
    """
    try:
        with safe_open(path, "pt") as file:
            about = dict(file.metadata() or {})
            if path.stat().st_size <= SMALL:
                tensors = load(path.read_bytes())
            else:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError as error:
        raise FormatError(f"{path} does not exist. Check the folder.") from error
    except (OSError, SafetensorError) as error:
        raise FormatError(f"{path} is damaged: {error}. {remedy}".rstrip()) from error
    found = about.pop(CHECKSUM, None)
    if found is not None and found != checksum(tensors, about):
        what = "it does not hold what was written"
        raise FormatError(f"{path} is damaged: {what}. {remedy}".rstrip())
    return tensors, about


def checksum(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> str:
    """SHA-256 of names, types, shapes and bytes, and of what is said about them."""
    digest = hashlib.sha256(repr(sorted(about.items())).encode())
    for name, x in sorted(tensors.items()):
        digest.update(repr((name, str(x.dtype), tuple(x.shape))).encode())
        digest.update(x.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
