"""The translation model of an experiment, with a subword vocabulary of its training data."""

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
"""Size of the subword vocabulary, which both languages share."""

KNOWN = (
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
    sizes = {"vocab_size": VOCABULARY, **experiment.sizes}
    if unknown := sorted(set(sizes) - set(KNOWN)):
        raise ConfigError(f"sizes has no field {', '.join(unknown)}. Its fields: {sorted(KNOWN)}.")
    tokenizer = _tokenizer(task, train, _checked(sizes["vocab_size"]))
    sizes["vocab_size"] = len(tokenizer)
    config = experiment.method_config()
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
    """The subword tokenizer, from the cache if an earlier run has learned it."""
    content = [VERSION, train.fingerprint, size]
    digest = hashlib.sha256(repr(content).encode()).hexdigest()[:24]
    path = cache_folder() / f"{task.name}-pieces-{digest}.json"
    if path.exists():
        return read_subwords(path)
    learned = learn_subwords(task.texts(train.examples), size)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, lambda partial: learned.backend_tokenizer.save(str(partial)))
    return learned
