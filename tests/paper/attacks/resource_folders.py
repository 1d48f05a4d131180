"""Tiny resources, of the words of one task."""

from pathlib import Path
from typing import Any

from babn_paper.attacks import tiny_resources
from babn_paper.attacks.tiny_resources import words_of
from babn_paper.attacks.tiny_resources import write_nltk as write_nltk
from babn_paper.attacks.tiny_resources import write_tiny_resources as write_all
from babn_paper.tasks.catalogue import find_task

SST2 = find_task("sst2")
TEXTS = list(SST2.texts(SST2.read("builtin", "dev").examples))
WORDS = words_of(TEXTS)

__all__ = ["TEXTS", "WORDS", "save_bert", "write_all", "write_nltk", "write_vectors"]


def write_vectors(path: Path) -> None:
    """Vectors in which every word is near some others."""
    tiny_resources.write_vectors(path, TEXTS)


def save_bert(kind: type[Any], folder: Path) -> None:
    """A BERT with random weights, and a tokenizer that knows the words."""
    tiny_resources.save_bert(kind, folder, TEXTS)
