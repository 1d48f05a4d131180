"""Posteriors held against the truth, on data simulated from models that can be solved exactly."""
