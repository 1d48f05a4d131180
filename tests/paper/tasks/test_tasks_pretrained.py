"""Pretrained models with the head of a task."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AlbertConfig, AlbertModel
from transformers.utils import logging

from babn.errors import ConfigError, ModelError
from babn_paper.tasks.glue import MNLI, RTE, STSB


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pretrained encoder in half precision."""
    config = AlbertConfig(
        vocab_size=20,
        embedding_size=8,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
    )
    made = tmp_path_factory.mktemp("pretrained")
    AlbertModel(config).half().save_pretrained(made)
    return made


def test_the_body_is_the_pretrained_one_in_single_precision(folder: Path) -> None:
    model = MNLI.load_model(str(folder))
    saved = load_file(folder / "model.safetensors")
    body = model.albert.state_dict()
    assert all(torch.equal(body[name], value.float()) for name, value in saved.items())
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_the_head_is_that_of_the_task(folder: Path) -> None:
    config = MNLI.load_model(str(folder)).config
    assert config.id2label == {0: "entailment", 1: "neutral", 2: "contradiction"}
    assert config.label2id["contradiction"] == 2
    model = STSB.load_model(str(folder))
    assert model.config.problem_type == "regression" and model.classifier.out_features == 1


def test_settings_reach_the_configuration(folder: Path) -> None:
    model = RTE.load_model(str(folder), classifier_dropout_prob=0.5, hidden_dropout_prob=0.25)
    assert model.dropout.p == 0.5 and model.config.hidden_dropout_prob == 0.25


@pytest.mark.parametrize("field", ["hidden_dropuot", "num_labels", "id2label", "dtype", "to_dict"])
def test_unknown_settings_are_refused(folder: Path, field: str) -> None:
    with pytest.raises(ConfigError, match=rf"{field}=0\.1 is not a setting.*hidden_dropout_prob"):
        RTE.load_model(str(folder), **{field: 0.1})


def test_models_that_are_not_there_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be loaded") as caught:
        RTE.load_model(str(tmp_path))
    assert "\n" not in str(caught.value) and str(tmp_path) in str(caught.value)


def test_damaged_weights_are_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(ModelError, match="cannot be loaded"):
        RTE.load_model(str(tmp_path))


def test_settings_that_do_not_fit_the_weights_are_refused(folder: Path) -> None:
    with pytest.raises(ModelError, match="cannot be loaded"):
        RTE.load_model(str(folder), hidden_size=32)


def test_settings_of_a_wrong_type_are_refused(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"hidden_dropout_prob.*got str") as caught:
        RTE.load_model(str(folder), hidden_dropout_prob="much")
    assert "\n" not in str(caught.value)


def test_weights_of_something_else_are_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    save_file({"other": torch.ones(2)}, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match="has no weights for albert"):
        RTE.load_model(str(tmp_path))


def test_transformers_speaks_again_afterwards(folder: Path, capfd: pytest.CaptureFixture) -> None:
    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    RTE.load_model(str(folder))
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before
    assert capfd.readouterr() == ("", "")
