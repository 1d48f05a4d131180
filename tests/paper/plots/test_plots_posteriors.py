"""Figures of approximate posteriors, from records as the benchmarks write them."""

import pytest

from babn.errors import ConfigError
from babn_paper.plots.posteriors import encoder_agreement, posterior_checks
from babn_paper.simulation.draws import LEVELS
from plot_checks import texts

pytestmark = pytest.mark.thorough

COVERAGE = {f"{level:g}": (level - 0.02, 0.01) for level in LEVELS}


def agreement_records(depths=(1, 3), seeds=2):
    part = {"kl": 0.1, "absolute_bias": 0.2, "spread": 0.9, "coverage": COVERAGE}
    return [
        {"layers": depth, "seed": seed, "posterior": name, "by_layer": [part] * depth}
        for depth in depths
        for seed in range(seeds)
        for name in ("Gibbs", "both", "downward")
    ]


def check_records():
    variances = {"analytic": {"variance": 1.0}, "monte_carlo": {"variance": 3.0}}
    gradients = [{"stage": stage, **variances} for stage in ("start", "trained")]
    return [
        {"posterior": "exact", "gap": 0.0, "coverage": COVERAGE},
        {"posterior": "belief", "gap": 0.2, "coverage": COVERAGE, "gradients": gradients},
    ]


def test_agreement_has_a_row_for_each_depth_and_a_line_for_each_posterior():
    figure = encoder_agreement(agreement_records())
    assert len(figure.axes) == 2 * 4
    divergence = figure.axes[4].get_lines()
    assert [len(line.get_xdata()) for line in divergence] == [3, 3, 3]
    assert {"1 layer", "3 layers", "both paths"} <= set(texts(figure))
    assert not any("$" in text for text in texts(figure))


def test_checks_show_gaps_coverage_and_variances():
    figure = posterior_checks(check_records())
    gap, cover, variance = figure.axes
    assert gap.get_lines()[1].get_xdata().tolist() == [0.2]
    assert cover.get_lines()[-1].get_ydata().tolist() == pytest.approx([x - 0.02 for x in LEVELS])
    assert variance.get_lines()[0].get_ydata().tolist() == pytest.approx([3, 3])


@pytest.mark.parametrize("plot", [encoder_agreement, posterior_checks])
def test_no_records_are_refused(plot):
    with pytest.raises(ConfigError, match="records"):
        plot([])
