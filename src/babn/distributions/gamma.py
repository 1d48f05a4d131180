"""The gamma distribution, the prior of unnormalised attention weights."""

import math

import torch
from torch import Tensor

from babn.distributions.special import Floats
from babn.errors import ParameterError


class Gamma:
    r"""Gamma distribution with shape $\alpha$ and rate $\beta$, its shape held in log space.

    $$p(s \mid \alpha, \beta) = \frac{\beta^\alpha}{\Gamma(\alpha)} s^{\alpha-1} e^{-\beta s},
    \qquad E[s] = \alpha / \beta.$$

    Normalised variables of one rate have a Dirichlet distribution, which is why
    [Zhang et al. 2021](https://arxiv.org/abs/2106.05251) choose this prior.

    Args:
        log_alpha: Logarithm of the shape.
        beta: Rate, a positive number or tensor.

    Example:
        >>> p = Gamma(torch.tensor(4.0).log(), beta=2.0)
        >>> p.log_mean.exp(), p.relative_std
        (tensor(2.), tensor(0.5000))
    """

    def __init__(self, log_alpha: Floats, beta: float | Floats = 1.0) -> None:
        if not isinstance(beta, Tensor) and not 0 < beta < math.inf:
            raise ParameterError(f"beta={beta!r} is invalid. Give a positive number.")
        self.log_alpha = log_alpha
        self.beta = beta

    @property
    def alpha(self) -> Floats:
        """The shape."""
        return self.log_alpha.exp()

    @property
    def log_beta(self) -> float | Floats:
        """Logarithm of the rate."""
        return self.beta.log() if isinstance(self.beta, Tensor) else math.log(self.beta)

    @property
    def log_mean(self) -> Floats:
        r"""$\log(\alpha / \beta)$."""
        return self.log_alpha - self.log_beta

    @property
    def relative_std(self) -> Floats:
        r"""Standard deviation divided by mean, $\alpha^{-1/2}$."""
        return torch.exp(-0.5 * self.log_alpha)

    @property
    def log_gamma_of_shape(self) -> Floats:
        r"""$\log\Gamma(\alpha) = \log\Gamma(1 + \alpha) - \log\alpha$, accurate for tiny shapes."""
        return torch.lgamma(1 + self.alpha) - self.log_alpha

    def log_sample(self, generator: torch.Generator | None = None) -> Floats:
        r"""A draw of $\log s$, not reparameterised.

        Uses $s_\alpha = s_{\alpha+1} u^{1/\alpha}$, so that small shapes do not underflow.
        """
        alpha = self.alpha.detach()
        larger = torch._standard_gamma(alpha + 1, generator=generator)
        uniform = torch.empty_like(alpha).exponential_(generator=generator).neg_()
        return larger.log() + uniform / alpha - self.log_beta

    def log_prob(self, log_s: Floats) -> Floats:
        """Log density at `exp(log_s)`."""
        powers = self.alpha * (self.log_beta + log_s) - log_s
        return powers - self.beta * log_s.exp() - self.log_gamma_of_shape
