"""A fine-tuned classifier learns what it is unsure of, with and without training for it."""
