"""Features of images from a network, and models that learn from them."""

import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner

from babn.cli._app import app
from babn.errors import ConfigError, DataError, FormatError, MissingExtraError
from babn_paper.experiments.training_state import prepare_training
from babn_paper.tasks.vqa import DAQUAR
from babn_paper.tasks.vqa_features import FeatureFiles, feature_size
from babn_paper.visual.feature_extraction import (
    Backbone,
    ExtractionSettings,
    corners,
    extract,
    torchvision_backbone,
)
from vqa_cases import random_image, tiny, write_daquar

pytestmark = pytest.mark.thorough

SETTINGS = ExtractionSettings((16, 24), batch=2)


def averaging(size: int = 8) -> Backbone:
    """Means of the colours in squares, as they are."""
    plain = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    return Backbone("means", "none", nn.AvgPool2d(size), *plain)


def write_images(folder: Path, count: int = 3) -> Path:
    folder.mkdir()
    for i in range(count):
        Image.fromarray(random_image(i, 32, 48)).save(folder / f"{i}.png")
    return folder


class Whole(nn.Module):
    """A classifier such as torchvision's: a grid, and a head that leaves it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 8, stride=8)
        self.layers = nn.BatchNorm2d(6)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(6, 5)


@pytest.fixture
def torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in with one network, whose interface is torchvision's."""
    package, models = ModuleType("torchvision"), ModuleType("torchvision.models")
    models.list_models = lambda module: ["whole"]  # type: ignore[attr-defined]
    models.get_model = lambda name, weights: Whole()  # type: ignore[attr-defined]
    package.models = models  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchvision", package)
    monkeypatch.setitem(sys.modules, "torchvision.models", models)


def test_features_are_those_of_the_network_with_the_places_of_regions(tmp_path: Path) -> None:
    images, out = write_images(tmp_path / "images"), tmp_path / "features"
    assert extract(images, out, averaging(), SETTINGS) == 3

    with np.load(out / "1.npz") as file:
        x, boxes = file["x"], file["bbox"]
        assert (int(file["image_h"]), int(file["image_w"])) == (32, 48)
    picture = random_image(1, 32, 48) / 255
    for features, (left, top, right, bottom) in zip(x, boxes.astype(int), strict=True):
        part = picture[top:bottom, left:right].mean((0, 1))
        np.testing.assert_allclose(features, part, atol=0.04)  # edges are blurred by resizing
    assert json.loads((out / "features.json").read_text())["grid"] == [2, 3]


def test_what_is_there_stays_and_what_was_made_otherwise_is_refused(tmp_path: Path) -> None:
    images, out = write_images(tmp_path / "images"), tmp_path / "features"
    extract(images, out, averaging(), SETTINGS)
    (out / "0.npz").unlink()
    before = (out / "1.npz").stat().st_mtime_ns
    extract(images, out, averaging(), SETTINGS)
    assert (out / "0.npz").exists() and (out / "1.npz").stat().st_mtime_ns == before
    with pytest.raises(ConfigError, match="holds features made with"):
        extract(images, out, averaging(), ExtractionSettings((16, 16)))
    (out / "features.json").unlink()
    with pytest.raises(ConfigError, match="unknown origin"):
        extract(images, out, averaging(), SETTINGS)


def test_images_and_sizes_that_cannot_work_are_refused(tmp_path: Path) -> None:
    images = write_images(tmp_path / "images")
    with pytest.raises(ConfigError, match="12 by 12 regions"):
        extract(images, tmp_path / "out", averaging(), ExtractionSettings((96, 96)))
    with pytest.raises(ConfigError, match="cannot be used with backbone='means'"):
        extract(images, tmp_path / "out", averaging(), ExtractionSettings((4, 4)))
    with pytest.raises(ConfigError, match="does not compute a feature grid"):
        extract(images, tmp_path / "out", Backbone("flat", "none", nn.Flatten()), SETTINGS)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has no images"):
        extract(tmp_path / "empty", tmp_path / "out", averaging(), SETTINGS)
    with pytest.raises(DataError, match="does not exist"):
        extract(tmp_path / "nowhere", tmp_path / "out", averaging(), SETTINGS)
    assert not (tmp_path / "out").exists()
    (images / "2.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"2 cannot be read"):
        extract(images, tmp_path / "out", averaging(), SETTINGS)
    assert (tmp_path / "out" / "1.npz").exists()  # what was done is not lost


def test_a_call_that_failed_does_not_keep_the_folder_from_another_size(tmp_path: Path) -> None:
    images, out = write_images(tmp_path / "images", 1), tmp_path / "out"
    whole = (images / "0.png").read_bytes()
    (images / "0.png").write_bytes(b"no image")
    with pytest.raises(DataError, match="0 cannot be read"):
        extract(images, out, averaging(), SETTINGS)
    (images / "0.png").write_bytes(whole)
    assert extract(images, out, averaging(), ExtractionSettings((16, 16))) == 1
    (out / "features.json").write_text("{")
    with pytest.raises(ConfigError, match="unknown origin"):
        extract(images, out, averaging(), SETTINGS)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (2, 3), (7, 9)])
def test_regions_cover_the_image_once(rows: int, columns: int) -> None:
    boxes = corners(rows, columns, (30, 50))
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    assert areas.sum() == pytest.approx(1500, rel=1e-5) and areas == pytest.approx(areas[0])
    assert boxes[0, :2].tolist() == [0, 0] and boxes[-1, 2:].tolist() == pytest.approx([50, 30])


def test_torchvisions_networks_lose_their_heads(torchvision: None, tmp_path: Path) -> None:
    found, again = (torchvision_backbone("whole", "none") for _ in range(2))
    colours = torch.rand(2, 3, 16, 24)
    assert found.maps(colours).shape == (2, 6, 2, 3) and found.weights == "none"
    assert torch.equal(found.maps(colours), again.maps(colours))  # random, but always the same

    torch.manual_seed(7)
    other = Whole()
    torch.save(other.state_dict(), tmp_path / "whole.pth")
    filled = torchvision_backbone("whole", str(tmp_path / "whole.pth"))
    assert filled.weights == "whole.pth"
    assert torch.equal(filled.network.get_parameter("stem.weight"), other.stem.weight)
    (tmp_path / "bad.pth").write_bytes(b"no")
    with pytest.raises(FormatError, match="does not fit the backbone"):
        torchvision_backbone("whole", str(tmp_path / "bad.pth"))
    with pytest.raises(ConfigError, match="weights='nowhere' is not a file"):
        torchvision_backbone("whole", "nowhere")
    with pytest.raises(ConfigError, match="backbone='none' is not a model of torchvision"):
        torchvision_backbone("none", "none")


def test_missing_torchvision_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(MissingExtraError, match=r"babn\[backbones\]"):
        torchvision_backbone("resnet18", "none")


def test_the_command_refuses_silently_random_weights(torchvision: None, tmp_path: Path) -> None:
    images = write_images(tmp_path / "images")
    words = ["features", str(images), "--out", str(tmp_path / "out"), "--backbone", "whole"]
    refused = CliRunner().invoke(app(), words)
    assert refused.exit_code == 2 and "--weights is missing" in refused.output
    refused = CliRunner().invoke(app(), [*words, "--weights", "none", "--size", "12"])
    assert refused.exit_code == 2 and "--size 12" in refused.output
    done = CliRunner().invoke(app(), [*words, "--weights", "none", "--size", "16x24"])
    assert done.exit_code == 0 and "Features of 3 images" in done.output
    assert json.loads((tmp_path / "out" / "features.json").read_text())["weights"] == "none"


def test_daquar_learns_from_features_where_there_are_some(tmp_path: Path) -> None:
    folder = write_daquar(tmp_path / "daquar")
    extract(folder / "images_small.tar", folder / "features", averaging(), SETTINGS)
    part = DAQUAR.read(str(folder), "test")

    assert part.origin.endswith("test.jsonl, features of means with weights none")
    assert isinstance(part.images, FeatureFiles) and part.images.size == 3
    picture, boxes = part.images.picture(1), part.images.boxes(1)
    assert picture is not None and np.array_equal(picture, random_image(1, 30, 40))
    assert boxes is not None and boxes[-1] == pytest.approx([80 / 3, 15, 40, 30])
    state = prepare_training(tiny(task="daquar", data=str(folder)))
    batch = next(state.micro_batches(0)).batch
    assert batch["regions"].shape[1:] == (6, 3)
    assert torch.isfinite(state.model(**batch).loss)
    assert state.model.config.stem_channels == [] and state.model.config.region_size == 3


def test_features_that_were_read_stay_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, out = write_images(tmp_path / "images"), tmp_path / "features"
    extract(images, out, averaging(), SETTINGS)
    files = FeatureFiles(out, ("0", "1", "2"))
    first = files.read(0)
    monkeypatch.setattr("babn_paper.tasks.vqa_features.KEPT", 2 * first.nbytes)
    files.read(1), files.read(2)
    for path in out.glob("*.npz"):
        path.unlink()
    np.testing.assert_array_equal(files.read(0), first)
    with pytest.warns(UserWarning, match="cannot be read"):
        files.read(2)  # for which there was no room


def test_the_description_tells_how_many_regions_there_are(tmp_path: Path) -> None:
    images, out = write_images(tmp_path / "images"), tmp_path / "features"
    extract(images, out, averaging(), SETTINGS)
    assert FeatureFiles(out, ("0",)).regions(None) == 6
    description = json.loads((out / "features.json").read_text())
    for grid in ([0, 3], [2], None):
        (out / "features.json").write_text(json.dumps({**description, "grid": grid}))
        with pytest.raises(DataError, match="is damaged"):
            FeatureFiles(out, ("0",)).regions(None)
    (out / "features.json").unlink()
    assert FeatureFiles(out, ("0",)).regions(None) == 100


def test_features_of_another_size_count_as_zeros(tmp_path: Path) -> None:
    for name, shape in (("a", (12, 300)), ("b", (12, 200))):
        np.savez(tmp_path / f"{name}.npz", x=np.ones(shape, dtype=np.float32))
    files = FeatureFiles(tmp_path, ("a", "b"))
    assert files.size == 300
    with pytest.warns(UserWarning, match="of another size"):
        assert not files.read(1).any()


@pytest.mark.parametrize(
    ("shape", "regions", "size"),
    [((2048, 36), 36, 2048), ((36, 2048), 36, 2048), ((6, 3), 6, 3), ((3, 6), 6, 3)],
)
def test_features_may_be_either_way_round(shape: tuple[int, int], regions: int, size: int) -> None:
    assert feature_size(np.ones(shape), np.ones((regions, 4))) == size
    if max(shape) > 100:
        assert feature_size(np.ones(shape), None) == size


@pytest.mark.slow
def test_a_network_of_torchvision() -> None:
    pytest.importorskip("torchvision", reason="optional", exc_type=ImportError)
    maps = torchvision_backbone("resnet18", "none").maps(torch.rand(1, 3, 64, 96))
    assert maps.shape == (1, 512, 2, 3)
