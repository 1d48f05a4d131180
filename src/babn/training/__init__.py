"""Training by the evidence lower bound: the divergence, its weight and its schedule."""
