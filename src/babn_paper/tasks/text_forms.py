"""How a model is asked for a class: by a pair of texts, or by endings that it compares."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import (
    AlbertConfig,
    AlbertForMultipleChoice,
    AlbertForSequenceClassification,
    AutoModelForMultipleChoice,
    AutoModelForSequenceClassification,
)

from babn_paper.pretrained import load_pretrained
from babn_paper.tasks.encoded import Encoded
from babn_paper.tasks.targets import Classes
from babn_paper.tasks.task import Tokenizer
from babn_paper.tasks.text_encoding import encode_texts
from babn_paper.tasks.text_task import TextExample


class Form(ABC):
    """What becomes of examples, and which models take it.

    Attributes:
        target: The classes.
    """

    target: Classes

    @abstractmethod
    def load_model(self, name: str, settings: Mapping[str, Any]) -> nn.Module:
        """The pretrained model of a folder or of the hub, with a fresh head."""

    @abstractmethod
    def make_model(self, sizes: Mapping[str, Any]) -> nn.Module:
        """An ALBERT with random weights."""

    @abstractmethod
    def make_pair_model(self, config: type[Any], sizes: Mapping[str, Any]) -> nn.Module:
        """A model of `babn_paper.models` with random weights."""

    @abstractmethod
    def encode(
        self, examples: Sequence[TextExample], tokenizer: Tokenizer, max_length: int
    ) -> Encoded:
        """Examples as the arguments of the model, with their labels."""


@dataclass(frozen=True)
class Pairs(Form):
    """A pair of texts, and one output for each class.

    Attributes:
        target: The classes.
    """

    target: Classes

    def load_model(self, name: str, settings: Mapping[str, Any]) -> nn.Module:
        """The pretrained model with a classifier."""
        head = self.target.head()
        return load_pretrained(AutoModelForSequenceClassification, name, head, settings)

    def make_model(self, sizes: Mapping[str, Any]) -> nn.Module:
        """An ALBERT with a classifier."""
        return AlbertForSequenceClassification(AlbertConfig(**sizes, **self.target.head()))

    def make_pair_model(self, config: type[Any], sizes: Mapping[str, Any]) -> nn.Module:
        """A model of `babn_paper.models` with a classifier."""
        made = config(**sizes, **self.target.head())
        model: nn.Module = AutoModelForSequenceClassification.from_config(made)
        return model

    def encode(
        self, examples: Sequence[TextExample], tokenizer: Tokenizer, max_length: int
    ) -> Encoded:
        """One row for each pair."""
        ragged = encode_texts([each.texts for each in examples], tokenizer, max_length)
        return Encoded(ragged, {"labels": _labels(self, examples)})


@dataclass(frozen=True)
class Endings(Form):
    """A text and several endings; the model scores each ending, and the scores are the logits.

    Attributes:
        target: The endings by number.
    """

    target: Classes

    def load_model(self, name: str, settings: Mapping[str, Any]) -> nn.Module:
        """The pretrained model with one score for each ending."""
        return load_pretrained(AutoModelForMultipleChoice, name, {}, settings)

    def make_model(self, sizes: Mapping[str, Any]) -> nn.Module:
        """An ALBERT with one score for each ending."""
        return AlbertForMultipleChoice(AlbertConfig(**sizes))

    def make_pair_model(self, config: type[Any], sizes: Mapping[str, Any]) -> nn.Module:
        """A model of `babn_paper.models` with one score for each ending."""
        model: nn.Module = AutoModelForMultipleChoice.from_config(config(**sizes))
        return model

    def encode(
        self, examples: Sequence[TextExample], tokenizer: Tokenizer, max_length: int
    ) -> Encoded:
        """One row for each ending, behind the text that it ends."""
        pairs = [(each.texts[0], ending) for each in examples for ending in each.texts[1:]]
        ragged = encode_texts(pairs, tokenizer, max_length)
        labels = {"labels": _labels(self, examples)}
        return Encoded(ragged, labels, choices=len(self.target.names))


def _labels(form: Form, examples: Sequence[TextExample]) -> Tensor:
    return form.target.tensor([each.label for each in examples])
