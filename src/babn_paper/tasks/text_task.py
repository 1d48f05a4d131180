"""Tasks that ask one text, or a pair of texts, for a class or a number."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers import (
    AlbertConfig,
    AlbertForSequenceClassification,
    AutoModelForSequenceClassification,
)

from babn.errors import DataError
from babn.evaluation import Evaluation
from babn.prediction.predict import find_logits
from babn_paper.pretrained import load_pretrained
from babn_paper.tasks.encoded import Encoded
from babn_paper.tasks.hub import read_hub
from babn_paper.tasks.lines import Row, find_file, find_files, fingerprint, read_rows, task_folder
from babn_paper.tasks.targets import Target
from babn_paper.tasks.task import Asked, Part, Task, Tokenizer
from babn_paper.tasks.text_answers import TextAnswers, evaluated
from babn_paper.tasks.text_encoding import encode_texts

SPLITS = {"train": "train", "dev": "validation", "test": "test"}


@dataclass(frozen=True, slots=True)
class TextExample:
    """One text, or a pair of texts, and what it is asked for.

    Attributes:
        texts: The text, or the two.
        label: The number of the class, or the number that is asked for.
    """

    texts: tuple[str, ...]
    label: float


@dataclass(frozen=True)
class TextTask(Task[TextExample]):
    """A task of texts or pairs of texts.

    Attributes:
        name: In configurations and folders, and on the hub.
        title: In tables.
        columns: Where the texts stand.
        target: What they are asked for.
        scores: Names of the measures that the paper's table shows.
        further: Names of the other official ones.
        hub: The data set on the hub that holds the task.
        splits: What the hub calls each part.
        names: What the files of a part may be called, if not like the part.
        test_parts: Parts that a model is tested on after training.
        max_length: The most tokens that the task needs.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    target: Target
    scores: tuple[str, ...] = ("accuracy",)
    further: tuple[str, ...] = ()
    hub: str = "nyu-mll/glue"
    splits: Mapping[str, str] = field(default_factory=lambda: SPLITS)
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    test_parts: tuple[str, ...] = ("dev",)
    max_length: int = 128

    def has(self, data: str, part: str) -> bool:
        """Whether the hub or the folder has the part."""
        if data == "hub":
            return part in self.splits
        return bool(find_files(self._folder(data), part, names=self.names.get(part, ())))

    def read(self, data: str, part: str) -> Part[TextExample]:
        """The examples of a part, each with its texts and a known label."""
        rows, origin, print_ = self.rows(data, part)
        return Part(part, [self.example(row) for row in rows], origin, print_)

    def rows(self, data: str, part: str) -> tuple[list[Row], str, str]:
        """The lines of a part as they stand, where they were read, and their fingerprint."""
        return self._hub(part) if data == "hub" else self._files(data, part)

    def example(self, row: Row) -> TextExample:
        """What a line says, checked."""
        return TextExample(read_texts(row, self.columns), self.target.read(row))

    def texts(self, examples: Sequence[TextExample]) -> Iterator[str]:
        """All texts, pair after pair."""
        return (text for example in examples for text in example.texts)

    def load_model(self, name: str, **settings: Any) -> nn.Module:
        """The pretrained model with a classifier, or with one output for a number."""
        return load_pretrained(
            AutoModelForSequenceClassification, name, self.target.head(), settings
        )

    def make_model(self, sizes: Mapping[str, Any]) -> nn.Module:
        """An ALBERT with random weights, and with a classifier or one output for a number."""
        return AlbertForSequenceClassification(AlbertConfig(**sizes, **self.target.head()))

    def make_pair_model(self, config: type[Any], sizes: Mapping[str, Any]) -> nn.Module:
        """A model for two texts, with a classifier or one output for a number."""
        if len(self.columns) != 2:
            return super().make_pair_model(config, sizes)
        made = config(**sizes, **self.target.head())
        model: nn.Module = AutoModelForSequenceClassification.from_config(made)
        return model

    def encode(
        self, part: Part[TextExample], tokenizer: Tokenizer, max_length: int, training: bool
    ) -> Encoded:
        """Examples as tensors, with labels also outside training, for the scores."""
        ragged = encode_texts([each.texts for each in part.examples], tokenizer, max_length)
        labels = self.target.tensor([each.label for each in part.examples])
        return Encoded(ragged, {"labels": labels})

    def output(self, output: Any) -> Tensor:
        """The logits."""
        return find_logits(output)

    def answers(self, part: Part[TextExample], encoded: Encoded, asked: Asked) -> TextAnswers:
        """The answers in the order of the data, with the labels."""
        return self._judged(evaluated(self, part, encoded, asked, self.target.activation))

    def load_answers(self, folder: Path) -> TextAnswers:
        """Reads what `TextAnswers.save` wrote."""
        return self._judged(Evaluation.load(folder))

    def _judged(self, evaluation: Evaluation) -> TextAnswers:
        return TextAnswers(evaluation, self.scores + self.further)

    def _folder(self, data: str) -> Path:
        own = files("babn_paper.data").joinpath("glue")
        return task_folder(str(own) if data == "builtin" else data, self.name)

    def _files(self, data: str, part: str) -> tuple[list[Row], str, str]:
        path = find_file(self._folder(data), part, names=self.names.get(part, ()))
        origin = data if data == "builtin" else str(path)
        return read_rows(path), origin, fingerprint(path)

    def _hub(self, part: str) -> tuple[list[Row], str, str]:
        if part not in self.splits:
            raise DataError(
                f"part={part!r} of {self.name!r} is not on the hub. Give one of "
                f"{list(self.splits)}."
            )
        rows, print_ = read_hub(self.hub, self.name, self.splits[part])
        return rows, f"hub:{self.hub}", print_


def read_texts(row: Row, columns: Sequence[str]) -> tuple[str, ...]:
    """The texts of a row, one of which may be empty."""
    texts = tuple(row.get(column) for column in columns)
    # A few questions of QQP are empty, and the official scores count them.
    if not all(isinstance(text, str) for text in texts) or not "".join(texts).strip():
        raise DataError(
            f"{row.place}: {' and '.join(columns)} hold no text. Fill or drop the line."
        )
    return texts
