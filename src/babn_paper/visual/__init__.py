"""Asking trained models about images: answers, how sure they are, and where the model looked."""
