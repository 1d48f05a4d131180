"""Vectorised t-tests in torch, on the device of the samples."""

import torch
from jaxtyping import Float
from torch import Tensor

_TINY = 1e-300
_TERMS = 200


def welch_p_value(
    a: Float[Tensor, "sample *shape"], b: Float[Tensor, "sample *shape"]
) -> Float[Tensor, "*shape"]:
    r"""Two-sided p-value of Welch's t-test for equal means, over the first axis.

    $$t = \frac{\bar a - \bar b}{\sqrt{s_a^2/n + s_b^2/n}}, \qquad
    p = I_{\nu/(\nu + t^2)}(\nu/2, 1/2)$$

    with the Welch-Satterthwaite degrees of freedom $\nu$. Without any spread the p-value is 1
    for equal means and 0 otherwise; with fewer than two samples it is NaN.
    """
    a, b = a.double(), b.double()
    n = a.shape[0]
    if n < 2:
        return torch.full(a.shape[1:], float("nan"), dtype=torch.float64, device=a.device)
    va, vb = a.var(0) / n, b.var(0) / n
    degrees = (va + vb).square() * (n - 1) / (va.square() + vb.square()).clamp(min=_TINY)
    size = torch.maximum(a.abs().amax(0), b.abs().amax(0))
    return _two_sided(a.mean(0) - b.mean(0), va + vb, degrees, size)


def paired_p_value(gaps: Float[Tensor, "pair *shape"]) -> Float[Tensor, "*shape"]:
    r"""Two-sided p-value of a paired t-test for a mean difference of zero, over the first axis.

    $$t = \frac{\bar d}{s_d / \sqrt n}, \qquad p = I_{\nu/(\nu + t^2)}(\nu/2, 1/2), \qquad
    \nu = n - 1$$

    NaN for fewer than two pairs; without any spread 1 for a mean of zero and 0 otherwise.
    """
    gaps = gaps.double()
    n = gaps.shape[0]
    if n < 2:
        return torch.full(gaps.shape[1:], float("nan"), dtype=torch.float64, device=gaps.device)
    degrees = torch.full(gaps.shape[1:], n - 1.0, dtype=torch.float64, device=gaps.device)
    return _two_sided(gaps.mean(0), gaps.var(0) / n, degrees, gaps.abs().amax(0))


def _two_sided(mean: Tensor, variance: Tensor, degrees: Tensor, size: Tensor) -> Tensor:
    """Two-sided p-value for a mean of zero; `size` is the largest magnitude of the samples."""
    flat = variance <= (1e-15 * size).square()
    degrees = degrees.masked_fill(flat, 1.0)
    t_squared = mean.square() / variance.masked_fill(flat, 1.0)
    p = regularized_beta(degrees / (degrees + t_squared), degrees / 2, torch.full_like(mean, 0.5))
    return torch.where(flat, (mean.abs() <= 1e-15 * size).double(), p)


def regularized_beta(
    x: Float[Tensor, "..."], a: Float[Tensor, "..."], b: Float[Tensor, "..."]
) -> Float[Tensor, "..."]:
    """The regularised incomplete beta function $I_x(a, b)$ by Lentz's continued fraction."""
    swap = x > (a + 1) / (a + b + 2)
    x, y = torch.where(swap, 1 - x, x), x
    a, b = torch.where(swap, b, a), torch.where(swap, a, b)
    log_front = torch.lgamma(a + b) - torch.lgamma(a) - torch.lgamma(b)
    log_front = log_front + torch.xlogy(a, x) + torch.xlogy(b, 1 - x)
    value = log_front.exp() * _fraction(x, a, b) / a
    return torch.where(swap, 1 - value, value).where(y > 0, 0.0).clamp(0, 1)


def _fraction(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """The continued fraction of the incomplete beta function."""
    c = torch.ones_like(x)
    d = _away_from_zero(1 - (a + b) * x / (a + 1)).reciprocal()
    value = d
    for m in range(1, _TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = _away_from_zero(1 + term * d).reciprocal()
            c = _away_from_zero(1 + term / c)
            value = value * d * c
        if bool(((d * c - 1).abs() < 1e-14).all()):
            break
    return value


def _away_from_zero(x: Tensor) -> Tensor:
    return torch.where(x.abs() < _TINY, _TINY, x)
