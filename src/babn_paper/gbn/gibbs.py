r"""The upward-downward Gibbs sampler of Zhou, Cong & Chen (2016).

Counts travel from the data towards the prior, from layer $L$ to layer 1, with each layer's units
integrated out in turn:

$$(n^l_{ik})_k \sim \mathrm{Multinomial}\Bigl(z^{l+1}_i, \frac{W^{l+1}_{ik} S^l_k}{\sum_j
W^{l+1}_{ij} S^l_j}\Bigr), \qquad m^l_k = \sum_i n^l_{ik}, \qquad
z^l_k \sim \mathrm{CRT}(m^l_k, (W^l S^{l-1})_k),$$

with $z^{L+1} = y$. Then $z^l_k \sim \mathrm{Poisson}((W^l S^{l-1})_k\, q^l_k)$, so that the next
layer again sees Poisson counts. Units are drawn back downwards, from layer 1 to layer $L$:

$$S^l \sim \mathrm{Gamma}(W^l S^{l-1} + m^l,\ \beta + e^l), \qquad
e^l = (W^{l+1})^\top q^{l+1}, \quad q^l = \log(1 + e^l / \beta), \quad q^{L+1} = 1.$$

So a layer's posterior mean is a sum of what comes down, $W^l S^{l-1}$, and of what comes up, $m^l$:
the form that the Weibull encoder imitates.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from babn.distributions import Gamma
from babn_paper.gbn.latent_counts import draw_tables, split_counts
from babn_paper.gbn.network import SMALLEST_LOG_SHAPE, GammaBeliefNetwork, log_terms


@dataclass(frozen=True)
class State:
    """Where a chain is.

    Attributes:
        network: The network, with the weights of this state.
        log_units: Logarithms of the units, layer by layer.
    """

    network: GammaBeliefNetwork
    log_units: list[Float[Tensor, "... observation _"]]


@dataclass(frozen=True)
class Ascent:
    """The latent counts of one way up, by layer from the one nearest the prior.

    Attributes:
        received: Counts that each unit explains, $m^l$.
        splits: The same apart by the unit or count below that they come from, $n^l$.
    """

    received: list[Float[Tensor, "... observation _"]]
    splits: list[Float[Tensor, "... observation _ _"]]


def climb(
    state: State, counts: Float[Tensor, "... observation count"], generator: torch.Generator | None
) -> Ascent:
    """Draws the latent counts, from the data up to layer 1."""
    received: list[Tensor] = []
    splits: list[Tensor] = []
    network, arriving = state.network, counts
    for layer in reversed(range(network.layers)):
        terms = log_terms(network.weights[layer], state.log_units[layer])
        splits.insert(0, split_counts(arriving, terms, generator))
        received.insert(0, splits[0].sum(-2))
        if layer > 0:
            log_shape = network.log_shape(layer, state.log_units[layer - 1])
            arriving = draw_tables(received[0], log_shape, generator)
    return Ascent(received, splits)


def descend(
    network: GammaBeliefNetwork,
    received: Sequence[Float[Tensor, "... observation _"]],
    generator: torch.Generator | None,
) -> list[Float[Tensor, "... observation _"]]:
    """Draws the units given the latent counts, from layer 1 down to the data."""
    log_units: list[Tensor] = []
    for layer, (counts, exposure) in enumerate(zip(received, exposures(network), strict=True)):
        log_shape = network.log_shape(layer, log_units[-1] if log_units else None)
        log_shape = torch.logaddexp(log_shape, counts.log()).clamp(min=SMALLEST_LOG_SHAPE)
        log_units.append(Gamma(log_shape, network.rate + exposure).log_sample(generator))
    return log_units


def exposures(network: GammaBeliefNetwork) -> list[Float[Tensor, "... 1 _"]]:
    """Rates of each unit's counts, $e^l$, by layer from the one nearest the prior."""
    found: list[Tensor] = []
    passed_on = torch.ones_like(network.weights[-1][..., :, :1])
    for weight in reversed(network.weights):
        exposure = (weight * passed_on).sum(-2, keepdim=True)
        found.insert(0, exposure)
        passed_on = torch.log1p(exposure / network.rate).mT
    return found


def sweep(
    state: State,
    counts: Float[Tensor, "... observation count"],
    generator: torch.Generator | None = None,
    concentration: float | None = None,
) -> State:
    r"""One way up and one down.

    Args:
        state: Where the chain is.
        counts: The data.
        generator: Where randomness comes from.
        concentration: If given, the columns of all weights are drawn too, under a symmetric
            Dirichlet prior with this parameter; they must sum to one. If not, weights are known.
    """
    ascent = climb(state, counts, generator)
    network = state.network
    if concentration is not None:
        weights = tuple(
            draw_columns(concentration + split.sum(-3), generator) for split in ascent.splits
        )
        network = network.with_weights(weights)
    return State(network, descend(network, ascent.received, generator))


def draw_columns(
    concentration: Float[Tensor, "... below above"], generator: torch.Generator | None = None
) -> Float[Tensor, "... below above"]:
    """Weights whose columns are draws from Dirichlet distributions."""
    return torch.softmax(Gamma(concentration.log()).log_sample(generator), -2)
