"""Pretrained encoders, tokenizers and batches of texts."""
