"""Posteriors over attention weights: posterior mean and samples."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from babn.attention.inputs import Scores
from babn.attention.masking import Mask, log_normalize, normalize, zero_masked
from babn.attention.noise_source import NoiseLike
from babn.distributions.weibull import LogLocationScale

LARGEST_VARIANCE = 1e12
"""Ceiling of relative variances, above which a normalised weight varies as much as it can."""


class Posterior(ABC):
    r"""The distribution of the attention weights of one call, $W = S / \sum S$.

    $S$ are unnormalised positive variables, one for each query and key. Subclasses define their
    distribution.

    Example:
        >>> from babn.attention.softmax import PointMass
        >>> posterior = PointMass(Scores(torch.zeros(1, 1, 1, 2), None, torch.zeros(1, 1, 2, 8)))
        >>> posterior.mean_weights()
        tensor([[[[0.5000, 0.5000]]]])
    """

    @abstractmethod
    def mean_weights(self) -> Float[Tensor, "batch head query key"]:
        """Weights with the unnormalised variables at their means."""

    @abstractmethod
    def sample_weights(self, noise_source: NoiseLike) -> Float[Tensor, "batch head query key"]:
        """Weights drawn from the posterior."""

    @abstractmethod
    def relative_std(self) -> Float[Tensor, "batch head query key"]:
        """Standard deviation divided by mean of the unnormalised variables; zero at masked keys."""

    def weight_relative_std(self) -> Float[Tensor, "batch head query key"]:
        r"""Approximate standard deviation divided by mean of the normalised weights.

        Zero at masked keys. For mean weights $w_j$ and relative variances $c_j^2$ of the variables,

        $$v_j = (1 - 2 w_j) c_j^2 + \sum_l w_l^2 c_l^2, \qquad
        \frac{\mathrm{Var}\, W_j}{(E\, W_j)^2} = \frac{v_j}{1 + v_j w_j / (1 - w_j)}.$$

        $v_j$ is of first order in the noise. The quotient bounds it by $(1 - w_j) / w_j$, the
        largest relative variance of a weight, and makes it exact for gamma variables of one rate,
        whose weights have a Dirichlet distribution.
        """
        w, variance = self.mean_weights(), self.relative_std().square()
        dtype, wide = w.dtype, torch.float32 if w.device.type == "mps" else torch.float64
        # The terms cancel where a weight is near one, and overflow where the noise is very strong.
        w, variance = w.to(wide), variance.to(wide).clamp(max=LARGEST_VARIANCE)
        first_order = (1 - 2 * w) * variance + (w.square() * variance).sum(-1, keepdim=True)
        first_order = first_order.clamp(min=0).where(variance > 0, 0)
        rest = 1 - w
        bounded = first_order * rest / (rest + first_order * w).clamp(min=torch.finfo(wide).tiny)
        return bounded.sqrt().to(dtype)

    def at_level(self, level: float) -> "Posterior":
        """The posterior with the same mean and its noise multiplied by a level."""
        return self

    def kl(self) -> Float[Tensor, "batch head #query key"] | None:
        """KL of each variable from its prior; `None` for methods without a prior."""
        return None

    def kl_mask(
        self,
        mask: Bool[Tensor, "#batch #head #query key"] | None,
        rows: Bool[Tensor, "#batch #head query"] | None,
    ) -> Bool[Tensor, "#batch #head #query #key"] | None:
        """The variables that enter the KL.

        Args:
            mask: The pairs that take part.
            rows: The queries that count.
        """
        if rows is None:
            return mask
        return rows.unsqueeze(-1) if mask is None else mask & rows.unsqueeze(-1)


@dataclass(frozen=True)
class NormalizedPosterior(Posterior):
    r"""Weights $W = S / \sum S$ of independent positive variables $S$, one per query and key.

    Args:
        variables: The distribution of $S$, finite also at masked keys.
        mask: The pairs that take part.
        elementwise_kl: Computes the KL of $S$ from its prior.

    Example:
        >>> from babn.distributions import Weibull
        >>> log_lam = torch.tensor([[[[0.0, 0.0]]]])
        >>> q = Weibull(torch.tensor(2.0), log_lam)
        >>> posterior = NormalizedPosterior(q, None, lambda: torch.zeros_like(log_lam))
        >>> posterior.mean_weights()
        tensor([[[[0.5000, 0.5000]]]])
    """

    variables: LogLocationScale
    mask: Mask | None
    elementwise_kl: Callable[[], Float[Tensor, "batch head query key"]]

    def mean_weights(self) -> Float[Tensor, "batch head query key"]:
        """The normalised means of $S$."""
        return normalize(self.variables.log_mean, self.mask)

    def sample_weights(self, noise_source: NoiseLike) -> Float[Tensor, "batch head query key"]:
        """A normalised draw of $S$: a softmax of noisy logits."""
        noise = noise_source.noise(self.variables.noise, self.variables.loc.detach())
        return normalize(self.variables.log_sample_from(noise), self.mask)

    def at_level(self, level: float) -> "NormalizedPosterior":
        """The posterior with the noise of $S$ multiplied by a level; prior and KL stay the same."""
        return replace(self, variables=self.variables.at_level(level))

    def relative_std(self) -> Float[Tensor, "batch head query key"]:
        """Standard deviation of $S$ divided by its mean."""
        return zero_masked(self.variables.relative_std.expand_as(self.variables.loc), self.mask)

    def kl(self) -> Float[Tensor, "batch head query key"]:
        """KL of $S$ from its prior; zero at masked keys."""
        return zero_masked(self.elementwise_kl(), self.mask)


def log_weights(scores: Scores, normalized: bool) -> Float[Tensor, "batch head query key"]:
    r"""$\Phi$ as the distributions use it: normalised over keys or raw; zero at masked keys."""
    if normalized:
        return log_normalize(scores.phi, scores.mask)
    return zero_masked(scores.phi, scores.mask)
