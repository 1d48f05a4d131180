"""The generative model against scipy and its own moments."""

import numpy as np
import pytest
import torch
from network_cases import generator, scalar, tensor, two_layers
from scipy import integrate, stats

from babn.errors import ConfigError
from babn_paper.gbn import GammaBeliefNetwork

pytestmark = pytest.mark.usefixtures("as_installed")


def test_log_joint_is_scipys():
    network = two_layers()
    log_units, counts = network.draw(6, generator(0))
    upper, lower = (units.exp().numpy() for units in log_units)
    w2, w3 = (weight.numpy() for weight in network.weights)
    scale = 1 / network.rate
    expected = (
        stats.gamma(network.top_shape.numpy(), scale=scale).logpdf(upper).sum(-1)
        + stats.gamma(upper @ w2.T, scale=scale).logpdf(lower).sum(-1)
        + stats.poisson(lower @ w3.T).logpmf(counts.numpy()).sum(-1)
    )
    np.testing.assert_allclose(network.log_joint(counts, log_units), expected)


def test_log_joint_integrates_to_one_over_counts_and_units():
    network = scalar(0.9, shape=2.0)

    def density(s):
        counts = torch.arange(60.0, dtype=torch.float64)[:, None]
        log_units = [tensor([[s]]).log().expand(60, 1)]
        return network.log_joint(counts, log_units).exp().sum().item()

    assert integrate.quad(density, 0, 30)[0] == pytest.approx(1, abs=1e-4)


def test_draws_have_the_means_that_the_hierarchy_says():
    network = two_layers()
    log_units, counts = network.draw(200_000, generator(1))
    expected = network.top_shape / network.rate
    for layer, units in enumerate([*(u.exp() for u in log_units), counts]):
        error = units.std(0) / len(units) ** 0.5
        assert bool(((units.mean(0) - expected).abs() < 5 * error).all()), layer
        if layer < network.layers:
            last = layer == network.layers - 1
            expected = network.weights[layer] @ expected / (1.0 if last else network.rate)


def test_tiny_shapes_stay_finite():
    weights = (torch.full((2, 2), 1e-12), torch.ones(2, 2), torch.ones(2, 2))
    for dtype in (torch.float32, torch.float64):
        network = GammaBeliefNetwork(
            torch.full((2,), 1e-6, dtype=dtype), tuple(w.to(dtype) for w in weights)
        )
        log_units, counts = network.draw(100, generator(2))
        if dtype == torch.float64:
            assert all(bool(units.isfinite().all()) for units in log_units)
        assert bool(counts.isfinite().all())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rate": 0.0}, "rate=0.0"),
        ({"top_shape": tensor([1.0, -1.0])}, "top_shape="),
        ({"weights": ()}, "weights is empty"),
        ({"weights": (torch.ones(3, 4),)}, r"weights\[0\] has the shape \(3, 4\)"),
        ({"weights": (torch.ones(3, 2), -torch.ones(2, 3))}, r"weights\[1\] has negative"),
        ({"weights": (torch.tensor([[1.0, 1.0], [0.0, 0.0]]),)}, "row of zeros"),
    ],
)
def test_what_is_no_network_is_refused(changes, message):
    parts = {"top_shape": tensor([1.0, 1.0]), "weights": (torch.ones(3, 2),), "rate": 1.0}
    with pytest.raises(ConfigError, match=message):
        GammaBeliefNetwork(**{**parts, **changes})
