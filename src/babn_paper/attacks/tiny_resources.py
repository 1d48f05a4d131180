"""Tiny resources for smoke tests of attacks, made from the words of built-in data.

Word vectors group words at random, models have random weights, and the tagger tags every word as a
noun. Attacks with them only show that everything runs.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from babn.text import word_tokenizer
from babn_paper.tasks.catalogue import find_task

TASKS = ("mrpc", "cola", "rte", "qqp", "sst2")
"""Tasks whose development data provides the words."""

GROUP = 8
"""Number of words in a group; their vectors are closer than any threshold."""

STOP_WORDS = ("a", "an", "the", "of", "and", "to", "in", "is")

TAGGER = "averaged_perceptron_tagger_eng"

NAMES = {
    "vectors": {"name": "random groups of words"},
    "encoder": {"name": "a tiny BERT with random weights"},
    "masked_lm": {"name": "a tiny BERT with random weights"},
    "nltk": {"name": "a tagger to which every word is a noun", "original": False},
}


def write_tiny_resources(folder: Path) -> Path:
    """Writes all resources of the recipes to a folder, unless it has them, and returns it."""
    from transformers import BertForMaskedLM, BertModel

    marker = folder / "resources.json"
    if marker.exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    texts = built_in_texts()
    write_vectors(folder / "vectors.npz", texts)
    write_nltk(folder / "nltk_data")
    save_bert(BertModel, folder / "encoder", texts)
    save_bert(BertForMaskedLM, folder / "masked_lm", texts)
    marker.write_text(json.dumps(NAMES, indent=2), encoding="utf-8")
    return folder


def built_in_texts() -> list[str]:
    """The texts of the tasks."""
    tasks = map(find_task, TASKS)
    return [text for task in tasks for text in task.texts(task.read("builtin", "dev").examples)]


def words_of(texts: list[str]) -> list[str]:
    """The distinct words of texts in lower case, sorted."""
    return sorted({word.lower() for text in texts for word in text.split() if word.isalpha()})


def write_vectors(path: Path, texts: list[str]) -> None:
    """Writes word vectors in groups of near neighbours."""
    words = words_of(texts)
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(len(words) // GROUP + 1, 16))
    vectors = centres[np.arange(len(words)) // GROUP] + 0.1 * rng.normal(size=(len(words), 16))
    np.savez(path, words=np.array(words), vectors=vectors.astype(np.float32))


def write_nltk(folder: Path) -> None:
    """Writes a few stop words and a tagger that tags every word as a noun."""
    contents = {
        "corpora/stopwords/english": "".join(f"{word}\n" for word in STOP_WORDS),
        f"taggers/{TAGGER}/{TAGGER}.weights.json": "{}",
        f"taggers/{TAGGER}/{TAGGER}.tagdict.json": "{}",
        f"taggers/{TAGGER}/{TAGGER}.classes.json": json.dumps(["NN"]),
        "taggers/universal_tagset/en-ptb.map": "NN\tNOUN\n",
    }
    for path, content in contents.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content, encoding="utf-8")


def save_bert(kind: type[Any], folder: Path, texts: list[str]) -> None:
    """Saves a BERT with random weights and a tokenizer of the words."""
    import torch
    from transformers import BertConfig

    tokenizer: Any = word_tokenizer([*texts, *texts])  # words that occur once are dropped
    tokenizer.add_special_tokens({"mask_token": "[MASK]"})
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=128,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = kind(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
