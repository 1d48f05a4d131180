"""Geweke's test (2004): two ways to simulate units and counts jointly must agree.

The one draws everything from the prior; the other goes back and forth between a sweep of the
sampler and new counts. Their means of test functions agree only if the sampler is right.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from network_cases import generator
from torch import Tensor

from babn_paper.gbn import GammaBeliefNetwork
from babn_paper.gbn.gibbs import State

Sweep = Callable[[State, torch.Tensor, torch.Generator], State]


def functions(state: State, counts: torch.Tensor) -> dict[str, torch.Tensor]:
    """Test functions, one value for each chain."""
    found = {"count": counts[..., 0], "count^2": counts[..., 0] ** 2, "zero": counts[..., 0] == 0}
    for layer, log_units in enumerate(state.log_units):
        units = log_units[..., 0].exp()
        found |= {f"S{layer}": units, f"S{layer}^2": units**2, f"exp(-S{layer})": (-units).exp()}
        found[f"log S{layer}"] = log_units[..., -1].clamp(min=-50)
        found[f"S{layer} count"] = units * counts[..., 0]
    found["across layers"] = state.log_units[0].exp().sum(-1) * state.log_units[-1].exp().sum(-1)
    found = {name: value.double().mean(-1) for name, value in found.items()}
    return found


def z_scores(
    network: GammaBeliefNetwork,
    sweep: Sweep,
    chains: int = 400,
    steps: int = 200,
    observations: int = 1,
) -> dict[str, float]:
    """How many standard errors the two simulators are apart, by test function."""
    random = generator(7)

    def prior(size: int) -> tuple[State, torch.Tensor]:
        log_units, counts = network.draw(size * observations, random)
        shape = (size, observations)
        units = [each.unflatten(-2, shape) for each in log_units]
        return State(network, units), counts.unflatten(-2, shape)

    independent = functions(*prior(100_000))
    state, counts = prior(chains)
    followed = []
    for _ in range(steps):
        state = sweep(state, counts, random)
        counts = state.network.draw_counts(state.log_units[-1], random)
        followed.append(functions(state, counts))
    return {
        name: _z(values, torch.stack([each[name] for each in followed]))
        for name, values in independent.items()
    }


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


def _z(independent: torch.Tensor, chain: torch.Tensor) -> float:
    size = effective_sample_size(chain)
    variance = independent.var() / len(independent) + chain.var() / size
    return ((independent.mean() - chain.mean()) / variance.sqrt()).item()
