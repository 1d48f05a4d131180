"""Commands that reproduce the papers; `babn` lists them when this package is installed."""
