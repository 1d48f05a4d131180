"""Word vectors from files: text files of GloVe and word2vec, and `.npz`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from babn.errors import DataError
from babn_paper.data_files import numbered_lines, read_npz

HEADER = re.compile(r"(\d+) (\d+)", re.ASCII)
"""A first line with the numbers of words and columns."""


@dataclass(frozen=True)
class WordVectors:
    """Words and their vectors.

    Attributes:
        words: Distinct words in the order of the file, usually by frequency.
        vectors: One row for each word, in single precision.
    """

    words: tuple[str, ...]
    vectors: Float[np.ndarray, "word size"]

    @property
    def size(self) -> int:
        """Size of a vector."""
        return int(self.vectors.shape[1])

    def normalized(self) -> "WordVectors":
        """Returns the vectors scaled to length 1; zero vectors stay zero."""
        lengths = np.linalg.norm(self.vectors, axis=1, keepdims=True)
        return replace(self, vectors=self.vectors / np.where(lengths == 0, 1, lengths))

    def fill(
        self, vocabulary: Mapping[str, int], seed: int = 0, std: float = 0.1
    ) -> tuple[Float[Tensor, "number size"], int]:
        """Returns the vectors of a vocabulary by id, and the number of its words found here.

        Args:
            vocabulary: Id of each word.
            seed: Seed of the vectors of the other words.
            std: Standard deviation of those vectors.
        """
        count = max(vocabulary.values(), default=-1) + 1
        generator = torch.Generator().manual_seed(seed)
        filled = torch.empty(count, self.size).normal_(0, std, generator=generator)
        rows = {word: row for row, word in enumerate(self.words)}
        known = [(number, rows[word]) for word, number in vocabulary.items() if word in rows]
        if known:
            numbers, places = (list(each) for each in zip(*known, strict=True))
            filled[numbers] = torch.from_numpy(self.vectors[places])
        return filled, len(known)


def read_vectors(path: str | Path) -> WordVectors:
    """Reads words and vectors from a file; of repeated words the first is kept.

    Args:
        path: An `.npz` file with the arrays `words` and `vectors`; or text, optionally gzipped
            (`.gz`), with a word and its numbers in each line, and optionally a first line with the
            numbers of words and columns.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"vectors={str(path)!r} is not a file. Give a file of word vectors.")
    words, vectors = _read_npz(path) if path.suffix == ".npz" else _read_text(path)
    first = {word: row for row, word in reversed(list(enumerate(words)))}
    rows = sorted(first.values())
    return WordVectors(tuple(words[row] for row in rows), vectors[rows])


def _read_npz(path: Path) -> tuple[list[str], Any]:
    remedy = "Give a file with the arrays words and vectors."
    found = read_npz(path, remedy)
    if not {"words", "vectors"} <= found.keys() or found["vectors"].dtype.kind not in "fiu":
        raise DataError(f"{path} cannot be read: {sorted(found)} are its arrays. {remedy}")
    words, vectors = found["words"], _single(found["vectors"])
    if words.ndim != 1 or words.dtype.kind != "U":
        raise DataError(f"{path}: words is not a list of texts. Save an array of strings.")
    if vectors.ndim != 2 or len(vectors) != len(words) or not vectors.size:
        raise DataError(
            f"{path}: vectors has the shape {vectors.shape} for {len(words)} words. Give one row "
            "for each word."
        )
    if not np.isfinite(vectors).all():
        row = int(np.isfinite(vectors).all(1).argmin())
        raise DataError(f"{path}: the vector of {str(words[row])!r} is not finite. Drop the word.")
    return words.tolist(), vectors


def _read_text(path: Path) -> tuple[list[str], Any]:
    words: list[str] = []
    vectors: list[Any] = []
    header, size = None, 0
    for number, text in numbered_lines(path):
        line = text.rstrip(" ")  # lines of word2vec end with a space
        if number == 1:
            header = HEADER.fullmatch(line)
            size = int(header[2]) if header else line.count(" ")
        if number > 1 or header is None:
            word, vector = _parse(line, size, f"{path}:{number}")
            words.append(word)
            vectors.append(vector)
    if not words:
        raise DataError(f"{path} has no words. Give a line for each word: the word, its numbers.")
    if header is not None and int(header[1]) != len(words):
        raise DataError(
            f"{path}:1: the header announces {header[1]} words, but there are {len(words)}. "
            "Download the file again."
        )
    return words, np.stack(vectors)


def _parse(line: str, size: int, place: str) -> tuple[str, Any]:
    """Parses the word and vector of a line. Some words of GloVe's largest file contain spaces."""
    parts = line.split(" ")
    end = max(len(parts) - size, 0)
    word = " ".join(parts[:end])
    if size < 1 or not word or any(_is_number(part) for part in parts[1:end]):
        raise DataError(
            f"{place}: {len(parts) - 1} columns after the word, not {max(size, 1)}. Correct or "
            "drop the line."
        )
    try:
        vector = _single(np.array(parts[end:], dtype=np.float64))
    except ValueError as error:
        raise DataError(f"{place}: {error}. Correct or drop the line.") from error
    if not np.isfinite(vector).all():
        raise DataError(f"{place}: a number is not finite. Correct or drop the line.")
    return word, vector


def _single(numbers: Any) -> Any:
    """Converts to single precision; numbers that are too large become infinite."""
    with np.errstate(over="ignore"):
        return numbers.astype(np.float32)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
