"""Memory, work and time of stochastic attention in a model of any size, from formulas."""
