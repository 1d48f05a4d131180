"""Features of image regions in files: one `.npz` for each image, or one HDF5 file.

An `.npz` holds `x`, features of 10 to 100 regions, region by feature or the other way round as in
the bottom-up files of MCAN, and `bbox` with their corners if known. An HDF5 file holds one data set
for each image, called like the image, region by feature.
"""

import warnings
import zipfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from babn.errors import DataError, MissingExtraError
from babn.tasks.lookups import CPU, Batch, Lookup
from babn.tasks.vqa_data import ImageSource

THREADS = 8
"""Files that are read at a time."""

MOST = 100
"""Regions of an image that are used; detectors give at most as many."""


@dataclass(frozen=True)
class FeatureFiles(ImageSource):
    """Features of images in files.

    Attributes:
        source: The folder of `.npz` files, or the HDF5 file.
        names: What the images are called there.
        size: Size of a region's features.
    """

    source: Path
    names: Sequence[str]
    size: int = 2048

    def check(self) -> None:
        """Refuses files that are missing or no archives, before anything is trained."""
        there = self._there
        lost = [name for name in self.names if name not in there]
        if lost:
            raise DataError(
                f"{self.source} lacks the features of {len(lost)} of {len(self.names)} images, "
                f"such as {lost[0]!r}. Extract them, or leave out the questions about them."
            )
        first = self.read(0)
        if first.shape[-1] != self.size:
            raise DataError(
                f"{self.source}: features have the size {first.shape[-1]}, not {self.size}. Set "
                f"sizes.region_size={first.shape[-1]}."
            )
        if self.source.is_dir():
            for name in self.names:
                if not zipfile.is_zipfile(there[name]):
                    raise DataError(f"{there[name]} is damaged. Extract the features again.")

    def model_fields(self, sizes: Mapping[str, Any]) -> dict[str, Any]:
        """The size of features."""
        return {"region_size": self.size}

    def regions(self, config: Any) -> int:
        """The most regions that are used."""
        return MOST

    def lookup(self, index: Tensor, regions: int) -> "Features":
        """Reads the features when they are needed."""
        return Features(self, index, regions)

    def read(self, image: int) -> Float[np.ndarray, "region feature"]:
        """The features of an image; a file that cannot be read counts as one empty region."""
        try:
            found = self._read(self.names[image])
            if image and found.shape[1] != self.size:  # `check` speaks of the first one
                raise ValueError(f"features have the size {found.shape[1]}, not {self.size}")
            return found
        except Exception as error:  # damage shows in numpy and zipfile in many ways
            # Hours into training, one damaged image among many is no reason to stop.
            warnings.warn(
                f"features of {self.names[image]} in {self.source} cannot be read and count as "
                f"zeros: {error}",
                stacklevel=2,
            )
            return np.zeros((1, self.size), dtype=np.float32)

    def boxes(self, image: int) -> Float[np.ndarray, "region 4"] | None:
        """Corners of an image's regions, where the file has them."""
        if not self.source.is_dir():
            return None
        with np.load(self._there[self.names[image]], allow_pickle=False) as file:
            return np.asarray(file["bbox"])[:MOST] if "bbox" in file else None

    def _read(self, name: str) -> Float[np.ndarray, "region feature"]:
        if not self.source.is_dir():
            return self._whole(np.asarray(self._archive[name], dtype=np.float32))
        path = self._there[name]
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            return self._whole(np.asarray(file["x"], dtype=np.float32))

    def _whole(self, x: np.ndarray) -> Float[np.ndarray, "region feature"]:
        if x.ndim != 2 or not x.size or not np.isfinite(x).all():
            raise ValueError(f"features of shape {x.shape} are empty or not finite")
        turned = x.T if x.shape[0] == self.size and x.shape[1] != self.size else x
        return np.ascontiguousarray(turned[:MOST])

    @cached_property
    def _there(self) -> dict[str, Path]:
        """What there is of each image: its file, or the file of all."""
        if not self.source.is_dir():
            return dict.fromkeys(self._archive.keys(), self.source)
        files = self.source.glob("*.npz")
        return {path.name.removesuffix(".npz").removesuffix(".jpg"): path for path in files}

    @cached_property
    def _archive(self) -> Any:
        try:
            import h5py
        except ImportError as error:
            raise MissingExtraError(
                f"Reading {self.source} needs h5py: pip install 'babn[vqa]'"
            ) from error
        return h5py.File(self.source, "r")


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
        if self.files.source.is_dir():
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
