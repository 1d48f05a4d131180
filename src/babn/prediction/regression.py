r"""Regression: likelihood and quantiles of values under sampled predictions.

The predictive density of a label is $\frac1S \sum_s N(y; f_s, \sigma^2)$, with one prediction $f_s$
for each sample of attention and the residual standard deviation $\sigma$.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

Samples = Float[Tensor, "sample example"]
Labels = Float[Tensor, "example"]

GRID = 41
"""Number of residuals that each round of the search tries."""

BISECTIONS = 50
"""Steps of the search for a quantile, enough for double precision."""


def mixture_nll(values: Samples, labels: Labels, residual: float) -> Labels:
    """Negative log density of each label, in nats."""
    z = (labels.double() - values.double()) / residual
    log_density = -0.5 * z.square() - math.log(residual) - 0.5 * math.log(2 * math.pi)
    return math.log(len(values)) - log_density.logsumexp(0)


def mixture_quantile(
    values: Float[Tensor, "sample *batch"], residual: float, share: float
) -> Float[Tensor, "*batch"]:
    """The value below which a share of the predictive distribution lies, by bisection.

    Example:
        >>> mixture_quantile(torch.zeros(2, 1), 1.0, 0.975)
        tensor([1.9600], dtype=torch.float64)
    """
    wide = values.double()
    low, high = wide.amin(0) - 10 * residual, wide.amax(0) + 10 * residual
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        below = torch.special.ndtr((middle - wide) / residual).mean(0) < share
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (low + high) / 2


def fit_residual(values: Samples, labels: Labels) -> float:
    """The residual standard deviation with the lowest mean NLL, on a grid that is refined.

    Example:
        >>> round(fit_residual(torch.zeros(1, 4), torch.tensor([1.0, -1.0, 1.0, -1.0])), 2)
        1.0
    """
    errors = labels.double() - values.double().mean(0)
    centre = max(float(errors.square().mean().sqrt()), 1e-9)
    width = math.log(100.0)
    for _ in range(3):
        steps = torch.linspace(-width, width, GRID).tolist()
        tried = [centre * math.exp(step) for step in steps]
        centre = min(tried, key=lambda each: float(mixture_nll(values, labels, each).mean()))
        width *= 4 / GRID
    return centre


def cross_fitted_nll(values: Samples, labels: Labels) -> Labels:
    """NLL of each label, with the residual fitted to the other half of the examples."""
    found = torch.empty(len(labels), dtype=torch.float64)
    for first in (0, 1):
        own, other = slice(first, None, 2), slice(1 - first, None, 2)
        if len(labels[own]):
            chosen = other if len(labels[other]) else own
            residual = fit_residual(values[:, chosen], labels[chosen])
            found[own] = mixture_nll(values[:, own], labels[own], residual)
    return found
