"""Comparison of approximate posteriors with Gibbs sampling, and the importance-weighted bound."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from babn_paper.gbn.encoder import WeibullNetwork
from babn_paper.simulation.draws import LEVELS, coverage, within

BINS = 20
"""Number of bins, of equal exact probability, for the KL estimate."""


@dataclass(frozen=True)
class Agreement:
    """Agreement of the marginals of one layer's units with the exact ones.

    All but the coverages are means over observations and units.

    Attributes:
        kl: KL of the exact marginal from the approximate one, over bins of equal exact probability:
            a lower bound of the KL of the distributions.
        bias: Approximate minus exact mean, in exact standard deviations.
        absolute_bias: Absolute value of the bias.
        spread: Approximate divided by exact standard deviation.
        mass: Exact probability of the approximate central intervals, by their level.
        coverage: Share of true units in the approximate central intervals, with its standard error.
    """

    kl: float
    bias: float
    absolute_bias: float
    spread: float
    mass: dict[str, float]
    coverage: dict[str, tuple[float, float]]


def agreement(
    exact: Float[Tensor, "draw observation unit"],
    approximate: Float[Tensor, "other observation unit"],
    truth: Float[Tensor, "observation unit"],
) -> Agreement:
    """Compares draws of the logarithms of units of one layer."""
    units, others = exact.exp(), approximate.exp()
    spread = units.std(0)
    bias = (others.mean(0) - units.mean(0)) / spread
    return Agreement(
        kl=binned_kl(exact, approximate).mean().item(),
        bias=bias.mean().item(),
        absolute_bias=bias.abs().mean().item(),
        spread=(others.std(0) / spread).mean().item(),
        mass={
            f"{level:g}": within(approximate, exact, level).double().mean().item()
            for level in LEVELS
        },
        coverage=coverage(approximate, truth),
    )


def binned_kl(
    exact: Float[Tensor, "draw *item"], approximate: Float[Tensor, "other *item"]
) -> Float[Tensor, "*item"]:
    r"""Estimates the KL as $\sum_b \frac1B \log\frac{1/B}{q_b}$ over bins of the exact draws.

    The bins lie between quantiles of the exact draws. Half a draw is added to each bin of the
    approximation, so that empty bins stay finite.
    """
    places = torch.arange(1, BINS) * len(exact) // BINS
    edges = exact.sort(0).values[places].movedim(0, -1).contiguous()
    bins = torch.searchsorted(edges, approximate.movedim(0, -1).contiguous())
    counts = torch.nn.functional.one_hot(bins, BINS).sum(-2).to(exact.dtype)
    shares = (counts + 0.5) / (len(approximate) + 0.5 * BINS)
    return -(BINS * shares).log().mean(-1)


@torch.no_grad()
def importance_bound(
    encoder: WeibullNetwork, counts: Float[Tensor, "observation count"], draws: int
) -> Float[Tensor, "observation"]:
    """Importance-weighted bound (Burda et al. 2016, https://arxiv.org/abs/1509.00519).

    It tends to the log evidence as the number of draws grows.
    """
    layers = list(encoder(counts, draws))
    log_units = [layer.log_units for layer in layers]
    expanded = counts.expand(draws, *counts.shape)
    log_ratio = encoder.network.log_joint(expanded, log_units)
    for layer in layers:
        log_ratio = log_ratio - layer.posterior.log_prob(layer.log_units).sum(-1)
    return torch.logsumexp(log_ratio, 0) - torch.tensor(float(draws)).log()
