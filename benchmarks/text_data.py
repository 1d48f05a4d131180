"""Tokenises the texts of the comparison of language models.

    python benchmarks/text_data.py --text enwik8_clean.txt.gz --talks ted.tsv.gz --out FOLDER

Encyclopedia articles are for training, development and testing, split by article; English talks are
a shift of the domain, and German talks are foreign text.
"""

import argparse
import gzip
import random
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

VOCABULARY, CONTEXT = 4096, 128
END = "<|endoftext|>"
ARTICLES = 300
"""Articles for development, and as many for testing."""

Tokens = dict[str, np.ndarray]
"""Token numbers by part, and in `starts` whether a token begins a word."""


def read_articles(path: Path) -> list[str]:
    """Articles of a compressed file in which a blank line follows each of them."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        found = [text.strip() for text in file.read().split("\n\n")]
    return [text for text in found if text]


def read_talks(path: Path) -> tuple[list[str], list[str]]:
    """English and German sentences of a compressed table."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        head, *rows = [line.rstrip("\n").split("\t") for line in file]
    columns = dict(zip(head, zip(*rows, strict=True), strict=True))
    return list(columns["en"]), list(columns["de"])


def train_tokenizer(texts: Iterable[str], size: int) -> Tokenizer:
    """Byte-level BPE."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def tokenized(
    articles: list[str], talks: tuple[list[str], list[str]], held_out: int, size: int
) -> tuple[Tokens, Tokenizer]:
    """All parts as tokens; the tokenizer is trained on the training articles."""
    articles = random.Random(0).sample(articles, len(articles))
    parts = {
        "test": articles[:held_out],
        "development": articles[held_out : 2 * held_out],
        "train": articles[2 * held_out :],
        "shift": [" ".join(talks[0])],
        "foreign": [" ".join(talks[1])],
    }
    tokenizer = train_tokenizer(parts["train"], size)
    found = {name: _encoded(texts, tokenizer) for name, texts in parts.items()}
    words = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    found["starts"] = np.array([not word[0].isalpha() or word[0] == "Ġ" for word, _ in words])
    return found, tokenizer


def _encoded(texts: list[str], tokenizer: Tokenizer) -> np.ndarray:
    """The tokens of texts, each followed by the token for its end."""
    end = tokenizer.token_to_id(END)
    ids = [[*each.ids, end] for each in tokenizer.encode_batch(texts)]
    return np.concatenate([np.array(each, np.uint16) for each in ids])


def windows(tokens: np.ndarray, limit: int | None = None) -> Tensor:
    """Tokens cut into windows; if there are more than `limit`, some at equal distances."""
    cut = torch.from_numpy(tokens[: len(tokens) // CONTEXT * CONTEXT].astype(np.int64))
    cut = cut.view(-1, CONTEXT)
    return cut if limit is None else cut[:: max(len(cut) // limit, 1)][:limit]


def shuffled(cut: Tensor, starts: np.ndarray, seed: int = 0) -> Tensor:
    """The words of each window in random order, the tokens of a word together."""
    chooser = random.Random(seed)
    found = []
    for row in cut.tolist():
        begins = [i for i, token in enumerate(row) if i == 0 or starts[token]]
        words = [row[a:b] for a, b in zip(begins, [*begins[1:], len(row)], strict=True)]
        chooser.shuffle(words)
        found.append([token for word in words for token in word])
    return torch.tensor(found)


def synthetic(size: int = 64) -> Tokens:
    """Counting sequences for trials; shifted ones skip tokens and foreign ones are random."""
    chooser = np.random.default_rng(0)

    def counted(length: int, step: int) -> np.ndarray:
        return ((np.arange(length) * step + chooser.integers(0, 2, length)) % size).astype(
            np.uint16
        )

    parts = {name: counted(20 * CONTEXT, 1) for name in ("train", "development", "test")}
    foreign = chooser.integers(0, size, 20 * CONTEXT).astype(np.uint16)
    starts = np.ones(size, bool)
    return {**parts, "shift": counted(20 * CONTEXT, 3), "foreign": foreign, "starts": starts}


def main() -> None:
    """Tokenises the texts and writes `tokens.npz` and `tokenizer.json`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--talks", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    found, tokenizer = tokenized(
        read_articles(args.text), read_talks(args.talks), ARTICLES, VOCABULARY
    )
    args.out.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(args.out / "tokens.npz", **found)  # type: ignore[arg-type]
    tokenizer.save(str(args.out / "tokenizer.json"))
    print({name: len(tokens) for name, tokens in found.items()})


if __name__ == "__main__":
    main()
