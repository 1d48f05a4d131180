"""Saved evaluations."""

from pathlib import Path

import pytest
import torch
from small_evaluations import evaluation, labels, logits

from babn.errors import ConfigError, FormatError
from babn.evaluation.predictions import Evaluation
from babn.prediction.result import Prediction


@pytest.mark.parametrize("outside", [False, True])
def test_saved_evaluations_are_loaded_unchanged(tmp_path: Path, outside: bool) -> None:
    saved = evaluation("BABN", seed=3, samples=4, outside=outside)
    found = Evaluation.load(saved.save(tmp_path / "run"))
    assert (found.method, found.seed, found.details) == ("BABN", 3, {"task": "toy"})
    assert torch.equal(found.prediction.sample_logits, saved.prediction.sample_logits)
    assert torch.equal(found.labels, saved.labels)
    assert (found.outside is not None) == outside


def test_nothing_is_overwritten_without_request(tmp_path: Path) -> None:
    evaluation("first").save(tmp_path)
    with pytest.raises(FormatError, match="overwrite=True"):
        evaluation("second").save(tmp_path)
    assert Evaluation.load(tmp_path).method == "first"
    evaluation("second").save(tmp_path, overwrite=True)
    assert Evaluation.load(tmp_path).method == "second"


def test_deterministic_models_need_only_logits() -> None:
    made = Evaluation.of_logits("softmax", logits()[0], labels(), seed=2)
    assert made.seed == 2 and made.prediction.sample_logits.shape == (1, 400, 3)


def test_predictions_and_labels_must_have_equal_length() -> None:
    with pytest.raises(ConfigError, match="prediction has samples of shape"):
        Evaluation("x", Prediction(logits()), labels()[:-1])


def test_damaged_folders_have_distinct_errors(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="does not exist"):
        Evaluation.load(tmp_path)
    evaluation("x").save(tmp_path)
    path = tmp_path / "evaluation.json"
    whole = path.read_text()
    path.write_text(whole.replace('"format": 1', '"format": 9'))
    with pytest.raises(FormatError, match="format 9"):
        Evaluation.load(tmp_path)
    path.write_text(whole[:20])
    with pytest.raises(FormatError, match="damaged"):
        Evaluation.load(tmp_path)
    path.write_text(whole)
    (tmp_path / "answers.safetensors").write_bytes(b"nothing")
    with pytest.raises(FormatError, match="damaged"):
        Evaluation.load(tmp_path)
