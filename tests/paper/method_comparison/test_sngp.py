"""The Gaussian process of SNGP against brute force."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import small_problem
from babn_paper.method_comparison import Models
from babn_paper.method_comparison.sngp import (
    SNGP,
    BoundedSpectralNorm,
    RandomFeatureGP,
    add_sngp,
    fit_gp,
)
from small_problem import TRAINING

WIDTH = 6


def points(count: int, seed: int) -> Tensor:
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(seed)).double()


def layer(width: int, noise: float) -> RandomFeatureGP:
    torch.manual_seed(0)
    return RandomFeatureGP(WIDTH, 3, width=width, noise=noise).double().eval()


def posterior_variance(kernel: Tensor, across: Tensor, own: Tensor, noise: float) -> Tensor:
    """The diagonal of K** - K*' (K + s I)^-1 K*."""
    inverse = torch.linalg.inv(kernel + noise * torch.eye(len(kernel)).double())
    return own - ((across @ inverse) * across).sum(-1)


@pytest.mark.parametrize("noise", [0.1, 2.0])
def test_variance_is_that_of_the_process_with_the_features_kernel(noise: float) -> None:
    process, train, test = layer(64, noise), points(30, 1), points(7, 2)
    with torch.no_grad():
        phi, star = process.random_features(train), process.random_features(test)
        process.fit(phi)
        expected = posterior_variance(phi @ phi.T, star @ phi.T, (star * star).sum(-1), noise)
        torch.testing.assert_close(process.variance(test), expected, rtol=1e-6, atol=1e-8)


def test_variance_is_that_of_a_process_with_an_rbf_kernel() -> None:
    """With many features, up to their Monte Carlo error."""
    process, train, test = layer(20_000, 1.0), points(20, 1), points(5, 2)
    scale = 0.7 * math.sqrt(WIDTH)

    def rbf(x: Tensor, y: Tensor) -> Tensor:
        x, y = (nn.functional.layer_norm(z, (WIDTH,)) for z in (x, y))
        return (-torch.cdist(x, y).square() / (2 * scale**2)).exp()

    with torch.no_grad():
        phi, star = process.random_features(train), process.random_features(test)
    torch.testing.assert_close(phi @ phi.T, rbf(train, train), rtol=0, atol=0.04)
    # By the identity above; a covariance of 20000 features is not formed.
    found = posterior_variance(phi @ phi.T, star @ phi.T, (star * star).sum(-1), 1.0)
    exact = posterior_variance(rbf(train, train), rbf(test, train), torch.ones(5).double(), 1.0)
    torch.testing.assert_close(found, exact, rtol=0, atol=0.04)


def test_variance_is_low_at_training_data_and_one_without_any() -> None:
    process, train = layer(800, 0.01), points(30, 1)
    with torch.no_grad():
        assert (process.variance(train) - 1).abs().max() < 0.2  # the prior's
        process.fit(process.random_features(train))
        assert process.variance(train).max() < 0.02
        assert process.variance(points(30, 2)).mean() > 0.1


def test_mean_field_divides_logits_in_evaluation() -> None:
    process, x = layer(64, 1.0), points(4, 1)
    with torch.no_grad():
        plain = process(x)
        process.factor = 2.0
        torch.testing.assert_close(
            process(x), plain / (1 + 2 * process.variance(x)).sqrt()[:, None]
        )
        torch.testing.assert_close(process.train()(x), plain)


def test_spectral_norm_is_bounded_and_small_weights_are_kept() -> None:
    torch.manual_seed(0)
    for size, kept in ((3.0, False), (0.01, True)):
        linear = nn.Linear(8, 8)
        with torch.no_grad():
            linear.weight.mul_(size)
        before = linear.weight.detach().clone()
        parametrize.register_parametrization(linear, "weight", BoundedSpectralNorm(linear.weight))
        norm = torch.linalg.matrix_norm(linear.weight.detach(), 2)
        assert norm < 0.96
        assert torch.equal(linear.weight, before) == kept


def test_power_iteration_follows_the_weight_in_training() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(8, 8)
    parametrize.register_parametrization(linear, "weight", BoundedSpectralNorm(linear.weight))
    with torch.no_grad():
        linear.parametrizations.weight.original.copy_(3 * torch.randn(8, 8))  # type: ignore[union-attr]
    for _ in range(100):
        _ = linear.weight
    assert torch.linalg.matrix_norm(linear.eval().weight.detach(), 2) < 0.97


def test_bert_gets_a_process_and_a_bounded_pooler() -> None:
    model = add_sngp(small_problem.bert())
    found = [name for name, m in model.named_modules() if isinstance(m, BoundedSpectralNorm)]
    assert found == ["bert.pooler.dense.parametrizations.weight.0"]
    assert isinstance(model.classifier, RandomFeatureGP)


def test_outside_texts_have_more_variance_than_training_texts() -> None:
    model = Models(small_problem.problem()).get(SNGP, 0)
    process = fit_gp(model, TRAINING)
    found: list[Tensor] = []
    process.register_forward_pre_hook(lambda _, inputs: found.append(process.variance(inputs[0])))
    with torch.no_grad():
        model(**TRAINING[0])
    assert found[0].max() < 0.5
