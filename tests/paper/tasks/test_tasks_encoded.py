"""Examples of different lengths as tensors."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from babn.errors import ConfigError
from babn.text import word_tokenizer
from babn_paper.tasks import text_task
from babn_paper.tasks.encoded import Encoded, Ragged
from babn_paper.tasks.text_task import encode_texts

ROWS = st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=20), min_size=1, max_size=12)
PAIRS = [("the cat sat", "the dog sat"), ("the dog", "the cat sat on the dog")] * 3


@given(ROWS, st.integers(1, 9))
def test_rows_come_back_exactly(rows: list[list[int]], multiple: int) -> None:
    encoded = Encoded({"ids": Ragged.of(rows, padding=7)}, {"labels": torch.arange(len(rows))})
    chosen = torch.randperm(len(rows))[: max(1, len(rows) // 2)]
    batch = encoded.batch(chosen, multiple)
    longest = max(len(rows[i]) for i in chosen)
    width, limit = batch["ids"].shape[1], max(map(len, rows))
    assert width % multiple == 0 or width == limit
    assert longest <= width <= limit and width - longest < multiple
    for row, padded in zip(chosen.tolist(), batch["ids"].tolist(), strict=True):
        assert padded == rows[row] + [7] * (len(padded) - len(rows[row]))
    assert torch.equal(batch["labels"], chosen) and batch["ids"].dtype == torch.int64


def test_lengths_are_those_of_the_longest_argument() -> None:
    short, long = Ragged.of([[1], [1, 2]]), Ragged.of([[1, 2, 3], [1]])
    encoded = Encoded({"a": short, "b": long}, {})
    assert encoded.lengths.tolist() == [3, 2] and len(encoded) == 2


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    ragged = {"ids": Ragged.of([[1, 2], [3]], 5), "mask": Ragged.of([[1, 1], [1]])}
    saved = Encoded(ragged, {"labels": torch.tensor([0.5, 2.0])})
    saved.save(tmp_path / "deep" / "dev.safetensors")
    found = Encoded.load(tmp_path / "deep" / "dev.safetensors")
    everything = torch.arange(2)
    assert found.batch(everything).keys() == saved.batch(everything).keys()
    for name, value in saved.batch(everything).items():
        assert torch.equal(found.batch(everything)[name], value)


def test_pairs_have_two_types_and_the_longer_is_cut_first() -> None:
    tokenizer = word_tokenizer(text for pair in PAIRS for text in pair)
    made = encode_texts(PAIRS[1:2], tokenizer, max_length=9)
    tokens = tokenizer.convert_ids_to_tokens(made["input_ids"].values.tolist())
    assert tokens == ["[CLS]", "the", "dog", "[SEP]", "the", "cat", "sat", "on", "[SEP]"]
    assert made["token_type_ids"].values.tolist() == [0] * 4 + [1] * 5
    assert made["attention_mask"].values.tolist() == [1] * 9


@pytest.mark.parametrize("chunk", [1, 4, 6])
def test_chunks_do_not_show(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = word_tokenizer(text for pair in PAIRS for text in pair)
    whole = encode_texts(PAIRS, tokenizer, 32)
    monkeypatch.setattr(text_task, "CHUNK", chunk)
    parts = encode_texts(PAIRS, tokenizer, 32)
    assert parts.keys() == whole.keys() == {"input_ids", "attention_mask", "token_type_ids"}
    for name, each in whole.items():
        assert torch.equal(parts[name].values, each.values)
        assert torch.equal(parts[name].offsets, each.offsets)


def test_a_tokenizer_without_padding_is_refused() -> None:
    tokenizer = word_tokenizer(["a cat", "a dog"])
    tokenizer.pad_token = None
    with pytest.raises(ConfigError, match="no padding token"):
        encode_texts([("a cat",)], tokenizer, 8)


def test_padding_is_that_of_the_tokenizer() -> None:
    tokenizer = word_tokenizer(["a cat", "a dog"])
    tokenizer.pad_token = "[SEP]"
    assert encode_texts([("a",)], tokenizer, 8)["input_ids"].padding == tokenizer.sep_token_id
