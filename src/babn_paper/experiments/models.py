"""The model of an experiment: pretrained, or made on the spot."""

from typing import Any

import torch
from torch import nn

from babn.errors import ConfigError, one_line
from babn.text.pretrained import model_source
from babn.text.word_tokenizer import word_tokenizer
from babn_paper.experiments.experiment import PAIR_MODELS, TRANSLATOR, VISUAL_MODELS, Experiment
from babn_paper.experiments.pair_models import make_pair_model
from babn_paper.experiments.translator import make_translator
from babn_paper.experiments.visual_models import make_visual_model
from babn_paper.pretrained import ALBERT_BASE, small_sizes
from babn_paper.tasks.task import Part, Task, Tokenizer
from babn_paper.tasks.vqa import VqaTask

MADE = ("small", "albert-base")
"""Models that are made on the spot with random weights."""

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
"""What transformers' configurations call the rates, by family."""


def load_model(
    experiment: Experiment, task: Task[Any], train: Part[Any], max_length: int
) -> tuple[nn.Module, Tokenizer]:
    """Model and tokenizer, the same for the same seed."""
    torch.manual_seed(experiment.seed)
    if experiment.model in VISUAL_MODELS or (
        isinstance(task, VqaTask) and experiment.model in MADE
    ):
        return make_visual_model(experiment, task, train)
    if experiment.model in PAIR_MODELS:
        return make_pair_model(experiment, task, train)
    if experiment.model == TRANSLATOR:
        return make_translator(experiment, task, train)
    if experiment.model in MADE:
        tokenizer = word_tokenizer(task.texts(train.examples))
        small = experiment.model == "small"
        sizes = small_sizes(len(tokenizer), max_length) if small else ALBERT_BASE
        return task.make_model({**sizes, **_of_albert(_wanted_rates(experiment))}), tokenizer
    source = model_source(experiment.model)
    return task.load_model(source, **dropout_settings(experiment, source)), load_tokenizer(source)


def load_tokenizer(model: str) -> Tokenizer:
    """The tokenizer of a folder or of a model on the hub."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(model)
    except Exception as error:  # damage shows in tokenizers as a bare Exception
        raise ConfigError(f"model={model!r} gives no tokenizer: {one_line(error)}") from error


def dropout_settings(experiment: Experiment, source: str) -> dict[str, float]:
    """The fields of the model's configuration that hold its dropout rates, with the new ones."""
    wanted = _wanted_rates(experiment)
    if not wanted:
        return {}
    config = _read_config(source)
    found = {name: rate for name, rate in wanted.items() if hasattr(config, name)}
    if not found:
        raise ConfigError(
            f"model={experiment.model!r} has no dropout rate that babn knows. Leave dropout and "
            "classifier_dropout at -1."
        )
    return found


def _wanted_rates(experiment: Experiment) -> dict[str, float]:
    """Dropout rates under all the names that models have for them."""
    return {
        name: rate
        for names, rate in (
            (ENCODER_DROPOUT, experiment.dropout),
            (CLASSIFIER_DROPOUT, experiment.classifier_dropout),
        )
        if rate >= 0
        for name in names
    }


def _of_albert(rates: dict[str, float]) -> dict[str, float]:
    """Those that ALBERT has, which models that are made here are."""
    from transformers import AlbertConfig

    config = AlbertConfig()
    return {name: rate for name, rate in rates.items() if hasattr(config, name)}


def _read_config(model: str) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise ConfigError(f"model={model!r} cannot be read: {error}") from error
