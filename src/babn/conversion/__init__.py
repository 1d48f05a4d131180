"""Conversion of deterministic attention models to stochastic attention, and back."""
