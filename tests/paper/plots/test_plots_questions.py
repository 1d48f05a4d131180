"""Figures of questions about images, and of measures over noise."""

from pathlib import Path

import numpy as np
import pytest
import torch

from babn.plots import save
from babn.prediction.attention_maps import AttentionMap
from babn_paper.plots.questions import noise_curves, question_figure

pytestmark = pytest.mark.thorough

WORDS = ["what", "color", "is", "it"]
ANSWERS = [("red", 0.98, 0.05), ("blue", 0.01, 0.02)]


def maps(regions: int) -> tuple[AttentionMap, AttentionMap]:
    torch.manual_seed(0)
    words, places = torch.rand(1, 1, 6, 6), torch.rand(1, 1, 1, regions)
    return AttentionMap("a", words, words), AttentionMap("b", places, places)


@pytest.mark.parametrize("boxes", [(2, 3), np.array([[0.0, 0, 4, 5], [2, 2, 9, 8]]), None])
@pytest.mark.parametrize("drawn", [True, False])
def test_a_question_with_and_without_an_image(boxes: object, drawn: bool, tmp_path: Path) -> None:
    image = np.zeros((12, 18, 3), dtype=np.uint8) if drawn else None
    figure = question_figure("What color is it?", ANSWERS, WORDS, *maps(6), image, boxes)  # type: ignore[arg-type]
    titles = [panel.get_title() for panel in figure.axes]

    assert titles.count("posterior mean, regions") == 1 and titles.count("std / mean, words") == 1
    bars = next(panel for panel in figure.axes if panel.get_xlabel().startswith("probability"))
    assert [label.get_text() for label in bars.get_yticklabels()] == ["red", "blue"]
    words = next(panel for panel in figure.axes if panel.get_title() == "posterior mean, words")
    assert words.get_images()[0].get_array().shape == (4, 4)  # without padding
    assert save(figure, tmp_path / "figure.png").exists()


def test_curves_over_noise_have_every_method() -> None:
    curves = {name: {"accuracy": [0.9, 0.5], "ECE-10": [0.1, 0.3]} for name in ("softmax", "BABN")}
    figure = noise_curves([0.0, 5.0], curves)
    accuracy, error = figure.axes

    assert [line.get_label() for line in accuracy.get_lines()] == ["softmax", "BABN"]
    assert error.get_lines()[0].get_ydata().tolist() == [0.1, 0.3]
