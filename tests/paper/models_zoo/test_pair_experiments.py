"""Both models as models of experiments."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import babn
from babn.errors import ConfigError, DataError
from babn.text import word_tokenizer
from babn_paper.experiments.evaluation import evaluate
from babn_paper.experiments.experiment import Experiment
from babn_paper.experiments.models import load_model
from babn_paper.experiments.run import run
from babn_paper.models import DecomposableForSequenceClassification
from babn_paper.tasks.catalogue import find_task

pytestmark = pytest.mark.thorough

TINY: dict[str, Any] = {
    "task": "mrpc",
    "data": "builtin",
    "steps": 2,
    "batch_size": 4,
    "learning_rate": 1e-3,
    "max_length": 16,
    "samples": 2,
}


def tiny(**fields: Any) -> Experiment:
    return Experiment.from_dict(TINY | fields)


def made(experiment: Experiment) -> tuple[Any, Any]:
    task = find_task(experiment.task)
    return load_model(experiment, task, task.read("builtin", "train"), 16)


@pytest.fixture
def vectors(tmp_path: Path) -> str:
    """Vectors of a few words of the data, and of one that is not there."""
    path = tmp_path / "vectors.npz"
    words = np.array(["the", "of", "zyzzyva", "a"])
    np.savez(path, words=words, vectors=np.arange(12, dtype=np.float16).reshape(4, 3) + 1)
    return str(path)


@pytest.mark.parametrize(
    ("model", "method"),
    [
        ("decomposable", "softmax"),
        pytest.param("esim", "softmax", marks=pytest.mark.slow),
        ("esim", "belief"),
    ],
)
def test_from_beginning_to_end(model: str, method: str, tmp_path: Path) -> None:
    results = run(tiny(model=model, method=method), tmp_path / "run")
    modes = results["measures"]["dev"]
    assert "mean" in modes and ("sampled" in modes) == (method == "belief")
    assert all(math.isfinite(v) for values in modes.values() for v in values.values())
    config = json.loads((tmp_path / "run/model/config.json").read_text())
    assert config["model_type"] == f"babn-{model}"
    assert type(babn.load(tmp_path / "run/model")).__module__ == f"babn_paper.models.{model}"


def test_a_trained_model_can_be_evaluated_again(tmp_path: Path) -> None:
    results = run(tiny(model="decomposable", method="belief"), tmp_path / "run")
    assert evaluate(tmp_path / "run")["measures"] == results["measures"]
    again = tiny(model=str(tmp_path / "run/model"), dropout=0.1)
    assert type(made(again)[0]) is DecomposableForSequenceClassification


def test_given_vectors(vectors: str) -> None:
    model, tokenizer = made(tiny(model="decomposable", vectors=vectors, dropout=0.4))
    weight = model.get_input_embeddings().weight
    the = weight[tokenizer.convert_tokens_to_ids("the")]

    assert model.config.embedding_size == 3
    assert model.config.words_found == 4
    assert model.config.dropout == model.dropout.p == 0.4
    np.testing.assert_allclose(the, np.array([1, 2, 3]) / math.sqrt(14), rtol=1e-6)
    assert not weight.requires_grad
    assert tokenizer.convert_tokens_to_ids("zyzzyva") != tokenizer.unk_token_id


def test_given_vectors_of_esim_are_trained(vectors: str) -> None:
    model, tokenizer = made(tiny(model="esim", vectors=vectors))
    weight = model.get_input_embeddings().weight

    assert weight[tokenizer.convert_tokens_to_ids("the")].tolist() == [1, 2, 3]
    assert weight.requires_grad


def test_the_seed_decides_the_weights(vectors: str) -> None:
    def weights(**fields: Any) -> np.ndarray:
        model, _ = made(tiny(model="decomposable", **fields))
        return np.concatenate([p.detach().numpy().ravel() for p in model.parameters()])

    for given in ({}, {"vectors": vectors}):
        assert np.array_equal(weights(seed=1, **given), weights(seed=1, **given))
        assert not np.array_equal(weights(seed=1, **given), weights(seed=2, **given))


def test_a_number_in_place_of_a_class() -> None:
    model, _ = made(tiny(model="esim", task="stsb"))
    assert (model.config.num_labels, model.config.problem_type) == (1, "regression")


@pytest.mark.parametrize("task", ["cola", "squad1.1"])
def test_other_tasks_than_pairs_are_refused(task: str) -> None:
    with pytest.raises(ConfigError, match=rf"task='{task}' has no pairs of texts"):
        made(tiny(model="esim", task=task))


def test_vectors_that_are_of_no_use_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"vectors='x.npz' does not apply to model='small'"):
        tiny(model="small", vectors="x.npz")
    with pytest.raises(DataError, match=r"vectors='x.npz' is not a file"):
        made(tiny(model="esim", vectors="x.npz"))


def test_vocabularies_have_a_limit_and_one_unknown_word() -> None:
    texts = ["b b b a a c c d", "b a c"]
    tokenizer = word_tokenizer(texts, most=4, further=["x", "b", "y", "z"])
    vocabulary = {*tokenizer.get_vocab()} - {*tokenizer.all_special_tokens}
    ids = tokenizer("y d z")["input_ids"][1:-1]

    assert vocabulary == {"a", "b", "c", "x"}
    assert ids == [tokenizer.unk_token_id] * 3
    assert "c" not in word_tokenizer(texts, most=2).get_vocab()
    # Words are numbered as ever where nothing is left out.
    assert word_tokenizer(texts).get_vocab() == word_tokenizer(texts, most=99).get_vocab()
