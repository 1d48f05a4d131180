"""Gamma belief networks: the model of the paper's first remark, for which Gibbs sampling is exact.

It serves as the yardstick of the Weibull encoder, whose structure it inspired.
"""

from babn.gbn.encoder import WeibullNetwork
from babn.gbn.network import GammaBeliefNetwork
from babn.gbn.sampling import Draws, sample_posterior
from babn.gbn.training import fit
from babn.gbn.yardstick import Agreement, agreement

__all__ = [
    "Agreement",
    "Draws",
    "GammaBeliefNetwork",
    "WeibullNetwork",
    "agreement",
    "fit",
    "sample_posterior",
]
