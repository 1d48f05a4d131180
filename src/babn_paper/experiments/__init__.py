"""Experiments: configuration, training, evaluation, grids of runs and tables of results."""
