"""What the distributions should give, by integration in high precision, not by closed forms."""

from functools import cache

import mpmath as mp
import torch
from torch import Tensor

LOW, HIGH = mp.mpf("0.1"), mp.mpf("0.9")


def tensor(*values: float, dtype: torch.dtype = torch.float64) -> Tensor:
    """The values as a tensor that requires gradients."""
    return torch.tensor(values, dtype=dtype, requires_grad=True)


def relative_error(value: float, reference: mp.mpf) -> float:
    """Distance from the reference over its size."""
    return float(abs(mp.mpf(value) - reference) / abs(reference))


@cache
def _nodes(family: str) -> list[tuple[mp.mpf, mp.mpf]]:
    """Standard noise g and its weights; the trapezoidal rule converges exponentially here."""
    low, high, steps = (-50, 8, 20) if family == "weibull" else (-14, 14, 10)
    grid = [mp.mpf(i) / steps for i in range(low * steps, high * steps + 1)]
    return [(g, _density(family, g) / steps) for g in grid]


def _density(family: str, g: mp.mpf) -> mp.mpf:
    return mp.exp(g - mp.exp(g)) if family == "weibull" else mp.npdf(g)


def weibull_gamma(k: float, log_lam: float, alpha: float, beta: float = 1.0) -> mp.mpf:
    """E_q[log q - log p], both densities in log s, with log s = log_lam + g / k."""
    k, log_lam, alpha, beta = map(mp.mpf, (k, log_lam, alpha, beta))
    log_k, log_beta, log_gamma = mp.log(k), mp.log(beta), mp.loggamma(alpha)

    def log_ratio(g: mp.mpf) -> mp.mpf:
        log_s = log_lam + g / k
        log_p = alpha * (log_beta + log_s) - beta * mp.exp(log_s) - log_gamma
        return log_k + g - mp.exp(g) - log_p

    return mp.fsum(weight * log_ratio(g) for g, weight in _nodes("weibull"))


def lognormal_lognormal(mu_q: float, sigma_q: float, mu_p: float, sigma_p: float) -> mp.mpf:
    """E_q[log q - log p], both densities in log s, with log s = mu_q + sigma_q z."""
    mu_q, sigma_q, mu_p, sigma_p = map(mp.mpf, (mu_q, sigma_q, mu_p, sigma_p))
    log_ratio_of_sigmas = mp.log(sigma_p / sigma_q)

    def log_ratio(z: mp.mpf) -> mp.mpf:
        z_of_prior = (mu_q + sigma_q * z - mu_p) / sigma_p
        return (z_of_prior**2 - z**2) / 2 + log_ratio_of_sigmas

    return mp.fsum(weight * log_ratio(z) for z, weight in _nodes("lognormal"))


@cache
def _interval(family: str, truncated: bool, t: float) -> list[mp.mpf]:
    """Break points of integrals of exp(t g)."""
    if truncated and family == "weibull":
        ends = mp.log(-mp.log(1 - LOW)), mp.log(-mp.log(1 - HIGH))
    elif truncated:
        ends = tuple(mp.sqrt(2) * mp.erfinv(2 * u - 1) for u in (LOW, HIGH))
    elif family == "weibull":
        centre, width = mp.log(1 + t), 1 / mp.sqrt(1 + t)
        ends = centre - 40 * width, centre + min(5, 12 * width)
    else:
        ends = t - 12, t + 12
    return mp.linspace(*ends, 5)


def moment(family: str, truncated: bool, t: float) -> mp.mpf:
    """E[exp(t g)] of a family's standard noise, whole or cut to the quantiles 0.1 to 0.9."""
    if family == "weibull":
        ends = (-mp.log(1 - LOW), -mp.log(1 - HIGH)) if truncated else (0, mp.inf)
        integral = mp.gammainc(1 + mp.mpf(t), *ends)
    else:
        points = _interval(family, truncated, t)
        integral = mp.quad(lambda z: mp.exp(t * z) * mp.npdf(z), points)
    return integral / (HIGH - LOW) if truncated else integral


def moment_slope(family: str, truncated: bool, t: float) -> mp.mpf:
    """The derivative of log E[exp(t g)]: the mean of g under weights exp(t g)."""

    def tilted(power: int) -> mp.mpf:
        points = _interval(family, truncated, t)
        return mp.quad(lambda g: g**power * mp.exp(t * g) * _density(family, g), points)

    return tilted(1) / tilted(0)


def relative_std(family: str, truncated: bool, t: float) -> mp.mpf:
    """Standard deviation over mean of exp(t g)."""
    ratio = moment(family, truncated, 2 * t) / moment(family, truncated, t) ** 2
    return mp.sqrt(ratio - 1)
