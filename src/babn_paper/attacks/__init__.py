"""Attacks that change words of a text until a model changes its answer."""
