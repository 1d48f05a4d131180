"""Fused attention: one kernel for scores, noise, weights, values and KL."""
