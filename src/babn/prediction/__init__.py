"""Prediction with uncertainty: samples, their statistics, and attention maps."""
