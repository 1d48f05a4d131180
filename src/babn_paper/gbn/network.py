"""The gamma belief network: layers of gamma variables over Poisson counts."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from babn.distributions import Gamma
from babn.errors import ConfigError
from babn.validation import check_at_least, check_count

SMALLEST_LOG_SHAPE = -600.0
"""Lower bound of log-shapes, which keeps the logarithm of a draw finite."""


@dataclass(frozen=True)
class GammaBeliefNetwork:
    r"""A hierarchy of gamma variables $S^1, \ldots, S^L$ that generate counts $y$.

    $$S^1 \sim \mathrm{Gamma}(\alpha^1, \beta), \qquad
    S^l \sim \mathrm{Gamma}(W^l S^{l-1}, \beta), \quad l = 2, \ldots, L, \qquad
    y \sim \mathrm{Poisson}(W^{L+1} S^L)$$

    with shapes and rates, as in the first remark of Zhang et al. (2021,
    https://arxiv.org/abs/2106.05251), whose numbering is used: layer 1 is nearest the prior
    ($\alpha^1 = W^1 S^0$ is given) and layer $L$ nearest the data. Zhou, Cong & Chen (2016,
    https://arxiv.org/abs/1512.03081) number the layers from the data upwards.

    Units are represented by logarithms, since gamma variables of small shapes underflow. All
    tensors may have further leading axes, such as one for chains; those of weights and units are
    broadcast.

    Args:
        top_shape: $\alpha^1$, the shapes of layer 1.
        weights: $W^2, \ldots, W^{L+1}$, each with a row for each unit (or count) below and a
            column for each unit above.
        rate: $\beta$.

    Example:
        >>> network = GammaBeliefNetwork(torch.ones(2), (torch.ones(3, 2), torch.ones(4, 3)))
        >>> log_units, counts = network.draw(5, torch.Generator().manual_seed(0))
        >>> [tuple(layer.shape) for layer in log_units], tuple(counts.shape)
        ([(5, 2), (5, 3)], (5, 4))
    """

    top_shape: Float[Tensor, "unit"]
    weights: tuple[Float[Tensor, "... _ _"], ...]
    rate: float = 1.0

    def __post_init__(self) -> None:
        """Validates shapes and values."""
        check_at_least("rate", self.rate, 0.0, strictly=True)
        if not bool((self.top_shape > 0).all() and self.top_shape.isfinite().all()):
            raise ConfigError(
                f"top_shape={self.top_shape.tolist()} is invalid. Give positive numbers."
            )
        if not self.weights:
            raise ConfigError("weights is empty. Give at least the weights of the counts.")
        above = len(self.top_shape)
        for i, weight in enumerate(self.weights):
            _check_weight(f"weights[{i}]", weight, above)
            above = weight.shape[-2]

    @property
    def layers(self) -> int:
        """$L$."""
        return len(self.weights)

    def log_shape(
        self, layer: int, above: Float[Tensor, "... observation above"] | None
    ) -> Float[Tensor, "... unit"]:
        r"""Returns $\log W^l S^{l-1}$ of the layer with index `layer`; the given shape for 0."""
        if above is None:
            return self.top_shape.log()
        return log_product(self.weights[layer - 1], above).clamp(min=SMALLEST_LOG_SHAPE)

    def prior(self, layer: int, above: Float[Tensor, "... observation above"] | None) -> Gamma:
        """Returns the distribution of a layer, given the layer above it."""
        return Gamma(self.log_shape(layer, above), self.rate)

    def log_rate_of_counts(
        self, log_units: Float[Tensor, "... observation unit"]
    ) -> Float[Tensor, "... observation count"]:
        r"""$\log W^{L+1} S^L$."""
        return log_product(self.weights[-1], log_units)

    def draw(
        self, observations: int, generator: torch.Generator | None = None
    ) -> tuple[list[Float[Tensor, "... observation _"]], Float[Tensor, "... observation count"]]:
        """Draws logarithms of the units, layer by layer, and counts."""
        check_count("observations", observations)
        log_units: list[Tensor] = []
        batch = torch.broadcast_shapes(*(weight.shape[:-2] for weight in self.weights))
        for layer in range(self.layers):
            log_shape = self.log_shape(layer, log_units[-1] if log_units else None)
            size = (*batch, observations, log_shape.shape[-1])
            log_units.append(Gamma(log_shape.expand(size), self.rate).log_sample(generator))
        return log_units, self.draw_counts(log_units[-1], generator)

    def draw_counts(
        self,
        log_units: Float[Tensor, "... observation unit"],
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "... observation count"]:
        """Draws counts, given the units of the last layer."""
        return torch.poisson(self.log_rate_of_counts(log_units).exp(), generator=generator)

    def log_likelihood(
        self,
        counts: Float[Tensor, "... observation count"],
        log_units: Float[Tensor, "... observation unit"],
    ) -> Float[Tensor, "... observation"]:
        """Log probability of each observation's counts, given the units of the last layer."""
        log_rate = self.log_rate_of_counts(log_units)
        return (counts * log_rate - log_rate.exp() - torch.lgamma(counts + 1)).sum(-1)

    def log_joint(
        self,
        counts: Float[Tensor, "... observation count"],
        log_units: list[Float[Tensor, "... observation _"]],
    ) -> Float[Tensor, "... observation"]:
        """Log density of each observation's units (not of their logarithms) and counts."""
        total = self.log_likelihood(counts, log_units[-1])
        above: Tensor | None = None
        for layer, units in enumerate(log_units):
            total = total + self.prior(layer, above).log_prob(units).sum(-1)
            above = units
        return total


def log_product(
    weight: Float[Tensor, "... below above"], log_units: Float[Tensor, "... observation above"]
) -> Float[Tensor, "... observation below"]:
    """Returns the logarithm of the product of weights and units."""
    return torch.logsumexp(log_terms(weight, log_units), -1)


def log_terms(
    weight: Float[Tensor, "... below above"], log_units: Float[Tensor, "... observation above"]
) -> Float[Tensor, "... observation below above"]:
    """Returns the logarithms of the terms that each unit above adds to each unit below."""
    return weight.log().unsqueeze(-3) + log_units.unsqueeze(-2)


def _check_weight(name: str, weight: Tensor, above: int) -> None:
    if weight.dim() < 2 or weight.shape[-1] != above:
        raise ConfigError(
            f"{name} has the shape {tuple(weight.shape)}, but there are {above} units above it. "
            "Give one column for each unit above and one row for each unit below."
        )
    if not bool((weight >= 0).all() and weight.isfinite().all()):
        raise ConfigError(f"{name} has negative or infinite entries. Give non-negative numbers.")
    if not bool((weight.sum(-1) > 0).all()):
        raise ConfigError(f"{name} has a row of zeros. Connect every unit below to a unit above.")
