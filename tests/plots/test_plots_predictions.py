"""Reliability diagrams, risk-coverage curves and entropy histograms against babn.metrics."""

import numpy as np
import pytest
import torch
from beartype.roar import BeartypeCallHintViolation
from matplotlib.axes import Axes

import babn
from babn import metrics, plots
from babn.errors import ConfigError, MetricInputError
from plot_checks import METHODS, WIDTHS, answers, clipped, several, texts, tick_texts, touching


def heights(panel: Axes) -> list[list[float]]:
    """Heights of the bars, by group."""
    return [[bar.get_height() for bar in group] for group in panel.containers]


def test_bars_are_the_numbers_of_the_metrics() -> None:
    probs, labels = answers()
    upper, lower = plots.reliability_diagram(probs, labels, bins=8).axes
    found = metrics.reliability(probs, labels, 8)
    full = found.count > 0
    gap = (found.confidence - found.accuracy)[full]
    assert heights(upper) == [found.accuracy[full].tolist(), pytest.approx(gap.tolist())]
    assert heights(lower) == [found.share[full].tolist()]
    assert [bar.get_x() for bar in lower.containers[0]] == found.edges[:-1][full].tolist()


@pytest.mark.parametrize("bins", [1, 10, 30])
def test_error_and_bins_are_written_in_the_panel(bins: int) -> None:
    probs, labels = answers()
    figure = plots.reliability_diagram(probs, labels, bins)
    error = 100 * metrics.ece(probs, labels, bins)
    assert f"ECE {error:.1f} %\n{bins} bins" in texts(figure)


@pytest.mark.thorough
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_method_has_a_panel(count: int, width: float) -> None:
    probs, labels = several(count)
    figure = plots.reliability_diagram(probs, labels, size=width)
    assert [panel.get_title() for panel in figure.axes[::2]] == list(METHODS[:count])
    assert len(figure.axes) == 2 * count
    assert not touching(figure)
    assert not clipped(figure)
    sizes = np.array([panel.get_position().size for panel in figure.axes[::2]])
    assert np.allclose(sizes, sizes[0])


def test_predictions_are_accepted() -> None:
    logits = torch.randn(5, 40, 3, generator=torch.Generator().manual_seed(0))
    prediction, labels = babn.Prediction(logits), torch.arange(40) % 3
    one, other = (
        plots.reliability_diagram(x, labels).axes[0] for x in (prediction, prediction.probs)
    )
    assert heights(one) == heights(other)


@pytest.mark.parametrize("count", [1, 5])
def test_curves_are_those_of_the_metrics(count: int) -> None:
    probs, labels = several(count)
    figure = plots.risk_coverage(probs, labels)
    curves = {line.get_label(): line for line in figure.axes[0].lines}
    for name, each in probs.items():
        confidence, correct = metrics.confidence_and_correct(each, labels)
        curve = metrics.risk_coverage(confidence, correct)
        drawn = curves[f"{name} ({metrics.aurc(confidence, correct):.3f})"]
        assert np.array_equal(drawn.get_xdata(), curve.coverage)
        assert np.array_equal(drawn.get_ydata(), curve.risk)


def test_ideal_curve_rises_only_after_the_correct_predictions() -> None:
    probs, labels = answers()
    ideal = plots.risk_coverage(probs, labels).axes[0].lines[0]
    accuracy = metrics.accuracy(probs, labels)
    coverage, risk = ideal.get_data()
    expected = np.maximum(0, 1 - accuracy / np.asarray(coverage))
    assert np.allclose(risk, expected)


@pytest.mark.thorough
@pytest.mark.parametrize("width", WIDTHS)
def test_curves_of_five_methods_differ_without_colour(width: float) -> None:
    figure = plots.risk_coverage(*several(5), size=width)
    lines = [line for line in figure.axes[0].lines if "(" in str(line.get_label())]
    assert len({str(line._unscaled_dash_pattern) for line in lines}) == len(lines) == 5
    assert not touching(figure)
    assert not clipped(figure)


def test_a_model_without_errors_can_be_drawn() -> None:
    probs, labels = torch.eye(3), torch.arange(3)
    assert "all predictions (0.000)" in texts(plots.risk_coverage(probs, labels))
    assert "ECE 0.0 %\n10 bins" in texts(plots.reliability_diagram(probs, labels))


def entropies(count: int = 300) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    drawn = torch.rand(2, count, generator=generator)
    return drawn[0] ** 2, 0.2 + drawn[1]


def test_histogram_shows_all_examples_and_the_auroc() -> None:
    inside, outside = entropies()
    figure = plots.entropy_histogram(inside, outside)
    shares = [patch.get_data().values for patch in figure.axes[0].patches]
    assert [x.sum() for x in shares] == pytest.approx([1, 1])
    edges = figure.axes[0].patches[0].get_data().edges
    assert np.allclose(shares[0], np.histogram(inside, edges)[0] / len(inside))
    assert f"AUROC {metrics.auroc(inside, outside):.3f}" in texts(figure)


@pytest.mark.thorough
@pytest.mark.parametrize("width", WIDTHS)
def test_histograms_of_several_methods_share_their_bars(width: float) -> None:
    figure = plots.entropy_histogram({name: entropies() for name in METHODS}, size=width)
    panels = [panel for panel in figure.axes if panel.get_visible()]
    assert [panel.get_title() for panel in panels] == list(METHODS)
    assert len({tuple(panel.patches[0].get_data().edges) for panel in panels}) == 1
    assert not touching(figure)
    assert not clipped(figure)


def test_histogram_takes_predictions() -> None:
    drawn = torch.randn(2, 4, 30, 3, generator=torch.Generator().manual_seed(0))
    inside, outside = (babn.Prediction(x) for x in (3 * drawn[0], drawn[1]))
    figure = plots.entropy_histogram(inside, outside)
    assert f"AUROC {metrics.auroc(inside.entropy, outside.entropy):.3f}" in texts(figure)


def test_entropies_that_are_all_the_same_can_be_drawn() -> None:
    figure = plots.entropy_histogram(torch.zeros(5), torch.zeros(3))
    assert "AUROC 0.500" in texts(figure)
    assert tick_texts(figure.axes[0].xaxis)


@pytest.mark.parametrize("plot", [plots.reliability_diagram, plots.risk_coverage])
def test_predictions_that_cannot_be_drawn_are_refused(plot: object) -> None:
    probs, labels = answers()
    with pytest.raises(ConfigError, match=r"predictions is empty.*Give a mapping"):
        plot({}, labels)
    with pytest.raises(MetricInputError, match=r"predictions\['BABN'\]: labels holds 4.*0 to 3"):
        plot({"BABN": probs}, labels + 1)
    with pytest.raises((MetricInputError, BeartypeCallHintViolation), match=r"labels"):
        plot(probs, labels[1:])
    with pytest.raises(MetricInputError, match=r"predictions: probs .*softmax"):
        plot(probs.log(), labels)
    with pytest.raises(MetricInputError, match=r"predictions: .*sigmoid"):
        plot(babn.Prediction(probs[None], "sigmoid"), labels)
    with pytest.raises(ValueError, match="figure size must be positive"):
        plot(probs, labels, size=-1)


def test_impossible_bins_are_refused() -> None:
    with pytest.raises(MetricInputError, match=r"bins=0 .*from 1 to"):
        plots.reliability_diagram(*answers(), bins=0)


def test_entropies_that_cannot_be_drawn_are_refused() -> None:
    some = torch.rand(3)
    with pytest.raises(ConfigError, match=r"outside.*Give two tensors"):
        plots.entropy_histogram(some)
    with pytest.raises(ConfigError, match=r"outside.*Give two tensors"):
        plots.entropy_histogram({"BABN": (some, some)}, some)
    with pytest.raises(ConfigError, match="inside is empty"):
        plots.entropy_histogram({})
    with pytest.raises(MetricInputError, match=r"inside\['BABN'\]: .* is empty"):
        plots.entropy_histogram({"BABN": (some, some[:0])})
    with pytest.raises(ValueError, match="not finite"):
        plots.entropy_histogram({"BABN": (some, some / 0)})
