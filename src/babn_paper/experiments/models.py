"""The model of an experiment: pretrained, or built with random weights."""

from typing import Any

import torch
from torch import nn

from babn.errors import ConfigError, one_line
from babn.text import model_source, word_tokenizer
from babn_paper.experiments.experiment import PAIR_MODELS, TRANSLATOR, VISUAL_MODELS, Experiment
from babn_paper.experiments.translation_model import make_translation_model
from babn_paper.experiments.visual_models import make_visual_model
from babn_paper.models import DecomposableConfig, EsimConfig, WordVectors, read_vectors
from babn_paper.pretrained import ALBERT_BASE, small_sizes
from babn_paper.tasks.task import Part, Task, Tokenizer
from babn_paper.tasks.vqa import VqaTask

MADE = ("small", "albert-base")
"""ALBERT models that are built with random weights."""

PAIR_CONFIGS: dict[str, type[Any]] = {"decomposable": DecomposableConfig, "esim": EsimConfig}

PAIR_VOCABULARY = 40_000
"""Largest vocabulary of a model of text pairs."""

ENCODER_DROPOUT = (
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "hidden_dropout",
    "attention_dropout",
    "dropout",
)
CLASSIFIER_DROPOUT = (
    "classifier_dropout_prob",
    "classifier_dropout",
    "seq_classif_dropout",
    "qa_dropout",
)
"""Names of the dropout rates in the configurations of transformers' model families."""


def load_model(
    experiment: Experiment, task: Task[Any], train: Part[Any], max_length: int
) -> tuple[nn.Module, Tokenizer]:
    """Model and tokenizer, which the seed determines."""
    torch.manual_seed(experiment.seed)
    if experiment.model in VISUAL_MODELS or (
        isinstance(task, VqaTask) and experiment.model in MADE
    ):
        return make_visual_model(experiment, task, train)
    if experiment.model in PAIR_MODELS:
        return make_pair_model(experiment, task, train)
    if experiment.model == TRANSLATOR:
        return make_translation_model(experiment, task, train)
    if experiment.model in MADE:
        tokenizer = word_tokenizer(task.texts(train.examples))
        small = experiment.model == "small"
        sizes = small_sizes(len(tokenizer), max_length) if small else ALBERT_BASE
        return task.make_model({**sizes, **_albert_rates(experiment)}), tokenizer
    source = model_source(experiment.model)
    return task.load_model(source, **dropout_settings(experiment, source)), load_tokenizer(source)


def load_tokenizer(model: str) -> Tokenizer:
    """The tokenizer of a folder or of a model on the hub."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(model)
    except Exception as error:  # tokenizers raises a bare Exception for damaged files
        raise ConfigError(f"model={model!r} has no usable tokenizer: {one_line(error)}") from error


def dropout_settings(experiment: Experiment, source: str) -> dict[str, float]:
    """The experiment's dropout rates under the names of the model's configuration."""
    rates = _dropout_rates(experiment)
    if not rates:
        return {}
    config = _read_config(source)
    found = {name: rate for name, rate in rates.items() if hasattr(config, name)}
    if not found:
        raise ConfigError(
            f"model={experiment.model!r} has no dropout rate that babn knows. Leave dropout and "
            "classifier_dropout at -1."
        )
    return found


def _dropout_rates(experiment: Experiment) -> dict[str, float]:
    """The experiment's dropout rates under all names that model families use."""
    return {
        name: rate
        for names, rate in (
            (ENCODER_DROPOUT, experiment.dropout),
            (CLASSIFIER_DROPOUT, experiment.classifier_dropout),
        )
        if rate >= 0
        for name in names
    }


def _albert_rates(experiment: Experiment) -> dict[str, float]:
    from transformers import AlbertConfig

    config = AlbertConfig()
    rates = _dropout_rates(experiment)
    return {name: rate for name, rate in rates.items() if hasattr(config, name)}


def _read_config(model: str) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise ConfigError(f"model={model!r} cannot be read: {error}") from error


def make_pair_model(
    experiment: Experiment, task: Task[Any], train: Part[Any]
) -> tuple[Any, Tokenizer]:
    """A model of text pairs and its tokenizer, with pretrained word vectors or random ones.

    The vocabulary consists of the words of the training texts. With word vectors it is filled up
    with the first words of their file, which have vectors although they are not trained on.
    """
    vectors = _word_vectors(experiment)
    further = vectors.words if vectors else ()
    tokenizer = word_tokenizer(task.texts(train.examples), PAIR_VOCABULARY, further)
    sizes = _pair_sizes(experiment, tokenizer)
    if vectors is None:
        return task.make_pair_model(PAIR_CONFIGS[experiment.model], sizes), tokenizer
    sizes["embedding_size"] = vectors.size
    model: Any = task.make_pair_model(PAIR_CONFIGS[experiment.model], sizes)
    model.set_vectors(vectors, tokenizer.get_vocab(), experiment.seed)
    return model, tokenizer


def _word_vectors(experiment: Experiment) -> WordVectors | None:
    """The pretrained word vectors; decomposable attention normalizes them to length 1."""
    if not experiment.vectors:
        return None
    vectors = read_vectors(experiment.vectors)
    return vectors.normalized() if experiment.model == "decomposable" else vectors


def _pair_sizes(experiment: Experiment, tokenizer: Tokenizer) -> dict[str, Any]:
    """Fields of the configuration; only decomposable attention freezes pretrained vectors."""
    sizes = {
        "vocab_size": len(tokenizer),
        "fixed_vectors": bool(experiment.vectors) and experiment.model == "decomposable",
        "pad_token_id": tokenizer.pad_token_id,
        "cls_token_id": tokenizer.cls_token_id,
        "sep_token_id": tokenizer.sep_token_id,
    }
    return sizes if experiment.dropout < 0 else sizes | {"dropout": experiment.dropout}
