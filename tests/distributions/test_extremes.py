"""Nothing is NaN or infinite: any type, any shape, parameters at the ends of their range."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import babn
from babn.distributions import (
    Gamma,
    LogNormal,
    Weibull,
    kl_lognormal_lognormal,
    kl_weibull_gamma,
    noise_for,
)
from babn.errors import ParameterError

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
SHAPES: list[tuple[int, ...]] = [(), (1,), (2, 3), (0,), (3, 0, 2)]
NOISES = ["exact", "truncated", "truncated-paper"]
many = settings(max_examples=150, deadline=None, derandomize=True, database=None)

dtypes, shapes, noises = map(st.sampled_from, (DTYPES, SHAPES, NOISES))
share = st.one_of(st.sampled_from([0.0, 1e-4, 0.5, 0.9999, 1.0]), st.floats(0, 1))
"""A place between the smallest and the largest positive number of a type, in logarithms."""


def positive(at: float, shape: Any, dtype: torch.dtype) -> torch.Tensor:
    kind = torch.finfo(dtype)
    low, high = torch.tensor([kind.tiny, kind.max], dtype=torch.float64).log()
    number = torch.exp(low + at * (high - low)).clamp(kind.tiny, kind.max)
    return number.to(dtype).expand(shape).clone()


def real(at: float, shape: Any, dtype: torch.dtype) -> torch.Tensor:
    size = positive(abs(2 * at - 1), shape, dtype)
    return size if at > 0.5 else -size


@many
@given(dtypes, shapes, noises, st.booleans(), share, share)
def test_moments_and_samples_are_finite(
    dtype: torch.dtype, shape: Any, noise: Any, weibull: bool, scale: float, loc: float
) -> None:
    parameter, place = positive(scale, shape, dtype), real(loc, shape, dtype)
    q = Weibull(parameter, place, noise) if weibull else LogNormal(place, parameter, noise)
    for value in (q.log_mean, q.relative_std, q.log_sample(torch.Generator().manual_seed(0))):
        assert value.shape == shape and value.dtype == dtype
        assert value.isfinite().all(), value


@many
@given(dtypes, shapes, share, share, share, share)
def test_divergences_and_their_gradients_are_finite(
    dtype: torch.dtype, shape: Any, first: float, second: float, third: float, fourth: float
) -> None:
    def leaf(x: torch.Tensor) -> torch.Tensor:
        return x.requires_grad_(True)

    k, log_lam = leaf(positive(first, shape, dtype)), leaf(real(second, shape, dtype))
    alpha, mu = leaf(positive(third, shape, dtype)), leaf(real(fourth, shape, dtype))
    for kl, parameters in (
        (kl_weibull_gamma, (k, log_lam, alpha)),
        (kl_lognormal_lognormal, (log_lam, k, mu, alpha)),
    ):
        value = kl(*parameters)
        assert value.shape == shape and value.isfinite().all(), value
        assert (value >= -1e-6).all(), value
        for slope in torch.autograd.grad(value.sum(), parameters):
            assert slope.isfinite().all(), slope


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["k", "alpha", "beta", "sigma_q", "sigma_p"])
def test_parameters_outside_of_their_domain_are_named(
    name: str, bad: float, dtype: torch.dtype
) -> None:
    lognormal = name.startswith("sigma")
    names = (
        ("mu_q", "sigma_q", "mu_p", "sigma_p") if lognormal else ("k", "log_lam", "alpha", "beta")
    )
    given = {each: torch.ones(2, dtype=dtype) for each in names}
    given[name] = torch.tensor([1.0, bad], dtype=dtype)
    kl = kl_lognormal_lognormal if lognormal else kl_weibull_gamma
    with pytest.raises(ParameterError, match=rf"{name} has the value {bad:g}\. Give a"):
        kl(**given)


@pytest.mark.parametrize("name", ["log_lam", "mu_q", "mu_p"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_locations_that_are_not_finite_are_named(name: str, bad: float) -> None:
    one, wrong = torch.ones(()), torch.tensor(bad)
    with pytest.raises(ParameterError, match=rf"{name} has the value {bad:g}"):
        if name == "log_lam":
            kl_weibull_gamma(one, wrong, one)
        else:
            kl_lognormal_lognormal(
                **dict(mu_q=one, sigma_q=one, mu_p=one, sigma_p=one) | {name: wrong}
            )


@pytest.mark.parametrize("beta", [0.0, -1.0, float("nan"), float("inf"), 0])
def test_an_impossible_rate_is_named(beta: float, as_installed: None) -> None:
    with pytest.raises(ParameterError, match="beta"):
        Gamma(torch.zeros(1), beta)
    with pytest.raises(ParameterError, match="beta"):
        kl_weibull_gamma(torch.ones(1), torch.zeros(1), torch.ones(1), beta)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("family", ["weibull", "lognormal"])
def test_half_precision_is_float32_rounded(family: Any, noise: Any, dtype: torch.dtype) -> None:
    made = noise_for(family, noise)
    scale = torch.tensor([0.01, 0.3, 1.0, 4.0, 100.0], dtype=dtype)
    for function in (made.log_moment, made.relative_std):
        expected = function(scale.float()).clamp(max=torch.finfo(dtype).max).to(dtype)
        torch.testing.assert_close(function(scale), expected)
    u = torch.tensor([0.0, 0.001, 0.5, 0.999, 1.0], dtype=dtype)
    assert made.from_uniform(u).isfinite().all()
    assert made.sample(torch.empty(1000, dtype=dtype)).isfinite().all()


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, inside its compiler
def test_divergences_can_be_compiled(as_installed: None) -> None:
    compiled = torch.compile(kl_weibull_gamma, backend="eager")
    at = torch.tensor(2.0), torch.tensor(0.1), torch.tensor(0.5)
    torch.testing.assert_close(compiled(*at), kl_weibull_gamma(*at))


CONFIGS = [
    babn.BeliefConfig.pairs(max_length=8),
    babn.BeliefConfig.pairs(upward="heads", kl_reduction="sum"),
    babn.BamConfig(),
    babn.BamConfig(family="lognormal", noise="truncated", kl_reduction="sum"),
]


@pytest.mark.parametrize(
    "config", CONFIGS, ids=lambda config: f"{config.name}-{config.kl_reduction}"
)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("sizes", [(0, 3, 4), (2, 3, 0), (2, 0, 3), (0, 0, 0)], ids=str)
def test_nothing_to_attend_to_has_no_divergence(
    config: babn.MethodConfig, sizes: tuple[int, int, int], masked: bool
) -> None:
    batch, queries, keys = sizes
    layer = babn.BayesianAttention(heads=2, head_dim=4, config=config)
    query, key = torch.randn(batch, 2, queries, 4), torch.randn(batch, 2, keys, 4)
    mask = torch.ones(batch, 1, queries, keys, dtype=torch.bool) if masked else None
    output, info = layer(query, key, key, mask=mask)
    assert info.kl == 0 and output.isfinite().all()
    info.kl.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in layer.parameters())
