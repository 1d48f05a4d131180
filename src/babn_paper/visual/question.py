"""Answers questions about images, with uncertainty and attention maps, and draws Figure 3."""

from collections.abc import Callable, Sequence
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
from babn.prediction.sampling import evaluating
from babn.text import quiet
from babn_paper.experiments.run_folder import RunFolder
from babn_paper.experiments.training_state import TaskModel, load_task_model
from babn_paper.tasks.encoded import Batch
from babn_paper.tasks.task import without_labels
from babn_paper.tasks.vqa import VqaTask
from babn_paper.tasks.vqa_data import FeatureNoise, Pixels, RawImages, VqaPart
from babn_paper.tasks.vqa_features import MOST, feature_size, read_arrays
from babn_paper.tasks.vqa_images import read_image
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
    except ValueError as error:
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


EXAMPLES = 200
"""Number of test questions from which the questions of the figure are chosen."""


def draw(answer: VisualAnswer) -> Any:
    """The figure of an answer: image, attention maps and candidates."""
    from babn_paper.plots.questions import question_figure

    candidates = [(each.answer, each.probability, each.std) for each in answer.candidates]
    return question_figure(
        answer.question,
        candidates,
        answer.words,
        answer.word_map,
        answer.region_map,
        answer.picture,
        answer.boxes,
    )


def save_figure(answer: VisualAnswer, path: Path) -> Path:
    """Saves the figure of an answer."""
    from babn.plots import save

    return save(draw(answer), path)


def read_questions(task_model: TaskModel) -> VqaPart:
    """The test questions of the task."""
    found = task_model.task.read(task_model.experiment.data, "test")
    if not isinstance(found, VqaPart):
        raise ConfigError(
            f"task={task_model.task.name!r} has no images. Give a run of visual question answering."
        )
    return found


def answer_example(
    task_model: TaskModel, part: VqaPart, number: int, settings: QuestionSettings
) -> VisualAnswer:
    """Answers a question of the test data."""
    if not 0 <= number < len(part.examples):
        raise DataError(
            f"example={number} does not exist. Give a number from 0 to {len(part.examples) - 1}."
        )
    example = part.examples[number]
    picture = part.images.picture(example.image)
    if picture is not None and isinstance(part.images, RawImages):
        return answer_picture(task_model, picture, example.question, settings)
    given = part.images.lookup(torch.tensor([example.image]), 0).batch(torch.tensor([0]))
    boxes = part.images.boxes(example.image)
    return answer_question(task_model, given, example.question, settings, picture, boxes)


def most_and_least_confident(task_model: TaskModel, part: VqaPart) -> list[int]:
    """The numbers of the test questions with the most and the least confident answer."""
    count = min(EXAMPLES, len(part.examples))
    some = VqaPart(part.name, part.examples[:count], part.origin, part.fingerprint, part.images)
    data = task_model.task.encode(some, task_model.tokenizer, task_model.max_length, training=False)
    confidence = []
    for rows in torch.arange(count).split(50):
        batch = without_labels(data.to(task_model.device).batch(rows))
        with torch.no_grad(), evaluating(task_model.model):
            logits = task_model.task.output(task_model.model(**batch))
        confidence.append(logits.sigmoid().amax(-1).cpu())
    found = torch.cat(confidence)
    return [int(found.argmax()), int(found.argmin())]


def figure3(
    task_model: TaskModel,
    folder: Path,
    settings: QuestionSettings,
    numbers: Sequence[int],
    report: Callable[[str], None],
) -> list[Path]:
    """Draws test questions as the paper's Figure 3 does and returns the files.

    Args:
        task_model: The model.
        folder: Folder for the files.
        settings: Settings of the answers.
        numbers: Numbers of the questions; by default those with the most and the least confident
            answer.
        report: Receives a line for each file.
    """
    part = read_questions(task_model)
    chosen = {f"question-{number}": number for number in numbers}
    if not chosen:
        names = ("surest", "least-sure")
        chosen = dict(zip(names, most_and_least_confident(task_model, part), strict=True))
    paths = []
    for name, number in chosen.items():
        answer = answer_example(task_model, part, number, settings)
        paths.append(save_figure(answer, folder / f"figure3-{name}.pdf"))
        save_figure(answer, folder / f"figure3-{name}.png")
        best = answer.candidates[0].answer
        report(f"{paths[-1]}: question {number}, {answer.question!r}: {best}")
    return paths
