"""What a model answered to texts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from babn.errors import DataError
from babn.evaluation import Evaluation
from babn.evaluation.predictions import ensemble
from babn.metrics import METRICS
from babn.metrics.registry import Metric
from babn.prediction.predict import Activation, Prediction
from babn_paper.tasks.cross_fitting import cross_tempered
from babn_paper.tasks.encoded import Encoded
from babn_paper.tasks.scores import SCORES
from babn_paper.tasks.task import Answers, Asked, Part, Task

CERTAINTY = ("NLL", "Brier", "ECE-10", "AURC", "PAvPU (p<0.05)")
TEMPERED = ("NLL", "ECE-10")


def in_order(asked: Asked, examples: int) -> Float[Tensor, "sample example *output"]:
    """A model's outputs, each example at its place.

    Args:
        asked: Places of examples, and the outputs for them.
        examples: How many there are.
    """
    found = [(rows.cpu(), outputs.detach().float().cpu()) for rows, outputs in asked]
    places = torch.cat([rows for rows, _ in found]) if found else torch.empty(0)
    if not torch.equal(places.sort().values, torch.arange(examples)):
        raise DataError(
            f"There are {len(places)} answers, to {len(places.unique())} of {examples} examples. "
            "Ask for each example once."
        )
    return torch.cat([outputs for _, outputs in found], dim=1)[:, places.argsort()]


def evaluated(
    task: Task[Any],
    part: Part[Any],
    encoded: Encoded,
    asked: Asked,
    activation: Activation = "softmax",
) -> Evaluation:
    """A model's answers in the order of the data, with the labels.

    Args:
        task: Names the answers.
        part: What was asked about.
        encoded: The same as tensors, with the labels.
        asked: Places of examples, and the outputs for them.
        activation: How outputs become probabilities.
    """
    prediction = Prediction(in_order(asked, len(encoded)), activation)
    details = {"task": task.name, "part": part.name, "data": part.fingerprint}
    return Evaluation(task.title, prediction, encoded.fixed["labels"].cpu(), details=details)


@dataclass(frozen=True)
class TextAnswers(Answers):
    """Answers to texts, and the measures that they are judged by.

    Attributes:
        evaluation: The answers, and the right ones.
        scores: Names of the official scores.
    """

    evaluation: Evaluation
    scores: tuple[str, ...]

    def save(self, folder: Path) -> None:
        """Writes the answers as `babn.Evaluation` does, over those that are there."""
        self.evaluation.save(folder, overwrite=True)

    def measure(self) -> dict[str, float]:
        """The official scores; for classes also how far their probabilities can be trusted.

        Measures with `+ TS` are those after temperature scaling. The temperature of each tenth of
        the examples is fitted on the others, so that no answer is judged with a temperature that
        has seen it.
        """
        found = self._each({name: SCORES[name] for name in self.scores}, self.evaluation)
        if self.evaluation.prediction.activation == "identity":
            return found
        found |= self._each({name: METRICS[name] for name in CERTAINTY}, self.evaluation)
        tempered = cross_tempered(self.evaluation.prediction, self.evaluation.labels)
        return found | {
            f"{name} + TS": float(METRICS[name].function(tempered, self.evaluation.labels))
            for name in TEMPERED
        }

    def named(self, method: str, seed: int) -> "TextAnswers":
        """The answers with another method and seed."""
        return replace(self, evaluation=replace(self.evaluation, method=method, seed=seed))

    def together(self, others: Sequence[Answers]) -> "TextAnswers":
        """The members' probabilities averaged."""
        members = [self, *(each for each in others if isinstance(each, TextAnswers))]
        joined = ensemble([member.evaluation.prediction for member in members])
        return replace(self, evaluation=replace(self.evaluation, prediction=joined))

    @staticmethod
    def _each(measures: dict[str, Metric], evaluation: Evaluation) -> dict[str, float]:
        prediction, labels = evaluation.prediction, evaluation.labels
        sampled = len(prediction.sample_logits) > 1
        return {
            name: float(measure.function(prediction, labels))
            for name, measure in measures.items()
            if sampled or not measure.needs_samples
        }
