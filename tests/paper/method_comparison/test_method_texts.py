"""Classification of texts as a problem: batches and training."""

from typing import Any

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

from babn.text import word_tokenizer
from babn.training.fine_tuning import Recipe
from babn_paper.method_comparison import SOFTMAX, Models, Problem, Variant
from babn_paper.method_comparison import text_problem as module
from babn_paper.method_comparison.adapters import MONTECLORA, RANDOM_LORA
from babn_paper.method_comparison.interface import labels_of
from babn_paper.method_comparison.text_problem import Texts, text_problem

WORDS = ("wake me early", "play a song at six", "wake", "play some music")
DATA = Texts(WORDS * 3, (0, 1, 0, 1) * 3)
TOKENIZER = word_tokenizer(WORDS)


def build() -> nn.Module:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(vocab_size=len(TOKENIZER), intermediate_size=16, **sizes)
    return BertForSequenceClassification(config)


def problem(epochs: int = 10) -> Problem:
    return text_problem(build, TOKENIZER, DATA, DATA, Recipe(epochs, 3e-3, batch_size=4))


def test_batches_keep_texts_and_labels_together() -> None:
    expected = {(str(TOKENIZER(text)["input_ids"]), i % 2) for i, text in enumerate(WORDS)}
    batches = DATA.batches(TOKENIZER, size=5)
    seen = [
        (str(ids[mask == 1].tolist()), int(label))
        for batch in batches
        for ids, mask, label in zip(
            batch["input_ids"], batch["attention_mask"], batch["labels"], strict=True
        )
    ]
    assert set(seen) == expected and len(seen) == 12


def test_texts_without_labels_have_batches() -> None:
    assert len(labels_of(Texts([("a", "b"), ("c", "d")]).batches(TOKENIZER))) == 2


@pytest.mark.thorough
def test_training_learns_and_repeats() -> None:
    first, second = (Models(problem(30)).get(SOFTMAX, 0) for _ in range(2))
    batch = DATA.batches(TOKENIZER)[0]
    with torch.no_grad():
        logits = first(**batch).logits
        assert (logits.argmax(-1) == batch["labels"]).float().mean() > 0.9
        torch.testing.assert_close(second(**batch).logits, logits)


def test_variants_reach_the_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[dict[str, Any]] = []

    def fine_tune(
        model: Any, rows: Any, collate: Any, recipe: Recipe, seed: int, **rest: Any
    ) -> None:
        called.append({"rate": recipe.rate, "seed": seed, **rest})

    monkeypatch.setattr(module, "fine_tune", fine_tune)
    variant = Variant("smoothed", label_smoothing=0.1, rate=10.0, trainer=lambda: int)
    problem().train(build(), variant, 7)
    assert called[0]["rate"] == pytest.approx(3e-2) and called[0]["seed"] == 7
    assert called[0]["label_smoothing_factor"] == 0.1 and called[0]["mixin"] is int


@pytest.mark.thorough
def test_label_smoothing_lowers_confidence() -> None:
    models, batch = Models(problem(30)), DATA.batches(TOKENIZER)[0]
    sharp, smooth = (
        models.get(variant, 0)(**batch).logits.softmax(-1).amax(-1).mean()
        for variant in (SOFTMAX, Variant("smoothed", label_smoothing=0.3))
    )
    assert smooth < sharp - 0.05


@pytest.mark.thorough
def test_random_adapters_train_what_they_add() -> None:
    """MonteCLoRA's variational parameters have gradients from its KL, and BABN's from its own."""
    for variant, part in ((MONTECLORA, "std_prior"), (RANDOM_LORA, "babn")):
        torch.manual_seed(0)
        fresh = dict(variant.prepare(build()).named_parameters())
        trained = dict(Models(problem(2)).get(variant, 0).named_parameters())
        named = [n for n, p in trained.items() if part in n and p.requires_grad]
        assert any(not torch.equal(fresh[name], trained[name]) for name in named), part
