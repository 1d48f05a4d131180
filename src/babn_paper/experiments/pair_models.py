"""Models for two texts that are made on the spot, with vectors from a file or random ones."""

from typing import Any

from babn.text.word_tokenizer import word_tokenizer
from babn_paper.experiments.experiment import Experiment
from babn_paper.models import DecomposableConfig, EsimConfig, WordVectors, read_vectors
from babn_paper.tasks.task import Part, Task, Tokenizer

VOCABULARY = 40_000
"""The most words that a model knows."""

CONFIGS: dict[str, type[Any]] = {"decomposable": DecomposableConfig, "esim": EsimConfig}


def make_pair_model(
    experiment: Experiment, task: Task[Any], train: Part[Any]
) -> tuple[Any, Tokenizer]:
    """Model and tokenizer.

    The vocabulary is the words of the training texts. With vectors it is filled up with the first
    words of their file, which mean something to the model although it is not trained on them.
    """
    vectors = _read(experiment)
    further = vectors.words if vectors else ()
    tokenizer = word_tokenizer(task.texts(train.examples), VOCABULARY, further)
    sizes = _sizes(experiment, tokenizer)
    if vectors is None:
        return task.make_pair_model(CONFIGS[experiment.model], sizes), tokenizer
    sizes["embedding_size"] = vectors.size
    model: Any = task.make_pair_model(CONFIGS[experiment.model], sizes)
    model.set_vectors(vectors, tokenizer.get_vocab(), experiment.seed)
    return model, tokenizer


def _read(experiment: Experiment) -> WordVectors | None:
    """The vectors, of length 1 for decomposable attention, as in its paper."""
    if not experiment.vectors:
        return None
    vectors = read_vectors(experiment.vectors)
    return vectors.normalized() if experiment.model == "decomposable" else vectors


def _sizes(experiment: Experiment, tokenizer: Tokenizer) -> dict[str, Any]:
    """Fields of the configuration; each paper says whether training changes given vectors."""
    sizes = {
        "vocab_size": len(tokenizer),
        "fixed_vectors": bool(experiment.vectors) and experiment.model == "decomposable",
        "pad_token_id": tokenizer.pad_token_id,
        "cls_token_id": tokenizer.cls_token_id,
        "sep_token_id": tokenizer.sep_token_id,
    }
    return sizes if experiment.dropout < 0 else sizes | {"dropout": experiment.dropout}
