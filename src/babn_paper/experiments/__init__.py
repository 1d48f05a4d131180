"""Experiments: a task, a model, an attention rule, settings and a seed, run and recorded."""
