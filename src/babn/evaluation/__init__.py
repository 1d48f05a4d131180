"""Evaluation: stored predictions, temperature scaling, ensembles, comparisons and reports."""
