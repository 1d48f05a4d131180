"""Adversarial attacks that change words of a text until a classifier is fooled."""
