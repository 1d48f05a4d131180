"""The model of an experiment: pretrained, or built with random weights."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import AlbertConfig, AutoConfig, AutoTokenizer

from babn.errors import ConfigError, one_line
from babn.files import replace_file
from babn.text import word_tokenizer
from babn.validation import check_count
from babn_paper.experiments.cache import cached_file
from babn_paper.experiments.experiment import (
    PAIR_MODELS,
    TRANSLATOR,
    VISUAL_MODELS,
    Experiment,
    LatentConfig,
)
from babn_paper.models import (
    DecomposableConfig,
    EsimConfig,
    McanConfig,
    McanForQuestionAnswering,
    TranslationConfig,
    TranslationModel,
    read_vectors,
)
from babn_paper.pretrained import ALBERT_BASE, model_source, small_sizes
from babn_paper.tasks.task import Part, Task, Tokenizer
from babn_paper.tasks.translation.subwords import learn_subwords, read_subwords
from babn_paper.tasks.translation.task import TranslationTask
from babn_paper.tasks.vqa import VqaTask
from babn_paper.tasks.vqa_data import VqaPart
from babn_paper.tasks.vqa_text import Choices, keep_choices, question_tokenizer

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
        rates = _dropout_rates(experiment, AlbertConfig())
        return task.make_model({**sizes, **rates}), tokenizer
    source = model_source(experiment.model)
    return task.load_model(source, **dropout_settings(experiment, source)), load_tokenizer(source)


def load_tokenizer(model: str) -> Tokenizer:
    """The tokenizer of a folder or of a model on the hub."""
    try:
        return AutoTokenizer.from_pretrained(model)
    except Exception as error:  # tokenizers raises a bare Exception for damaged files
        raise ConfigError(f"model={model!r} has no usable tokenizer: {one_line(error)}") from error


def dropout_settings(experiment: Experiment, source: str) -> dict[str, float]:
    """The experiment's dropout rates under the names of the model's configuration."""
    if max(experiment.dropout, experiment.classifier_dropout) < 0:
        return {}
    try:
        config = AutoConfig.from_pretrained(source)
    except (OSError, ValueError) as error:
        raise ConfigError(f"model={source!r} cannot be read: {error}") from error
    if found := _dropout_rates(experiment, config):
        return found
    raise ConfigError(
        f"model={experiment.model!r} has no dropout rate that babn knows. Leave dropout and "
        "classifier_dropout at -1."
    )


def _dropout_rates(experiment: Experiment, config: Any) -> dict[str, float]:
    """The experiment's dropout rates under the names that a configuration has."""
    rates = dict.fromkeys(ENCODER_DROPOUT, experiment.dropout)
    rates |= dict.fromkeys(CLASSIFIER_DROPOUT, experiment.classifier_dropout)
    return {name: rate for name, rate in rates.items() if rate >= 0 and hasattr(config, name)}


def make_pair_model(
    experiment: Experiment, task: Task[Any], train: Part[Any]
) -> tuple[Any, Tokenizer]:
    """A model of text pairs and its tokenizer, with pretrained word vectors or random ones.

    The vocabulary consists of the words of the training texts. With word vectors it is filled up
    with the first words of their file, which have vectors although they are not trained on.
    """
    vectors = read_vectors(experiment.vectors) if experiment.vectors else None
    # Decomposable attention normalizes pretrained vectors to length 1 and freezes them.
    fixed = vectors is not None and experiment.model == "decomposable"
    if vectors is not None and fixed:
        vectors = vectors.normalized()
    further = vectors.words if vectors else ()
    tokenizer = word_tokenizer(task.texts(train.examples), PAIR_VOCABULARY, further)
    sizes = {
        "vocab_size": len(tokenizer),
        "fixed_vectors": fixed,
        "pad_token_id": tokenizer.pad_token_id,
        "cls_token_id": tokenizer.cls_token_id,
        "sep_token_id": tokenizer.sep_token_id,
    }
    if experiment.dropout >= 0:
        sizes["dropout"] = experiment.dropout
    if vectors is not None:
        sizes["embedding_size"] = vectors.size
    model: Any = task.make_pair_model(PAIR_CONFIGS[experiment.model], sizes)
    if vectors is not None:
        model.set_vectors(vectors, tokenizer.get_vocab(), experiment.seed)
    return model, tokenizer


SUBWORDS = 14_000
"""Size of the subword vocabulary, which both languages share."""

TRANSLATION_SIZES = (
    "vocab_size",
    "embedding_size",
    "encoder_size",
    "decoder_size",
    "attention_size",
    "layers",
    "decoder",
    "initializer_range",
    "tie_word_embeddings",
)
"""Fields of the model's configuration that `Experiment.sizes` may set."""

VERSION = 1
"""Part of the cache key; changes with the algorithm that learns vocabularies."""


def make_translation_model(
    experiment: Experiment, task: Task[Any], train: Part[Any]
) -> tuple[Any, Tokenizer]:
    """The translation model and its tokenizer."""
    if not isinstance(task, TranslationTask):
        raise ConfigError(
            f"model={experiment.model!r} is a translation model, but task={task.name!r} is not "
            "translation. Choose another model."
        )
    sizes = {"vocab_size": SUBWORDS, **experiment.sizes}
    if unknown := sorted(set(sizes) - set(TRANSLATION_SIZES)):
        raise ConfigError(
            f"sizes has no field {', '.join(unknown)}. Its fields: {sorted(TRANSLATION_SIZES)}."
        )
    check_count("sizes.vocab_size", sizes["vocab_size"])
    tokenizer = _tokenizer(task, train, sizes["vocab_size"])
    sizes["vocab_size"] = len(tokenizer)
    config = experiment.method_config()
    if isinstance(config, LatentConfig):
        sizes |= config.sizes()
    if experiment.dropout >= 0:
        sizes["dropout"] = experiment.dropout
    return TranslationModel(TranslationConfig(**sizes)), tokenizer


def _tokenizer(task: TranslationTask, train: Part[Any], size: int) -> Tokenizer:
    """The subword tokenizer, from the cache if an earlier run has learned it."""
    path = cached_file(f"{task.name}-pieces", [VERSION, train.fingerprint, size], ".json")
    if path.exists():
        return read_subwords(path)
    learned = learn_subwords(task.texts(train.examples), size)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, lambda partial: learned.backend_tokenizer.save(str(partial)))
    return learned


QUESTION_VOCABULARY = 40_000
"""Largest vocabulary of questions."""

SMALL: Mapping[str, int] = {
    "embedding_size": 64,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "fused_size": 128,
}
TINY: Mapping[str, int] = {
    "embedding_size": 32,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 128,
    "fused_size": 64,
}
PAPER: Mapping[str, int] = {"hidden_size": 512}

VISUAL_SIZES = {"mcan": PAPER, "mcan-small": SMALL, "small": TINY}
"""Differences from the sizes of the MCAN paper, by model name."""

FROM_DATA = {"num_labels", "id2label", "label2id", "vocab_size", "image_size", "problem_type"}
"""Fields that the task determines."""


def make_visual_model(
    experiment: Experiment, task: Task[Any], train: Part[Any]
) -> tuple[Any, Tokenizer]:
    """The model and its tokenizer, which also stores the answer list."""
    if not isinstance(task, VqaTask) or not isinstance(train, VqaPart):
        raise ConfigError(
            f"task={task.name!r} has no images, which model={experiment.model!r} needs. Choose "
            "another model."
        )
    vectors = read_vectors(experiment.vectors) if experiment.vectors else None
    further = vectors.words if vectors else ()
    tokenizer = question_tokenizer(task.texts(train.examples), QUESTION_VOCABULARY, further)
    answers = task.answer_list(experiment.data, train)
    sizes = chosen_sizes(experiment)
    if vectors is not None:
        sizes |= {"embedding_size": vectors.size, "initializer_range": float(vectors.vectors.std())}
    config = McanConfig(
        **{**sizes, **train.images.model_fields(sizes)},
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        id2label=dict(enumerate(answers)),
        label2id={answer: number for number, answer in enumerate(answers)},
    )
    keep_choices(tokenizer, Choices(answers, train.images.regions(config), config.region_size))
    model: Any = McanForQuestionAnswering(config)
    if vectors is not None:
        model.set_vectors(vectors, tokenizer.get_vocab(), experiment.seed)
    return model, tokenizer


def chosen_sizes(experiment: Experiment) -> dict[str, Any]:
    """The sizes of the named model, updated by `Experiment.sizes`."""
    if experiment.model not in VISUAL_SIZES:
        raise ConfigError(
            f"model={experiment.model!r} takes no images. Choose one of {sorted(VISUAL_SIZES)}."
        )
    known = set(McanConfig().to_dict())
    for name, value in experiment.sizes.items():
        if name not in known or name in FROM_DATA:
            raise ConfigError(
                f"sizes.{name}={value!r} is not a size of {experiment.model!r}. Sizes are "
                f"{sorted(SMALL)}, region_size and stem_channels."
            )
    sizes: dict[str, Any] = {**VISUAL_SIZES[experiment.model], **experiment.sizes}
    return sizes if experiment.dropout < 0 else sizes | {"dropout": experiment.dropout}
