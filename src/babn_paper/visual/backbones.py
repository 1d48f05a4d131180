"""Networks that make grids of features of images, from torchvision or anywhere else."""

from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from babn.errors import ConfigError, FormatError, MissingExtraError

DEFAULT, NONE = "default", "none"
"""Weights that torchvision downloads, and random ones."""

HEADS = {"avgpool", "classifier", "fc", "head", "heads", "flatten"}
"""Names of the layers in which torchvision's networks leave the grid."""

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of the colours that torchvision's networks were trained on."""

EXAMPLES = "resnet18, resnet50, vgg16, convnext_tiny, efficientnet_b0 or densenet121"
SEED = 0
"""Decides random weights."""


@dataclass(frozen=True)
class Backbone:
    """A network from images to maps of features.

    Attributes:
        name: What it is called.
        weights: Where its weights come from.
        network: From standardised colours to maps, which are smaller than the images.
        mean: Of the colours, from 0 to 1, that it knows.
        std: Their deviation.
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
        """Maps of features of images, whose colours go from 0 to 1."""
        mean, std = (colours.new_tensor(each)[:, None, None] for each in (self.mean, self.std))
        found = self.network((colours - mean) / std)
        if not isinstance(found, Tensor) or found.ndim != 4:
            raise ConfigError(f"backbone={self.name!r} makes no grid of features. Give {EXAMPLES}.")
        return found


def torchvision_backbone(name: str, weights: str) -> Backbone:
    """A classifier of torchvision without its head.

    Args:
        name: As `torchvision.models.get_model` knows it.
        weights: A file with the network's state, as torchvision publishes them or as
            safetensors; `"default"` for those that torchvision downloads; `"none"` for random ones.
    """
    models = _torchvision_models()
    if name not in models.list_models(module=models):
        raise ConfigError(f"backbone={name!r} is not one of torchvision's. Give {EXAMPLES}.")
    file = None if weights in (DEFAULT, NONE) else Path(weights)
    if file is not None and not file.is_file():
        raise ConfigError(
            f"weights={weights!r} is not a file. Give one with the state of {name}, "
            f"{DEFAULT!r} to download torchvision's, or {NONE!r} for random ones."
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        whole = models.get_model(name, weights="DEFAULT" if weights == DEFAULT else None)
    if file is not None:
        _fill(whole, file)
    return Backbone(name, file.name if file else weights, without_head(whole))


def without_head(network: nn.Module) -> nn.Module:
    """The layers of a network that come before its grid of features is averaged."""
    kept: OrderedDict[str, nn.Module] = OrderedDict()
    for name, layer in network.named_children():
        if name in HEADS:
            break
        kept[name] = layer
    return nn.Sequential(kept).eval()


def _fill(network: nn.Module, file: Path) -> None:
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            state = load_file(file)
        else:
            state = torch.load(file, map_location="cpu", weights_only=True)
        network.load_state_dict(state)
    except Exception as error:  # torch and pickle raise many kinds for a file that does not fit
        reason = " ".join(str(error).split())[:200]
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
            f"torchvision is installed but not for torch {torch.__version__}: "
            f"{' '.join(str(error).split())}. Install the build that belongs to it."
        ) from error
    return models
