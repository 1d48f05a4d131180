"""Weibull, gamma and lognormal distributions in log space, and their KL divergences."""

from babn.distributions.gamma import Gamma
from babn.distributions.kl import lognormal_lognormal, weibull_gamma
from babn.distributions.lognormal import LogNormal
from babn.distributions.noise import Noise, NoiseName, noise_for
from babn.distributions.weibull import Weibull

__all__ = [
    "Gamma",
    "LogNormal",
    "Noise",
    "NoiseName",
    "Weibull",
    "lognormal_lognormal",
    "noise_for",
    "weibull_gamma",
]
