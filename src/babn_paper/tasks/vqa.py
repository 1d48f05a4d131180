"""Visual question answering: the tasks of the paper's Table 5, and your own questions.

Parts are `"train"`; `"dev"`, the questions about every twentieth training image, for choosing
settings; `"test"`; and `"noisy"`, the test set with Gaussian noise of variance 5 on the features of
image regions. `"noisy=V"` has noise of variance V. The noise is added to the features that the
model gets: those of the detector's files as they are, or the standardised outputs of the model's
convolutions. It is independent between examples and has a fixed seed.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import torch

from babn.errors import ConfigError, DataError
from babn_paper.tasks.encoded import Encoded, Lookup, Ragged
from babn_paper.tasks.own_files import OwnFiles
from babn_paper.tasks.own_texts import read_label
from babn_paper.tasks.reading import Row
from babn_paper.tasks.task import Outputs, Part, Task, Tokenizer
from babn_paper.tasks.text_task import encode_texts
from babn_paper.tasks.vqa2 import read_answers, read_vqa2
from babn_paper.tasks.vqa_data import FeatureNoise, RawImages, SoftLabels, VqaExample, VqaPart
from babn_paper.tasks.vqa_images import ENDINGS, read_images
from babn_paper.tasks.vqa_predictions import UNKNOWN, VqaPredictions, collected
from babn_paper.tasks.vqa_sources import Reader, read_daquar, read_easy
from babn_paper.tasks.vqa_text import choices_of, frequent, question_words

NOISE = 5.0
"""Variance of the noise in the paper."""

NOISE_SEED = 0


@dataclass(frozen=True)
class VqaTask(Task[VqaExample]):
    """A visual question answering task.

    Attributes:
        name: Name in configurations.
        title: Name in tables.
        reader: Reads the data.
        least: How many training questions must have an answer as their best one for it to be a
            possible answer.
        held_out: Whether some of the training images form a `"dev"` part.
        scores: Names of the scores in the paper's table.
        test_parts: Parts that a model is evaluated on after training.
        max_length: Maximum number of words of a question.
        cached: Not cached: questions are short, and images are files already.
        eval_batch_size: Questions per batch in evaluation.
    """

    name: str
    title: str
    reader: Reader
    least: int = 1
    held_out: bool = True
    scores: tuple[str, ...] = ("accuracy",)
    test_parts: tuple[str, ...] = ("test", "noisy", "dev")
    max_length: int = 14
    cached: bool = False
    eval_batch_size: int = 256
    own_models = ("mcan", "mcan-small", "small")

    def configured(self, options: Mapping[str, Any]) -> "VqaTask":
        """Returns the task with further noise levels to test at, given as variances in `noise`."""
        if unknown := sorted(set(options) - {"noise"}):
            raise ConfigError(f"options.{unknown[0]} is not known to {self.name!r}. Give noise.")
        levels = options.get("noise", [])
        if not isinstance(levels, list) or not all(isinstance(v, int | float) for v in levels):
            raise ConfigError(
                f"options.noise={levels!r} is invalid. Give variances, as in [1, 2, 10]."
            )
        further = tuple(f"noisy={variance:g}" for variance in levels)
        for part in further:
            noise_of(part)
        return replace(self, test_parts=(*self.test_parts, *further))

    def has(self, data: str, part: str) -> bool:
        """Whether the data has the part: VQA-v2 has no `"dev"`, all others have every part."""
        return part != "dev" or self.held_out

    def read(self, data: str, part: str) -> VqaPart:
        """Reads the questions of a part, with their images."""
        if data == "hub":
            raise DataError(f"data='hub' has no {self.title}. Give a folder, or builtin.")
        noise = noise_of(part)
        split = "test" if noise else part
        if split not in ("train", "dev", "test") or not self.has(data, part):
            raise DataError(
                f"{self.name!r} has no part {part!r}. Give train, dev, test, noisy, or noisy=V "
                "with a variance."
            )
        found = self.reader(data, "test" if split == "test" else "train")
        if split != "test" and self.held_out:
            found = found.some(part, held_out=split == "dev")
        return replace(found, name=part, noise=noise)

    def answer_list(self, data: str, train: Part[VqaExample]) -> list[str]:
        """Returns the possible answers, from a file or by their frequency in training."""
        found = read_answers(data) if self.name == "vqa2" else None
        found = found or frequent((example.best for example in train.examples), self.least)
        if len(found) < 2:
            raise DataError(
                f"{train.origin} has {len(found)} answers that occur {self.least} times. Give more "
                "questions."
            )
        return found

    def texts(self, examples: Sequence[VqaExample]) -> Iterator[str]:
        """Yields the questions."""
        return (example.question for example in examples)

    def encode(
        self, part: Part[VqaExample], tokenizer: Tokenizer, max_length: int, training: bool
    ) -> Encoded:
        """Encodes the words of questions; images and labels are looked up for each batch."""
        assert isinstance(part, VqaPart)
        texts = [(question_words(each.question),) for each in part.examples]
        return Encoded(
            encode_texts(texts, tokenizer, max_length), {}, lookups=lookups(part, tokenizer)
        )

    def predictions(
        self, part: Part[VqaExample], encoded: Encoded, outputs: Outputs
    ) -> VqaPredictions:
        """Returns the most probable answers, with their scores."""
        labels = next(each for each in encoded.lookups if isinstance(each, SoftLabels))
        kinds = [each.kind for each in part.examples]
        types = [each.question_type or UNKNOWN for each in part.examples]
        known = any(each.question_type for each in part.examples)
        return collected(outputs, labels, kinds, types if known else ())

    def load_predictions(self, folder: Path) -> VqaPredictions:
        """Reads what `VqaPredictions.save` wrote."""
        return VqaPredictions.load(folder)


def lookups(part: VqaPart, tokenizer: Tokenizer) -> list[Lookup]:
    """Returns the lookups of images, noise and labels of a part."""
    choices = choices_of(tokenizer)
    index = torch.tensor([each.image for each in part.examples])
    found = [part.images.lookup(index, choices.regions), soft_labels(part, choices.answers)]
    if part.noise:
        found.append(FeatureNoise(part.noise, choices.regions, choices.size, NOISE_SEED))
    return found


def soft_labels(part: VqaPart, answers: Sequence[str]) -> SoftLabels:
    """Returns the scores of the possible answers; other answers are left out."""
    numbers = {answer: number for number, answer in enumerate(answers)}
    known = [
        {numbers[answer]: score for answer, score in each.scores.items() if answer in numbers}
        for each in part.examples
    ]
    scores = torch.tensor([score for each in known for score in each.values()])
    return SoftLabels(Ragged.of([[*each] for each in known]), scores.float(), len(answers))


def noise_of(part: str) -> float:
    """Returns the variance of the noise of a part, given by its name."""
    if part == "noisy":
        return NOISE
    name, equals, value = part.partition("=")
    if name != "noisy" or not equals:
        return 0.0
    try:
        variance = float(value)
    except ValueError:
        variance = math.nan
    if not 0 < variance < math.inf:
        raise DataError(f"part={part!r} is invalid. Give a variance above 0, as in noisy=5.")
    return variance


EASY = VqaTask("easy-vqa", "easy-VQA", read_easy)
DAQUAR = VqaTask("daquar", "DAQUAR", read_daquar, least=2, max_length=24)
VQA2 = VqaTask("vqa2", "VQA-v2", read_vqa2, least=9, held_out=False, test_parts=("test", "noisy"))

HALVINGS = 4
"""Number of times that the model halves height and width: 96 pixels give 6 by 6 regions."""


def _unused(data: str, split: str) -> NoReturn:
    raise AssertionError("options name the files")


@dataclass(frozen=True)
class OwnImages(OwnFiles, VqaTask):
    """Questions about images of a folder; the possible answers are those of the training data.

    Attributes:
        text: Column of the question.
        label: Column of the answer.
        image: Column of the image's name, with or without ending.
        images: Folder or tar file with the images.
        size: Height and width that images are resized to.
    """

    text: str = "question"
    label: str = "answer"
    image: str = "image"
    images: str = ""
    size: int = 96

    further_options: ClassVar[tuple[str, ...]] = ("text", "label", "image", "images", "size")

    def check_ready(self) -> None:
        """Validates the options that every run needs."""
        super().check_ready()
        if not self.images:
            raise ConfigError("options.images is empty. Name the folder of images with --images.")
        if self.size < 2**HALVINGS:
            raise ConfigError(
                f"options.size={self.size} is too small. Give at least {2**HALVINGS} pixels."
            )

    def column_options(self) -> tuple[str, ...]:
        """Returns the options that name columns."""
        return ("image", "text", "label")

    def has(self, data: str, part: str) -> bool:
        """Whether the data has the part."""
        return part in self.tested_parts(data)

    def read(self, data: str, part: str) -> VqaPart:
        """Reads the questions of a part, with their images."""
        rows, origin, print_ = self.rows(data, part)
        names = tuple(sorted({self._name(row) for row in rows}))
        numbers = {name: number for number, name in enumerate(names)}
        pixels, digest = read_images(Path(self.images), names, (self.size, self.size))
        examples = [self._example(row, numbers[self._name(row)]) for row in rows]
        source = RawImages(pixels, names, HALVINGS)
        return VqaPart(part, examples, origin, f"{print_}-{digest}", source)

    def _example(self, row: Row, image: int) -> VqaExample:
        answer = read_label(row, self.label)
        return VqaExample(row.text(self.text), image, {answer: 1.0}, answer, _kind(answer))

    def _name(self, row: Row) -> str:
        """Returns the name of a row's image without its ending."""
        name = str(row.get(self.image) or "").strip()
        if not name:
            raise DataError(
                f"{row.place}: column {self.image!r} names no image. Fill it or drop the line."
            )
        return Path(name).stem if Path(name).suffix.lower() in ENDINGS else name


def _kind(answer: str) -> str:
    """Returns the kind of a question, by its answer."""
    if answer.lower() in ("yes", "no"):
        return "yes/no"
    return "number" if answer.isdigit() else "other"


OWN = OwnImages("vqa", "questions about images", _unused, test_parts=("dev", "test"), max_length=24)

TASKS = {task.name: task for task in (VQA2, EASY, DAQUAR, OWN)}
"""The tasks by name."""
