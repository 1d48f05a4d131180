"""The Weibull distribution, the posterior of unnormalised attention weights."""

import torch
from jaxtyping import Float
from torch import Tensor

from babn.distributions.location_scale import LogLocationScale
from babn.distributions.noise import NoiseName, noise_for


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
        self,
        k: Float[Tensor, "..."],
        log_lam: Float[Tensor, "..."],
        noise: NoiseName = "exact",
        log_mean: Float[Tensor, "..."] | None = None,
    ) -> None:
        super().__init__(log_lam, k.reciprocal(), noise_for("weibull", noise), log_mean)
        self._k: Tensor | None = k

    @classmethod
    def with_mean_one(
        cls,
        scale: Float[Tensor, "..."],
        noise: NoiseName = "exact",
        log_lam: Float[Tensor, "..."] | None = None,
    ) -> "Weibull":
        r"""The distribution of mean one with $1/k$ = `scale`; computes `log_lam` if not given."""
        moments = noise_for("weibull", noise)
        loc = -moments.log_moment(scale) if log_lam is None else log_lam
        made = cls.__new__(cls)
        LogLocationScale.__init__(made, loc, scale, moments, 0.0)
        made._k = None
        return made

    @property
    def k(self) -> Float[Tensor, "..."]:
        """The shape."""
        if self._k is None:
            self._k = self.scale.reciprocal()
        return self._k

    @property
    def log_lam(self) -> Float[Tensor, "..."]:
        """Logarithm of the scale."""
        return self.loc

    def log_prob(self, log_s: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Log density at `exp(log_s)` under exact noise."""
        z = self.k * (log_s - self.log_lam)
        return self.k.log() - log_s + z - torch.exp(z)
