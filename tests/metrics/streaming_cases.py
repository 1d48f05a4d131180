"""Every streaming metric with the function that it must agree with, and data for both."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from metric_cases import answered, coarse, generator, sampled, scored
from torch import Tensor
from torchmetrics import Metric

from babn import ConformalSets, Prediction, fit_abstention, metrics
from babn.metrics import streaming

Data = tuple[Tensor, Tensor]
EXAMPLES, CLASSES = 50, 4


@dataclass(frozen=True)
class Case:
    """A metric, the function, data for one update, and its axis of examples."""

    make: Callable[[], Metric]
    function: Callable[..., Any]
    data: Callable[[], Data]
    axis: int = 0

    def part(self, start: int, stop: int) -> Data:
        first, second = self.data()
        if isinstance(first, Prediction):
            return first[start:stop], second[start:stop]
        return first.narrow(self.axis, start, stop - start), second[start:stop]

    def expected(self) -> float:
        return float(self.function(*self.data()))


def probabilities() -> Data:
    return coarse(5, EXAMPLES, CLASSES)


def foreign() -> Data:
    """Scores in mixed order, and which of them are outside."""
    inside, outside = scored(5, 30, 20)
    order = torch.randperm(EXAMPLES, generator=generator(5))
    flags = torch.cat([torch.zeros(30), torch.ones(20)]).bool()
    return torch.cat([inside, outside])[order], flags[order]


def selective() -> Data:
    return answered(5, EXAMPLES)


def samples() -> Data:
    return sampled(5, examples=EXAMPLES), probabilities()[1]


def predictions() -> tuple[Prediction, Tensor]:
    probs, labels = samples()
    return Prediction(probs.log()), labels


def abstention() -> Any:
    return fit_abstention(*predictions(), coverage=0.6)


def sets() -> ConformalSets:
    return ConformalSets("adaptive", 0.9, 0.8)


def apart(measure: Callable[[Tensor, Tensor], float]) -> Callable[[Tensor, Tensor], float]:
    return lambda scores, outside: measure(scores[~outside], scores[outside])


CASES = {
    "Accuracy": Case(streaming.Accuracy, metrics.accuracy, probabilities),
    "NegativeLogLikelihood": Case(streaming.NegativeLogLikelihood, metrics.nll, probabilities),
    "BrierScore": Case(streaming.BrierScore, metrics.brier, probabilities),
    "CalibrationError": Case(streaming.CalibrationError, metrics.ece, probabilities),
    "OutOfDistributionAuroc": Case(streaming.OutOfDistributionAuroc, apart(metrics.auroc), foreign),
    "OutOfDistributionFpr95": Case(streaming.OutOfDistributionFpr95, apart(metrics.fpr95), foreign),
    "AreaUnderRiskCoverage": Case(streaming.AreaUnderRiskCoverage, metrics.aurc, selective),
    "AnsweredShare": Case(
        lambda: streaming.AnsweredShare(abstention()),
        lambda *data: abstention().evaluate(*data)["coverage"],
        predictions,
    ),
    "AnsweredRisk": Case(
        lambda: streaming.AnsweredRisk(abstention()),
        lambda *data: abstention().evaluate(*data)["risk"],
        predictions,
    ),
    "ConformalCoverage": Case(
        lambda: streaming.ConformalCoverage(sets()),
        lambda *data: sets().evaluate(*data)["coverage"],
        predictions,
    ),
    "ConformalSetSize": Case(
        lambda: streaming.ConformalSetSize(sets()),
        lambda *data: sets().evaluate(*data)["size"],
        predictions,
    ),
    "PavpuScore": Case(streaming.PavpuScore, metrics.pavpu, samples, axis=1),
}
