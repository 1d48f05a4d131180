"""Prediction over loaders and texts, and the methods of predictions."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_prediction import TorchClassifier, bert, converted, words
from torch.utils.data import DataLoader

import babn
from babn import Prediction
from babn.errors import ConfigError, FormatError, SamplesError
from babn.text import word_tokenizer

TEXTS = ["wake me at six", "play", "wake me up at six please", "a song", "play a song at six"]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return word_tokenizer(TEXTS * 2)


@pytest.fixture
def reader(tokenizer: Any) -> Any:
    return converted(babn.BeliefConfig(), vocab_size=len(tokenizer))


def test_a_loader_gives_what_its_batches_give() -> None:
    model = converted()
    rows = [{name: value[i] for name, value in words().items()} for i in range(4)]
    found = babn.predict(model, DataLoader(rows, batch_size=2), samples=5, progress=False)
    parts = [{name: value[i : i + 2] for name, value in words().items()} for i in (0, 2)]
    first = babn.predict(model, parts[0], samples=5)
    assert len(found) == 4
    assert torch.equal(found.sample_logits[:, :2], first.sample_logits)
    from_list = babn.predict(model, parts, samples=5, progress=False)
    assert torch.equal(from_list.sample_logits, found.sample_logits)


def test_batches_have_noise_of_their_own() -> None:
    batch = words(2)
    found = babn.predict(converted(), [batch, batch], samples=5, progress=False)
    assert (found.sample_logits[:, :2] - found.sample_logits[:, 2:]).abs().max() > 1e-3


def test_tuples_of_tensors_are_one_batch_or_many() -> None:
    x = torch.randn(4, 5, 16)
    model = babn.convert(TorchClassifier(), example_inputs=x)
    babn.set_noise_level(model, 0.0)
    one = babn.predict(model, (x,), samples=3)
    many = babn.predict(model, [(x[:2],), (x[2:],)], samples=3, progress=False)
    assert len(one) == len(many) == 4
    torch.testing.assert_close(one.sample_logits.mean(0), many.sample_logits.mean(0))


def test_texts_are_predicted_in_their_order(reader: Any, tokenizer: Any) -> None:
    settings = {"tokenizer": tokenizer, "batch_size": 2, "samples": 4, "progress": False}
    babn.set_noise_level(reader, 0.0)
    found = babn.predict(reader, TEXTS, **settings)
    assert len(found) == len(TEXTS)
    for i, text in enumerate(TEXTS):
        alone = babn.predict(reader, dict(tokenizer([text], return_tensors="pt")), samples=4)
        expected = alone.sample_logits.mean(0)[0]
        torch.testing.assert_close(found.sample_logits.mean(0)[i], expected, atol=1e-4, rtol=1e-4)


def test_pairs_of_texts_are_read_together(reader: Any, tokenizer: Any) -> None:
    babn.set_noise_level(reader, 0.0)
    pairs = [("play", "a song"), ("wake me", "at six")]
    found = babn.predict(reader, pairs, samples=3, tokenizer=tokenizer, progress=False)
    batch = tokenizer(["play", "wake me"], ["a song", "at six"], padding=True, return_tensors="pt")
    expected = babn.predict(reader, dict(batch), samples=3)
    torch.testing.assert_close(found.sample_logits.mean(0), expected.sample_logits.mean(0))


def test_maps_and_noise_levels_of_texts(reader: Any, tokenizer: Any) -> None:
    maps = babn.attention_maps(reader, TEXTS[:2], tokenizer=tokenizer)
    assert len(maps) == 2 and maps[0].mean.shape[0] == 2
    found = babn.tune_noise(
        reader, TEXTS, [0, 1, 2, 0, 1], tokenizer=tokenizer, samples=3, progress=False
    )
    batches = [{**tokenizer([t], return_tensors="pt")} for t in TEXTS]
    labelled = [
        {**batch, "labels": torch.tensor([label])}
        for batch, label in zip(batches, (0, 1, 2, 0, 1), strict=True)
    ]
    again = babn.tune_noise(reader, labelled, samples=3, progress=False)
    assert found.trials[0].nll == pytest.approx(again.trials[0].nll, rel=1e-4)
    babn.set_noise_level(reader, 1.0)
    with pytest.raises(ConfigError, match="labels has 2 entries for 5 texts"):
        babn.tune_noise(reader, TEXTS, [0, 1], tokenizer=tokenizer)


def test_what_cannot_be_predicted_is_refused(reader: Any) -> None:
    with pytest.raises(ConfigError, match="tokenizer=None"):
        babn.predict(reader, TEXTS)
    with pytest.raises(ConfigError, match="tokenizer=None"):
        babn.attention_maps(reader, TEXTS)
    with pytest.raises(ConfigError, match="data='play' is one text"):
        babn.predict(reader, "play", tokenizer=object())
    with pytest.raises(ConfigError, match="mixes texts with pairs"):
        babn.predict(reader, ["play", ("a", "b")], tokenizer=object())
    with pytest.raises(ConfigError, match="batch_size=0"):
        babn.predict(reader, TEXTS, tokenizer=object(), batch_size=0)
    with pytest.raises(SamplesError, match="no batches"):
        babn.predict(reader, [])
    with pytest.raises(SamplesError, match="cannot be joined"):
        Prediction.cat([Prediction(torch.zeros(2, 3, 4)), Prediction(torch.zeros(2, 3, 5))])


def test_parts_of_a_prediction() -> None:
    found = Prediction(torch.randn(6, 5, 3))
    assert len(found) == 5 and len(found[1:3]) == 2
    assert torch.equal(found[2].probs, found.probs[2])
    with pytest.raises(TypeError, match="one example"):
        len(found[2])
    mask = torch.tensor([True, False, True, False, True])
    assert torch.equal(found[mask].entropy, found.entropy[mask])
    joined = Prediction.cat([found[:2], found[2:]])
    assert torch.equal(joined.sample_logits, found.sample_logits)
    assert found.to("cpu").sample_logits.device.type == "cpu"
    assert repr(found).startswith("Prediction(6 samples, 5 examples, 3 labels, mean entropy")
    assert "\n" not in repr(found)
    assert "entropy" not in repr(Prediction(torch.randn(6, 5, 1), "identity"))


def test_predictions_are_saved_and_loaded(tmp_path: Path) -> None:
    numbers = Prediction(torch.randn(6, 5, 1), "identity", 0.1)
    numbers.save(tmp_path / "numbers.safetensors")
    assert Prediction.load(tmp_path / "numbers.safetensors").residual == 0.1
    found = Prediction(torch.randn(6, 5, 3), "sigmoid")
    found.save(tmp_path / "found.safetensors")
    again = Prediction.load(tmp_path / "found.safetensors")
    assert torch.equal(again.sample_logits, found.sample_logits)
    assert again.activation == "sigmoid"
    babn.save_adapter(converted(), tmp_path / "adapter")
    [other] = (tmp_path / "adapter").glob("*.safetensors")
    with pytest.raises(FormatError, match="holds no prediction"):
        Prediction.load(other)


def test_a_data_frame_has_a_row_for_each_example() -> None:
    found = Prediction(torch.randn(20, 5, 3, dtype=torch.float64))
    frame = found.to_pandas(["no", "maybe", "yes"])
    assert len(frame) == 5
    chosen = found.probs.argmax(-1).tolist()
    assert frame["label"].tolist() == [["no", "maybe", "yes"][i] for i in chosen]
    np.testing.assert_allclose(frame["entropy"], found.entropy)
    np.testing.assert_allclose(frame[["low", "high"]], found.interval())
    assert found.to_pandas()["label"].tolist() == chosen
    numbers = Prediction(torch.randn(20, 5, 1), "identity", 0.5)
    np.testing.assert_allclose(numbers.to_pandas()["std"], numbers.std[:, 0])
    assert numbers.to_pandas().columns.tolist() == ["value", "std", "low", "high"]
    with pytest.raises(ConfigError, match="one distribution over classes"):
        Prediction(torch.randn(20, 5, 4, 3)).to_pandas()


def test_bert_is_read_with_its_own_tokenizer(tokenizer: Any) -> None:
    model = babn.convert(bert(vocab_size=len(tokenizer))).eval()
    one = babn.predict(model, ["play"], samples=2, tokenizer=tokenizer, progress=False)
    assert one.probs.shape == (1, 3)
