"""Classification, regression and multiple choice on your own texts."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import nn

from babn.errors import ConfigError, DataError
from babn.prediction.stored_settings import set_output_units
from babn_paper.tasks.encoded import Encoded
from babn_paper.tasks.own_files import OwnFiles
from babn_paper.tasks.reading import Row
from babn_paper.tasks.targets import Classes, Number, Target
from babn_paper.tasks.task import Part, Tokenizer
from babn_paper.tasks.text_task import MultipleChoiceTask, TextExample, TextTask, read_texts

ANY_NUMBER = Number(-1e30, 1e30)


class NamedClasses(Classes):
    """Classes given by name only, so that names may be numbers."""

    def parse(self, value: str, place: str) -> float:
        """Returns the index of the class."""
        if value not in self.names:
            raise DataError(
                f"{place} is not a class of the training data. Give one of {list(self.names)}."
            )
        return self.names.index(value)


def read_label(row: Row, column: str) -> str:
    """Returns the label of a row as text; raises an error if it is empty."""
    value = row.get(column)
    if isinstance(value, list | dict):
        raise DataError(f"{row.place}: {column}={value!r} is not a label. Give a text or a number.")
    missing = value is None or (isinstance(value, float) and math.isnan(value))
    label = "" if missing else str(value).strip()
    if not label:
        raise DataError(
            f"{row.place}: the label in column {column!r} is empty. Fill it or drop the line."
        )
    return label


@dataclass(frozen=True)
class OwnTexts(OwnFiles, TextTask):
    """A task on texts or pairs of texts.

    Attributes:
        text: Column of the text.
        text_pair: Column of the second text; empty if there is none.
        label: Column of the label.
    """

    name: str = ""
    text: str = "text"
    text_pair: str = ""
    label: str = "label"

    further_options: ClassVar[tuple[str, ...]] = ("text", "text_pair", "label")
    scores = ("accuracy",)
    test_parts = ("dev", "test")

    @property
    def title(self) -> str:  # type: ignore[override]
        """Name in tables."""
        return self.name

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the texts."""
        return (self.text, self.text_pair) if self.text_pair else (self.text,)

    def column_options(self) -> tuple[str, ...]:
        """Returns the options that name columns."""
        return ("text", "text_pair", "label")

    def read(self, data: str, part: str) -> Part[TextExample]:
        """Reads the examples of a part."""
        rows, origin, print_ = self.rows(data, part)
        return Part(part, [self.example(row) for row in rows], origin, print_)

    def example(self, row: Row) -> TextExample:
        """Reads and validates the example of a row."""
        label = read_label(row, self.label)
        place = f"{row.place}: {self.label}={label!r}"
        return TextExample(self.example_texts(row), self.target.parse(label, place))

    def example_texts(self, row: Row) -> tuple[str, ...]:
        """Reads the texts of a row."""
        return read_texts(row, self.columns)

    def _training_labels(self) -> list[str]:
        """Labels of all training data, including held-out examples."""
        if self.label in self.columns:
            raise ConfigError(
                f"label={self.label!r} is also the column of a text. Name the column of the "
                "labels with --label, and that of the text with --text."
            )
        rows, _ = self.read_source(self.train, "train")
        return [read_label(row, self.label) for row in rows]


@dataclass(frozen=True)
class OwnClassification(OwnTexts):
    """Classification of texts.

    Attributes:
        classes: Names of the classes.
    """

    name: str = "classification"
    classes: tuple[str, ...] = ()

    further_options: ClassVar[tuple[str, ...]] = (*OwnTexts.further_options, "classes")

    @property
    def target(self) -> Target:  # type: ignore[override]
        """The classes."""
        return NamedClasses(self.classes)

    def derived(self) -> dict[str, Any]:
        """Returns the classes that occur in the training data, numbers in their order."""
        found = sorted(set(self._training_labels()), key=_in_order)
        _check_several(found, self)
        return {"classes": found}

    def check_ready(self) -> None:
        """Validates that the classes are known."""
        super().check_ready()
        _check_several(list(self.classes), self)


@dataclass(frozen=True)
class OwnRegression(OwnTexts):
    """Prediction of a number for a text; the model is trained on the standardised number.

    Attributes:
        mean: Mean of the training labels.
        scale: Their standard deviation.
    """

    name: str = "regression"
    mean: float = 0.0
    scale: float = 1.0

    further_options: ClassVar[tuple[str, ...]] = (*OwnTexts.further_options, "mean", "scale")
    scores = ("Pearson",)
    target = ANY_NUMBER

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of all scores."""
        return ("Pearson", "Spearman", "MSE")

    def derived(self) -> dict[str, Any]:
        """Returns mean and standard deviation of the training labels."""
        place = f"{self.train}: {self.label}"
        found = [ANY_NUMBER.parse(x, f"{place}={x!r}") for x in self._training_labels()]
        scale = statistics.pstdev(found)
        if not scale:
            raise DataError(
                f"{place} is {found[0]:g} in every row of the training data. Give different labels."
            )
        return {"mean": statistics.fmean(found), "scale": scale}

    def encode(
        self, part: Part[TextExample], tokenizer: Tokenizer, max_length: int, training: bool
    ) -> Encoded:
        """Encodes examples; labels are standardised in training."""
        found = super().encode(part, tokenizer, max_length, training)
        if not training:
            return found
        return replace(found, fixed={"labels": (self.labels(part) - self.mean) / self.scale})

    def set_units(self, model: nn.Module) -> None:
        """Stores mean and scale, so that predictions are in the units of the data."""
        set_output_units(model, self.mean, self.scale)


@dataclass(frozen=True)
class OwnMultipleChoice(MultipleChoiceTask, OwnTexts):
    """A choice of one of several continuations or answers.

    Attributes:
        choices: Columns of the choices, or one column with lists of them.
        classes: Names of the choices.
    """

    name: str = "multiple-choice"
    choices: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()

    further_options: ClassVar[tuple[str, ...]] = ("text", "label", "choices", "classes")

    @property
    def target(self) -> Target:  # type: ignore[override]
        """The choices, given by name or by index."""
        return Classes(self.classes)

    def derived(self) -> dict[str, Any]:
        """Returns the names of the choices: their columns, or numbers."""
        if not self.choices:
            raise ConfigError("choices is empty. Name the columns with --choices a,b,c.")
        if len(self.choices) > 1:
            return {"classes": list(self.choices)}
        rows, _ = self.read_source(self.train, "train")
        return {"classes": [str(i) for i in range(len(self._listed(rows[0])))]}

    def check_ready(self) -> None:
        """Validates that the choices are known."""
        super().check_ready()
        if len(self.classes) < 2:
            raise ConfigError(
                f"choices={list(self.choices)} are {len(self.classes)} choices. Name at least two "
                "columns with --choices, or one column with lists."
            )

    def example_texts(self, row: Row) -> tuple[str, ...]:
        """Reads the text of a row and its choices, none of which may be empty."""
        listed = self._listed(row)
        if len(listed) != len(self.classes):
            raise DataError(
                f"{row.place}: {len(listed)} choices where other rows have {len(self.classes)}. "
                "Give as many in every row."
            )
        for choice in listed:
            if not isinstance(choice, str) or not choice.strip():
                raise DataError(f"{row.place}: choice {choice!r} is not text. Correct the line.")
        return (*read_texts(row, (self.text,)), *listed)

    def _listed(self, row: Row) -> Sequence[Any]:
        if len(self.choices) > 1:
            return [row.get(column) for column in self.choices]
        value = row.get(self.choices[0])
        if not isinstance(value, list | tuple):
            raise DataError(
                f"{row.place}: {self.choices[0]}={value!r} is not a list of choices. Name several "
                "columns with --choices a,b,c."
            )
        return value


def _in_order(label: str) -> tuple[float, str]:
    """Sort key: numbers by value, before other names."""
    try:
        number = float(label)
    except ValueError:
        number = math.inf
    return (number if math.isfinite(number) else math.inf), label


def _check_several(classes: list[str], task: OwnTexts) -> None:
    if len(classes) == 1:
        raise DataError(
            f"{task.train} has the single class {classes[0]!r} in column {task.label!r}. Give at "
            "least two classes, or another column with --label."
        )
    if not classes:
        raise ConfigError(
            "options.classes is empty. List the names of the classes; babn train "
            "--task classification finds them."
        )


TASKS = {each.name: each for each in (OwnClassification(), OwnRegression(), OwnMultipleChoice())}
"""The tasks by name."""
