"""The commands of `babn` that reproduce the paper; the library lists them by an entry point."""
