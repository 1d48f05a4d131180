"""Judging models: saved answers, temperature, ensembles, comparisons and reports."""
