"""Pretrained encoders and a word-level tokenizer."""
