"""Answers one question about one image, with uncertainty and attention maps."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

import babn
from babn.errors import ConfigError, DataError
from babn.prediction.attention_maps import AttentionMap
from babn.text import quiet
from babn_paper.experiments.run_folder import RunFolder
from babn_paper.experiments.training_state import TaskModel, load_task_model
from babn_paper.tasks.encoded import Batch
from babn_paper.tasks.vqa import VqaTask
from babn_paper.tasks.vqa_data import FeatureNoise, Pixels
from babn_paper.tasks.vqa_features import MOST, feature_size
from babn_paper.tasks.vqa_images import read_image
from babn_paper.tasks.vqa_stores import DAMAGES, read_arrays
from babn_paper.tasks.vqa_text import choices_of, question_words

Picture = UInt8[np.ndarray, "height width 3"]


@dataclass(frozen=True)
class Candidate:
    """A possible answer.

    Attributes:
        answer: The answer.
        probability: Its probability, averaged over samples.
        std: Standard deviation of the probability over samples.
    """

    answer: str
    probability: float
    std: float


@dataclass(frozen=True)
class VisualAnswer:
    """A model's answer to a question about an image.

    Attributes:
        question: The question.
        words: The words that the model reads.
        notes: Remarks on words that it does not read.
        candidates: The most probable answers, in descending order.
        p_value: p-value of the test whether the samples agree on the first answer; NaN for one
            sample.
        mutual_information: Mutual information between answer and attention, in nats.
        word_map: Attention from words to words in the last layer, averaged over heads.
        word_weights: Attention from regions to words in the last layer, averaged over heads and
            regions.
        region_map: Attention from regions to regions in the last layer, averaged over heads and
            querying regions.
        picture: The image, if there is one.
        boxes: Corners of the regions in pixels, or rows and columns of a grid; `None` if unknown.
    """

    question: str
    words: list[str]
    notes: list[str]
    candidates: list[Candidate]
    p_value: float
    mutual_information: float
    word_map: AttentionMap
    word_weights: AttentionMap
    region_map: AttentionMap
    picture: Picture | None
    boxes: Float[np.ndarray, "region 4"] | tuple[int, int] | None


@dataclass(frozen=True)
class QuestionSettings:
    """Settings of an answer.

    Attributes:
        samples: Samples of attention; 1 for the posterior mean.
        noise: Variance of Gaussian noise that is added to the image features.
        seed: Seed of samples and noise.
        most: Number of candidates to return.
    """

    samples: int = 20
    noise: float = 0.0
    seed: int = 0
    most: int = 5


def load_run(folder: str | Path) -> TaskModel:
    """Loads the model of a finished run of visual question answering."""
    place = RunFolder(folder)
    experiment = place.experiment()
    model = place.trained_model()
    with quiet():
        task_model = load_task_model(experiment, model)
    if not isinstance(task_model.task, VqaTask):
        raise ConfigError(
            f"{folder} is a run of {experiment.task!r}, which has no images. Give a run of "
            "vqa, vqa2, easy-vqa or daquar."
        )
    return task_model


def answer_file(
    task_model: TaskModel, image: Path, question: str, settings: QuestionSettings
) -> VisualAnswer:
    """Answers a question about an image file, or an `.npz` file if the model reads features."""
    size = task_model.model.config.image_size  # type: ignore[union-attr]
    if size:
        if not image.is_file():
            raise DataError(f"image {image} does not exist. Give a JPEG or PNG file.")
        return answer_picture(task_model, read_image(image), question, settings)
    features, boxes = _read_features(image, choices_of(task_model.tokenizer).size)
    mask = torch.ones(features.shape[:2], dtype=torch.long)
    given = {"regions": features, "region_mask": mask}
    return answer_question(task_model, given, question, settings, None, boxes)


def answer_picture(
    task_model: TaskModel, picture: Picture, question: str, settings: QuestionSettings
) -> VisualAnswer:
    """Answers a question about an image, which is resized for the model."""
    config: Any = task_model.model.config
    height, width = config.image_size
    colours = torch.from_numpy(picture.copy()).movedim(-1, 0)[None].float()
    fitted = torch.nn.functional.interpolate(colours, (height, width), mode="area")
    pixels = fitted.round().to(torch.uint8).movedim(1, -1)
    given = Pixels(pixels, torch.tensor([0])).batch(torch.tensor([0]))
    return answer_question(task_model, given, question, settings, picture, config.grid)


def _read_features(path: Path, size: int) -> tuple[Tensor, Any]:
    try:
        x, boxes = read_arrays(path)
    except DAMAGES as error:
        raise DataError(
            f"image {path} holds no features: {error}. This model needs an .npz with x."
        ) from error
    if x.ndim != 2 or feature_size(x, boxes) != size or not np.isfinite(x).all():
        raise DataError(
            f"image {path} has features of shape {x.shape}. This model needs regions by {size}, "
            "of finite numbers."
        )
    x = x.T if x.shape[1] != size else x
    return torch.from_numpy(x[:MOST].copy())[None], None if boxes is None else boxes[:MOST]


def answer_question(
    task_model: TaskModel,
    given: Batch,
    question: str,
    settings: QuestionSettings,
    picture: Picture | None,
    boxes: Any,
) -> VisualAnswer:
    """Answers a question about an image that is given as arguments of the model.

    Args:
        task_model: The model.
        given: Arguments of the model for the image.
        question: The question.
        settings: Settings of the answer.
        picture: The image, for figures.
        boxes: Corners of its regions, or the shape of their grid.
    """
    choices = choices_of(task_model.tokenizer)
    words, notes = read_question(task_model, question)
    ids = task_model.tokenizer(" ".join(words), return_tensors="pt")
    batch = {**given, "input_ids": ids["input_ids"], "attention_mask": ids["attention_mask"]}
    if settings.noise:
        drawn = FeatureNoise(settings.noise, choices.regions, choices.size, settings.seed)
        batch |= drawn.batch(torch.tensor([0]))
    batch = {name: each.to(task_model.device) for name, each in batch.items()}
    found = babn.predict(task_model.model, batch, settings.samples, settings.seed)
    best = found.probs[0].topk(min(settings.most, len(choices.answers))).indices.tolist()
    maps = {each.name: each for each in babn.attention_maps(task_model.model, batch)}
    return VisualAnswer(
        question=question,
        words=words,
        notes=notes,
        candidates=[
            Candidate(choices.answers[i], float(found.probs[0, i]), float(found.std[0, i]))
            for i in best
        ],
        p_value=float(found.p_value[0]),
        mutual_information=float(found.mutual_information[0]),
        word_map=averaged(_last(maps, "question", "self"), queries=False),
        word_weights=averaged(_last(maps, "image", "cross")),
        region_map=averaged(_last(maps, "image", "self")),
        picture=picture,
        boxes=boxes,
    )


def read_question(task_model: TaskModel, question: str) -> tuple[list[str], list[str]]:
    """The words of a question that the model reads, and remarks on those that it does not."""
    words = question_words(question).split()
    vocabulary = task_model.tokenizer.get_vocab()
    unknown = [word for word in words if word not in vocabulary or word == "[UNK]"]
    if len(unknown) == len(words):
        raise DataError(
            f"question={question!r} has no word that the model knows. Use words of its training "
            "data."
        )
    notes = [f"unknown words: {', '.join(unknown)}"] if unknown else []
    if len(words) > task_model.max_length:
        notes.append(f"truncated to {task_model.max_length} words")
    return words[: task_model.max_length], notes


def _last(maps: dict[str, AttentionMap], side: str, kind: str) -> AttentionMap:
    names = [name for name in maps if f".{side}." in name and f".{kind}_attention" in name]
    return maps[names[-1]]


def averaged(map: AttentionMap, queries: bool = True) -> AttentionMap:
    """A map averaged over heads, and over queries if `queries` is set."""
    axes = [1, 2] if queries else [1]
    mean = map.mean.double().mean(axes, keepdim=True)
    spread = (map.mean * map.relative_std).double().mean(axes, keepdim=True)
    return AttentionMap(map.name, mean, spread / mean.clamp(min=1e-30))
