"""Distances from the training data, and their p-values."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import (
    AlbertConfig,
    AlbertForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    ViTConfig,
    ViTForImageClassification,
)

import babn
from babn.errors import ConfigError, FormatError
from babn.prediction.features import features, find_head, find_layers
from models import TEXT


@pytest.fixture(scope="module")
def bert() -> BertForSequenceClassification:
    torch.manual_seed(0)
    return BertForSequenceClassification(BertConfig(**TEXT)).eval()


def ids(rows: int, tokens: int = 8, seed: int = 0) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    found = torch.randint(5, TEXT["vocab_size"], (rows, tokens))
    return {"input_ids": found, "attention_mask": torch.ones_like(found)}


def features_of(model: nn.Module, data: Any) -> list[torch.Tensor]:
    return features(model, data, find_head(model)[1], find_layers(model))


def test_distance_is_the_mean_over_layers_of_that_to_the_nearest_example(
    bert: BertForSequenceClassification,
) -> None:
    train, dev, new = ids(6), ids(4, seed=1), ids(3, seed=2)
    detector = babn.fit_novelty(bert, train, dev)

    def states(batch: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        with torch.no_grad():
            found = bert.bert(**batch, output_hidden_states=True)
        return [*(x.mean(1) for x in found.hidden_states[1:]), found.pooler_output]

    expected = torch.zeros(3)
    for x, y in zip(states(new), states(train), strict=True):
        expected += 1 - F.cosine_similarity(x[:, None], y[None], dim=-1).max(1).values
    expected /= len(states(new))
    torch.testing.assert_close(detector.distance(bert, new), expected)


def test_padding_and_batches_change_nothing(bert: BertForSequenceClassification) -> None:
    detector = babn.fit_novelty(bert, ids(6), ids(4, seed=1))
    new = ids(3, seed=2)
    padded = {name: F.pad(x, (0, 5)) for name, x in new.items()}
    whole = detector.distance(bert, new)
    torch.testing.assert_close(detector.distance(bert, padded), whole)
    single = [{name: x[i : i + 1] for name, x in new.items()} for i in range(3)]
    torch.testing.assert_close(detector.distance(bert, single, progress=False), whole)


def test_conversion_changes_nothing() -> None:
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(**TEXT))
    before = babn.fit_novelty(model, ids(6), ids(4, seed=1)).distance(model, ids(3, seed=2))
    babn.convert(model).train()
    after = babn.fit_novelty(model, ids(6), ids(4, seed=1)).distance(model, ids(3, seed=2))
    torch.testing.assert_close(after, before)
    assert model.training
    assert find_head(model)[0] == "classifier"


def test_models_whose_layers_share_weights_have_features_of_each_call() -> None:
    model = AlbertForSequenceClassification(AlbertConfig(**{**TEXT, "embedding_size": 8})).eval()
    found = features_of(model, ids(2))
    assert len(find_layers(model)) == 1
    assert len(found) == model.config.num_hidden_layers + 1


def test_images_and_plain_modules_have_features() -> None:
    vit = ViTForImageClassification(
        ViTConfig(
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=16,
            image_size=8,
            patch_size=4,
        )
    ).eval()
    assert [x.shape for x in features_of(vit, torch.rand(3, 3, 8, 8))] == [(3, 16)] * 3
    mlp = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    assert [x.shape for x in features_of(mlp, torch.rand(3, 4))] == [(3, 6)]


def test_other_data_is_farther_away() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 2))
    train, dev, same = (torch.randn(200, 8) + torch.tensor([3.0] + [0.0] * 7) for _ in range(3))
    other = torch.randn(200, 8) - torch.tensor([3.0] + [0.0] * 7)
    detector = babn.fit_novelty(model, train, dev)
    familiar, novel = (detector.p_values(detector.distance(model, x)) for x in (same, other))
    assert (familiar <= 0.05).float().mean() < 0.1
    assert (novel <= 0.05).float().mean() > 0.9


@pytest.mark.parametrize("alpha", [0.05, 0.2, 0.5])
def test_familiar_inputs_are_rejected_at_most_as_often_as_promised(alpha: float) -> None:
    torch.manual_seed(0)
    rejected, draws = 0.0, 400
    for _ in range(draws):
        dev, new = torch.randn(19), torch.randn(50)
        detector = babn.NoveltyDetector([torch.ones(1, 1)], dev.sort().values)
        rejected += float((detector.p_values(new) <= alpha).float().mean()) / draws
    assert rejected == pytest.approx(alpha, abs=0.02)


def test_p_values_count_ties_as_farther() -> None:
    detector = babn.NoveltyDetector([torch.ones(1, 1)], torch.tensor([0.1, 0.2, 0.2, 0.4]))
    found = detector.p_values(torch.tensor([0.0, 0.2, 0.3, 0.5]))
    assert found.tolist() == pytest.approx([1.0, 0.8, 0.4, 0.2])


def test_detectors_are_saved(tmp_path: Path, bert: BertForSequenceClassification) -> None:
    detector = babn.fit_novelty(bert, ids(6), ids(4, seed=1))
    detector.save(tmp_path / "novelty.safetensors")
    loaded = babn.NoveltyDetector.load(tmp_path / "novelty.safetensors")
    new = ids(3, seed=2)
    assert torch.equal(loaded.distance(bert, new), detector.distance(bert, new))
    assert torch.equal(loaded.distances, detector.distances)


def test_wrong_files_and_models_are_refused(
    tmp_path: Path, bert: BertForSequenceClassification
) -> None:
    babn.Prediction(torch.zeros(1, 2, 3)).save(tmp_path / "other.safetensors")
    with pytest.raises(FormatError, match="holds no detector"):
        babn.NoveltyDetector.load(tmp_path / "other.safetensors")
    detector = babn.fit_novelty(bert, ids(6), ids(4, seed=1))
    other = BertForSequenceClassification(BertConfig(**{**TEXT, "num_hidden_layers": 1}))
    with pytest.raises(ConfigError, match="Pass the model that it was fitted with"):
        detector.distance(other, ids(2))
    tagger = BertForTokenClassification(BertConfig(**TEXT))
    with pytest.raises(ConfigError, match="one output for each input"):
        babn.fit_novelty(tagger, ids(6), ids(4))
    with pytest.raises(ConfigError, match="has no linear layer"):
        babn.fit_novelty(nn.Conv2d(1, 1, 1), torch.rand(2, 1, 3, 3), torch.rand(2, 1, 3, 3))
