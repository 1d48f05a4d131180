"""Predictions for the test texts, and how good their uncertainty is."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import babn
from babn import metrics
from babn.data.intents import Ambiguous, Labelled
from babn.demo.batches import Tokenizer, by_length, device_of


@dataclass(frozen=True)
class Texts:
    """The texts that models are judged by.

    Attributes:
        clear: Texts with one right intent.
        outside: Out-of-scope texts, which have none of the intents.
        ambiguous: Texts that two intents fit.
    """

    clear: Labelled
    outside: tuple[str, ...]
    ambiguous: tuple[Ambiguous, ...]

    def all(self) -> list[str]:
        """Every text, kind after kind."""
        return [*self.clear.texts, *self.outside, *(item.text for item in self.ambiguous)]


@dataclass(frozen=True)
class Answers:
    """A model's predictions for the three kinds of text."""

    clear: babn.Prediction
    outside: babn.Prediction
    ambiguous: babn.Prediction


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


def answer(
    model: nn.Module,
    tokenizer: Tokenizer,
    texts: Texts,
    samples: int,
    seed: int,
    report: Callable[[int], None],
    dropout: bool = False,
) -> Answers:
    """Predictions of a converted model for all texts; `report` gets the number of finished ones."""
    parts: list[Tensor] = []
    order: list[int] = []
    for rows, batch in by_length(tokenizer, texts.all(), device_of(model)):
        found = babn.predict(model, batch, samples, seed + len(order), dropout=dropout)
        parts.append(found.sample_logits.cpu())
        order += rows
        report(len(rows))
    logits = torch.cat(parts, dim=1)[:, torch.tensor(order).argsort()]
    sizes = [len(texts.clear), len(texts.outside), len(texts.ambiguous)]
    return Answers(*(babn.Prediction(part) for part in logits.split(sizes, dim=1)))


def score(answers: Answers, texts: Texts) -> Scores:
    """The measures of one model."""
    probs, labels = answers.clear.probs, torch.tensor(texts.clear.labels)
    return Scores(
        accuracy=metrics.accuracy(probs, labels),
        nll=metrics.nll(probs, labels),
        ece=metrics.ece(probs, labels),
        outside_entropy=metrics.auroc(answers.clear.entropy, answers.outside.entropy),
        outside_information=_by_information(answers.clear, answers.outside),
        ambiguous_entropy=metrics.auroc(answers.clear.entropy, answers.ambiguous.entropy),
        ambiguous_information=_by_information(answers.clear, answers.ambiguous),
    )


def _by_information(usual: babn.Prediction, unusual: babn.Prediction) -> float | None:
    if len(usual.sample_logits) == 1:
        return None
    return metrics.auroc(usual.mutual_information, unusual.mutual_information)
