"""Evaluation: tuning, decisions, novelty, saved predictions, comparisons and reports."""
