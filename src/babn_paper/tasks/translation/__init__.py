"""Translation between two languages."""
