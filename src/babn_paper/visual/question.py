"""One question about one image: the answers, how sure they are, and where the model looked."""

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
from babn.text.pretrained import quiet
from babn_paper.experiments.run_folder import RunError, RunFolder
from babn_paper.experiments.training_state import TaskModel, load_task_model
from babn_paper.tasks.encoded import Batch
from babn_paper.tasks.lookups import FeatureNoise, Pixels
from babn_paper.tasks.vqa import VqaTask
from babn_paper.tasks.vqa_features import MOST, feature_size
from babn_paper.tasks.vqa_images import read_image
from babn_paper.tasks.vqa_stores import DAMAGES, read_arrays
from babn_paper.tasks.vqa_vocabulary import choices_of, question_words

Picture = UInt8[np.ndarray, "height width 3"]


@dataclass(frozen=True)
class Possible:
    """An answer with its probability, and the standard deviation of that over samples."""

    answer: str
    probability: float
    std: float


@dataclass(frozen=True)
class Look:
    """What a model makes of a question about an image.

    Attributes:
        question: As it was asked.
        words: As the model reads it.
        notes: What the model could not read.
        answers: The most probable ones, the first one first.
        p_value: Of the test whether the samples agree on the first answer; NaN for one sample.
        information: Mutual information of samples and answers, in nats.
        word_map: Attention of words to words in the last layer, heads averaged.
        word_weights: Attention of all regions to each word in the last layer, and its std/mean.
        region_map: Attention of all regions together to each region in the last layer.
        picture: The image, if there is one.
        boxes: Corners of the regions in pixels, or rows and columns of a grid; `None` if unknown.
    """

    question: str
    words: list[str]
    notes: list[str]
    answers: list[Possible]
    p_value: float
    information: float
    word_map: AttentionMap
    word_weights: AttentionMap
    region_map: AttentionMap
    picture: Picture | None
    boxes: Float[np.ndarray, "region 4"] | tuple[int, int] | None


@dataclass(frozen=True)
class Asking:
    """How a model is asked.

    Attributes:
        samples: Samples of attention; 1 asks at the posterior mean.
        noise: Variance of noise on image features.
        seed: Decides samples and noise.
        most: Answers that are told.
    """

    samples: int = 20
    noise: float = 0.0
    seed: int = 0
    most: int = 5


def load_run(folder: str | Path) -> TaskModel:
    """The model of a finished run of a task with images."""
    place = RunFolder(folder)
    experiment = place.experiment()
    if not place.model.is_dir():
        raise RunError(f"{folder} has no model. Finish it with babn train --resume.")
    with quiet():
        task_model = load_task_model(experiment, place.model)
    if not isinstance(task_model.task, VqaTask):
        raise ConfigError(
            f"{folder} is a run of {experiment.task!r}, which has no images. Give one of vqa2, "
            "easy-vqa or daquar."
        )
    return task_model


def ask_file(task_model: TaskModel, image: Path, question: str, asking: Asking) -> Look:
    """Asks about an image file, or about an `.npz` with features for a model that needs those."""
    size = task_model.model.config.image_size  # type: ignore[union-attr]
    if size:
        if not image.is_file():
            raise DataError(f"image {image} does not exist. Give a JPEG or PNG file.")
        return ask_picture(task_model, read_image(image), question, asking)
    features, boxes = _read_features(image, choices_of(task_model.tokenizer).size)
    mask = torch.ones(features.shape[:2], dtype=torch.long)
    given = {"regions": features, "region_mask": mask}
    return look_at(task_model, given, question, asking, None, boxes)


def ask_picture(task_model: TaskModel, picture: Picture, question: str, asking: Asking) -> Look:
    """Asks about an image, which is brought to the size that the model knows."""
    config: Any = task_model.model.config
    height, width = config.image_size
    colours = torch.from_numpy(picture.copy()).movedim(-1, 0)[None].float()
    fitted = torch.nn.functional.interpolate(colours, (height, width), mode="area")
    pixels = fitted.round().to(torch.uint8).movedim(1, -1)
    given = Pixels(pixels, torch.tensor([0])).batch(torch.tensor([0]))
    return look_at(task_model, given, question, asking, picture, config.grid)


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


def look_at(
    task_model: TaskModel,
    given: Batch,
    question: str,
    asking: Asking,
    picture: Picture | None,
    boxes: Any,
) -> Look:
    """Asks about an image as the model takes it.

    Args:
        task_model: The model.
        given: The image, as arguments of the model.
        question: The question.
        asking: How to ask.
        picture: The image to look at.
        boxes: Where its regions are.
    """
    choices = choices_of(task_model.tokenizer)
    words, notes = read_question(task_model, question)
    ids = task_model.tokenizer(" ".join(words), return_tensors="pt")
    batch = {**given, "input_ids": ids["input_ids"], "attention_mask": ids["attention_mask"]}
    if asking.noise:
        drawn = FeatureNoise(asking.noise, choices.regions, choices.size, asking.seed)
        batch |= drawn.batch(torch.tensor([0]))
    batch = {name: each.to(task_model.device) for name, each in batch.items()}
    found = babn.predict(task_model.model, batch, asking.samples, asking.seed, recenter=False)
    best = found.probs[0].topk(min(asking.most, len(choices.answers))).indices.tolist()
    maps = {each.name: each for each in babn.attention_maps(task_model.model, batch)}
    return Look(
        question=question,
        words=words,
        notes=notes,
        answers=[
            Possible(choices.answers[i], float(found.probs[0, i]), float(found.std[0, i]))
            for i in best
        ],
        p_value=float(found.p_value[0]),
        information=float(found.mutual_information[0]),
        word_map=together(_last(maps, "question", "self"), queries=False),
        word_weights=together(_last(maps, "image", "cross")),
        region_map=together(_last(maps, "image", "self")),
        picture=picture,
        boxes=boxes,
    )


def read_question(task_model: TaskModel, question: str) -> tuple[list[str], list[str]]:
    """The words of a question that the model reads, and what it does not."""
    words = question_words(question).split()
    vocabulary = task_model.tokenizer.get_vocab()
    unknown = [word for word in words if word not in vocabulary or word == "[UNK]"]
    if len(unknown) == len(words):
        raise DataError(
            f"question={question!r} has no word that the model knows. Ask in words of its training "
            "data."
        )
    notes = [f"not known: {', '.join(unknown)}"] if unknown else []
    if len(words) > task_model.max_length:
        notes.append(f"cut after {task_model.max_length} words")
    return words[: task_model.max_length], notes


def _last(maps: dict[str, AttentionMap], side: str, kind: str) -> AttentionMap:
    names = [name for name in maps if f".{side}." in name and f".{kind}_attention" in name]
    return maps[names[-1]]


def together(map: AttentionMap, queries: bool = True) -> AttentionMap:
    """A map with heads made one, and queries as well: means, and std/mean by weight."""
    axes = [1, 2] if queries else [1]
    mean = map.mean.double().mean(axes, keepdim=True)
    spread = (map.mean * map.relative_std).double().mean(axes, keepdim=True)
    return AttentionMap(map.name, mean, spread / mean.clamp(min=1e-30))
