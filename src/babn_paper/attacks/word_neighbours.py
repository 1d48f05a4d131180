"""Synonyms of words: nearest neighbours among word vectors, or from a table."""

import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from babn.errors import DataError, one_line
from babn.files import parse_json
from babn_paper.attacks.resources import ResourceError
from babn_paper.data_files import open_data, read_data

MOST = 50
"""Neighbours of a word, the most that any recipe uses."""


class Nearest:
    """Indices of the nearest words, computed on demand; the word itself comes first.

    Ties are broken by index, so that attacks are reproducible. `sklearn.neighbors.NearestNeighbors`
    does neither, and would need the same sorting around it.

    Args:
        vectors: Word vectors of length 1.
    """

    def __init__(self, vectors: Float[np.ndarray, "word dim"]) -> None:
        self.vectors = vectors
        self._found = lru_cache(maxsize=2**14)(self._find)

    def __getitem__(self, word: int) -> Int[np.ndarray, "neighbour"]:
        return self._found(int(word))

    def _find(self, word: int) -> Int[np.ndarray, "neighbour"]:
        cosines = self.vectors @ self.vectors[word]
        cosines[word] = np.inf  # comes before words with the same vector
        count = min(MOST + 1, len(cosines))
        nearest = np.argpartition(-cosines, count - 1)[:count]
        return nearest[np.lexsort((nearest, -cosines[nearest]))]


def read_embedding(path: Path, base: type[Any]) -> Any:
    """Reads `vectors.npz` or a table of neighbours as an embedding for TextAttack.

    Args:
        path: The file.
        base: TextAttack's class `WordEmbedding`.
    """
    if path.suffix == ".npz":
        words, vectors = read_vectors(path)
        return base(vectors, *_indices(words), Nearest(vectors))
    return _of_table(read_table(path), base)


def read_vectors(path: Path) -> tuple[list[str], Float[np.ndarray, "word dim"]]:
    """Reads words and their vectors, which are normalized to length 1."""
    try:
        with open_data(path) as file, np.load(file, allow_pickle=False) as found:
            words, vectors = found["words"].tolist(), found["vectors"].astype(np.float32)
    except DataError:
        raise
    except Exception as error:  # numpy and zipfile raise many types for damaged files
        raise ResourceError(
            f"{path} cannot be read: {one_line(error)}. It holds two arrays, words and vectors."
        ) from error
    if vectors.ndim != 2 or len(words) != len(vectors) or not len(words):
        raise ResourceError(
            f"{path} has {len(words)} words and vectors of shape {vectors.shape}. Give one vector "
            "for each word."
        )
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return words, vectors / np.maximum(lengths, np.finfo(np.float32).tiny)


def read_table(path: Path) -> dict[str, list[str]]:
    """Reads the neighbours of each word, nearest first."""
    try:
        found = parse_json(read_data(path))
    except DataError:
        raise
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise ResourceError(f"{path} cannot be read: {error}. It is a JSON object.") from error
    if not isinstance(found, dict) or not all(isinstance(each, list) for each in found.values()):
        raise ResourceError(f"{path} does not give a list of words for each word.")
    return found


def _of_table(table: Mapping[str, Sequence[str]], base: type[Any]) -> Any:
    words = list(dict.fromkeys([*table, *(word for near in table.values() for word in near)]))
    to_index, to_word = _indices(words)
    rows = [[i, *(to_index[near] for near in table.get(word, ()))] for i, word in enumerate(words)]
    pairs = {(row[0], near) for row in rows for near in row[1:]}

    class Table(base):
        """Knows which words are neighbours, but not their distances."""

        def get_cos_sim(self, a: int, b: int) -> float:
            """1 for neighbours, so that any threshold accepts them, else 0."""
            return 1.0 if a == b or (a, b) in pairs or (b, a) in pairs else 0.0

    return Table(np.zeros((len(words), 1), np.float32), to_index, to_word, rows)


def _indices(words: Sequence[str]) -> tuple[dict[str, int], dict[int, str]]:
    return {word: i for i, word in enumerate(words)}, dict(enumerate(words))
