"""Pieces of words: they can be put together again, and unknown signs do no harm."""

from pathlib import Path

import torch
from hypothesis import given
from hypothesis import strategies as st

from babn_paper.data.phrases import phrases
from babn_paper.models import TranslationConfig
from babn_paper.models.translation_parts import IGNORED
from babn_paper.tasks.catalogue import find_task
from babn_paper.tasks.task import Part
from babn_paper.tasks.translation.pairs import SentencePair
from babn_paper.tasks.translation.subwords import (
    encode_pairs,
    encode_sources,
    learn_subwords,
    read_subwords,
)

TEXTS = [text for pair in phrases("train") for text in pair]
PIECES = learn_subwords(TEXTS, 200)


def test_special_tokens_are_those_of_the_model() -> None:
    config = TranslationConfig()
    numbers = PIECES.pad_token_id, PIECES.bos_token_id, PIECES.eos_token_id
    assert numbers == (config.pad_token_id, config.bos_token_id, config.eos_token_id)
    assert len(PIECES) == 200


def test_texts_come_back() -> None:
    for text in (pair[side] for pair in phrases("test") for side in (0, 1)):
        ids = PIECES(text)["input_ids"]
        assert ids[-1] == PIECES.eos_token_id
        assert PIECES.decode(ids, skip_special_tokens=True) == text


def test_a_saved_vocabulary_is_the_same(tmp_path: Path) -> None:
    PIECES.backend_tokenizer.save(str(tmp_path / "pieces.json"))
    again = read_subwords(tmp_path / "pieces.json")
    assert again(TEXTS[:50])["input_ids"] == PIECES(TEXTS[:50])["input_ids"]
    assert learn_subwords(TEXTS, 200).get_vocab() == PIECES.get_vocab()


@given(st.text(max_size=30))
def test_any_text_has_one_end(text: str) -> None:
    for odd in (text, f"{text}[EOS]{text}"):
        ids = PIECES(odd)["input_ids"]
        assert ids.count(PIECES.eos_token_id) == 1 and ids[-1] == PIECES.eos_token_id
        assert PIECES.pad_token_id not in ids


def test_long_pairs_are_left_out_and_long_sources_cut() -> None:
    pairs = [
        SentencePair("die Zahl eins", "the number one"),
        SentencePair("eins " * 50, "one"),
        SentencePair("zwei", "two"),
    ]
    part = Part("train", pairs, "here", "print")
    made = encode_pairs(part, PIECES, 30)
    assert len(made) == 2
    batch = made.batch(torch.tensor([0, 1]), 1)
    assert (
        batch["input_ids"][1].tolist()[: made.ragged["input_ids"].lengths[1]]
        == (PIECES("zwei")["input_ids"])
    )
    labels = batch["labels"]
    assert ((labels == IGNORED) == (labels < 0)).all() and (labels == IGNORED).any()
    cut = encode_sources([each.source for each in pairs], PIECES, 30)
    assert cut.lengths.tolist()[1] == 30
    assert cut.ragged["input_ids"].pad(torch.tensor([1]), 30)[0, -1] == PIECES.eos_token_id


def test_training_needs_both_sides_and_testing_sources_alone() -> None:
    task = find_task("translation")
    part = task.read("builtin", "dev")
    assert set(task.encode(part, PIECES, 60, training=True).ragged) == {"input_ids", "labels"}
    assert set(task.encode(part, PIECES, 60, training=False).ragged) == {"input_ids"}
