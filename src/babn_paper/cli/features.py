"""`babn features`."""

from pathlib import Path


def features(
    images: Path,
    *,
    out: Path = Path("features"),
    backbone: str = "resnet18",
    weights: str | None = None,
    size: str = "224x224",
    batch: int = 16,
) -> None:
    """Turn images into files of grid features, with a network of torchvision.

    Writes one .npz for each image, and features.json, which says how they were made. What is there
    already stays, so the same command finishes what was interrupted.

    Args:
        images: A folder of JPEG or PNG files, or a tar file of them.
        out: Folder for the features; `features` in DAQUAR's folder is where its task looks.
        backbone: Name of a network in torchvision.
        weights: A file with its weights; default to let torchvision download them; none for random
            ones, which features.json and tables of results will name.
        size: Height and width that images are brought to.
        batch: Images at a time.
    """
    import torch
    from rich.console import Console

    from babn.cli._errors import CommandError
    from babn.cli._progress import Bars
    from babn_paper.visual.backbones import torchvision_backbone
    from babn_paper.visual.feature_extraction import Wish, extract

    if weights is None:
        raise CommandError(
            "--weights is not given. Name a file, or say default to download torchvision's, or "
            "none for random weights."
        )
    if batch < 1:
        raise CommandError(f"--batch {batch} is not possible. Give a whole number above 0.")
    shape = _height_and_width(size)
    network = torchvision_backbone(backbone, weights)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    wish = Wish(shape, batch, device)
    console = Console(highlight=False)
    with Bars(console) as bars:
        count = extract(images, out, network, wish, bars)
    console.print(f"Features of {count} images: {out}", markup=False, soft_wrap=True)


def _height_and_width(size: str) -> tuple[int, int]:
    from babn.cli._errors import CommandError

    parts = size.lower().split("x")
    if len(parts) != 2 or not all(part.isdigit() and int(part) > 0 for part in parts):
        raise CommandError(f"--size {size} is not possible. Give height and width, as in 224x224.")
    return int(parts[0]), int(parts[1])
