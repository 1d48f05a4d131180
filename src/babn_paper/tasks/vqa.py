"""Questions about images, the tasks of the paper's Table 5.

Parts are `"train"`; `"dev"`, the questions about every twentieth training image, for choosing
settings; `"test"`; and `"noisy"`, the same with Gaussian noise of variance 5 on the features of
image regions. `"noisy=V"` is the same with variance V. The noise is added to the features as the
model gets them: those of the detector's files as they are, or those of the model's convolutions,
which are standardised. It is independent for every example and always the same for one.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from babn.errors import ConfigError, DataError
from babn.prediction.predict import find_logits
from babn_paper.tasks.encoded import Encoded
from babn_paper.tasks.lookups import FeatureNoise, Lookup, SoftLabels
from babn_paper.tasks.ragged import Ragged
from babn_paper.tasks.task import Asked, Part, Task, Tokenizer
from babn_paper.tasks.text_encoding import encode_texts
from babn_paper.tasks.vqa2 import read_answers, read_vqa2
from babn_paper.tasks.vqa_answers import VqaAnswers, collected
from babn_paper.tasks.vqa_data import VqaExample, VqaPart
from babn_paper.tasks.vqa_rules import frequent
from babn_paper.tasks.vqa_sources import Reader, read_daquar, read_easy
from babn_paper.tasks.vqa_types import UNKNOWN
from babn_paper.tasks.vqa_vocabulary import choices_of, question_words

NOISE = 5.0
"""Variance of the paper's noise."""

NOISE_SEED = 0


@dataclass(frozen=True)
class VqaTask(Task[VqaExample]):
    """A task of questions about images.

    Attributes:
        name: In configurations.
        title: In tables.
        reader: Reads the data.
        least: How often an answer has to be the best one in training, to be chosen from.
        held_out: Whether some of the training images make a `"dev"` part.
        scores: Names of the measures that the paper's table shows.
        test_parts: Parts that a model is tested on after training.
        max_length: Words at which questions are cut.
        cached: Questions are short, and images are files already.
        asked_together: Questions in a batch of test data.
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
    asked_together: int = 256

    def configured(self, options: Mapping[str, Any]) -> "VqaTask":
        """The task with further levels of noise to be tested at, as variances in `noise`."""
        if unknown := sorted(set(options) - {"noise"}):
            raise ConfigError(f"options.{unknown[0]} is not known to {self.name!r}. Give noise.")
        levels = options.get("noise", [])
        if not isinstance(levels, list) or not all(isinstance(v, int | float) for v in levels):
            raise ConfigError(
                f"options.noise={levels!r} is not possible. Give variances, as in [1, 2, 10]."
            )
        further = tuple(f"noisy={variance:g}" for variance in levels)
        for part in further:
            noise_of(part)
        return replace(self, test_parts=(*self.test_parts, *further))

    def has(self, data: str, part: str) -> bool:
        """Whether there is the part: all but `"dev"` of VQA-v2, whose training set stays whole."""
        return part != "dev" or self.held_out

    def read(self, data: str, part: str) -> VqaPart:
        """The questions of a part, with their images."""
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
        """The answers to choose from: those of a file, or the frequent ones of training."""
        found = read_answers(data) if self.name == "vqa2" else None
        found = found or frequent((example.best for example in train.examples), self.least)
        if len(found) < 2:
            raise DataError(
                f"{train.origin} has {len(found)} answers that occur {self.least} times. Give more "
                "questions."
            )
        return found

    def texts(self, examples: Sequence[VqaExample]) -> Iterator[str]:
        """The questions."""
        return (example.question for example in examples)

    def load_model(self, name: str, **settings: Any) -> nn.Module:
        """There are no pretrained models."""
        self._refuse(name)

    def make_model(self, sizes: Mapping[str, Any]) -> nn.Module:
        """There is no such model for images."""
        self._refuse("albert-base")

    def _refuse(self, name: str) -> NoReturn:
        raise ConfigError(
            f"model={name!r} knows no images, which {self.name!r} asks about. Give mcan, "
            "mcan-small or small."
        )

    def encode(
        self, part: Part[VqaExample], tokenizer: Tokenizer, max_length: int, training: bool
    ) -> Encoded:
        """Words of questions as tensors; images and answers are looked up for each batch."""
        assert isinstance(part, VqaPart)
        texts = [(question_words(each.question),) for each in part.examples]
        return Encoded(
            encode_texts(texts, tokenizer, max_length), {}, lookups=lookups(part, tokenizer)
        )

    def output(self, output: Any) -> Tensor:
        """The logits."""
        return find_logits(output)

    def answers(self, part: Part[VqaExample], encoded: Encoded, asked: Asked) -> VqaAnswers:
        """The most probable answers, with their scores."""
        labels = next(each for each in encoded.lookups if isinstance(each, SoftLabels))
        kinds = [each.kind for each in part.examples]
        types = [each.question_type or UNKNOWN for each in part.examples]
        known = any(each.question_type for each in part.examples)
        return collected(asked, labels, kinds, types if known else ())

    def load_answers(self, folder: Path) -> VqaAnswers:
        """Reads what `VqaAnswers.save` wrote."""
        return VqaAnswers.load(folder)


def lookups(part: VqaPart, tokenizer: Tokenizer) -> list[Lookup]:
    """Images, noise and labels of the examples of a part."""
    choices = choices_of(tokenizer)
    index = torch.tensor([each.image for each in part.examples])
    found = [part.images.lookup(index, choices.regions), soft_labels(part, choices.answers)]
    if part.noise:
        found.append(FeatureNoise(part.noise, choices.regions, choices.size, NOISE_SEED))
    return found


def soft_labels(part: VqaPart, answers: Sequence[str]) -> SoftLabels:
    """Scores of the answers to choose from; one that is not among them counts for nothing."""
    numbers = {answer: number for number, answer in enumerate(answers)}
    known = [
        {numbers[answer]: score for answer, score in each.scores.items() if answer in numbers}
        for each in part.examples
    ]
    scores = torch.tensor([score for each in known for score in each.values()])
    return SoftLabels(Ragged.of([[*each] for each in known]), scores.float(), len(answers))


def noise_of(part: str) -> float:
    """The variance of noise that a part's name stands for."""
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
        raise DataError(f"part={part!r} is not possible. Give a variance above 0, as in noisy=5.")
    return variance


EASY = VqaTask("easy-vqa", "easy-VQA", read_easy)
DAQUAR = VqaTask("daquar", "DAQUAR", read_daquar, least=2, max_length=24)
VQA2 = VqaTask("vqa2", "VQA-v2", read_vqa2, least=9, held_out=False, test_parts=("test", "noisy"))

TASKS = {task.name: task for task in (VQA2, EASY, DAQUAR)}
"""The tasks by name."""
