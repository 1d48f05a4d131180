"""Features of image regions: names of files, and damage."""

import random
from pathlib import Path

import numpy as np
import pytest

from babn_paper.tasks.vqa import VQA2
from babn_paper.tasks.vqa_features import FeatureFiles, image_key, read_arrays
from vqa_cases import write_vqa2

pytestmark = pytest.mark.thorough


def test_damage_that_shows_later_counts_as_zeros(tmp_path: Path) -> None:
    folder = write_vqa2(tmp_path)
    part = VQA2.read(str(folder), "train")
    assert isinstance(part.images, FeatureFiles)
    size = part.images.size
    path = sorted((folder / "features" / "train2014").iterdir())[1]
    damaged = bytearray(path.read_bytes())
    damaged[200:300] = bytes(100)
    path.write_bytes(damaged)
    with pytest.warns(UserWarning, match="count as zeros"):
        found = part.images.read(1)
    assert found.shape == (1, size) and not found.any()


def test_every_damage_is_one_kind_of_error(tmp_path: Path) -> None:
    """Bytes changed at random: features are read, or a ValueError is raised, and nothing else."""
    chance, path = random.Random(0), tmp_path / "a.npz"
    np.savez_compressed(path, x=np.random.default_rng(0).random((10, 16), dtype=np.float32))
    whole = path.read_bytes()
    for _ in range(500):
        content = bytearray(whole)
        for _ in range(chance.choice((1, 4, 40))):
            content[chance.randrange(len(content))] = chance.randrange(256)
        path.write_bytes(content)
        try:
            read_arrays(path)
        except ValueError as error:
            assert str(error)


def test_files_name_images_in_several_ways() -> None:
    names = ["9.npz", "000000000009.npz", "COCO_val2014_000000000009.jpg.npz"]
    assert {image_key(name) for name in names} == {"9"}
    assert [image_key(name) for name in ("image12.npz", "0012.npz", "a.b.npz")] == [
        "image12",
        "0012",
        "a.b",
    ]
