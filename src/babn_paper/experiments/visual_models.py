"""MCAN models for visual question answering, built with random weights."""

from collections.abc import Mapping
from typing import Any

from babn.errors import ConfigError
from babn_paper.experiments.experiment import Experiment
from babn_paper.models import McanConfig, McanForQuestionAnswering, read_vectors
from babn_paper.tasks.task import Part, Task, Tokenizer
from babn_paper.tasks.vqa import VqaTask
from babn_paper.tasks.vqa_data import VqaPart
from babn_paper.tasks.vqa_text import Choices, keep_choices, question_tokenizer

VOCABULARY = 40_000
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

SIZES = {"mcan": PAPER, "mcan-small": SMALL, "small": TINY}
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
    tokenizer = question_tokenizer(task.texts(train.examples), VOCABULARY, further)
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
    if experiment.model not in SIZES:
        raise ConfigError(
            f"model={experiment.model!r} takes no images. Choose one of {sorted(SIZES)}."
        )
    known = set(McanConfig().to_dict())
    for name, value in experiment.sizes.items():
        if name not in known or name in FROM_DATA:
            raise ConfigError(
                f"sizes.{name}={value!r} is not a size of {experiment.model!r}. Sizes are "
                f"{sorted(SMALL)}, region_size and stem_channels."
            )
    sizes: dict[str, Any] = {**SIZES[experiment.model], **experiment.sizes}
    return sizes if experiment.dropout < 0 else sizes | {"dropout": experiment.dropout}
