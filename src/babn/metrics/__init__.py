"""Measures of calibration and uncertainty, from probabilities or from samples."""
