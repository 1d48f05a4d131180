"""Tasks that predict a class or a number for a text, a pair of texts, or a choice of endings."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import (
    AlbertConfig,
    AlbertForMultipleChoice,
    AlbertForSequenceClassification,
    AutoModelForMultipleChoice,
    AutoModelForSequenceClassification,
)

from babn.errors import ConfigError, DataError
from babn.evaluation.predictions import Evaluation, ensemble
from babn.metrics import pavpu
from babn.prediction.regression import mixture_nll
from babn.prediction.result import Prediction
from babn_paper.pretrained import load_pretrained
from babn_paper.tasks.encoded import Encoded, Ragged
from babn_paper.tasks.reading import Row
from babn_paper.tasks.scores import CALIBRATION, SCORES, Score, cross_tempered
from babn_paper.tasks.targets import Target
from babn_paper.tasks.task import Outputs, Part, Predictions, Task, Tokenizer

TEMPERED = ("NLL", "ECE-10")


def in_order(outputs: Outputs, examples: int) -> Float[Tensor, "sample example *output"]:
    """Concatenates a model's outputs in the order of the examples.

    Args:
        outputs: Indices of examples, and the outputs for them.
        examples: Number of examples.
    """
    found = [(rows.cpu(), each.detach().float().cpu()) for rows, each in outputs]
    places = torch.cat([rows for rows, _ in found]) if found else torch.empty(0)
    if not torch.equal(places.sort().values, torch.arange(examples)):
        raise DataError(
            f"There are {len(places)} predictions for {len(places.unique())} of {examples} "
            "examples. Give one for each example."
        )
    return torch.cat([each for _, each in found], dim=1)[:, places.argsort()]


@dataclass(frozen=True)
class TextPredictions(Predictions):
    """Predictions for texts, and the scores of their task.

    Attributes:
        evaluation: Predictions and labels.
        scores: Names of the official scores.
    """

    evaluation: Evaluation
    scores: tuple[str, ...]

    def save(self, folder: Path) -> None:
        """Writes the evaluation, replacing an existing one."""
        self.evaluation.save(folder, overwrite=True)

    def measure(self) -> dict[str, float]:
        """Computes the official scores and, for classes, metrics of calibration and uncertainty.

        Metrics with `+ TS` are computed after temperature scaling. The temperature of each tenth of
        the examples is fitted on the other nine.
        """
        found = self._each({name: SCORES[name] for name in self.scores})
        prediction, labels = self.evaluation.prediction, self.evaluation.labels
        if prediction.activation == "identity":
            return found | (self._of_residual() if prediction.residual else {})
        found |= self._each(CALIBRATION)
        if len(prediction.sample_logits) > 1:
            found["PAvPU (p<0.05)"] = pavpu(prediction, labels).value
        tempered = cross_tempered(prediction, labels)
        return found | {f"{name} + TS": CALIBRATION[name](tempered, labels) for name in TEMPERED}

    def named(self, method: str, seed: int) -> "TextPredictions":
        """Returns the predictions with another method name and seed."""
        return replace(self, evaluation=replace(self.evaluation, method=method, seed=seed))

    def with_residual(self, residual: float) -> "TextPredictions":
        """Returns the predictions with the residual of a regression; classes have none."""
        prediction = self.evaluation.prediction
        if prediction.activation != "identity":
            return self
        changed = replace(prediction, residual=residual)
        return replace(self, evaluation=replace(self.evaluation, prediction=changed))

    def ensembled(self, others: Sequence[Predictions]) -> "TextPredictions":
        """Averages the members' probabilities."""
        members = [self, *(each for each in others if isinstance(each, TextPredictions))]
        joined = ensemble([member.evaluation.prediction for member in members])
        return replace(self, evaluation=replace(self.evaluation, prediction=joined))

    def _of_residual(self) -> dict[str, float]:
        """The density of the labels, and how many lie in the 90 % intervals."""
        prediction, labels = self.evaluation.prediction, self.evaluation.labels
        values = prediction.sample_logits.squeeze(-1)
        low, high = prediction.interval(0.9).unbind(-1)
        return {
            "NLL": float(mixture_nll(values, labels, prediction.residual).mean()),
            "in 90 % interval": float(((low <= labels) & (labels <= high)).double().mean()),
        }

    def _each(self, scores: Mapping[str, Score]) -> dict[str, float]:
        prediction, labels = self.evaluation.prediction, self.evaluation.labels
        return {name: score(prediction, labels) for name, score in scores.items()}


CHUNK = 1024
"""Texts per call of the tokenizer, which bounds its memory."""


@dataclass(frozen=True, slots=True)
class TextExample:
    """A text, a pair of texts, or a text with several endings, and its label.

    Attributes:
        texts: The texts.
        label: Index of the class, or the number to predict.
    """

    texts: tuple[str, ...]
    label: float


def read_texts(row: Row, columns: Sequence[str]) -> tuple[str, ...]:
    """Reads the texts of a row; not all of them may be empty."""
    texts = tuple(row.get(column) for column in columns)
    # A few questions of QQP are empty, and the official scores count them.
    if not all(isinstance(text, str) for text in texts) or not "".join(texts).strip():
        raise DataError(
            f"{row.place}: {' and '.join(columns)} hold no text. Fill or drop the line."
        )
    return texts


def encode_texts(
    texts: Sequence[tuple[str, ...]], tokenizer: Tokenizer, max_length: int
) -> dict[str, Ragged]:
    """Tokenizes texts or pairs of texts; the longer text of a pair is truncated first.

    Args:
        texts: One text or two for each example.
        tokenizer: A tokenizer of transformers.
        max_length: Maximum number of tokens of an example.
    """
    padding = padding_values(tokenizer)
    chunks: dict[str, list[Ragged]] = {}
    for start in range(0, len(texts), CHUNK):
        sides = (list(side) for side in zip(*texts[start : start + CHUNK], strict=True))
        made = tokenizer(
            *sides, truncation="longest_first", max_length=max_length, return_attention_mask=True
        )
        for name in padding.keys() & made.keys():
            chunks.setdefault(name, []).append(Ragged.of(made[name], padding[name]))
    return {name: Ragged.cat(chunks[name]) for name in padding if name in chunks}


def padding_values(tokenizer: Tokenizer) -> dict[str, int]:
    """Returns the padding value of each argument of a model."""
    if tokenizer.pad_token_id is None:
        raise ConfigError(
            f"The tokenizer {type(tokenizer).__name__} has no padding token. Set its pad_token."
        )
    return {
        "input_ids": tokenizer.pad_token_id,
        "attention_mask": 0,
        "token_type_ids": tokenizer.pad_token_type_id,
    }


class TextTask(Task[TextExample]):
    """A task that predicts the label of a text or of a pair of texts.

    Attributes:
        target: The labels.
        auto_class: Auto class of transformers that loads models.
        albert_class: Class of randomly initialised ALBERTs.
    """

    target: Target
    auto_class: Any = AutoModelForSequenceClassification
    albert_class: Any = AlbertForSequenceClassification

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of all official scores."""
        return self.scores

    def head(self) -> dict[str, Any]:
        """Returns the fields of the model configuration that define the head."""
        return self.target.head()

    def texts(self, examples: Sequence[TextExample]) -> Iterator[str]:
        """Yields all texts, example after example."""
        return (text for example in examples for text in example.texts)

    def load_model(self, name: str, **settings: Any) -> nn.Module:
        """Loads a pretrained model with a new head."""
        return load_pretrained(self.auto_class, name, self.head(), settings)

    def make_model(self, sizes: Mapping[str, Any]) -> nn.Module:
        """Makes a randomly initialised ALBERT."""
        model: nn.Module = self.albert_class(AlbertConfig(**sizes, **self.head()))
        return model

    def make_pair_model(self, config: type[Any], sizes: Mapping[str, Any]) -> nn.Module:
        """Makes a randomly initialised model of `babn_paper.models`."""
        model: nn.Module = self.auto_class.from_config(config(**sizes, **self.head()))
        return model

    def encode(
        self, part: Part[TextExample], tokenizer: Tokenizer, max_length: int, training: bool
    ) -> Encoded:
        """Encodes examples, with labels also in evaluation, for the scores."""
        ragged = encode_texts([each.texts for each in part.examples], tokenizer, max_length)
        return Encoded(ragged, {"labels": self.labels(part)})

    def labels(self, part: Part[TextExample]) -> Tensor:
        """Returns the labels of a part."""
        return self.target.tensor([each.label for each in part.examples])

    def predictions(
        self, part: Part[TextExample], encoded: Encoded, outputs: Outputs
    ) -> TextPredictions:
        """Returns the predictions in the order of the data, with the labels."""
        prediction = Prediction(in_order(outputs, len(encoded)), self.target.activation)
        details = {"task": self.name, "part": part.name, "data": part.fingerprint}
        labels = encoded.fixed["labels"].cpu()
        return TextPredictions(
            Evaluation(self.title, prediction, labels, details=details), self.metrics
        )

    def load_predictions(self, folder: Path) -> TextPredictions:
        """Reads what `TextPredictions.save` wrote."""
        return TextPredictions(Evaluation.load(folder), self.metrics)


class MultipleChoiceTask(TextTask):
    """A task that chooses one of several endings of a text; the model scores each ending."""

    auto_class = AutoModelForMultipleChoice
    albert_class = AlbertForMultipleChoice

    def head(self) -> dict[str, Any]:
        """Returns nothing: heads for multiple choice have one output."""
        return {}

    def encode(
        self, part: Part[TextExample], tokenizer: Tokenizer, max_length: int, training: bool
    ) -> Encoded:
        """Encodes the text with each ending as one row."""
        pairs = [(each.texts[0], ending) for each in part.examples for ending in each.texts[1:]]
        ragged = encode_texts(pairs, tokenizer, max_length)
        choices = len(part.examples[0].texts) - 1
        return Encoded(ragged, {"labels": self.labels(part)}, choices=choices)
