"""Statistics of posterior draws: effective sample size, credible intervals, coverage."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def effective_sample_size(draws: Float[Tensor, "draw chain"]) -> float:
    r"""Returns the number of independent draws that would estimate the mean equally well.

    $$\frac{n}{1 + 2\sum_t \rho_t}$$

    with autocorrelations $\rho_t$ pooled over the chains, summed by the initial monotone sequence
    estimator (Geyer 1992, https://doi.org/10.1214/ss/1177011137).

    Example:
        >>> independent = torch.randn(1000, 4, generator=torch.Generator().manual_seed(0))
        >>> 3500 < effective_sample_size(independent) < 4500
        True
    """
    length, count = draws.shape
    # The mean over all chains, so that disagreement between chains counts as correlation.
    centred = draws.double() - draws.double().mean()
    spectrum = torch.fft.rfft(centred, n=2 * length, dim=0)
    products = torch.fft.irfft(spectrum.abs().square(), dim=0)[:length].mean(1)
    if products[0] <= 0:
        return float(length * count)
    correlations = products / products[0]
    pairs = correlations[: length // 2 * 2].unflatten(0, (-1, 2)).sum(1).cummin(0).values
    total = 2 * pairs.clamp(min=0).sum() - 1
    return float(length * count / total.clamp(min=1 / (length * count)))


LEVELS = (0.5, 0.8, 0.9, 0.95)
"""Levels of the intervals in reports."""


def central_interval(
    draws: Float[Tensor, "draw ..."], level: float
) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
    """Returns the central credible interval of each variable."""
    ends = draws.new_tensor([(1 - level) / 2, (1 + level) / 2])
    # Sorted, because torch.quantile does not accept large tensors.
    places = (ends * (len(draws) - 1)).round().long()
    low, high = draws.sort(0).values[places]
    return low, high


def within(draws: Float[Tensor, "draw ..."], truth: Float[Tensor, "..."], level: float) -> Tensor:
    """Returns whether the central intervals contain the true values."""
    low, high = central_interval(draws, level)
    held: Bool[Tensor, "..."] = (low <= truth) & (truth <= high)
    return held


def coverage(
    draws: Float[Tensor, "draw ..."], truth: Float[Tensor, "..."]
) -> dict[str, tuple[float, float]]:
    """Returns the share of true values in the intervals of each level, and its standard error.

    The standard error assumes independent observations, the first axis of `truth`.
    """
    found = {}
    for level in LEVELS:
        held = within(draws, truth, level).double().flatten(1).mean(1)
        found[f"{level:g}"] = held.mean().item(), (held.std() / len(held) ** 0.5).item()
    return found
