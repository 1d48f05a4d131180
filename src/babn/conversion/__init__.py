"""Conversion of deterministic attention models to a rule, and back."""
