"""Attention drawn on images."""

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from babn.errors import ConfigError
from babn_paper.plots.images import attention_on_image
from plot_checks import WIDTHS, attention_map, clipped, texts

pytestmark = pytest.mark.thorough

IMAGE = torch.linspace(0, 1, 30 * 40).reshape(30, 40)
BOXES = torch.tensor([[0.0, 0.0, 20.0, 15.0], [20.0, 15.0, 40.0, 30.0], [10.0, 8.0, 30.0, 22.0]])


def overlays(figure: Figure) -> list[np.ndarray]:
    """Colours over the images: of the mean and of std/mean."""
    return [np.asarray(panel.images[1].get_array()) for panel in figure.axes if panel.images]


def test_the_largest_weight_lies_on_top() -> None:
    found = attention_map(4, 3)
    mean, spread = overlays(attention_on_image(found, IMAGE, BOXES, 1, head=2))
    top = int(found.mean[0, 2, 1].argmax())
    left, upper, right, lower = BOXES[top].int().tolist()
    for painted in (mean, spread):
        inside = painted[upper:lower, left:right].reshape(-1, 4)
        assert (inside == inside[0]).all()
    assert mean[upper, left, 3] == mean[..., 3].max()
    assert mean[-1, 0, 3] == 0


def test_regions_with_the_largest_weights_carry_their_values() -> None:
    found = attention_map(4, 3)
    figure = attention_on_image(found, IMAGE, BOXES, 1)
    written = texts(figure)
    for values in (found.mean, found.relative_std):
        assert {f"{x:.2f}" for x in values[0, 0, 1].tolist()} <= set(written)
    assert len(figure.findobj(lambda x: isinstance(x, Rectangle) and not x.get_fill())) >= 6


def test_patches_follow_the_rows_of_the_image() -> None:
    found = attention_map(2, 7, 1)
    mean, _ = overlays(attention_on_image(found, IMAGE, (2, 3), 1, first=1))
    order = mean[..., 3][[0, 0, 0, 29, 29, 29], [0, 20, 39, 0, 20, 39]].argsort()
    assert order.tolist() == found.mean[0, 0, 1, 1:].argsort().tolist()
    assert (mean[..., 3] > 0).all()


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_cut_off(width: float) -> None:
    figure = attention_on_image(attention_map(2, 3), IMAGE, BOXES, word="$ball_", size=width)
    assert "query: $ball_" in texts(figure)
    assert {"posterior mean", "std / mean"} <= set(texts(figure))
    assert not clipped(figure)
    assert figure.get_figwidth() == width


@pytest.mark.parametrize(
    "image",
    [
        IMAGE.expand(3, 30, 40),
        IMAGE[..., None].expand(30, 40, 3).numpy(),
        pytest.param((255 * IMAGE).round().to(torch.uint8), marks=pytest.mark.thorough),
        pytest.param(IMAGE[None], marks=pytest.mark.thorough),
    ],
    ids=["channels-first", "channels-last", "bytes", "grey"],
)
def test_images_come_in_any_order_of_axes(image: torch.Tensor | np.ndarray) -> None:
    figure = attention_on_image(attention_map(2, 3), image, BOXES)
    shown = [np.asarray(panel.images[0].get_array()) for panel in figure.axes if panel.images]
    expected = np.repeat(0.3 + 0.7 * IMAGE[..., None].numpy(), 3, -1)
    assert all(np.allclose(x, expected, atol=0.002) for x in shown)


def test_tall_images_fit_onto_a_page() -> None:
    figure = attention_on_image(attention_map(2, 3), torch.zeros(400, 40), BOXES, size=6.8)
    assert figure.get_figheight() <= 9
    assert not clipped(figure)


def test_images_and_maps_that_do_not_fit_are_refused() -> None:
    found = attention_map(4, 3)
    with pytest.raises(ConfigError, match=r"query=4 does not exist: layer/0 has queries 0 to 3"):
        attention_on_image(found, IMAGE, BOXES, 4)
    with pytest.raises(ConfigError, match=r"boxes has 4 regions and layer/0 3 keys"):
        attention_on_image(found, IMAGE, (2, 2))
    with pytest.raises(ConfigError, match=r"boxes has 3 regions and layer/0 2 keys from first=1"):
        attention_on_image(found, IMAGE, BOXES, first=1)
    with pytest.raises(ConfigError, match=r"boxes=\(0, 2\) does not fit an image"):
        attention_on_image(found, IMAGE, (0, 2))
    with pytest.raises(ConfigError, match=r"boxes has shape \(3, 3\)"):
        attention_on_image(found, IMAGE, BOXES[:, :3])
    with pytest.raises(ConfigError, match=r"boxes holds .*left below right"):
        attention_on_image(found, IMAGE, BOXES[:, [2, 1, 0, 3]])
    with pytest.raises(ConfigError, match=r"image has shape \(2, 3, 30, 40\).*no batch"):
        attention_on_image(found, IMAGE.expand(2, 3, 30, 40), BOXES)
    with pytest.raises(ConfigError, match=r"image holds values from -1 to 0.*normalisation"):
        attention_on_image(found, IMAGE - 1, BOXES)
    with pytest.raises(ConfigError, match=r"heads=5 does not exist"):
        attention_on_image(found, IMAGE, BOXES, head=5)
