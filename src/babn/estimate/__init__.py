"""What stochastic attention costs in a model of any size, from formulas: memory, work and time."""
