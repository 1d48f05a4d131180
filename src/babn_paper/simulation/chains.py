"""How much independent information the draws of a Markov chain hold."""

import torch
from jaxtyping import Float
from torch import Tensor


def effective_sample_size(draws: Float[Tensor, "draw chain"]) -> float:
    r"""Independent draws that would give the mean as exactly as these.

    $$\frac{n}{1 + 2\sum_t \rho_t}$$

    with autocorrelations $\rho_t$ pooled over the chains, summed while the sums of neighbours stay
    positive and falling (Geyer 1992).

    Example:
        >>> independent = torch.randn(1000, 4, generator=torch.Generator().manual_seed(0))
        >>> 3500 < effective_sample_size(independent) < 4500
        True
    """
    length, count = draws.shape
    # The mean over all chains, so that chains that disagree count as correlated.
    centred = draws.double() - draws.double().mean()
    spectrum = torch.fft.rfft(centred, n=2 * length, dim=0)
    products = torch.fft.irfft(spectrum.abs().square(), dim=0)[:length].mean(1)
    if products[0] <= 0:
        return float(length * count)
    correlations = products / products[0]
    pairs = correlations[: length // 2 * 2].unflatten(0, (-1, 2)).sum(1).cummin(0).values
    total = 2 * pairs.clamp(min=0).sum() - 1
    return float(length * count / total.clamp(min=1 / (length * count)))
