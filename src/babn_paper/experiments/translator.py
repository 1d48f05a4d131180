"""The translation model of an experiment, with a vocabulary learnt from its training data."""

import hashlib
from typing import Any

from babn.errors import ConfigError
from babn.files import replace_file
from babn_paper.experiments.cache import cache_folder
from babn_paper.experiments.experiment import Experiment
from babn_paper.experiments.latent import LatentConfig
from babn_paper.models import TranslationConfig, TranslationModel
from babn_paper.tasks.task import Part, Task, Tokenizer
from babn_paper.tasks.translation.subwords import learn_subwords, read_subwords
from babn_paper.tasks.translation.task import TranslationTask

VOCABULARY = 14_000
"""Pieces of words, of both languages together."""

KNOWN = (
    "vocab_size",
    "embedding_size",
    "encoder_size",
    "decoder_size",
    "attention_size",
    "layers",
    "initializer_range",
    "tie_word_embeddings",
)
"""Fields of the model's configuration that an experiment may set as sizes."""

VERSION = 1
"""Changes when vocabularies are learnt differently."""


def make_translator(
    experiment: Experiment, task: Task[Any], train: Part[Any]
) -> tuple[Any, Tokenizer]:
    """Model and tokenizer."""
    if not isinstance(task, TranslationTask):
        raise ConfigError(
            f"model={experiment.model!r} translates, and task={task.name!r} is no translation. "
            "Give another model."
        )
    sizes = {"vocab_size": VOCABULARY, **experiment.sizes}
    if unknown := sorted(set(sizes) - set(KNOWN)):
        raise ConfigError(f"sizes has no field {', '.join(unknown)}. Its fields: {sorted(KNOWN)}.")
    tokenizer = _tokenizer(task, train, _checked(sizes["vocab_size"]))
    sizes["vocab_size"] = len(tokenizer)
    config = experiment.rule_config()
    if isinstance(config, LatentConfig):
        sizes |= config.sizes()
    if experiment.dropout >= 0:
        sizes["dropout"] = experiment.dropout
    return TranslationModel(TranslationConfig(**sizes)), tokenizer


def _checked(size: Any) -> int:
    if not isinstance(size, int) or size < 1:
        raise ConfigError(f"sizes.vocab_size={size!r} is not possible. Give a whole number.")
    return size


def _tokenizer(task: TranslationTask, train: Part[Any], size: int) -> Tokenizer:
    """The vocabulary, from the cache where another run has learnt it before."""
    content = [VERSION, train.fingerprint, size]
    digest = hashlib.sha256(repr(content).encode()).hexdigest()[:24]
    path = cache_folder() / f"{task.name}-pieces-{digest}.json"
    if path.exists():
        return read_subwords(path)
    learnt = learn_subwords(task.texts(train.examples), size)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, lambda partial: learnt.backend_tokenizer.save(str(partial)))
    return learnt
