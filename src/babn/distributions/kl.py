"""Analytic Kullback-Leibler divergences between posterior and prior."""

import torch
from torch import Tensor

from babn.distributions.gamma import Gamma
from babn.distributions.lognormal import LogNormal
from babn.distributions.noise import LogExponential
from babn.distributions.special import Floats, finite_gradient, saturating_cast, saturating_exp
from babn.distributions.weibull import Weibull
from babn.errors import ParameterError

HUGE = 1e100
"""Bound of the parameters and, for positive ones, of their inverse: the KL is huge either way."""

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


def kl_weibull_gamma(
    k: Floats, log_lam: Floats, alpha: Floats, beta: float | Floats = 1.0
) -> Floats:
    r"""KL divergence of Weibull($k$, $\lambda$) from Gamma($\alpha$, $\beta$), from parameters.

    Computed in float64 and returned in the parameters' type (float32 for half precision). A KL or a
    gradient beyond the largest number of its type is returned as that number, never as infinity or
    NaN.

    Raises:
        ParameterError: A parameter is not finite, or `k`, `alpha` or `beta` is not positive.

    Example:
        >>> one, zero = torch.tensor(1.0), torch.tensor(0.0)
        >>> kl_weibull_gamma(one, zero, one, 1.0)  # both are the standard exponential
        tensor(0.)
    """
    _check(positive=True, k=k, alpha=alpha, beta=beta)
    _check(positive=False, log_lam=log_lam)
    dtype = torch.promote_types(torch.result_type(k, log_lam), torch.float32)
    k, log_lam, alpha = map(_widened, (k, log_lam, alpha))
    k = k.clamp(min=1 / HUGE)
    beta = _widened(beta) if isinstance(beta, Tensor) else beta
    return saturating_cast(weibull_gamma(Weibull(k, log_lam), Gamma(alpha.log(), beta)), dtype)


def kl_lognormal_lognormal(mu_q: Floats, sigma_q: Floats, mu_p: Floats, sigma_p: Floats) -> Floats:
    """KL divergence between two lognormal distributions, from parameters.

    Raises:
        ParameterError: A parameter is not finite, or a standard deviation is not positive.

    Example:
        >>> zero, one = torch.tensor(0.0), torch.tensor(1.0)
        >>> kl_lognormal_lognormal(one, one, zero, one)
        tensor(0.5000)
    """
    _check(positive=True, sigma_q=sigma_q, sigma_p=sigma_p)
    _check(positive=False, mu_q=mu_q, mu_p=mu_p)
    dtype = torch.promote_types(torch.result_type(mu_q, mu_p), torch.float32)
    mu_q, sigma_q, mu_p, sigma_p = map(_widened, (mu_q, sigma_q, mu_p, sigma_p))
    sigma_q, sigma_p = sigma_q.clamp(min=1 / HUGE), sigma_p.clamp(min=1 / HUGE)
    kl = lognormal_lognormal(LogNormal(mu_q, sigma_q), LogNormal(mu_p, sigma_p))
    return saturating_cast(kl, dtype)


def _check(positive: bool, **parameters: float | Tensor) -> None:
    """Raises an error for parameters that are not finite or, if they must be, not positive."""
    wanted = "a positive number" if positive else "a finite number"
    for name, value in parameters.items():
        values = torch.as_tensor(value)
        allowed = values.isfinite() & (values > 0) if positive else values.isfinite()
        if torch.compiler.is_compiling() or allowed.is_meta or bool(allowed.all()):
            continue
        first = float(values[~allowed].reshape(-1)[0])
        raise ParameterError(f"{name} has the value {first:g}. Give {wanted} everywhere.")


def _widened(x: Tensor) -> Tensor:
    """Casts to the type in which KLs are computed, since their terms cancel and may be huge.

    The bound leaves the rest of float64's range to products of parameters.
    """
    wide = finite_gradient(x).to(torch.float32 if x.device.type == "mps" else torch.float64)
    return wide.clamp(-HUGE, HUGE)
