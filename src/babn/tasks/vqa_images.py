"""Reading images: files in a folder, in a tar file, or arrays of `.npz`."""

import io
import struct
import tarfile
import zlib
from collections.abc import Container, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from babn.errors import DataError, MissingExtraError
from babn.files import read_npz

ENDINGS = (".jpg", ".jpeg", ".png")


def decoded(
    content: bytes | Path, name: str, size: tuple[int, int] | None = None
) -> UInt8[np.ndarray, "height width 3"]:
    """The colours of an image file.

    Args:
        content: The file, or what is in it.
        name: For errors.
        size: Height and width that it is brought to.
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise MissingExtraError("Reading images needs Pillow: pip install 'babn[vqa]'") from error
    try:
        file: Any = io.BytesIO(content) if isinstance(content, bytes) else content
        with Image.open(file) as image:
            colours = image.convert("RGB")
            if size is not None:
                colours = colours.resize((size[1], size[0]), Image.Resampling.BILINEAR)
            return np.array(colours)  # a copy, which torch may write to
    except (
        UnidentifiedImageError,
        Image.DecompressionBombError,
        OSError,
        SyntaxError,
        ValueError,
        struct.error,
        zlib.error,
    ) as error:
        raise DataError(
            f"image {name} cannot be read: {error}. Give a JPEG or PNG file, or get it again."
        ) from error


@lru_cache(maxsize=4)
def read_images(
    source: Path, names: Sequence[str], size: tuple[int, int]
) -> UInt8[Tensor, "image height width 3"]:
    """Images of a folder or of a tar file, brought to one size; all are read, or none.

    Args:
        source: The folder or the file.
        names: What the images are called, without ending.
        size: Height and width.
    """
    wanted = {name: number for number, name in enumerate(names)}
    found = torch.zeros(len(names), *size, 3, dtype=torch.uint8)
    missing = set(wanted)
    for name, content in contents(source, wanted):
        found[wanted[name]] = torch.tensor(decoded(content, f"{source}: {name}", size))
        missing.discard(name)
    if missing:
        raise DataError(
            f"{source} lacks {len(missing)} of {len(names)} images, such as {min(missing)!r}. Add "
            f"them as {' or '.join(ENDINGS)}."
        )
    return found


def contents(source: Path, wanted: Container[str]) -> Iterator[tuple[str, bytes | Path]]:
    """Names and files of the wanted images in a folder or a tar file."""
    if source.is_dir():
        for path in sorted(source.iterdir()):
            if path.stem in wanted and _is_image(path):
                yield path.stem, path
        return
    for member, archive in _members(source):
        path = Path(member.name)
        if path.stem in wanted and _is_image(path):
            content = archive.extractfile(member)
            if content is not None:
                yield path.stem, content.read()


def image_names(source: Path) -> list[str]:
    """What the images of a folder or of a tar file are called, without ending."""
    if source.is_dir():
        paths = [*source.iterdir()]
    elif source.is_file():
        paths = [Path(member.name) for member, _ in _members(source)]
    else:
        raise DataError(f"{source} does not exist. Give a folder or a tar file of images.")
    return sorted({path.stem for path in paths if _is_image(path)})


def _members(source: Path) -> Iterator[tuple[tarfile.TarInfo, tarfile.TarFile]]:
    try:
        with tarfile.open(source) as archive:
            for member in archive:
                yield member, archive
    except (tarfile.TarError, EOFError) as error:
        raise DataError(f"{source} is damaged: {error}. Get it again.") from error


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in ENDINGS


@lru_cache(maxsize=4)
def read_arrays(path: Path) -> tuple[tuple[str, ...], UInt8[Tensor, "image height width 3"]]:
    """Names and colours from an `.npz` with the arrays `ids` and `images`."""
    remedy = "Give a file with the arrays ids and images."
    found = read_npz(path, remedy)
    if not {"ids", "images"} <= found.keys():
        raise DataError(f"{path} has the arrays {sorted(found)}. {remedy}")
    ids, images = found["ids"], found["images"]
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] != 3:
        raise DataError(
            f"{path}: images is {images.dtype} of shape {images.shape}. Give whole numbers from 0 "
            "to 255: image, height, width, three colours."
        )
    if ids.ndim != 1 or len(ids) != len(images) or not len(ids):
        raise DataError(f"{path}: {ids.size} ids for {len(images)} images. Give one for each.")
    return tuple(map(str, ids.tolist())), torch.from_numpy(images)
