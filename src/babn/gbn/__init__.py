"""Gamma belief networks: the model of the paper's first remark, for which Gibbs sampling is exact.

It serves as the yardstick of the Weibull encoder, whose structure it inspired.
"""

from babn.gbn.network import GammaBeliefNetwork
from babn.gbn.sampling import Draws, sample_posterior

__all__ = ["Draws", "GammaBeliefNetwork", "sample_posterior"]
