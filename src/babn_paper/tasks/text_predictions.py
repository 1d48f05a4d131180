"""Predictions of classes or numbers for texts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from babn.errors import DataError
from babn.evaluation.predictions import Evaluation, ensemble
from babn.metrics import METRICS, Metric
from babn.prediction.regression import mixture_nll
from babn_paper.tasks.scores import SCORES, cross_tempered
from babn_paper.tasks.task import Outputs, Predictions

CERTAINTY = ("NLL", "Brier", "ECE-10", "AURC", "PAvPU (p<0.05)")
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
        found |= self._each({name: METRICS[name] for name in CERTAINTY})
        tempered = cross_tempered(prediction, labels)
        return found | {
            f"{name} + TS": float(METRICS[name].function(tempered, labels)) for name in TEMPERED
        }

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

    def _each(self, metrics: Mapping[str, Metric]) -> dict[str, float]:
        prediction = self.evaluation.prediction
        sampled = len(prediction.sample_logits) > 1
        return {
            name: float(metric.function(prediction, self.evaluation.labels))
            for name, metric in metrics.items()
            if sampled or not metric.needs_samples
        }
