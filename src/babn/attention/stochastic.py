"""The posterior of BAM and BABN: independent positive variables, normalised over keys."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from jaxtyping import Float
from torch import Tensor

from babn.attention.inputs import Scores
from babn.attention.masking import Mask, log_normalize, normalize, zero_masked
from babn.attention.method import Posterior
from babn.attention.noise_source import NoiseLike
from babn.distributions.location_scale import LogLocationScale


@dataclass(frozen=True)
class NormalizedPosterior(Posterior):
    r"""Weights $W = S / \sum S$ of independent positive variables $S$, one per query and key.

    Args:
        variables: The distribution of $S$, finite also at masked keys.
        mask: The pairs that take part.
        elementwise_kl: Computes the KL of $S$ from its prior.

    Example:
        >>> import torch
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
