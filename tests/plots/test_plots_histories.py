"""KL and training curves over steps."""

import numpy as np
import pytest
import torch

import babn
from babn import plots
from babn.errors import ConfigError
from models import CASES
from plot_checks import METHODS, WIDTHS, clipped, texts, tick_texts, touching

pytestmark = pytest.mark.thorough


def layers(count: int, chain: str = "encoder", steps: int = 40) -> dict[str, list[float]]:
    return {f"{chain}/{i}": [3 + i - 0.01 * t for t in range(steps)] for i in range(count)}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("count", [1, 3, 12, 24])
def test_every_layer_has_its_line_and_colour(count: int, width: float) -> None:
    history = layers(count)
    figure = plots.kl_history(history, size=width)
    lines = figure.axes[0].lines
    assert [list(line.get_ydata()) for line in lines] == list(history.values())
    assert len({tuple(line.get_color()) for line in lines}) == count
    assert not touching(figure)
    assert not clipped(figure)


@pytest.mark.parametrize("top", [1.01, 1.3, 9.7, 11, 14, 99, 1234, 98765])
def test_numbers_of_any_length_have_room(top: float) -> None:
    for plot in (plots.kl_history, plots.training_curves):
        figure = plot({"a": [1.0, top], "b": [1.2, top / 2]})
        assert not clipped(figure)
        assert not touching(figure)


def test_earlier_layers_are_darker() -> None:
    lines = plots.kl_history(layers(24)).axes[0].lines
    brightness = [np.dot(line.get_color()[:3], [0.3, 0.59, 0.11]) for line in lines]
    assert brightness == sorted(brightness)


def test_colour_bar_names_the_first_and_the_last_layer() -> None:
    marks = tick_texts(plots.kl_history(layers(24)).axes[1].yaxis)
    assert marks[0] == "1"
    assert marks[-1] == "24"
    assert len(marks) < 10


def test_chains_have_their_own_dashes() -> None:
    history = layers(3) | layers(3, "decoder")
    figure = plots.kl_history(history)
    lines = figure.axes[0].lines[:6]
    assert len({str(line._unscaled_dash_pattern) for line in lines}) == 2
    assert lines[0].get_color() == lines[3].get_color()
    assert {"encoder", "decoder"} <= set(texts(figure))


def test_scale_is_logarithmic_only_for_a_wide_range() -> None:
    scales = [
        plots.kl_history({"a": values}).axes[0].get_yscale()
        for values in ([1.0, 2.0], [1000.0, 1.0], [1000.0, 0.0], [1000.0, float("nan")])
    ]
    assert scales == ["linear", "log", "linear", "linear"]


def test_records_of_a_model_are_accepted() -> None:
    case = CASES["bert"]
    model = case.converted()
    records = []
    for step in (10, 20):
        with babn.recording_kl(model):
            model(**case.batch())
        records.append({"step": step, **babn.kl_per_layer(model)})
    lines = plots.kl_history(records).axes[0].lines
    assert [line.get_label() for line in lines] == list(babn.kl_per_layer(model))
    assert all(list(line.get_xdata()) == [10, 20] for line in lines)
    for line in lines:
        expected = [float(record[line.get_label()].detach()) for record in records]
        assert list(line.get_ydata()) == expected


def test_steps_are_counted_from_one_unless_given() -> None:
    history = {"a": [1.0, 2.0, 3.0]}
    for steps, expected in ((None, [1, 2, 3]), (range(0, 30, 10), [0, 10, 20])):
        assert list(plots.kl_history(history, steps).axes[0].lines[0].get_xdata()) == expected
        assert list(plots.training_curves(history, steps).axes[0].lines[0].get_xdata()) == expected


def test_band_is_one_standard_deviation_around_the_mean() -> None:
    runs = torch.randn(5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    panel = plots.training_curves({"BABN": runs}).axes[0]
    mean, std = runs.mean(0).numpy(), runs.std(0).numpy()
    assert np.allclose(panel.lines[0].get_ydata(), mean)
    corners = panel.collections[0].get_paths()[0].vertices
    assert corners[:, 1].max() == pytest.approx((mean + std).max())
    assert corners[:, 1].min() == pytest.approx((mean - std).min())


def test_a_single_run_has_no_band() -> None:
    panel = plots.training_curves({"BABN": [3.0, 2.0]}, label="loss (nats)").axes[0]
    assert not panel.collections
    assert panel.get_ylabel() == "loss (nats)"


@pytest.mark.parametrize("width", WIDTHS)
def test_measures_have_panels_and_methods_keep_their_looks(width: float) -> None:
    runs = torch.rand(3, 20, generator=torch.Generator().manual_seed(0))
    some = {name: runs for name in METHODS[1:]}
    history = {"loss": dict.fromkeys(METHODS, runs), "KL divergence (nats)": some, "ECE (%)": some}
    figure = plots.training_curves(history, size=width)
    assert [panel.get_ylabel() for panel in figure.axes] == list(history)
    looks = [{x.get_label(): x.get_color() for x in panel.lines} for panel in figure.axes]
    assert looks[1].items() <= looks[0].items()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(METHODS)
    assert not touching(figure)
    assert not clipped(figure)


@pytest.mark.parametrize("plot", [plots.kl_history, plots.training_curves])
def test_histories_that_cannot_be_drawn_are_refused(plot: object) -> None:
    with pytest.raises(ConfigError, match="history is empty"):
        plot({})
    with pytest.raises(ConfigError, match=r"history\['a'\] is not one number for each step"):
        plot({"a": []})
    with pytest.raises(ConfigError, match=r"history\['a'\] is not one number for each step"):
        plot({"a": [[1.0, 2.0], [1.0]]})
    with pytest.raises(ValueError, match="same first dimension"):
        plot({"a": [1.0, 2.0, 3.0]}, [1, 2])


def test_empty_records_are_refused() -> None:
    with pytest.raises(ConfigError, match="history is empty"):
        plots.kl_history([])


def test_several_runs_of_a_layer_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"history\['a'\] is not one number for each step"):
        plots.kl_history({"a": torch.rand(2, 3)})


def test_a_trainers_log_is_a_history() -> None:
    log = [
        {"loss": 1.0, "kl": 3.0, "kl/self/0": 2.0 / i, "kl/self/1": 1.0 / i, "step": 10 * i}
        for i in range(1, 5)
    ]
    (panel, *_) = plots.kl_history([*log, {"train_runtime": 3.0, "step": 40}]).axes
    assert [line.get_label() for line in panel.lines] == ["self/0", "self/1"]
    assert panel.lines[0].get_xdata().tolist() == [10, 20, 30, 40]
