"""The posterior that BAM and BABN share: positive variables, normalised over keys."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from jaxtyping import Float
from torch import Tensor

from babn.attention.inputs import Scores
from babn.attention.masking import Mask, log_normalize, normalize, zero_masked
from babn.attention.noise_source import NoiseLike
from babn.attention.rule import Posterior
from babn.distributions.location_scale import LogLocationScale


@dataclass(frozen=True)
class NormalizedPosterior(Posterior):
    r"""Weights $W = S / \sum S$ of independent positive variables $S$.

    Attributes:
        variables: The distribution of $S$, finite also at masked keys.
        mask: The pairs that take part.
        elementwise_kl: Computes the divergence of $S$ from its prior, when it is asked for.
    """

    variables: LogLocationScale
    mask: Mask | None
    elementwise_kl: Callable[[], Float[Tensor, "batch head query key"]]

    def mean_weights(self) -> Float[Tensor, "batch head query key"]:
        """Normalised means."""
        return normalize(self.variables.log_mean, self.mask)

    def sample_weights(self, noise_source: NoiseLike) -> Float[Tensor, "batch head query key"]:
        """Normalised draws: a softmax of logits with noise."""
        noise = noise_source.noise(self.variables.noise, self.variables.loc.detach())
        return normalize(self.variables.log_sample_from(noise), self.mask)

    def at_level(self, level: float) -> "NormalizedPosterior":
        """The variables' noise multiplied by a level; the prior and the KL stay."""
        return replace(self, variables=self.variables.at_level(level))

    def relative_std(self) -> Float[Tensor, "batch head query key"]:
        """Standard deviation of $S$ divided by its mean."""
        return zero_masked(self.variables.relative_std.expand_as(self.variables.loc), self.mask)

    def kl(self) -> Float[Tensor, "batch head query key"]:
        """KL divergence from the prior; zero at masked keys."""
        return zero_masked(self.elementwise_kl(), self.mask)


def log_weights(scores: Scores, normalized: bool) -> Float[Tensor, "batch head query key"]:
    r"""$\Phi$ as the distributions use it: normalised over keys or raw; zero at masked keys."""
    if normalized:
        return log_normalize(scores.phi, scores.mask)
    return zero_masked(scores.phi, scores.mask)
