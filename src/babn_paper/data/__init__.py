"""Small built-in data sets that replace the real ones in quick runs."""
