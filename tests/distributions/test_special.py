"""Functions that stay finite, against mpmath."""

import mpmath as mp
import pytest
import torch
from density_oracles import relative_error, tensor

from babn.distributions.special import log_softplus, saturating_exp

POINTS = [
    -1e4,
    -200.0,
    -120.0,
    -100.0,
    -88.0,
    -16.0,
    -15.0,
    -14.9,
    -1.0,
    0.0,
    1.0,
    19.0,
    21.0,
    88.0,
    1e4,
]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-7), (torch.float64, 1e-10)])
@pytest.mark.parametrize("x", POINTS)
def test_log_softplus(x, dtype, tolerance):
    expected = mp.log(mp.log1p(mp.exp(mp.mpf(torch.tensor(x, dtype=dtype).item()))))
    value = log_softplus(tensor(x, dtype=dtype)).item()
    assert abs(value - expected) < tolerance * max(1, abs(expected))


@pytest.mark.parametrize("x", POINTS)
def test_log_softplus_gradient_in_float32(x):
    point = tensor(x, dtype=torch.float32)
    (slope,) = torch.autograd.grad(log_softplus(point), point)
    e = mp.exp(mp.mpf(point.item()))
    expected = e / (1 + e) / mp.log1p(e)
    assert slope.item() == pytest.approx(float(expected), rel=1e-6)


def test_log_softplus_gradcheck():
    x = tensor(-40.0, -15.5, -14.5, -2.0, 0.0, 3.0, 25.0)
    assert torch.autograd.gradcheck(log_softplus, x)


@pytest.mark.parametrize("x", [-50.0, 0.0, 1.0, 80.0])
def test_saturating_exp_is_exp_below_the_limit(x):
    point = tensor(x)
    value = saturating_exp(point)
    assert relative_error(value.item(), mp.exp(x)) < 1e-14
    assert torch.autograd.grad(value, point)[0].item() == value.item()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_saturating_exp_is_finite_beyond_the_limit(dtype):
    point = tensor(1e3, 6e4, dtype=dtype)
    value = saturating_exp(point)
    (slope,) = torch.autograd.grad(value.sum(), point)
    assert torch.isfinite(value).all() and torch.isfinite(slope).all()
    assert (value > torch.finfo(dtype).max ** 0.6).all()
    assert torch.isfinite(value.expand(10, 2).sum())  # sums of such values stay finite
