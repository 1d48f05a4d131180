"""Metrics as torchmetrics classes, updated batch by batch and gathered over processes.

States are in float64: sums where they suffice, otherwise two numbers per example. Metrics that take
probabilities also take a `Prediction`.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from babn import metrics
from babn.errors import MetricInputError, MissingExtraError
from babn.metrics import accuracy_nll_brier, checks
from babn.metrics.calibration_error import confidence_sums, mean_gap
from babn.metrics.checks import Flags, Labels, Probs, SampleProbs, Scores, Values
from babn.metrics.pavpu_counts import accurate_and_certain
from babn.prediction.result import Prediction
from babn.validation import check_count, check_share

if TYPE_CHECKING:
    from babn.evaluation.decisions import Abstention, ConformalSets

try:
    from torchmetrics import Metric
    from torchmetrics.utilities import dim_zero_cat
except ImportError as error:
    raise MissingExtraError(
        "babn.metrics.streaming needs torchmetrics: pip install 'babn[metrics]'"
    ) from error

SCORES = ("entropy", "mutual_information", "disagreement")
"""Attributes of a prediction that are larger for less certain examples."""


class Exact(Metric):
    """A metric whose state keeps its dtype when the model around it is moved."""

    higher_is_better = False
    is_differentiable = False
    full_state_update = False

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which a process without examples takes part in gathering."""
        return torch.float64

    def _apply(
        self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = ""
    ) -> nn.Module:
        """Moves the state to the device that `fn` moves to, without changing its dtype."""
        return super()._apply(lambda x: x.to(fn(x).device), exclude_state)

    def zeros(self, name: str, *shape: int) -> None:
        """Adds a state that starts at zero and is summed over processes."""
        self.add_state(name, torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")


class Mean(Exact):
    """Mean over examples of the values that `each` returns for a batch; NaN without examples."""

    each: Callable[[Any, Any], Shaped[Tensor, "example"]]
    total: Tensor
    count: Tensor

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.zeros("total")
        self.zeros("count")

    def update(self, probs: Probs, labels: Labels) -> None:
        """Adds a batch of probabilities, or a prediction, and its labels."""
        self.add(self.each(*checks.examples(probs, labels)))

    def add(self, values: Shaped[Tensor, "example"]) -> None:
        """Adds one value per example."""
        self.total += values.double().sum()
        self.count += len(values)

    def compute(self) -> Float[Tensor, ""]:
        """The mean over all values so far."""
        return self.total / self.count


class Accuracy(Mean):
    """Share of correct predictions, as `babn.metrics.accuracy`."""

    higher_is_better = True
    each = staticmethod(accuracy_nll_brier.correctness)


class NegativeLogLikelihood(Mean):
    """Mean negative log likelihood in nats, as `babn.metrics.nll`."""

    each = staticmethod(accuracy_nll_brier.negative_log_probs)


class BrierScore(Mean):
    """Multi-class Brier score, as `babn.metrics.brier`."""

    each = staticmethod(accuracy_nll_brier.squared_errors)


class DecisionMean(Mean):
    """Mean of the values that `each` returns for a batch of predictions."""

    def update(self, prediction: Prediction, labels: Labels) -> None:  # type: ignore[override]
        """Adds a batch of predictions and its labels."""
        _, flat_labels = checks.examples(prediction, labels)
        self.add(self.each(prediction, flat_labels))


class AnsweredShare(DecisionMean):
    """Share of examples that an abstention answers: its coverage."""

    higher_is_better = True

    def __init__(self, abstention: "Abstention", **settings: Any) -> None:
        super().__init__(**settings)
        self.abstention = abstention

    def each(self, prediction: Prediction, labels: Labels) -> Tensor:
        """Whether each example is answered."""
        return self.abstention.answers(prediction)


class AnsweredRisk(AnsweredShare):
    """Share of errors among the examples that an abstention answers; NaN if none is."""

    def each(self, prediction: Prediction, labels: Labels) -> Tensor:
        """Whether each answer is wrong."""
        return (prediction.probs.argmax(-1) != labels)[self.abstention.answers(prediction)]


class ConformalCoverage(DecisionMean):
    """Share of prediction sets that contain the right class."""

    higher_is_better = True

    def __init__(self, sets: "ConformalSets", **settings: Any) -> None:
        super().__init__(**settings)
        self.sets = sets

    def each(self, prediction: Prediction, labels: Labels) -> Tensor:
        """Whether each set contains the right class."""
        return self.sets.sets(prediction).gather(-1, labels.unsqueeze(-1)).flatten()


class ConformalSetSize(ConformalCoverage):
    """Mean number of classes in a prediction set."""

    def each(self, prediction: Prediction, labels: Labels) -> Tensor:
        """The size of each set."""
        return self.sets.sets(prediction).sum(-1)


class PavpuScore(Mean):
    """PAvPU: share of predictions certain and correct or uncertain and wrong."""

    higher_is_better = True

    def __init__(self, alpha: float = 0.05, **settings: Any) -> None:
        super().__init__(**settings)
        check_share("alpha", alpha, error=MetricInputError)
        self.alpha = alpha

    def update(self, sample_probs: SampleProbs, labels: Labels) -> None:
        """Adds a batch of sampled probabilities, or a prediction, and its labels."""
        sampled = checks.sampled_examples(sample_probs, labels)
        accurate, certain = accurate_and_certain(*sampled, self.alpha)
        self.add(accurate == certain)


class CalibrationError(Exact):
    """Expected calibration error, as `babn.metrics.ece`."""

    sums: Tensor

    def __init__(self, bins: int = 10, **settings: Any) -> None:
        super().__init__(**settings)
        check_count("bins", bins, MetricInputError)
        self.bins = bins
        self.zeros("sums", bins, 3)

    def update(self, probs: Probs, labels: Labels) -> None:
        """Adds a batch of probabilities, or a prediction, and its labels."""
        self.sums += confidence_sums(*checks.examples(probs, labels), self.bins)

    def compute(self) -> Float[Tensor, ""]:
        """The calibration error of all examples so far."""
        return mean_gap(self.sums)


class Gathered(Exact):
    """A metric that needs the scores and flags of all examples at once.

    Attributes:
        names: Names of scores and flags, for error messages.
        measure: Returns the metric from all scores and flags.
    """

    names = ("confidence", "correct")
    measure: Callable[[Tensor, Tensor], float]
    scores: list[Tensor]
    flags: list[Tensor]

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.add_state("scores", [], dist_reduce_fx="cat")
        self.add_state("flags", [], dist_reduce_fx="cat")

    def update(self, confidence: Scores, correct: Flags) -> None:
        """Adds a batch of confidences, and whether the predictions are correct."""
        scores, flags = checks.scores_and_flags(confidence, correct, self.names)
        self.scores.append(scores)
        self.flags.append(flags)

    def compute(self) -> Float[Tensor, ""]:
        """The metric of all examples so far."""
        value = self.measure(dim_zero_cat(self.scores), dim_zero_cat(self.flags) > 0)
        return torch.tensor(value, dtype=torch.float64, device=self.device)


class AreaUnderRiskCoverage(Gathered):
    """Mean risk over all coverages, as `babn.metrics.aurc`."""

    measure = staticmethod(metrics.aurc)


class OutOfDistribution(Gathered):
    """Applies `contrast` to the scores of in-distribution and out-of-distribution examples.

    Args:
        score: Score of predictions: `"entropy"`, `"mutual_information"` or `"disagreement"`.
        settings: Arguments of `torchmetrics.Metric`.
    """

    names = ("scores", "outside")
    contrast: Callable[[Tensor, Tensor], float]

    def __init__(self, score: str = "entropy", **settings: Any) -> None:
        super().__init__(**settings)
        if score not in SCORES:
            checks.fail(f"score={score!r} is invalid", f"Choose one of {list(SCORES)}.")
        self.score = score

    def update(self, scores: Prediction | Scores, outside: Flags) -> None:
        """Adds a batch of predictions or scores, and flags of the out-of-distribution examples."""
        values = getattr(scores, self.score) if isinstance(scores, Prediction) else scores
        super().update(values, outside)

    def measure(self, scores: Values, flags: Bool[Tensor, "example"]) -> float:
        """The metric, from all examples."""
        return self.contrast(scores[~flags], scores[flags])


class OutOfDistributionAuroc(OutOfDistribution):
    """Probability that an out-of-distribution example scores higher, as `babn.metrics.auroc`."""

    higher_is_better = True
    contrast = staticmethod(metrics.auroc)


class OutOfDistributionFpr95(OutOfDistribution):
    """False positive rate at a true positive rate of 95 %, as `babn.metrics.fpr95`."""

    contrast = staticmethod(metrics.fpr95)
