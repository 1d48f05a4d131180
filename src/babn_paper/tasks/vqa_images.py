"""Reads images from files in a folder, from a tar file, or from arrays in an `.npz`."""

import hashlib
import io
import struct
import tarfile
import zlib
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from babn.errors import BabnError, DataError, import_extra, one_line
from babn_paper.data_files import Stamp, open_data, read_npz, stamp

Images = tuple[UInt8[Tensor, "image height width 3"], str]
"""Pixel values of images, and their fingerprint."""

Arrays = tuple[tuple[str, ...], UInt8[Tensor, "image height width 3"]]
"""Names and pixel values of images."""

ENDINGS = (".jpg", ".jpeg", ".png")

FORMATS = ("JPEG", "PNG")
"""Formats that are decoded. Some other decoders of Pillow, such as EPS, start programs."""

LARGEST = 2**28
"""Maximum size of an image file in bytes."""


def decoded(
    content: bytes, name: str, size: tuple[int, int] | None = None
) -> UInt8[np.ndarray, "height width 3"]:
    """Decodes an image file.

    Args:
        content: Bytes of the file.
        name: Name for error messages.
        size: Height and width to resize to.
    """
    Image = import_extra("PIL.Image", "Reading images needs Pillow", "vqa")
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            colours = image.convert("RGB")
            if size is not None:
                colours = colours.resize((size[1], size[0]), Image.Resampling.BILINEAR)
            return np.array(colours)  # a copy, which torch may write to
    except (
        Image.UnidentifiedImageError,
        Image.DecompressionBombError,
        OSError,
        SyntaxError,
        ValueError,
        struct.error,
        zlib.error,
    ) as error:
        raise DataError(
            f"image {name} cannot be read: {error}. Give a JPEG or PNG file, or download it again."
        ) from error


def read_images(source: Path, names: Sequence[str], size: tuple[int, int]) -> Images:
    """Reads images of a folder or a tar file and resizes them; raises an error if one is missing.

    Args:
        source: Folder or tar file.
        names: Names of the images, without ending.
        size: Height and width.

    Returns:
        Pixel values, and a hash of the files.
    """
    _check_exists(source)
    return _read_images(source, tuple(names), size, stamp(source))


@lru_cache(maxsize=4)
def _read_images(
    source: Path, names: tuple[str, ...], size: tuple[int, int], stamp: Stamp
) -> Images:
    """Implements `read_images`; `stamp` makes the cache notice a changed file."""
    wanted = {name: number for number, name in enumerate(names)}
    found = torch.zeros(len(names), *size, 3, dtype=torch.uint8)
    digests: dict[str, bytes] = {}
    for name, content in contents(source, wanted):
        found[wanted[name]] = torch.tensor(decoded(content, f"{source}: {name}", size))
        digests[name] = hashlib.sha256(content).digest()
    if missing := wanted.keys() - digests.keys():
        raise DataError(
            f"{source} lacks {len(missing)} of {len(names)} images, such as {min(missing)!r}. Add "
            f"them as {' or '.join(ENDINGS)}."
        )
    whole = hashlib.sha256(b"".join(digests[name] for name in names))
    return found, whole.hexdigest()[:16]


def contents(source: Path, wanted: Container[str]) -> Iterator[tuple[str, bytes]]:
    """Yields names and contents of the wanted images in a folder or a tar file."""
    seen: set[str] = set()
    for path, content in _files(source, wanted):
        if path.stem in seen:
            raise DataError(f"{source} has several images {path.stem!r}. Keep one of them.")
        seen.add(path.stem)
        if len(content) > LARGEST:
            raise DataError(f"{source}: {path.name} has more than {LARGEST} bytes. Shrink it.")
        yield path.stem, content


def read_image(path: Path) -> UInt8[np.ndarray, "height width 3"]:
    """Reads an image file."""
    with open_data(path) as file:
        return decoded(file.read(LARGEST + 1), str(path))


def _files(source: Path, wanted: Container[str]) -> Iterator[tuple[Path, bytes]]:
    if not source.is_dir():
        yield from _members(source, wanted)
        return
    for path in sorted(source.iterdir()):
        if path.stem in wanted and _is_image(path) and path.is_file():
            with path.open("rb") as file:
                yield path, file.read(LARGEST + 1)


def image_names(source: Path) -> list[str]:
    """Returns the names of the images of a folder or a tar file, without ending."""
    _check_exists(source)
    if source.is_dir():
        paths = [path for path in source.iterdir() if path.is_file()]
    else:
        with _archive(source) as archive:
            paths = [Path(member.name) for member in archive]
    return sorted({path.stem for path in paths if _is_image(path)})


def _members(source: Path, wanted: Container[str]) -> Iterator[tuple[Path, bytes]]:
    with _archive(source) as archive:
        for member in archive:
            path = Path(member.name)
            if path.stem in wanted and _is_image(path):
                yield path, _content(archive, member, source)


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo, source: Path) -> bytes:
    try:
        file = archive.extractfile(member)  # follows links
    except (KeyError, RecursionError) as error:
        raise DataError(
            f"{source}: {member.name} is a link to a file outside the archive. Pack the image "
            "itself (tar --dereference)."
        ) from error
    if file is None:
        raise DataError(f"{source}: {member.name} is not a regular file. Pack the image itself.")
    return file.read(LARGEST + 1)


@contextmanager
def _archive(source: Path) -> Iterator[tarfile.TarFile]:
    """Opens a tar file, plain or `.gz`; any damage raises `DataError`."""
    try:
        with open_data(source) as file, tarfile.open(fileobj=file, mode="r:") as archive:
            yield archive
    except BabnError:
        raise
    except Exception as error:  # tarfile raises many types for damaged files
        raise DataError(f"{source} is damaged: {one_line(error)}. Download it again.") from error


def _check_exists(source: Path) -> None:
    if not source.exists():
        raise DataError(f"{source} does not exist. Give a folder or a tar file of images.")


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in ENDINGS


def read_arrays(path: Path) -> Arrays:
    """Reads names and pixel values from an `.npz` with the arrays `ids` and `images`."""
    return _read_arrays(path, stamp(path))


@lru_cache(maxsize=4)
def _read_arrays(path: Path, stamp: Stamp) -> Arrays:
    remedy = "Give a file with the arrays ids and images."
    found = read_npz(path, remedy)
    if not {"ids", "images"} <= found.keys():
        raise DataError(f"{path} has the arrays {sorted(found)}. {remedy}")
    ids, images = found["ids"], found["images"]
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] != 3:
        raise DataError(
            f"{path}: images is {images.dtype} of shape {images.shape}. Give integers from 0 to "
            "255 of shape (image, height, width, 3)."
        )
    if ids.ndim != 1 or len(ids) != len(images) or not len(ids):
        raise DataError(f"{path}: {ids.size} ids for {len(images)} images. Give one for each.")
    return tuple(map(str, ids.tolist())), torch.from_numpy(images)
