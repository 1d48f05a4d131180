"""Training of converted models: the Trainer, several processes, a frozen base."""
