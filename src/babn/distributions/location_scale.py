"""The common base of Weibull and lognormal: a location and a scale in log space."""

import torch
from jaxtyping import Float
from torch import Tensor

from babn.distributions.noise import Noise
from babn.distributions.special import finite


class LogLocationScale:
    r"""A positive variable $s$ with $\log s = \mathrm{loc} + \mathrm{scale}\cdot g$.

    Args:
        loc: Location of $\log s$.
        scale: Scale of $\log s$, positive.
        noise: The standard variable $g$ with its moments.
        log_mean: $\log E[s]$, where it is known more accurately than as a sum; a number if it is
            the same everywhere.

    Example:
        >>> from babn.distributions.noise import StandardNormal
        >>> s = LogLocationScale(torch.tensor(0.0), torch.tensor(2.0), StandardNormal())
        >>> s.log_mean, s.at_level(0.5).loc
        (tensor(2.), tensor(1.5000))
    """

    def __init__(
        self,
        loc: Float[Tensor, "..."],
        scale: Float[Tensor, "..."],
        noise: Noise,
        log_mean: Float[Tensor, "..."] | float | None = None,
    ) -> None:
        self.loc = loc
        self.scale = scale
        self.noise = noise
        self._log_mean = log_mean

    @property
    def log_mean(self) -> Float[Tensor, "..."]:
        r"""$\log E[s]$ under the noise; at most the largest number of its type."""
        if self._log_mean is None:
            self._log_mean = finite(self.loc + self.noise.log_moment(finite(self.scale)))
        elif isinstance(self._log_mean, float):
            self._log_mean = torch.full_like(self.loc, self._log_mean)
        return self._log_mean

    @property
    def relative_std(self) -> Float[Tensor, "..."]:
        """Standard deviation divided by mean; depends on the scale alone."""
        return self.noise.relative_std(finite(self.scale))

    def log_sample(self, generator: torch.Generator | None = None) -> Float[Tensor, "..."]:
        r"""A reparameterised draw of $\log s$."""
        shape = torch.broadcast_shapes(self.loc.shape, self.scale.shape)
        noise = self.noise.sample(self.loc.detach().expand(shape), generator)
        return finite(self.log_sample_from(noise))

    def log_sample_from(self, g: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        r"""$\log s$ for given standard noise."""
        return torch.addcmul(self.loc, self.scale, g)

    def at_level(self, level: float) -> "LogLocationScale":
        r"""The variable with the same mean and with $g$ multiplied by a noise level.

        A level of 2 halves the shape $k$ of a Weibull variable; a level of 0 leaves only the mean.
        """
        scale = self.scale * level
        loc = self.log_mean - self.noise.log_moment(scale)
        return LogLocationScale(loc, scale, self.noise, self.log_mean)
