"""Tasks that experiments train and evaluate on."""
