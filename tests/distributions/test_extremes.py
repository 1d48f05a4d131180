"""Nothing is NaN or infinite: any shape, parameters at the ends of their range."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import babn
from babn.distributions import Gamma, LogNormal, Weibull, weibull_gamma
from babn.errors import ParameterError

DTYPES = [torch.float32, torch.float64]
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


@pytest.mark.parametrize("beta", [0.0, -1.0, float("nan"), float("inf"), 0])
def test_an_impossible_rate_is_named(beta: float, as_installed: None) -> None:
    with pytest.raises(ParameterError, match="beta"):
        Gamma(torch.zeros(1), beta)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, inside its compiler
def test_divergences_can_be_compiled(as_installed: None) -> None:
    def kl(k: torch.Tensor, log_lam: torch.Tensor, log_alpha: torch.Tensor) -> torch.Tensor:
        return weibull_gamma(Weibull(k, log_lam), Gamma(log_alpha))

    at = torch.tensor(2.0), torch.tensor(0.1), torch.tensor(-0.7)
    torch.testing.assert_close(torch.compile(kl, backend="eager")(*at), kl(*at))


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
