"""The Weibull distribution, the posterior of attention weights, and its log-location-scale base."""

import torch
from torch import Tensor

from babn.distributions.noise import Noise, NoiseName, noise_for
from babn.distributions.special import Floats, finite


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
        self, loc: Floats, scale: Floats, noise: Noise, log_mean: Floats | float | None = None
    ) -> None:
        self.loc = loc
        self.scale = scale
        self.noise = noise
        self._log_mean = log_mean

    @property
    def log_mean(self) -> Floats:
        r"""$\log E[s]$ under the noise; at most the largest number of its type."""
        if self._log_mean is None:
            self._log_mean = finite(self.loc + self.noise.log_moment(finite(self.scale)))
        elif isinstance(self._log_mean, float):
            self._log_mean = torch.full_like(self.loc, self._log_mean)
        return self._log_mean

    @property
    def relative_std(self) -> Floats:
        """Standard deviation divided by mean; depends on the scale alone."""
        return self.noise.relative_std(finite(self.scale))

    def log_sample(self, generator: torch.Generator | None = None) -> Floats:
        r"""A reparameterised draw of $\log s$."""
        shape = torch.broadcast_shapes(self.loc.shape, self.scale.shape)
        noise = self.noise.sample(self.loc.detach().expand(shape), generator)
        return finite(self.log_sample_from(noise))

    def log_sample_from(self, g: Floats) -> Floats:
        r"""$\log s$ for given standard noise."""
        return torch.addcmul(self.loc, self.scale, g)

    def at_level(self, level: float) -> "LogLocationScale":
        r"""The variable with the same mean and with $g$ multiplied by a noise level.

        A level of 2 halves the shape $k$ of a Weibull variable; a level of 0 leaves only the mean.
        """
        scale = self.scale * level
        loc = self.log_mean - self.noise.log_moment(scale)
        return LogLocationScale(loc, scale, self.noise, self.log_mean)


class Weibull(LogLocationScale):
    r"""Weibull distribution with shape $k$ and scale $\lambda$, in log space.

    $$p(s \mid k, \lambda) = \frac{k}{\lambda^k} s^{k-1} e^{-(s/\lambda)^k}, \qquad
    \log s = \log\lambda + \frac{1}{k}\log(-\log(1-\epsilon)), \qquad
    E[s] = \lambda\,\Gamma(1 + 1/k).$$

    Under truncated noise the last factor is the moment of the truncated noise. The Weibull
    distribution approximates a gamma posterior, and has a reparameterisation and an analytic KL
    from a gamma prior ([Zhang et al. 2018](https://arxiv.org/abs/1803.01328)).

    Args:
        k: Shape, positive.
        log_lam: Logarithm of the scale.
        noise: `"exact"`, `"truncated"` or `"truncated-paper"`.
        log_mean: Logarithm of the mean, if known; computed from the others otherwise.

    Example:
        >>> q = Weibull(torch.tensor(1.0), torch.tensor(0.0))
        >>> q.log_mean.exp(), q.relative_std
        (tensor(1.), tensor(1.))
    """

    def __init__(
        self, k: Floats, log_lam: Floats, noise: NoiseName = "exact", log_mean: Floats | None = None
    ) -> None:
        super().__init__(log_lam, k.reciprocal(), noise_for("weibull", noise), log_mean)
        self._k: Tensor | None = k

    @classmethod
    def with_mean_one(
        cls, scale: Floats, noise: NoiseName = "exact", log_lam: Floats | None = None
    ) -> "Weibull":
        r"""The distribution of mean one with $1/k$ = `scale`; computes `log_lam` if not given."""
        moments = noise_for("weibull", noise)
        loc = -moments.log_moment(scale) if log_lam is None else log_lam
        made = cls.__new__(cls)
        LogLocationScale.__init__(made, loc, scale, moments, 0.0)
        made._k = None
        return made

    @property
    def k(self) -> Floats:
        """The shape."""
        if self._k is None:
            self._k = self.scale.reciprocal()
        return self._k

    @property
    def log_lam(self) -> Floats:
        """Logarithm of the scale."""
        return self.loc

    def log_prob(self, log_s: Floats) -> Floats:
        """Log density at `exp(log_s)` under exact noise."""
        z = self.k * (log_s - self.log_lam)
        return self.k.log() - log_s + z - torch.exp(z)
