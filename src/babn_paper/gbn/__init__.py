"""Gamma belief networks, for which Gibbs sampling is exact.

They are the model of the first remark in the paper, and the reference that the Weibull encoder,
whose structure they inspired, is compared with.
"""

from babn_paper.gbn.comparison import Agreement, agreement
from babn_paper.gbn.encoder import WeibullNetwork, fit
from babn_paper.gbn.gibbs import Draws, sample_posterior
from babn_paper.gbn.network import GammaBeliefNetwork

__all__ = [
    "Agreement",
    "Draws",
    "GammaBeliefNetwork",
    "WeibullNetwork",
    "agreement",
    "fit",
    "sample_posterior",
]
