"""Parameters, memory and operations of stochastic attention in a model of any size, by formulas."""
