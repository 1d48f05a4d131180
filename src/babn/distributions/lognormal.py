"""The lognormal distribution, the alternative posterior and prior of BAM."""

import math

from babn.distributions.noise import NoiseName, noise_for
from babn.distributions.special import Floats
from babn.distributions.weibull import LogLocationScale


class LogNormal(LogLocationScale):
    r"""Lognormal distribution with parameters $\mu$ and $\sigma$.

    $$\log s \sim N(\mu, \sigma^2), \qquad E[s] = e^{\mu + \sigma^2/2}$$

    The other posterior of [Fan et al. 2020](https://arxiv.org/abs/2010.10604).

    Args:
        mu: Mean of $\log s$.
        sigma: Standard deviation of $\log s$, positive.
        noise: `"exact"`, `"truncated"` or `"truncated-paper"`.
        log_mean: Logarithm of the mean, if known; computed from the others otherwise.

    Example:
        >>> import torch
        >>> LogNormal(torch.tensor(0.0), torch.tensor(2.0)).log_mean
        tensor(2.)
    """

    def __init__(
        self, mu: Floats, sigma: Floats, noise: NoiseName = "exact", log_mean: Floats | None = None
    ) -> None:
        super().__init__(mu, sigma, noise_for("lognormal", noise), log_mean)
        self.mu = mu
        self.sigma = sigma

    def log_prob(self, log_s: Floats) -> Floats:
        """Log density at `exp(log_s)` under exact noise."""
        z = (log_s - self.mu) / self.sigma
        return -0.5 * z.square() - log_s - self.sigma.log() - 0.5 * math.log(2 * math.pi)
