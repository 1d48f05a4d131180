"""Analytic Kullback-Leibler divergences between posterior and prior."""

import torch
from jaxtyping import Float
from torch import Tensor

from babn.distributions.gamma import Gamma
from babn.distributions.lognormal import LogNormal
from babn.distributions.noise import LogExponential
from babn.distributions.special import (
    finite_gradient,
    log_gamma_1p,
    saturating_cast,
    saturating_exp,
)
from babn.distributions.weibull import Weibull

EULER = 0.57721566490153286
"""The Euler-Mascheroni constant."""


def weibull_gamma(q: Weibull, p: Gamma) -> Float[Tensor, "..."]:
    r"""KL divergence of a Weibull posterior from a gamma prior, element by element.

    $$\mathrm{KL} = \frac{\gamma\alpha}{k} - \alpha\log\lambda + \log k + \beta\lambda\Gamma(1+1/k)
    - \gamma - 1 - \alpha\log\beta + \log\Gamma(\alpha)$$

    Under truncated noise too the divergence is that of the whole Weibull distribution with the
    posterior's parameters. The tails that are never drawn make it grow steeply as $k$ falls, which
    keeps the posterior away from noise so large that its mean says little.
    """
    whole = isinstance(q.noise, LogExponential)
    log_mean = q.log_mean if whole else q.log_lam + log_gamma_1p(q.scale)
    cross = p.alpha * (EULER * q.scale - q.log_lam - p.log_beta)
    expected = cross + saturating_exp(log_mean + p.log_beta)
    return expected + q.k.log() + p.log_gamma_of_shape - (EULER + 1)


def lognormal_lognormal(q: LogNormal, p: LogNormal) -> Float[Tensor, "..."]:
    r"""KL divergence between two lognormal distributions, element by element.

    $$\mathrm{KL} = \log\frac{\sigma_p}{\sigma_q}
    + \frac{\sigma_q^2 + (\mu_q - \mu_p)^2}{2\sigma_p^2} - \frac12$$
    """
    ratio = q.sigma / p.sigma
    distance = (q.mu - p.mu) / p.sigma
    return 0.5 * (ratio.square() + distance.square() - 1) - ratio.log()


def kl_weibull_gamma(
    k: Float[Tensor, "..."],
    log_lam: Float[Tensor, "..."],
    alpha: Float[Tensor, "..."],
    beta: float | Float[Tensor, "..."] = 1.0,
) -> Float[Tensor, "..."]:
    r"""KL divergence of Weibull($k$, $\lambda$) from Gamma($\alpha$, $\beta$), from parameters.

    Computed in float64 and returned in the parameters' type (float32 for half precision). A
    divergence or a gradient beyond the largest number of its type is returned as that number, never
    as infinity or NaN.

    Example:
        >>> one, zero = torch.tensor(1.0), torch.tensor(0.0)
        >>> kl_weibull_gamma(one, zero, one, 1.0)  # both are the standard exponential
        tensor(0.)
    """
    dtype = torch.promote_types(torch.result_type(k, log_lam), torch.float32)
    k, log_lam, alpha = map(_widened, (k, log_lam, alpha))
    beta = _widened(beta) if isinstance(beta, Tensor) else beta
    return saturating_cast(weibull_gamma(Weibull(k, log_lam), Gamma(alpha.log(), beta)), dtype)


def kl_lognormal_lognormal(
    mu_q: Float[Tensor, "..."],
    sigma_q: Float[Tensor, "..."],
    mu_p: Float[Tensor, "..."],
    sigma_p: Float[Tensor, "..."],
) -> Float[Tensor, "..."]:
    """KL divergence between two lognormal distributions, from parameters."""
    dtype = torch.promote_types(torch.result_type(mu_q, mu_p), torch.float32)
    mu_q, sigma_q, mu_p, sigma_p = map(_widened, (mu_q, sigma_q, mu_p, sigma_p))
    divergence = lognormal_lognormal(LogNormal(mu_q, sigma_q), LogNormal(mu_p, sigma_p))
    return saturating_cast(divergence, dtype)


def _widened(x: Tensor) -> Tensor:
    """The type in which divergences are computed, since their terms cancel and may be huge."""
    return finite_gradient(x).to(torch.float32 if x.device.type == "mps" else torch.float64)
