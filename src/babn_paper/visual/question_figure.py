"""Figures of answers to visual questions, and the paper's Figure 3."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from babn.errors import ConfigError, DataError
from babn.prediction.modes import evaluating
from babn_paper.experiments.training_state import TaskModel
from babn_paper.tasks.task import without_labels
from babn_paper.tasks.vqa_data import RawImages, VqaPart
from babn_paper.visual.question import (
    QuestionSettings,
    VisualAnswer,
    answer_picture,
    answer_question,
)

EXAMPLES = 200
"""Number of test questions from which those of the figure are chosen."""


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
