"""Reproductions of the papers: tasks, models, experiments, attacks, tables."""
