"""Multiple choice: batches of endings, and models that compare them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import babn
from babn.text import word_tokenizer
from babn_paper.models import DecomposableConfig, EsimConfig
from babn_paper.pretrained import small_sizes
from babn_paper.tasks.domains import COMMONSENSE, NLI
from babn_paper.tasks.encoded import Encoded, Ragged
from babn_paper.tasks.task import Part
from babn_paper.tasks.text_task import TextExample

pytestmark = pytest.mark.thorough


LENGTH = 40
ROW = st.lists(st.integers(1, 99), min_size=1, max_size=20)


@st.composite
def choices(draw: st.DrawFn) -> list[list[list[int]]]:
    """Examples of equally many rows."""
    count = draw(st.integers(1, 4))
    return draw(st.lists(st.lists(ROW, min_size=count, max_size=count), min_size=1, max_size=8))


@given(choices(), st.integers(1, 9))
def test_rows_of_one_example_come_back_together(
    examples: list[list[list[int]]], multiple: int
) -> None:
    count = len(examples[0])
    ragged = Ragged.of([row for example in examples for row in example], padding=7)
    encoded = Encoded({"ids": ragged}, {"labels": torch.arange(len(examples))}, choices=count)
    longest = [max(map(len, example)) for example in examples]
    assert len(encoded) == len(examples) and encoded.lengths.tolist() == longest
    chosen = torch.randperm(len(examples))[: max(1, len(examples) // 2)]
    batch = encoded.batch(chosen, multiple)
    found = batch["ids"] if count > 1 else batch["ids"].unsqueeze(1)
    assert found.shape[:2] == (len(chosen), count) and torch.equal(batch["labels"], chosen)
    needed = max(longest[i] for i in chosen)
    assert needed <= found.shape[2] < needed + multiple
    for place, padded in zip(chosen.tolist(), found.tolist(), strict=True):
        for row, cells in zip(examples[place], padded, strict=True):
            assert cells == row + [7] * (len(cells) - len(row))


def test_choices_are_saved_and_moved(tmp_path: Path) -> None:
    ragged = {"ids": Ragged.of([[1, 2], [3], [4], [5, 6, 7]])}
    encoded = Encoded(ragged, {}, {"side": torch.arange(2)}, choices=2)
    encoded.save(tmp_path / "a.safetensors")
    found = Encoded.load(tmp_path / "a.safetensors")
    for each in (found, encoded.to(torch.device("cpu"))):
        assert each.choices == 2 and set(each.ragged) == {"ids"}
        assert each.batch(torch.tensor([1]))["ids"].tolist() == [[[4, 0, 0], [5, 6, 7]]]


def test_every_ending_stands_behind_its_text() -> None:
    example = TextExample(("the cat", "it sat", "it sat on the cat", "the dog", "sat"), 1)
    tokenizer = word_tokenizer([*example.texts, "dog on it sat"])
    encoded = COMMONSENSE.encode(Part("dev", [example], "", ""), tokenizer, 8, training=False)
    batch = encoded.batch(torch.tensor([0]))
    assert batch["labels"].tolist() == [1] and batch["input_ids"].shape == (1, 4, 8)
    rows = [tokenizer.convert_ids_to_tokens(row) for row in batch["input_ids"][0].tolist()]
    begin, end = ["[CLS]", "the", "cat", "[SEP]"], "[SEP]"
    assert rows == [
        [*begin, "it", "sat", end, "[PAD]"],
        [*begin, "it", "sat", "on", end],
        [*begin, "the", "dog", end, "[PAD]"],
        [*begin, "sat", end, "[PAD]", "[PAD]"],
    ]
    assert batch["token_type_ids"][0, 3].tolist() == [0, 0, 0, 0, 1, 1, 0, 0]
    assert batch["attention_mask"].sum(-1).tolist() == [[7, 8, 7, 6]]


def test_samples_do_not_depend_on_memory() -> None:
    task, part = COMMONSENSE, COMMONSENSE.read("builtin", "dev")
    tokenizer = word_tokenizer(task.texts(part.examples))
    encoded = task.encode(part, tokenizer, LENGTH, training=False)
    model = task.make_model(small_sizes(len(tokenizer), LENGTH))
    batch = encoded.batch(torch.arange(3))
    model = babn.convert(model, babn.BeliefConfig.pairs(max_length=LENGTH), batch)
    whole = babn.predict(model, batch, samples=4, output=task.output)
    assert whole.sample_logits.shape == (4, 3, 4) and whole.activation == "softmax"
    pieces = babn.predict(model, batch, samples=4, memory=1e-9, output=task.output)
    torch.testing.assert_close(whole.sample_logits, pieces.sample_logits, atol=1e-5, rtol=1e-4)
    assert (whole.std > 0).all()


@pytest.mark.parametrize("config", [DecomposableConfig, EsimConfig])
def test_models_for_two_texts_compare_and_classify(config: type[Any]) -> None:
    sizes = {"vocab_size": 50, "pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3}
    ids = torch.tensor([2, 7, 3, 8, 3]).expand(2, 4, 5)
    types = torch.tensor([0, 0, 0, 1, 1]).expand(2, 4, 5)
    chooser, classifier = (task.make_pair_model(config, sizes) for task in (COMMONSENSE, NLI))
    assert COMMONSENSE.output(chooser(ids, token_type_ids=types)).shape == (2, 4)
    assert NLI.output(classifier(ids[0], token_type_ids=types[0])).shape == (4, 3)
    assert classifier.config.id2label[2] == "contradiction"


def test_pretrained_models_get_a_head_that_compares(tmp_path: Path) -> None:
    COMMONSENSE.make_model(small_sizes(50, 64)).base_model.save_pretrained(tmp_path)
    model = COMMONSENSE.load_model(str(tmp_path), hidden_dropout_prob=0.25)
    assert model.config.hidden_dropout_prob == 0.25
    ids = torch.ones(2, 4, 8, dtype=torch.long)
    assert COMMONSENSE.output(model(input_ids=ids)).shape == (2, 4)
    classifier = NLI.load_model(str(tmp_path))
    assert NLI.output(classifier(input_ids=ids[0])).shape == (4, 3)
    assert classifier.config.id2label[1] == "neutral"
