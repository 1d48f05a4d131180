"""Tiny resources, made on the spot."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import BertConfig

from babn.tasks.catalogue import find_task
from babn.tasks.small import word_tokenizer

SST2 = find_task("sst2")
TEXTS = list(SST2.texts(SST2.read("builtin", "dev").examples))
WORDS = sorted({word.lower() for text in TEXTS for word in text.split() if word.isalpha()})


def write_vectors(path: Path) -> None:
    """Vectors in which every word is near some others, closer than any threshold."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(len(WORDS) // 8 + 1, 16))
    vectors = centres[np.arange(len(WORDS)) // 8] + 0.1 * rng.normal(size=(len(WORDS), 16))
    np.savez(path, words=np.array(WORDS), vectors=vectors.astype(np.float32))


def write_nltk(folder: Path) -> None:
    """A few stop words, and a tagger that takes every word for a noun."""
    name = "averaged_perceptron_tagger_eng"
    contents = {
        "corpora/stopwords/english": "a\nthe\nof\nand\n",
        f"taggers/{name}/{name}.weights.json": "{}",
        f"taggers/{name}/{name}.tagdict.json": "{}",
        f"taggers/{name}/{name}.classes.json": json.dumps(["NN"]),
        "taggers/universal_tagset/en-ptb.map": "NN\tNOUN\n",
    }
    for path, content in contents.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)


def save_bert(kind: type[Any], folder: Path) -> None:
    """A BERT with random weights, and a tokenizer that knows the words of the test data."""
    tokenizer = word_tokenizer([*TEXTS, *TEXTS])
    tokenizer.add_special_tokens({"mask_token": "[MASK]"})
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=64,
    )
    torch.manual_seed(0)
    kind(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_all(folder: Path) -> Path:
    """Everything that the three recipes need."""
    from transformers import BertForMaskedLM, BertModel

    folder.mkdir(parents=True, exist_ok=True)
    write_vectors(folder / "vectors.npz")
    write_nltk(folder / "nltk_data")
    save_bert(BertModel, folder / "encoder")
    save_bert(BertForMaskedLM, folder / "masked_lm")
    return folder
