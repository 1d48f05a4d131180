"""Windows over paragraphs, and spans of characters as spans of tokens."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from squad_cases import ODD_TEXTS, TOKENIZERS, ask, builtin, byte_pairs, pieces, words

from babn.errors import ConfigError
from babn_paper.tasks.encoded import Encoded, Ragged
from babn_paper.tasks.squad_files import Answer, Question
from babn_paper.tasks.squad_windows import encode_windows

CPU = torch.device("cpu")


def encode(questions: list[Question], tokenizer: Any, length: int, training: bool) -> Encoded:
    return encode_windows(questions, tokenizer, length, 128, training)


def side(encoded: Encoded, name: str) -> list[list[int]]:
    found = encoded.side[name]
    assert isinstance(found, Ragged)
    return [row.tolist() for row in found.values.tensor_split(found.offsets[1:-1])]


def pairs(questions: list[Question], tokenizer: Any, length: int) -> list[tuple[str, str, int]]:
    """For each window: the text that its positions mark, the right one, and where it begins."""
    train, test = (encode(questions, tokenizer, length, training) for training in (True, False))
    starts, ends = side(test, "context_starts"), side(test, "context_ends")
    owners = test.side["question"]
    assert isinstance(owners, torch.Tensor) and len(train) == len(test) == len(owners)
    found = []
    for i, owner in enumerate(owners.tolist()):
        first, last = (int(train.fixed[f"{end}_positions"][i]) for end in ("start", "end"))
        text = questions[owner].context[starts[i][first] : ends[i][last]].strip() if first else ""
        found.append((text, questions[owner].answers[0].text, first))
    return found


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("length", [40, 384])
def test_positions_mark_the_answers(kind: str, length: int) -> None:
    questions = list(builtin("train").examples)
    found = pairs(questions, TOKENIZERS[kind](), length)
    assert all(text == right for text, right, first in found if first)
    assert sum(first > 0 for *_, first in found) >= len(questions)
    if length == 384:
        assert all(first for *_, first in found)


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_any_words_are_found_again(kind: str, data: st.DataObject) -> None:
    context = data.draw(st.sampled_from(ODD_TEXTS))
    words_of = [match.span() for match in re.finditer(r"\S+", context)]
    first, last = sorted(data.draw(st.sampled_from(range(len(words_of)))) for _ in range(2))
    start, text = words_of[first][0], context[words_of[first][0] : words_of[last][1]]
    question = Question("q", "Which?", context, (Answer(text, start),))
    ((found, _, position),) = pairs([question], TOKENIZERS[kind](), 384)
    assert position > 0 and found == text


def test_every_token_of_a_paragraph_is_in_a_window() -> None:
    question = ask(" ".join(f"word{i}" for i in range(300)), "word150")
    test = encode([question], byte_pairs(), 64, False)
    covered: set[int] = set()
    for starts, ends in zip(side(test, "context_starts"), side(test, "context_ends"), strict=True):
        for start, end in zip(starts, ends, strict=True):
            covered |= set(range(start, end))
    assert {i for i, character in enumerate(question.context) if character != " "} <= covered
    assert int(test.lengths.max()) == 64


def test_short_windows_after_a_question_cut_within_a_character_cover_the_paragraph() -> None:
    # The cut falls on the first byte of an emoji, and all four come back.
    question = ask("the bell rings " * 20, "bell", text="?!?!?🔔🔔")
    starts = side(encode([question], byte_pairs(), 16, False), "context_starts")
    seen = {place for row in starts for place in row}
    assert {i for i, letter in enumerate(question.context.strip()) if letter == "b"} - seen == set()
    assert all(len(row) <= 16 for row in starts)


def test_neighbouring_windows_share_tokens() -> None:
    context = " ".join(f"the bell {i % 7}" for i in range(400))
    starts = side(encode([ask(context, "the")], words(), 384, False), "context_starts")
    context_tokens = [[place for place in row if place >= 0] for row in starts]
    for before, after in pairwise(context_tokens):
        assert len(set(before) & set(after)) == 128


def test_windows_without_the_answer_point_at_the_first_token() -> None:
    context = "zebra " + "the bell " * 100
    train = encode([ask(context, "zebra"), ask(context)], words(), 64, True)
    starts, ends = train.fixed["start_positions"], train.fixed["end_positions"]
    assert int((starts > 0).sum()) == int((ends > 0).sum()) == 1 and starts[0] > 0
    assert torch.equal(starts, ends)


def test_the_model_gets_its_arguments_only() -> None:
    question = ask("The bell rings.", "bell")
    train, test = (encode([question], pieces(), 64, training) for training in (True, False))
    inputs = {"input_ids", "token_type_ids", "attention_mask"}
    assert set(test.batch(torch.tensor([0]))) == inputs
    assert set(train.batch(torch.tensor([0]))) == inputs | {"start_positions", "end_positions"}
    assert set(encode([question], byte_pairs(), 64, False).ragged) == {
        "input_ids",
        "attention_mask",
    }


def test_question_comes_first_and_padding_last() -> None:
    tokenizer = byte_pairs()
    questions = [ask("The bell rings.", "bell"), ask("Bell.", "Bell")]
    batch = encode(questions, tokenizer, 64, False).batch(torch.arange(2))
    alone = tokenizer("What is it?", "Bell.")["input_ids"]
    assert batch["input_ids"][1, : len(alone)].tolist() == alone
    assert set(batch["input_ids"][1, len(alone) :].tolist()) == {tokenizer.pad_token_id}
    assert batch["attention_mask"].sum(1).tolist()[1] == len(alone)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_long_questions_are_cut(kind: str) -> None:
    question = ask("The bell rings.", "bell", text="why the bell " * 60)
    tokenizer = TOKENIZERS[kind]()
    starts = side(encode([question], tokenizer, 384, False), "context_starts")[0]
    before = next(i for i, place in enumerate(starts) if place >= 0)
    assert before in (65 + 1, 65 + 2)  # a first token, 64 of the question, one or two between
    assert len(starts) < 90


def test_side_tensors_stay_with_the_windows(tmp_path: Path) -> None:
    encoded = encode(list(builtin("dev").examples), pieces(), 48, False)
    encoded.save(tmp_path / "windows.safetensors")
    for found in (Encoded.load(tmp_path / "windows.safetensors"), encoded.to(CPU)):
        assert set(found.ragged) == set(encoded.ragged) and not found.fixed
        assert side(found, "context_starts") == side(encoded, "context_starts")
        owner, kept = encoded.side["question"], found.side["question"]
        assert isinstance(owner, torch.Tensor) and isinstance(kept, torch.Tensor)
        assert torch.equal(owner, kept)


def test_arguments_that_cannot_work() -> None:
    with pytest.raises(ConfigError, match="max_length=12 has no room"):
        encode([ask("The bell.", "bell")], words(), 12, True)
    tokenizer = words()
    tokenizer.padding_side = "left"
    with pytest.raises(ConfigError, match="pads on the left"):
        encode([ask("The bell.", "bell")], tokenizer, 64, True)
