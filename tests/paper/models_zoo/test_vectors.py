"""Files with words' vectors."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pair_cases import classifier

from babn.errors import DataError
from babn_paper.models import WordVectors, read_vectors

NUMBERS = st.floats(-100, 100, width=32)
# What ends lines or columns cannot be part of a word; control characters are in no file of words.
LETTERS = st.characters(exclude_categories=["Z", "C"])


@st.composite
def contents(draw: st.DrawFn) -> dict[str, list[float]]:
    """Words that are not numbers, each with a vector."""
    size = draw(st.integers(2, 5))
    words = draw(st.lists(st.text(LETTERS, min_size=1), min_size=1, max_size=6, unique=True))
    return {f"w{word}": draw(st.lists(NUMBERS, min_size=size, max_size=size)) for word in words}


def as_text(content: dict[str, list[float]]) -> str:
    rows = (" ".join([word, *map(str, vector)]) for word, vector in content.items())
    return "".join(f"{row}\n" for row in rows)


def assert_holds(found: WordVectors, content: dict[str, list[float]]) -> None:
    assert found.words == tuple(content)
    assert found.vectors.dtype == np.float32
    np.testing.assert_allclose(found.vectors, np.array([*content.values()]), rtol=1e-6)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(content=contents())
def test_every_format_holds_the_same(
    content: dict[str, list[float]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("vectors")
    text = as_text(content)
    size = len(next(iter(content.values())))
    headed = f"{len(content)} {size}\n" + text.replace("\n", " \n")  # as word2vec ends its lines
    (folder / "glove.txt").write_text(text, encoding="utf-8")
    (folder / "word2vec.txt").write_text(headed, encoding="utf-8")
    (folder / "glove.txt.gz").write_bytes(gzip.compress(text.encode()))
    words = np.array([*content])
    np.savez(folder / "both.npz", words=words, vectors=np.array([*content.values()], np.float32))

    for name in ("glove.txt", "word2vec.txt", "glove.txt.gz", "both.npz"):
        assert_holds(read_vectors(folder / name), content)


def written(folder: Path, text: str) -> Path:
    path = folder / "vectors.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_words_may_have_spaces_and_the_first_of_two_counts(tmp_path: Path) -> None:
    found = read_vectors(written(tmp_path, "a 1 2\n. . . 3 4\na 5 6\nb\u00a0c 7 8\n"))

    assert found.words == ("a", ". . .", "b\u00a0c")
    assert found.vectors.tolist() == [[1, 2], [3, 4], [7, 8]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no words"),
        ("2 3\n", "has no words"),
        ("a 1 2\nb 3\n", r"txt:2: 1 columns after the word, not 2"),
        ("a 1 2\nb 3 4 5\n", r"txt:2: 3 columns after the word, not 2"),
        ("a 1 2\n\nb 3 4\n", r"txt:2: 0 columns after the word, not 2"),
        ("a\nb\n", r"txt:1: 0 columns after the word, not 1"),
        ("a 1 2\nb 3 x\n", r"txt:2: could not convert string to float: 'x'"),
        ("a 1 2\nb 3 nan\n", r"txt:2: a number is not finite"),
        ("a 1 2\nb 3 1e60\n", r"txt:2: a number is not finite"),
        ("3 2\na 1 2\nb 3 4\n", r"txt:1: the header announces 3 words, but there are 2"),
        ("2 3\na 1 2\nb 3 4\n", r"txt:2: 2 columns after the word, not 3"),
    ],
)
def test_damaged_text_is_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        read_vectors(written(tmp_path, text))


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"vectors='.*absent.txt' is not a file"):
        read_vectors(tmp_path / "absent.txt")
    (tmp_path / "latin.txt").write_bytes("ä 1 2".encode("latin-1"))
    with pytest.raises(DataError, match=r"latin.txt: not UTF-8"):
        read_vectors(tmp_path / "latin.txt")
    (tmp_path / "plain.gz").write_bytes(b"a 1 2\n")
    with pytest.raises(DataError, match=r"plain.gz is damaged"):
        read_vectors(tmp_path / "plain.gz")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"a 1 2\n" * 99)[:-9])
    with pytest.raises(DataError, match=r"cut.gz is damaged"):
        read_vectors(tmp_path / "cut.gz")


WORDS, ROWS = np.array(["a", "b"]), np.ones((2, 3), np.float16)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"words": WORDS}, "vectors is not a file|cannot be read"),
        ({"words": np.array([1, 2]), "vectors": ROWS}, "words is not a list of texts"),
        ({"words": WORDS[None], "vectors": ROWS}, "words is not a list of texts"),
        ({"words": np.array(["a", 1], object), "vectors": ROWS}, "cannot be read: Object arrays"),
        ({"words": WORDS, "vectors": ROWS[:1]}, r"shape \(1, 3\) for 2 words"),
        ({"words": WORDS, "vectors": ROWS[0]}, r"shape \(3,\) for 2 words"),
        ({"words": WORDS[:0], "vectors": ROWS[:0]}, r"shape \(0, 3\) for 0 words"),
        ({"words": WORDS, "vectors": ROWS * [[1], [np.nan]]}, "vector of 'b' is not finite"),
    ],
)
def test_damaged_arrays_are_refused(arrays: Any, message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "vectors.npz", **arrays)
    with pytest.raises(DataError, match=message):
        read_vectors(tmp_path / "vectors.npz")


def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vectors.npz").write_bytes(b"PK not really")
    with pytest.raises(DataError, match="cannot be read"):
        read_vectors(tmp_path / "vectors.npz")


VECTORS = WordVectors(("a", "b"), np.array([[3, 4], [0, 0]], np.float32))


def test_a_vocabulary_is_filled() -> None:
    filled, found = VECTORS.fill({"[PAD]": 0, "a": 2, "c": 1, "b": 3}, seed=5)
    again, _ = VECTORS.fill({"[PAD]": 0, "a": 2, "c": 1, "b": 3}, seed=5)
    other, _ = VECTORS.fill({"[PAD]": 0, "a": 2, "c": 1, "b": 3}, seed=6)

    assert found == 2
    assert filled[2:].tolist() == [[3, 4], [0, 0]]
    assert torch.equal(filled, again)
    assert not torch.equal(filled[:2], other[:2])
    assert VECTORS.fill({"x": 0})[1] == 0


def test_random_vectors_are_small() -> None:
    filled, _ = VECTORS.fill({str(i): i for i in range(2000)}, std=0.1)
    assert filled.std() == pytest.approx(0.1, rel=0.1)
    assert abs(filled.mean()) < 0.01


def test_vectors_of_length_one() -> None:
    np.testing.assert_allclose(VECTORS.normalized().vectors, [[0.6, 0.8], [0, 0]], rtol=1e-6)


def test_a_model_takes_vectors() -> None:
    model = classifier("esim", vocab_size=3, embedding_size=2)
    assert model.set_vectors(VECTORS, {"x": 0, "a": 1, "b": 2}) == 2
    assert model.config.words_found == 2
    assert model.get_input_embeddings().weight[1].tolist() == [3, 4]
