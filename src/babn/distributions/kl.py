"""Analytic Kullback-Leibler divergences between posterior and prior."""

import torch

from babn.distributions.gamma import Gamma
from babn.distributions.lognormal import LogNormal
from babn.distributions.noise import LogExponential
from babn.distributions.special import Floats, saturating_exp
from babn.distributions.weibull import Weibull

EULER = 0.57721566490153286
"""The Euler-Mascheroni constant."""


def weibull_gamma(q: Weibull, p: Gamma) -> Floats:
    r"""KL divergence of a Weibull posterior from a gamma prior, element by element.

    $$\mathrm{KL} = \frac{\gamma\alpha}{k} - \alpha\log\lambda + \log k + \beta\lambda\Gamma(1+1/k)
    - \gamma - 1 - \alpha\log\beta + \log\Gamma(\alpha)$$

    Section 3.2 of [Zhang et al. 2021](https://arxiv.org/abs/2106.05251), with $\gamma$ the
    Euler-Mascheroni constant. Under truncated noise, too, it is the KL of the full Weibull
    distribution with the posterior's parameters. Its tails make the KL grow steeply as $k$ falls,
    which keeps the posterior away from noise so large that its mean carries no information.

    Example:
        >>> zero = torch.tensor(0.0)
        >>> weibull_gamma(Weibull(torch.tensor(1.0), zero), Gamma(zero, 1.0))
        tensor(0.)
    """
    exact = isinstance(q.noise, LogExponential)
    log_mean = q.log_mean if exact else q.log_lam + torch.lgamma(1 + q.scale)
    cross = p.alpha * (EULER * q.scale - q.log_lam - p.log_beta)
    expected = cross + saturating_exp(log_mean + p.log_beta)
    return expected - q.scale.log() + p.log_gamma_of_shape - (EULER + 1)


def lognormal_lognormal(q: LogNormal, p: LogNormal) -> Floats:
    r"""KL divergence between two lognormal distributions, element by element.

    $$\mathrm{KL} = \log\frac{\sigma_p}{\sigma_q}
    + \frac{\sigma_q^2 + (\mu_q - \mu_p)^2}{2\sigma_p^2} - \frac12$$

    Example:
        >>> zero, one = torch.tensor(0.0), torch.tensor(1.0)
        >>> lognormal_lognormal(LogNormal(one, one), LogNormal(zero, one))
        tensor(0.5000)
    """
    ratio = q.sigma / p.sigma
    distance = (q.mu - p.mu) / p.sigma
    return 0.5 * (ratio.square() + distance.square() - 1) - ratio.log()
