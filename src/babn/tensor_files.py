"""Safetensors files with a checksum of their whole content."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor

from babn.errors import FormatError, StorageError, one_line
from babn.files import read_bytes, replace_file

CHECKSUM = "sha256"
"""Metadata key of the checksum."""


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str] | None = None
) -> str:
    """Writes tensors with metadata, atomically.

    Returns:
        The checksum.
    """
    plain = {name: x.detach().cpu().contiguous() for name, x in tensors.items()}
    noted = {**(about or {}), CHECKSUM: checksum(plain, about or {})}

    def write(partial: Path) -> None:
        try:
            save_file(plain, partial, noted)
        except SafetensorError as error:  # raised for a full disk
            raise StorageError.of(path, error) from error

    replace_file(path, write)
    return noted[CHECKSUM]


def read_tensors(path: Path, remedy: str = "") -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a file that `write_tensors` wrote.

    Files without a checksum, from earlier versions or other programs, are not verified.

    Args:
        path: The file.
        remedy: What to do about a damaged file, for the error message.
    """
    content = read_bytes(path)
    try:
        tensors, about = load(content), _metadata(content)
    except (SafetensorError, KeyError) as error:
        raise FormatError(f"{path} is damaged: {one_line(error)}. {remedy}".rstrip()) from error
    found = about.pop(CHECKSUM, None)
    if found is not None and found != checksum(tensors, about):
        raise FormatError(f"{path} is damaged: its checksum differs. {remedy}".rstrip())
    return tensors, about


def _metadata(content: bytes) -> dict[str, str]:
    """The metadata of a safetensors file that `load` has accepted."""
    end = 8 + int.from_bytes(content[:8], "little")
    return dict(json.loads(content[8:end]).get("__metadata__") or {})


def checksum(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> str:
    """SHA-256 of the names, dtypes, shapes and bytes of tensors, and of their metadata."""
    digest = hashlib.sha256(repr(sorted(about.items())).encode())
    for name, x in sorted(tensors.items()):
        digest.update(repr((name, str(x.dtype), tuple(x.shape))).encode())
        digest.update(x.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
