r"""The Weibull inference network of a gamma belief network.

$$h^{L+1} = \log(1 + y), \qquad h^l = \mathrm{softplus}(f^l_3(h^{l+1})), \qquad
r^l = W^l S^{l-1},$$

$$k^l = \mathrm{softplus}(f^l_1(h^l)) + e^{\Phi^l_k}, \qquad
E[S^l] = \mathrm{softplus}(f^l_2(h^l)) + e^{\Phi^l_\lambda}, \qquad
\Phi^l = a^l \log r^l + b^l$$

A deterministic upward path from the data and a stochastic downward path, added as in the paper. The
sum has the form of the exact conditional mean, $(m^l + r^l) / (e^l + \beta)$, in which upward
counts and downward shapes are added too.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from babn.distributions import Gamma, Weibull, weibull_gamma
from babn.distributions.special import log_softplus
from babn.errors import ConfigError
from babn.validation import check_count
from babn_paper.gbn.gibbs import check_counts
from babn_paper.gbn.network import GammaBeliefNetwork
from babn_paper.maximise import maximise

Paths = Literal["both", "upward", "downward"]
"""Inputs of a layer's posterior: the data from below, the layer above, or both."""

SMALLEST_K, LARGEST_PHI = 1e-3, 30.0
"""Bounds that keep shapes and scales finite and their gradients positive."""


@dataclass(frozen=True)
class LayerPosterior:
    """The posterior of one layer on the downward path.

    Attributes:
        posterior: Distribution of the layer's units, given a draw of the layer above.
        prior: Prior of the network, given the same draw.
        log_units: A reparameterised draw.
    """

    posterior: Weibull
    prior: Gamma
    log_units: Float[Tensor, "... observation unit"]

    def kl(self) -> Float[Tensor, "... observation"]:
        """Analytic KL of the posterior from the prior, given the layer above."""
        return weibull_gamma(self.posterior, self.prior).sum(-1)


class WeibullLayer(nn.Module):
    """Computes the posterior of one layer's units.

    Args:
        states: Size of the upward state, or 0 without an upward path.
        units: Number of units of the layer.
        downward: Whether there is a downward path.
        log_mean: Initial value of the downward part of the log-mean.
    """

    def __init__(self, states: int, units: int, downward: bool, log_mean: float) -> None:
        super().__init__()
        self.shape_map = nn.Linear(states, units) if states else None
        self.mean_map = nn.Linear(states, units) if states else None
        self.slopes = nn.Parameter(torch.ones(2, units)) if downward else None
        start = torch.stack([torch.zeros(units), torch.full((units,), log_mean)])
        self.offsets = nn.Parameter(start) if downward else None

    def forward(
        self, state: Float[Tensor, "observation state"], log_shape: Float[Tensor, "... unit"]
    ) -> Weibull:
        """Returns the posterior, given an upward state and the shapes from the layer above."""
        k, log_means = [], []
        if self.shape_map is not None and self.mean_map is not None:
            k.append(F.softplus(self.shape_map(state)))
            log_means.append(log_softplus(self.mean_map(state)))
        if self.slopes is not None and self.offsets is not None:
            phi = self.slopes * log_shape.unsqueeze(-2) + self.offsets
            phi_k, phi_mean = phi.clamp(max=LARGEST_PHI).unbind(-2)
            k.append(phi_k.exp())
            log_means.append(phi_mean)
        total = torch.stack(torch.broadcast_tensors(*k)).sum(0).clamp(min=SMALLEST_K)
        log_mean = torch.stack(torch.broadcast_tensors(*log_means)).logsumexp(0)
        return Weibull(total, log_mean - torch.lgamma(1 + 1 / total), log_mean=log_mean)


class WeibullNetwork(nn.Module):
    """Approximate posterior of all units of a network, given counts.

    Args:
        network: The network, with known weights.
        states: Size of the upward states.
        paths: Inputs of a layer's posterior: `"both"` the data from below and the layer above, or
            only one of them. With `"downward"`, the posterior does not depend on the data.
    """

    def __init__(
        self, network: GammaBeliefNetwork, states: int = 16, paths: Paths = "both"
    ) -> None:
        super().__init__()
        check_count("states", states)
        if paths not in get_args(Paths):
            raise ConfigError(f"paths={paths!r} is invalid. Choose one of {get_args(Paths)}.")
        self.network = network
        sizes = [weight.shape[-1] for weight in network.weights]
        up, down = paths != "downward", paths != "upward"
        inputs = [*[states] * (len(sizes) - 1), network.weights[-1].shape[-2]]
        self.upward_maps = nn.ModuleList(nn.Linear(n, states) for n in inputs if up)
        start = -math.log(network.rate)
        self.layers = nn.ModuleList(
            WeibullLayer(states if up else 0, size, down, start) for size in sizes
        )
        self.to(network.top_shape.dtype)

    def upward_states(
        self, counts: Float[Tensor, "observation count"]
    ) -> list[Float[Tensor, "observation _"]]:
        """Returns the upward states by layer, starting with the one nearest the prior."""
        states = [counts.log1p()]
        for upward in reversed(self.upward_maps):
            states.insert(0, F.softplus(upward(states[0])))
        return states[:-1] or [counts] * len(self.layers)

    def forward(
        self, counts: Float[Tensor, "observation count"], draws: int = 1
    ) -> Iterator[LayerPosterior]:
        """Yields the layers on the downward path, each given a draw of the one above.

        Args:
            counts: The data.
            draws: Number of draws, along a new first axis.
        """
        above: Tensor | None = None
        states = self.upward_states(counts)
        for index, (layer, state) in enumerate(zip(self.layers, states, strict=True)):
            prior = self.network.prior(index, above)
            size = (draws, len(counts), prior.log_alpha.shape[-1])
            posterior = layer(state, prior.log_alpha.expand(size))
            noise = posterior.noise.sample(posterior.loc.detach().expand(size))
            above = posterior.log_sample_from(noise)
            yield LayerPosterior(posterior, prior, above)

    def elbo(
        self, counts: Float[Tensor, "observation count"], draws: int = 1
    ) -> Float[Tensor, "observation"]:
        """Estimates the evidence lower bound of each observation."""
        layers = list(self(counts, draws))
        fit = self.network.log_likelihood(counts, layers[-1].log_units)
        return (fit - sum(layer.kl() for layer in layers)).mean(0)

    @torch.no_grad()
    def sample(
        self, counts: Float[Tensor, "observation count"], draws: int
    ) -> list[Float[Tensor, "draw observation _"]]:
        """Draws the logarithms of all units, layer by layer."""
        return [layer.log_units for layer in self(counts, draws)]


def fit(
    encoder: WeibullNetwork,
    counts: Float[Tensor, "observation count"],
    steps: int = 2000,
    batch_size: int = 256,
    draws: int = 2,
    rate: float = 0.01,
    seed: int = 0,
) -> list[float]:
    """Maximises the mean evidence bound with Adam and a cosine schedule of the learning rate.

    Args:
        encoder: The network, trained in place.
        counts: One row for each observation.
        steps: Number of optimizer steps.
        batch_size: Observations per step.
        draws: Draws per observation.
        rate: Initial learning rate.
        seed: Seed of batches and noise; the global random state is restored.

    Returns:
        The mean evidence bound at every step.
    """
    for name, value in {"batch_size": batch_size, "draws": draws}.items():
        check_count(name, value)
    check_counts(counts, encoder.network.weights[-1].shape[-2])
    size = min(batch_size, len(counts))

    def bound() -> Tensor:
        batch = counts[torch.randint(len(counts), (size,))]
        return encoder.elbo(batch, draws).mean()

    return maximise(bound, encoder.parameters(), steps=steps, rate=rate, seed=seed)
