"""Data sets of the package."""
