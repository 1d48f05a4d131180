"""Convolutional networks that compute grids of image features."""

from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from babn.errors import ConfigError, FormatError, MissingExtraError, one_line

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
