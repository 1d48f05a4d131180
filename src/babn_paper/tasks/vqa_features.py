"""Features of image regions in files, read when they are needed.

`vqa_stores.py` says what the files are. `features.json` in a folder says how the features were
made, where `babn features` made them.
"""

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from babn.errors import DataError
from babn.files import parse_json
from babn_paper.tasks.lookups import CPU, Batch, Lookup
from babn_paper.tasks.vqa_data import ImageSource
from babn_paper.tasks.vqa_images import contents, decoded
from babn_paper.tasks.vqa_lmdb import Lmdb, is_lmdb
from babn_paper.tasks.vqa_stores import DAMAGES, Arrays, Hdf5File, NpzFolder, Store, image_of

THREADS = 8
"""Files that are read at a time."""

MOST = 100
"""Regions of an image that are used; detectors give at most as many."""

KEPT = 2**30
"""Bytes of features that stay in memory once they are read."""

DESCRIPTION = "features.json"


@dataclass(frozen=True)
class Description:
    """How features were made.

    Attributes:
        origin: In words.
        most: The most regions of an image.
    """

    origin: str = "features from files"
    most: int = MOST

    @classmethod
    def of(cls, source: Path) -> "Description":
        """What the folder of features says, if it says anything."""
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
        source: The folder of `.npz` files, the HDF5 file or the LMDB.
        names: What the images are called there.
        pictures: Folder or tar file of the images themselves, to look at.
    """

    source: Path
    names: Sequence[str]
    pictures: Path | None = None

    @cached_property
    def size(self) -> int:
        """Size of a region's features, as the first image has it."""
        try:
            x, boxes = self._arrays(self.names[0])
        except DAMAGES as error:
            raise DataError(
                f"features of {self.names[0]} in {self.source} cannot be read: {error}. Extract "
                "them again."
            ) from error
        return feature_size(x, boxes)

    def check(self) -> None:
        """Refuses features that are missing or damaged, before anything is trained."""
        there = self._keys
        lost = [name for name in self.names if image_of(name) not in there]
        if lost:
            raise DataError(
                f"{self.source} lacks the features of {len(lost)} of {len(self.names)} images, "
                f"such as {lost[0]!r}. Extract them, or leave out the questions about them."
            )
        self.store.check(there[image_of(name)] for name in self.names)
        if self.size < 1:
            raise DataError(f"{self.source}: features are empty. Extract them again.")

    @property
    def origin(self) -> str:
        """How the features were made, where that is known."""
        return self._description.origin

    def fingerprint(self) -> str:
        """Changes when the features of one of the images do."""
        digest = hashlib.sha256(self.origin.encode())
        for name in self.names:
            digest.update(self.store.mark(self._keys[image_of(name)]))
        return digest.hexdigest()[:16]

    def model_fields(self, sizes: Mapping[str, Any]) -> dict[str, Any]:
        """The size of features."""
        return {"region_size": self.size}

    def regions(self, config: Any) -> int:
        """The most regions that are used."""
        return self._description.most

    def lookup(self, index: Tensor, regions: int) -> "Features":
        """Reads the features when they are needed."""
        return Features(self, index, regions)

    def read(self, image: int) -> Float[np.ndarray, "region feature"]:
        """The features of an image, which stay in memory if there is room."""
        if image in self._kept:
            return self._kept[image]
        found = self._read_or_zeros(image)
        if (len(self._kept) + 1) * found.nbytes <= KEPT:
            self._kept[image] = found
        return found

    def _read_or_zeros(self, image: int) -> Float[np.ndarray, "region feature"]:
        """The features of an image; a file that cannot be read counts as one empty region."""
        try:
            return self._read(self.names[image])
        except DAMAGES as error:
            # Hours into training, one damaged image among many is no reason to stop.
            warnings.warn(
                f"features of {self.names[image]} in {self.source} cannot be read and count as "
                f"zeros: {error}",
                stacklevel=2,
            )
            return np.zeros((1, self.size), dtype=np.float32)

    def boxes(self, image: int) -> Float[np.ndarray, "region 4"] | None:
        """Corners of an image's regions, where the file has them."""
        try:
            boxes = self._arrays(self.names[image])[1]
        except DAMAGES:
            return None
        return None if boxes is None else boxes[: self._description.most]

    def picture(self, image: int) -> UInt8[np.ndarray, "height width 3"] | None:
        """The image itself, where it is at hand."""
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
        return self.store.arrays(self._keys[image_of(name)])

    @cached_property
    def store(self) -> Store:
        """What holds the features."""
        if is_lmdb(self.source):
            return Lmdb(self.source)
        return NpzFolder(self.source) if self.source.is_dir() else Hdf5File(self.source)

    @cached_property
    def _kept(self) -> dict[int, np.ndarray]:
        return {}

    @cached_property
    def _description(self) -> "Description":
        return Description.of(self.source)

    @cached_property
    def _keys(self) -> dict[str, str]:
        """What each image is called there."""
        return {image_of(key): key for key in self.store.names()}


def feature_size(x: np.ndarray, boxes: np.ndarray | None) -> int:
    """Size of a region's features, whichever way round the array is.

    There are as many regions as corners; where these are unknown, the axis of features is the one
    that is too long for regions, or else the second.
    """
    if x.ndim != 2:
        return 0
    turned = len(boxes) == x.shape[1] if boxes is not None else x.shape[1] <= MOST < x.shape[0]
    return int(x.shape[0] if turned and x.shape[0] != x.shape[1] else x.shape[1])


@dataclass(frozen=True)
class Features(Lookup):
    """Features of the images that examples ask about, read for each batch.

    Attributes:
        files: Where they are.
        index: The image of each example.
        keys: The most regions.
        device: Where the model is.
    """

    files: FeatureFiles
    index: Int[Tensor, "example"]
    keys: int = MOST
    device: torch.device = CPU

    def batch(self, rows: Int[Tensor, "row"]) -> Batch:
        """Features, padded to the most regions of the batch, and where there are regions."""
        images = self.index[rows].tolist()
        if self.files.store.parallel:
            with ThreadPoolExecutor(THREADS) as pool:
                found = list(pool.map(self.files.read, images))
        else:
            found = [self.files.read(image) for image in images]
        longest = max(map(len, found))
        regions = torch.zeros(len(found), longest, self.files.size)
        for line, features in zip(regions, found, strict=True):
            line[: len(features)] = torch.from_numpy(features)
        mask = torch.arange(longest) < torch.tensor([len(each) for each in found])[:, None]
        made = {"regions": regions, "region_mask": mask.long()}
        return {name: each.to(self.device) for name, each in made.items()}

    def to(self, device: torch.device) -> "Features":
        """The same for a model on another device."""
        return Features(self.files, self.index, self.keys, device)
