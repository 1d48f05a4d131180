"""Predictions for the test texts, and their measures."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import babn
from babn import metrics
from babn.data.intents import Ambiguous, Labelled


@dataclass(frozen=True)
class Texts:
    """The test texts.

    Attributes:
        clear: Texts with one right intent.
        outside: Out-of-scope texts, which have none of the intents.
        ambiguous: Texts that two intents fit.
    """

    clear: Labelled
    outside: tuple[str, ...]
    ambiguous: tuple[Ambiguous, ...]

    def __len__(self) -> int:
        return len(self.clear) + len(self.outside) + len(self.ambiguous)


@dataclass(frozen=True)
class Predictions:
    """A model's predictions for the three kinds of text."""

    clear: babn.Prediction
    outside: babn.Prediction
    ambiguous: babn.Prediction

    def tempered(self, temperature: float) -> "Predictions":
        """All logits divided by a temperature."""
        kinds = (self.clear, self.outside, self.ambiguous)
        return Predictions(*(kind.tempered(temperature) for kind in kinds))


@dataclass(frozen=True)
class Scores:
    """Measures of one model.

    Attributes:
        accuracy: Share of clear texts whose intent is found.
        nll: Mean negative log probability of a clear text's intent.
        ece: Expected calibration error on clear texts.
        outside_entropy: AUROC of detecting out-of-scope texts by entropy.
        outside_information: The same by mutual information; `None` without samples.
        ambiguous_entropy: AUROC of detecting ambiguous texts by entropy.
        ambiguous_information: The same by mutual information; `None` without samples.
    """

    accuracy: float
    nll: float
    ece: float
    outside_entropy: float
    outside_information: float | None
    ambiguous_entropy: float
    ambiguous_information: float | None


def predictions(
    model: nn.Module,
    tokenizer: Any,
    texts: Texts,
    samples: int,
    seed: int,
    report: Callable[[int], None],
    dropout: bool = False,
) -> Predictions:
    """Predictions of a converted model for all texts; `report` gets the number of finished ones."""
    ambiguous = tuple(item.text for item in texts.ambiguous)
    found = []
    for number, kind in enumerate((texts.clear.texts, texts.outside, ambiguous)):
        settings = {"tokenizer": tokenizer, "dropout": dropout, "progress": False}
        found.append(babn.predict(model, kind, samples, seed + number, **settings).to("cpu"))
        report(len(kind))
    return Predictions(*found)


def score(predictions: Predictions, texts: Texts) -> Scores:
    """The measures of one model."""
    probs, labels = predictions.clear.probs, torch.tensor(texts.clear.labels)
    return Scores(
        accuracy=metrics.accuracy(probs, labels),
        nll=metrics.nll(probs, labels),
        ece=metrics.ece(probs, labels),
        outside_entropy=metrics.auroc(predictions.clear.entropy, predictions.outside.entropy),
        outside_information=_by_information(predictions.clear, predictions.outside),
        ambiguous_entropy=metrics.auroc(predictions.clear.entropy, predictions.ambiguous.entropy),
        ambiguous_information=_by_information(predictions.clear, predictions.ambiguous),
    )


def _by_information(usual: babn.Prediction, unusual: babn.Prediction) -> float | None:
    if len(usual.sample_logits) == 1:
        return None
    return metrics.auroc(usual.mutual_information, unusual.mutual_information)
