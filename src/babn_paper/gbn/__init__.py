"""Gamma belief networks: the model of the paper's first remark, for which Gibbs sampling is exact.

It serves as the yardstick of the Weibull encoder, whose structure it inspired.
"""

from babn_paper.gbn.encoder import WeibullNetwork
from babn_paper.gbn.network import GammaBeliefNetwork
from babn_paper.gbn.sampling import Draws, sample_posterior
from babn_paper.gbn.training import fit
from babn_paper.gbn.yardstick import Agreement, agreement

__all__ = [
    "Agreement",
    "Draws",
    "GammaBeliefNetwork",
    "WeibullNetwork",
    "agreement",
    "fit",
    "sample_posterior",
]
