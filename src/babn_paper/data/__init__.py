"""Small data sets that stand in for the real ones."""
