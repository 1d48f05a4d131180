"""Features of image regions, read on demand from a folder with one `.npz` file for each image.

A file holds `x`, the features of 10 to 100 regions, region by feature or transposed as in the
bottom-up files of MCAN, and optionally `bbox` with the regions' corners. `features.json`, which
`babn features` writes, describes how the features were made.
"""

import hashlib
import os
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from babn.errors import DataError, one_line
from babn.files import parse_json
from babn_paper.data_files import check_regular, open_data
from babn_paper.tasks.encoded import Batch, Lookup
from babn_paper.tasks.vqa_data import CPU, ImageSource
from babn_paper.tasks.vqa_images import contents, decoded

THREADS = 8
"""Number of files that are read in parallel."""

MOST = 100
"""Maximum number of regions of an image that are used; detectors give no more."""

KEPT = 2**30
"""Size of the cache of features, in bytes."""

DESCRIPTION = "features.json"

END = 1024
"""Number of bytes at the end of an `.npz` that hold its directory, with checksums."""

Arrays = tuple[np.ndarray, np.ndarray | None]
"""Features of an image and the corners of its regions, as stored."""

_COCO = re.compile(r"(?:coco_\w+_)?(\d{12})", re.IGNORECASE)
_ENDING = re.compile(r"(\.jpg|\.npz)+$")


def read_arrays(path: Path) -> Arrays:
    """Reads features and corners from an `.npz`.

    Raises:
        ValueError: The content is damaged or in another format.
    """
    try:
        # numpy would leave a file open that it cannot read.
        with open_data(path) as opened, np.load(opened, allow_pickle=False) as found:
            boxes = np.asarray(found["bbox"], dtype=np.float32) if "bbox" in found else None
            return np.asarray(found["x"], dtype=np.float32), boxes
    except Exception as error:  # numpy, zipfile, zlib and tokenize raise many types
        raise ValueError(one_line(error)) from error


def image_key(name: str) -> str:
    """Returns the image that a file name refers to; for images of COCO the number without zeros.

    `COCO_train2014_000000000009.jpg.npz` and `9.npz` both refer to `9`.
    """
    name = _ENDING.sub("", name)
    coco = _COCO.fullmatch(name)
    return str(int(coco[1])) if coco else name


@dataclass(frozen=True)
class Description:
    """How features were made.

    Attributes:
        origin: Description.
        most: Maximum number of regions of an image.
    """

    origin: str = "features from files"
    most: int = MOST

    @classmethod
    def of(cls, source: Path) -> "Description":
        """Reads the description of a folder; defaults if it has none."""
        path = source / DESCRIPTION
        if not path.is_file():
            return cls()
        try:
            made = parse_json(path.read_text(encoding="utf-8"))
            rows, columns = map(int, made["grid"])
            if min(rows, columns) < 1:
                raise ValueError(f"grid {rows} by {columns}")
            origin = f"features of {made['backbone']} with weights {made['weights']}"
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path} is damaged: {error!r}. Extract the features again.") from error
        return cls(origin, min(rows * columns, MOST))


@dataclass(frozen=True)
class FeatureFiles(ImageSource):
    """Features of images in files.

    Attributes:
        source: The folder.
        names: Names of the images.
        pictures: Folder or tar file of the images, for display.
    """

    source: Path
    names: Sequence[str]
    pictures: Path | None = None

    @cached_property
    def size(self) -> int:
        """Size of a region's features, taken from the first image."""
        try:
            x, boxes = self._arrays(self.names[0])
        except ValueError as error:
            raise DataError(
                f"features of {self.names[0]} in {self.source} cannot be read: {error}. Extract "
                "them again."
            ) from error
        return feature_size(x, boxes)

    def check(self) -> None:
        """Raises an error if features are missing or damaged, so that training does not start."""
        lost = [name for name in self.names if image_key(name) not in self._files]
        if lost:
            raise DataError(
                f"{self.source} lacks the features of {len(lost)} of {len(self.names)} images, "
                f"such as {lost[0]!r}. Extract them, or leave out the questions about them."
            )
        for path in self._paths():
            check_regular(path)
            if not zipfile.is_zipfile(path):
                raise DataError(f"{path} is damaged. Extract the features again.")
        if self.size < 1:
            raise DataError(f"{self.source}: features are empty. Extract them again.")

    @property
    def origin(self) -> str:
        """How the features were made, if known."""
        return self._description.origin

    def fingerprint(self) -> str:
        """Returns a hash of the size and the end of each file, where its checksums are."""
        digest = hashlib.sha256(self.origin.encode())
        for path in self._paths():
            with path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - END))
                digest.update(size.to_bytes(8) + file.read())
        return digest.hexdigest()[:16]

    def model_fields(self, sizes: Mapping[str, Any]) -> dict[str, Any]:
        """Sets the size of the features."""
        return {"region_size": self.size}

    def regions(self, config: Any) -> int:
        """Returns the maximum number of regions that are used."""
        return self._description.most

    def lookup(self, index: Tensor, regions: int) -> "Features":
        """Returns a lookup that reads the features on demand."""
        return Features(self, index, regions)

    def read(self, image: int) -> Float[np.ndarray, "region feature"]:
        """Reads the features of an image, or takes them from the cache."""
        if image in self._kept:
            return self._kept[image]
        found = self._read_or_zeros(image)
        if (len(self._kept) + 1) * found.nbytes <= KEPT:
            self._kept[image] = found
        return found

    def _read_or_zeros(self, image: int) -> Float[np.ndarray, "region feature"]:
        """Reads the features of an image; zeros for one region if they are damaged."""
        try:
            return self._read(self.names[image])
        except ValueError as error:
            # One damaged image among many does not justify ending a long training run.
            warnings.warn(
                f"features of {self.names[image]} in {self.source} cannot be read and count as "
                f"zeros: {error}",
                stacklevel=2,
            )
            return np.zeros((1, self.size), dtype=np.float32)

    def boxes(self, image: int) -> Float[np.ndarray, "region 4"] | None:
        """Returns the corners of an image's regions, if the file has them."""
        try:
            boxes = self._arrays(self.names[image])[1]
        except ValueError:
            return None
        return None if boxes is None else boxes[: self._description.most]

    def picture(self, image: int) -> UInt8[np.ndarray, "height width 3"] | None:
        """Returns the image, if it is available."""
        if self.pictures is None:
            return None
        name = self.names[image]
        found = next(iter(contents(self.pictures, {name})), None)
        return None if found is None else decoded(found[1], f"{self.pictures}: {name}")

    def _read(self, name: str) -> Float[np.ndarray, "region feature"]:
        x = self._arrays(name)[0]
        if x.ndim != 2 or not x.size or not np.isfinite(x).all() or self.size not in x.shape:
            raise ValueError(
                f"features of shape {x.shape} are empty, not finite or of another size"
            )
        turned = x.T if x.shape[1] != self.size else x
        return np.ascontiguousarray(turned[: self._description.most])

    def _arrays(self, name: str) -> Arrays:
        return read_arrays(self._files[image_key(name)])

    def _paths(self) -> Iterator[Path]:
        """Yields the files of all images."""
        return (self._files[image_key(name)] for name in self.names)

    @cached_property
    def _kept(self) -> dict[int, np.ndarray]:
        return {}

    @cached_property
    def _description(self) -> "Description":
        return Description.of(self.source)

    @cached_property
    def _files(self) -> dict[str, Path]:
        """The file of each image."""
        return {image_key(path.name): path for path in self.source.glob("*.npz")}


def feature_size(x: np.ndarray, boxes: np.ndarray | None) -> int:
    """Infers the size of a region's features from an array in either orientation.

    The number of regions is the number of boxes. If there are no boxes, the axis of features is
    the one that is too long for regions, or otherwise the second.
    """
    if x.ndim != 2:
        return 0
    turned = len(boxes) == x.shape[1] if boxes is not None else x.shape[1] <= MOST < x.shape[0]
    return int(x.shape[0] if turned and x.shape[0] != x.shape[1] else x.shape[1])


@dataclass(frozen=True)
class Features(Lookup):
    """Looks up the features of the images of examples.

    Attributes:
        files: The features.
        index: Image of each example.
        keys: Maximum number of regions.
        device: Device of the model.
    """

    files: FeatureFiles
    index: Int[Tensor, "example"]
    keys: int = MOST
    device: torch.device = CPU

    def batch(self, rows: Int[Tensor, "row"]) -> Batch:
        """Returns features padded to the largest number of regions of the batch, and a mask."""
        images = self.index[rows].tolist()
        with ThreadPoolExecutor(THREADS) as pool:
            found = list(pool.map(self.files.read, images))
        longest = max(map(len, found))
        regions = torch.zeros(len(found), longest, self.files.size)
        for line, features in zip(regions, found, strict=True):
            line[: len(features)] = torch.from_numpy(features)
        mask = torch.arange(longest) < torch.tensor([len(each) for each in found])[:, None]
        made = {"regions": regions, "region_mask": mask.long()}
        return {name: each.to(self.device) for name, each in made.items()}

    def to(self, device: torch.device) -> "Features":
        """Returns the lookup for a model on another device."""
        return replace(self, device=device)
