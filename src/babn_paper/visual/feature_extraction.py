"""Extracts grids of image features by convolutional networks to `.npz` files."""

import json
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from babn.errors import ConfigError, DataError, FormatError, MissingExtraError, one_line
from babn.files import parse_json, replace_file, replace_text
from babn.progress import Progress
from babn_paper.tasks.vqa_data import CPU
from babn_paper.tasks.vqa_features import DESCRIPTION, MOST
from babn_paper.tasks.vqa_images import contents, decoded, image_names

DEFAULT, NONE = "default", "none"
"""torchvision's downloaded weights, and random weights."""

HEADS = {"avgpool", "classifier", "fc", "head", "heads", "flatten"}
"""Names of the first layers after the feature grid in torchvision's networks."""

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of the colours that torchvision's networks were trained on."""

EXAMPLES = "resnet18, resnet50, vgg16, convnext_tiny, efficientnet_b0 or densenet121"
SEED = 0
"""Seed of random weights."""


@dataclass(frozen=True)
class Backbone:
    """A network that maps images to feature maps.

    Attributes:
        name: Its name.
        weights: Source of its weights.
        network: Maps standardized colours to feature maps, which are smaller than the images.
        mean: Mean of its training colours, from 0 to 1.
        std: Standard deviation of its training colours.
    """

    name: str
    weights: str
    network: nn.Module = field(repr=False)
    mean: tuple[float, float, float] = MEAN
    std: tuple[float, float, float] = STD

    @torch.no_grad()
    def maps(
        self, colours: Float[Tensor, "image 3 height width"]
    ) -> Float[Tensor, "image feature row column"]:
        """Feature maps of images with colours from 0 to 1."""
        mean, std = (colours.new_tensor(each)[:, None, None] for each in (self.mean, self.std))
        found = self.network((colours - mean) / std)
        if not isinstance(found, Tensor) or found.ndim != 4:
            raise ConfigError(
                f"backbone={self.name!r} does not compute a feature grid. Choose {EXAMPLES}."
            )
        return found


def torchvision_backbone(name: str, weights: str) -> Backbone:
    """A classifier of torchvision without its head.

    Args:
        name: Name of the model in torchvision.
        weights: File with the network's state dict, in torch's format or as safetensors;
            `"default"` for torchvision's download; `"none"` for random weights.
    """
    models = _torchvision_models()
    if name not in models.list_models(module=models):
        raise ConfigError(f"backbone={name!r} is not a model of torchvision. Choose {EXAMPLES}.")
    file = None if weights in (DEFAULT, NONE) else Path(weights)
    if file is not None and not file.is_file():
        raise ConfigError(
            f"weights={weights!r} is not a file. Give a file with the state dict of {name}, "
            f"{DEFAULT!r} for torchvision's download, or {NONE!r} for random weights."
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        whole = models.get_model(name, weights="DEFAULT" if weights == DEFAULT else None)
    if file is not None:
        _load_weights(whole, file)
    return Backbone(name, file.name if file else weights, without_head(whole))


def without_head(network: nn.Module) -> nn.Module:
    """The layers of a network up to its feature grid."""
    kept: OrderedDict[str, nn.Module] = OrderedDict()
    for name, layer in network.named_children():
        if name in HEADS:
            break
        kept[name] = layer
    return nn.Sequential(kept).eval()


def _load_weights(network: nn.Module, file: Path) -> None:
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            state = load_file(file)
        else:
            state = torch.load(file, map_location="cpu", weights_only=True)
        network.load_state_dict(state)
    except Exception as error:  # torch and pickle raise many types
        reason = one_line(error)[:200]
        raise FormatError(
            f"weights={str(file)!r} does not fit the backbone: {reason}. Give its state_dict."
        ) from error


def _torchvision_models() -> Any:
    try:
        from torchvision import models
    except ImportError as error:
        raise MissingExtraError(
            "Backbones need torchvision: pip install 'babn[backbones]'"
        ) from error
    except (OSError, RuntimeError) as error:
        raise MissingExtraError(
            f"The installed torchvision does not match torch {torch.__version__}: "
            f"{one_line(error)}. Install the matching build."
        ) from error
    return models


@dataclass(frozen=True)
class ExtractionSettings:
    """Settings of feature extraction.

    Attributes:
        size: Height and width that images are resized to.
        batch: Images in a batch.
        device: Device of the network.
    """

    size: tuple[int, int] = (224, 224)
    batch: int = 16
    device: torch.device = CPU


@dataclass(frozen=True)
class _Image:
    name: str
    colours: Float[Tensor, "3 height width"]
    shape: tuple[int, int]


def extract(
    source: Path,
    out: Path,
    backbone: Backbone,
    settings: ExtractionSettings,
    progress: Progress | None = None,
) -> int:
    """Writes the features of all images and returns the number of images.

    Existing files are kept, so that the same call continues after an interruption. Each file holds
    `x` (region by feature), `bbox` (corners of the regions in pixels), `image_h` and `image_w`.

    Args:
        source: A folder of images, or a tar file.
        out: Folder for the files and for `features.json`, which describes them.
        backbone: The network.
        settings: Settings of the extraction.
        progress: Receives the number of finished images.
    """
    progress = progress or Progress()
    names = image_names(source)
    if not names:
        raise DataError(f"{source} has no images. Give a folder or tar file of JPEG or PNG files.")
    grid = _grid(backbone, settings)
    _describe(out, backbone, settings, grid)
    missing = {name for name in names if not (out / f"{name}.npz").exists()}
    progress.begin("features", len(names), len(names) - len(missing))
    for images in _batches(source, missing, settings):
        colours = torch.stack([each.colours for each in images]).to(settings.device)
        for image, found in zip(images, backbone.maps(colours).cpu(), strict=True):
            _write(out / f"{image.name}.npz", found, image.shape)
        progress.step(len(images))
    return len(names)


def _grid(backbone: Backbone, settings: ExtractionSettings) -> tuple[int, int]:
    """Rows and columns of the feature grid, computed for an empty image."""
    backbone.network.to(settings.device)
    try:
        found = backbone.maps(torch.zeros(1, 3, *settings.size, device=settings.device))
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        reason = one_line(error)[:200]
        raise ConfigError(
            f"size={settings.size} cannot be used with backbone={backbone.name!r}: {reason}. Give "
            "a larger size, or another backbone."
        ) from error
    rows, columns = found.shape[-2:]
    if rows * columns > MOST:
        raise ConfigError(
            f"size={settings.size} makes {rows} by {columns} regions, more than {MOST}. Give a "
            "smaller size."
        )
    return rows, columns


def _describe(
    out: Path, backbone: Backbone, settings: ExtractionSettings, grid: tuple[int, int]
) -> None:
    """Writes `features.json`; raises if the folder holds features with other settings."""
    made = {
        "backbone": backbone.name,
        "weights": backbone.weights,
        "image_size": list(settings.size),
        "grid": list(grid),
    }
    path = out / DESCRIPTION
    if out.is_dir() and any(out.glob("*.npz")):
        there = _read_description(path)
        if there is None:
            raise ConfigError(f"{out} holds features of unknown origin. Give another folder.")
        if there != made:
            raise ConfigError(f"{out} holds features made with {there}. Give another folder.")
    out.mkdir(parents=True, exist_ok=True)
    replace_text(path, json.dumps(made, indent=2) + "\n")


def _read_description(path: Path) -> Any:
    """The content of `features.json`, `None` if it is missing or damaged."""
    try:
        return parse_json(path.read_bytes())
    except (OSError, ValueError):
        return None


def _batches(
    source: Path, wanted: set[str], settings: ExtractionSettings
) -> Iterator[list[_Image]]:
    images: list[_Image] = []
    for name, content in contents(source, wanted):
        images.append(_read(content, f"{source}: {name}", name, settings))
        if len(images) == settings.batch:
            yield images
            images = []
    if images:
        yield images


def _read(content: bytes, place: str, name: str, settings: ExtractionSettings) -> _Image:
    whole = torch.from_numpy(decoded(content, place)).movedim(-1, 0)
    colours = F.interpolate(
        whole[None].float() / 255, settings.size, mode="bilinear", antialias=True
    )
    return _Image(name, colours[0], (whole.shape[1], whole.shape[2]))


def _write(path: Path, maps: Float[Tensor, "feature row column"], shape: tuple[int, int]) -> None:
    x = maps.flatten(1).T.contiguous().numpy()
    boxes = corners(maps.shape[1], maps.shape[2], shape)

    def save(partial: Path) -> None:
        with partial.open("wb") as file:
            np.savez(file, x=x, bbox=boxes, image_h=shape[0], image_w=shape[1])

    replace_file(path, save)


def corners(rows: int, columns: int, shape: tuple[int, int]) -> Float[np.ndarray, "region 4"]:
    """Left, top, right and bottom of each grid region in pixels, row by row."""
    height, width = shape[0] / rows, shape[1] / columns
    boxes = [
        (column * width, row * height, (column + 1) * width, (row + 1) * height)
        for row in range(rows)
        for column in range(columns)
    ]
    return np.array(boxes, dtype=np.float32)
