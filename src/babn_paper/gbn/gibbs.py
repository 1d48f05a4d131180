r"""The upward-downward Gibbs sampler of Zhou, Cong & Chen (2016).

See https://arxiv.org/abs/1512.03081. Counts are propagated from the data towards the prior,
from layer $L$ to layer 1, integrating out each layer's units in turn:

$$(n^l_{ik})_k \sim \mathrm{Multinomial}\Bigl(z^{l+1}_i, \frac{W^{l+1}_{ik} S^l_k}{\sum_j
W^{l+1}_{ij} S^l_j}\Bigr), \qquad m^l_k = \sum_i n^l_{ik}, \qquad
z^l_k \sim \mathrm{CRT}(m^l_k, (W^l S^{l-1})_k),$$

with $z^{L+1} = y$. Then $z^l_k \sim \mathrm{Poisson}((W^l S^{l-1})_k\, q^l_k)$, so that the next
layer again has Poisson counts. Units are drawn downwards, from layer 1 to layer $L$:

$$S^l \sim \mathrm{Gamma}(W^l S^{l-1} + m^l,\ \beta + e^l), \qquad
e^l = (W^{l+1})^\top q^{l+1}, \quad q^l = \log(1 + e^l / \beta), \quad q^{L+1} = 1.$$

Thus a layer's posterior mean is the sum of a downward term, $W^l S^{l-1}$, and an upward term,
$m^l$: the form of the Weibull encoder.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from babn.distributions import Gamma
from babn.errors import ConfigError
from babn.validation import check_at_least, check_count
from babn_paper.gbn.network import SMALLEST_LOG_SHAPE, GammaBeliefNetwork, log_terms

CHUNK = 1 << 22
"""Customers per chunk, which bounds memory."""


def split_counts(
    counts: Float[Tensor, "*count"],
    logits: Float[Tensor, "*item part"],
    generator: torch.Generator | None = None,
) -> Float[Tensor, "*both part"]:
    r"""Splits each count over parts by a multinomial draw with the softmax of the logits.

    There is one binomial draw per part from the remaining count,
    $n_k \sim \mathrm{Binomial}(n - \sum_{j<k} n_j,\ p_k / \sum_{j \ge k} p_j)$.
    """
    shares = torch.softmax(logits, -1)
    rest = shares.flip(-1).cumsum(-1).flip(-1)
    chances = (shares / rest.clamp(min=torch.finfo(rest.dtype).tiny)).clamp(0, 1)
    shape = torch.broadcast_shapes(counts.shape, shares.shape[:-1])
    left, parts = counts, []
    for chance in chances[..., :-1].unbind(-1):
        left, chance = (x.expand(shape).contiguous() for x in (left, chance))
        parts.append(torch.binomial(left, chance, generator=generator))
        left = left - parts[-1]
    return torch.stack([*parts, left.expand(shape)], -1)


def draw_tables(
    customers: Float[Tensor, "..."],
    log_shape: Float[Tensor, "..."],
    generator: torch.Generator | None = None,
) -> Float[Tensor, "..."]:
    r"""Draws numbers of tables in a Chinese restaurant process with concentration $r$.

    $$z = \sum_{i=0}^{m-1} b_i, \quad b_i \sim \mathrm{Bernoulli}\Bigl(\frac{r}{r + i}\Bigr),
    \qquad P(z \mid m, r) = \frac{\Gamma(r)}{\Gamma(m + r)} |s(m, z)|\, r^z$$

    with $|s|$ the unsigned Stirling numbers of the first kind. The first customer always opens a
    table. The draw is exact and takes one uniform number for each further customer in the tensor,
    however large the largest count.

    Args:
        customers: $m$, integers.
        log_shape: $\log r$, of the same shape.
        generator: Random number generator.
    """
    shape = log_shape.exp().flatten()
    ends = (customers.flatten() - 1).clamp(min=0).long().cumsum(0)
    tables = (customers > 0).to(log_shape.dtype).flatten()
    total = int(ends[-1]) if len(ends) else 0
    for first in range(0, total, CHUNK):
        later = torch.arange(first, min(first + CHUNK, total), device=ends.device)
        restaurant = torch.searchsorted(ends, later, right=True)
        before = torch.where(restaurant > 0, ends[restaurant - 1], 0)
        seated = (later - before + 1).to(shape.dtype)
        uniform = torch.empty_like(seated).uniform_(generator=generator)
        concentration = shape[restaurant]
        opens = uniform * (concentration + seated) < concentration
        tables.index_add_(0, restaurant, opens.to(tables.dtype))
    return tables.view_as(log_shape)


@dataclass(frozen=True)
class State:
    """State of a chain.

    Attributes:
        network: The network, with the weights of this state.
        log_units: Logarithms of the units, layer by layer.
    """

    network: GammaBeliefNetwork
    log_units: list[Float[Tensor, "... observation _"]]


def draw_latent_counts(
    state: State, counts: Float[Tensor, "... observation count"], generator: torch.Generator | None
) -> list[Float[Tensor, "... observation _"]]:
    """Draws the counts that each unit receives, from the data up to layer 1."""
    received: list[Tensor] = []
    network, arriving = state.network, counts
    for layer in reversed(range(network.layers)):
        terms = log_terms(network.weights[layer], state.log_units[layer])
        received.insert(0, split_counts(arriving, terms, generator).sum(-2))
        if layer > 0:
            log_shape = network.log_shape(layer, state.log_units[layer - 1])
            arriving = draw_tables(received[0], log_shape, generator)
    return received


def draw_units(
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
    """Returns the rates of each unit's counts, $e^l$, starting with the layer nearest the prior."""
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
) -> State:
    """Draws the latent counts upwards, then the units downwards."""
    received = draw_latent_counts(state, counts, generator)
    return State(state.network, draw_units(state.network, received, generator))


@dataclass(frozen=True)
class Draws:
    """Draws from the posterior.

    Attributes:
        log_units: Logarithms of the units, layer by layer from the one nearest the prior.
    """

    log_units: list[Float[Tensor, "draw chain observation _"]]


def sample_posterior(
    network: GammaBeliefNetwork,
    counts: Float[Tensor, "observation count"],
    draws: int = 1000,
    warmup: int = 200,
    chains: int = 4,
    thin: int = 1,
    generator: torch.Generator | None = None,
) -> Draws:
    """Draws from the posterior of all units, given counts.

    Args:
        network: The network.
        counts: One row for each observation.
        draws: Number of draws per chain.
        warmup: Number of sweeps before the first draw.
        chains: Number of chains per observation, each started from a draw of the prior.
        thin: Number of sweeps between draws.
        generator: Random number generator.

    Example:
        >>> network = GammaBeliefNetwork(torch.ones(1), (torch.ones(1, 1),))
        >>> found = sample_posterior(network, torch.tensor([[3.0]]), draws=10)
        >>> found.log_units[0].shape
        torch.Size([10, 4, 1, 1])
    """
    for name, value in {"draws": draws, "chains": chains, "thin": thin}.items():
        check_count(name, value)
    check_at_least("warmup", warmup, 0)
    check_counts(counts, network.weights[-1].shape[-2])
    start, _ = network.draw(chains * len(counts), generator)
    state = State(network, [units.unflatten(-2, (chains, len(counts))) for units in start])
    kept: list[State] = []
    data = counts.expand(chains, *counts.shape)
    for number in range(1, warmup + draws * thin + 1):
        state = sweep(state, data, generator)
        if number > warmup and (number - warmup) % thin == 0:
            kept.append(state)
    layers = zip(*(state.log_units for state in kept), strict=True)
    return Draws([torch.stack(layer) for layer in layers])


def check_counts(counts: Float[Tensor, "observation count"], columns: int) -> None:
    """Validates that counts are nonnegative integers and match the network."""
    if counts.shape[-1] != columns:
        raise ConfigError(
            f"counts has {counts.shape[-1]} columns and the network {columns}. Give one for each."
        )
    wrong = counts[~((counts >= 0) & (counts == counts.round()) & counts.isfinite())]
    if len(wrong):
        raise ConfigError(f"counts holds {wrong[0].item():g}. Give non-negative integers.")
