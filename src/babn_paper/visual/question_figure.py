"""Figures of questions about images, and the paper's Figure 3."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from babn.errors import ConfigError, DataError
from babn.prediction.modes import evaluating
from babn_paper.experiments.training_state import TaskModel
from babn_paper.tasks.task import without_answers
from babn_paper.tasks.vqa_data import RawImages, VqaPart
from babn_paper.visual.question import Asking, Look, ask_picture, look_at

EXAMPLES = 200
"""Test questions among which the figure's are chosen."""


def draw(look: Look) -> Any:
    """The figure of a look."""
    from babn.plots import question_figure

    answers = [(each.answer, each.probability, each.std) for each in look.answers]
    return question_figure(
        look.question,
        answers,
        look.words,
        look.word_map,
        look.region_map,
        look.picture,
        look.boxes,
    )


def save_figure(look: Look, path: Path) -> Path:
    """Draws a look into a file."""
    from babn.plots import save

    return save(draw(look), path)


def questions_of(task_model: TaskModel) -> VqaPart:
    """The questions that the run's model was tested on."""
    found = task_model.task.read(task_model.experiment.data, "test")
    if not isinstance(found, VqaPart):
        raise ConfigError(f"task={task_model.task.name!r} has no images. Give a run that has some.")
    return found


def ask_example(task_model: TaskModel, part: VqaPart, number: int, asking: Asking) -> Look:
    """Asks a question of the test data."""
    if not 0 <= number < len(part.examples):
        raise DataError(
            f"example={number} does not exist: there are 0 to {len(part.examples) - 1}."
        )
    example = part.examples[number]
    picture = part.images.picture(example.image)
    if picture is not None and isinstance(part.images, RawImages):
        return ask_picture(task_model, picture, example.question, asking)
    given = part.images.lookup(torch.tensor([example.image]), 0).batch(torch.tensor([0]))
    return look_at(
        task_model, given, example.question, asking, picture, part.images.boxes(example.image)
    )


def surest_and_least_sure(task_model: TaskModel, part: VqaPart) -> list[int]:
    """Among the first test questions, the one with the clearest answer and the least clear one."""
    count = min(EXAMPLES, len(part.examples))
    some = VqaPart(part.name, part.examples[:count], part.origin, part.fingerprint, part.images)
    data = task_model.task.encode(some, task_model.tokenizer, task_model.max_length, training=False)
    confidence = []
    for rows in torch.arange(count).split(50):
        batch = without_answers(data.to(task_model.device).batch(rows))
        with torch.no_grad(), evaluating(task_model.model):
            logits = task_model.task.output(task_model.model(**batch))
        confidence.append(logits.sigmoid().amax(-1).cpu())
    found = torch.cat(confidence)
    return [int(found.argmax()), int(found.argmin())]


def figure3(
    task_model: TaskModel,
    folder: Path,
    asking: Asking,
    numbers: Sequence[int],
    tell: Callable[[str], None],
) -> list[Path]:
    """Draws test questions as the paper's Figure 3 does, and returns the files.

    Args:
        task_model: The model.
        folder: For the files.
        asking: How to ask.
        numbers: Of the questions; if there are none, the surest one and the least sure are drawn.
        tell: Is told of each file.
    """
    part = questions_of(task_model)
    chosen = {f"question-{number}": number for number in numbers}
    if not chosen:
        names = ("surest", "least-sure")
        chosen = dict(zip(names, surest_and_least_sure(task_model, part), strict=True))
    paths = []
    for name, number in chosen.items():
        look = ask_example(task_model, part, number, asking)
        paths.append(save_figure(look, folder / f"figure3-{name}.pdf"))
        save_figure(look, folder / f"figure3-{name}.png")
        tell(f"{paths[-1]}: question {number}, {look.question!r}: {look.answers[0].answer}")
    return paths
