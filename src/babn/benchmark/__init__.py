"""Benchmark of the time and memory of stochastic attention against softmax."""
