"""Checks of approximate posteriors of attention on simulated data."""
