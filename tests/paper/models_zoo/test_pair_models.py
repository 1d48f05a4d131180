"""What both models for two texts do alike: reading pairs, learning, saving."""

from pathlib import Path
from typing import Any

import pytest
import torch
from pair_cases import CLS, KINDS, PAD, PAIRS, SEP, chooser, classifier, encoded, toy_pairs
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForMultipleChoice,
    AutoModelForSequenceClassification,
)

import babn
from babn_paper.models import DecomposableConfig, EsimConfig
from babn_paper.models.pairs import split

CONFIG = DecomposableConfig(vocab_size=40)
TRAINED = {"dropout": 0.0, "num_labels": 2, "embedding_size": 16, "hidden_size": 24}


def words(text: Any) -> list[list[int]]:
    return [ids[seen].tolist() for ids, seen in zip(text.ids, text.seen, strict=True)]


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("typed", [False, True])
def test_pairs_are_split_where_types_or_separators_say(left: bool, typed: bool) -> None:
    batch = encoded(PAIRS, extra=2, left=left)
    kinds = batch["token_type_ids"] if typed else None
    premise, hypothesis = split(batch["input_ids"], batch["attention_mask"], kinds, CONFIG)

    assert words(premise) == [[*a, SEP] for a, _ in PAIRS]
    assert words(hypothesis) == [[*b, SEP] for _, b in PAIRS]
    assert premise.ids.shape[1] == hypothesis.ids.shape[1] == 6  # no longer than needed


def test_padding_tokens_are_left_out_without_a_mask() -> None:
    ids = torch.tensor([[CLS, 5, SEP, 6, SEP, PAD, PAD]])
    premise, hypothesis = split(ids, None, None, CONFIG)

    assert (words(premise), words(hypothesis)) == ([[5, SEP]], [[6, SEP]])


def test_the_token_that_begins_a_pair_may_be_missing() -> None:
    config = DecomposableConfig(vocab_size=40, cls_token_id=-1)
    premise, _ = split(torch.tensor([[CLS, 5, SEP, 6, SEP]]), None, None, config)

    assert words(premise) == [[CLS, 5, SEP]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pair", [([], []), ([5], []), ([], [5])])
def test_texts_without_words_are_no_trouble(kind: str, pair: Any) -> None:
    model = classifier(kind)
    output = model(**encoded([pair, PAIRS[0]]), labels=torch.tensor([0, 1]))
    output.loss.backward()

    assert output.logits.isfinite().all()
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_texts_without_tokens_are_no_trouble(kind: str) -> None:
    model = classifier(kind)
    output = model(torch.tensor([[5, 6], [7, SEP]]), labels=torch.tensor([0, 1]))
    output.loss.backward()

    assert output.logits.isfinite().all()
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["decomposable", "esim"])
@pytest.mark.parametrize("method", [None, babn.BeliefConfig.pairs(max_length=8, rho=1.0)])
def test_learning_whether_a_word_stands_in_a_text(kind: str, method: Any) -> None:
    torch.manual_seed(0)
    model = type(classifier(kind))(classifier(kind, **TRAINED).config).train()
    model = model if method is None else babn.convert(model, method)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    batch, labels = toy_pairs(64)
    for _ in range(40):
        optimizer.zero_grad()
        model(**batch, labels=labels).loss.backward()
        optimizer.step()

    found = model.eval()(**batch).logits.argmax(-1)
    assert (found == labels).float().mean() > 0.9


@pytest.mark.parametrize("kind", KINDS)
def test_a_number_in_place_of_a_class(kind: str) -> None:
    model = classifier(kind, num_labels=1)
    numbers = torch.tensor([0.5, 2.0, 4.5])
    output = model(**encoded(PAIRS), labels=numbers)

    torch.testing.assert_close(output.loss, (output.logits[:, 0] - numbers).square().mean())


@pytest.mark.parametrize("kind", KINDS)
def test_choices_are_scored_by_one_network(kind: str) -> None:
    model = chooser(kind)
    batch = {name: x[None].repeat(2, 1, 1) for name, x in encoded(PAIRS).items()}
    batch["input_ids"][1, 0, 1] = 33
    output = model(**batch, labels=torch.tensor([2, 0]))
    single = {name: x[0, 1:2, None] for name, x in batch.items()}

    assert output.logits.shape == (2, 3)
    assert not torch.allclose(output.logits[0, 0], output.logits[1, 0])
    torch.testing.assert_close(output.logits[0, 1:], output.logits[1, 1:])
    torch.testing.assert_close(
        model(**{name: x.transpose(0, 1) for name, x in single.items()}).logits[0],
        output.logits[0, 1:2],
    )
    expected = torch.nn.functional.cross_entropy(output.logits, torch.tensor([2, 0]))
    torch.testing.assert_close(output.loss, expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("choice", [False, True])
def test_models_are_found_by_transformers(kind: str, choice: bool, tmp_path: Path) -> None:
    model = (chooser if choice else classifier)(kind, cls_token_id=7, dropout=0.3)
    model.save_pretrained(tmp_path)
    auto = AutoModelForMultipleChoice if choice else AutoModelForSequenceClassification
    loaded = auto.from_pretrained(tmp_path)

    assert type(loaded) is type(model)
    assert type(AutoConfig.from_pretrained(tmp_path)) is type(model.config)
    assert (loaded.config.cls_token_id, loaded.config.dropout) == (7, 0.3)
    assert loaded.config.num_labels == model.config.num_labels
    before, after = model.state_dict(), loaded.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_model_types_are_our_own() -> None:
    names = {config.model_type for config in (DecomposableConfig, EsimConfig)}
    assert names == {"babn-decomposable", "babn-esim"}


@pytest.mark.parametrize("kind", KINDS)
def test_fixed_vectors_stay(kind: str, tmp_path: Path) -> None:
    model = classifier(kind, fixed_vectors=True)
    model.save_pretrained(tmp_path)
    for each in (model, type(model).from_pretrained(tmp_path)):
        each(**encoded(PAIRS), labels=torch.tensor([0, 1, 2])).loss.backward()
        assert each.get_input_embeddings().weight.grad is None
        others = [p for n, p in each.named_parameters() if "embedding" not in n]
        assert all(isinstance(p.grad, Tensor) for p in others)
