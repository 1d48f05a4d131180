"""`babn features`."""

from pathlib import Path
from typing import Annotated


def features(
    images: Path,
    *,
    out: Path = Path("features"),
    backbone: str = "resnet18",
    weights: Annotated[str | None, "FILE"] = None,
    size: Annotated[str, "HxW"] = "224x224",
    batch: int = 16,
) -> None:
    """Extract grid features of images with a torchvision network.

    Writes one .npz file for each image, and features.json with the settings. Existing files are
    kept: repeat the command to continue after an interruption.

    Args:
        images: A folder of JPEG or PNG files, or a tar file of them.
        out: Folder for the features; the DAQUAR task reads them from `features` in its data folder.
        backbone: Name of a torchvision model.
        weights: File with the model's weights; or default for torchvision's download, or none for
            random weights. features.json and tables of results name them.
        size: Height and width that images are resized to.
        batch: Images in a batch.
    """
    from babn.cli._errors import CommandError
    from babn.cli._terminal import Bars
    from babn.devices import default_device
    from babn.validation import check_count
    from babn_paper.cli._terminal import make_console
    from babn_paper.visual.feature_extraction import (
        ExtractionSettings,
        extract,
        torchvision_backbone,
    )

    if weights is None:
        raise CommandError(
            "--weights is missing. Give a file, default for torchvision's download, or none for "
            "random weights."
        )
    check_count("batch", batch)
    shape = _parse_size(size)
    network = torchvision_backbone(backbone, weights)
    settings = ExtractionSettings(shape, batch, default_device())
    console = make_console()
    with Bars(console) as bars:
        count = extract(images, out, network, settings, bars)
    console.print(f"Features of {count} images: {out}")


def _parse_size(size: str) -> tuple[int, int]:
    from babn.cli._errors import CommandError

    parts = size.lower().split("x")
    if len(parts) != 2 or not all(part.isdigit() and int(part) > 0 for part in parts):
        raise CommandError(f"--size {size} is invalid. Give height and width, as in 224x224.")
    return int(parts[0]), int(parts[1])
