"""The metrics as torchmetrics classes, updated batch by batch and gathered over processes.

States are in float64: sums and counts where they suffice, otherwise two numbers per example.
Metrics that take probabilities also take a `Prediction`.
"""

from typing import TYPE_CHECKING, Any

from jaxtyping import Bool, Float
from torch import Tensor

from babn import metrics
from babn.metrics import calibration_error as calibrated
from babn.metrics import scores
from babn.metrics.accumulators import (
    Bins,
    Counts,
    Decisions,
    Gathered,
    Mean,
    OutOfDistribution,
    Selective,
)
from babn.metrics.inputs import Labels, Probs, check_share, check_whole, scores_and_flags
from babn.metrics.pavpu_counts import Pavpu
from babn.prediction.result import Prediction

if TYPE_CHECKING:
    from babn.evaluation.decisions import Abstention, ConformalSets


class Accuracy(Mean):
    """Share of correct predictions, as `babn.metrics.accuracy`."""

    higher_is_better = True

    def __init__(self, **settings: Any) -> None:
        super().__init__(scores.correctness, **settings)


class NegativeLogLikelihood(Mean):
    """Mean negative log likelihood in nats, as `babn.metrics.nll`."""

    higher_is_better = False

    def __init__(self, **settings: Any) -> None:
        super().__init__(scores.negative_log_probs, **settings)


class BrierScore(Mean):
    """Multi-class Brier score, as `babn.metrics.brier`."""

    higher_is_better = False

    def __init__(self, **settings: Any) -> None:
        super().__init__(scores.squared_errors, **settings)


class CalibrationError(Bins):
    """Expected calibration error, as `babn.metrics.ece`."""

    def __init__(self, bins: int = 10, **settings: Any) -> None:
        super().__init__(calibrated.confidence_sums, calibrated.mean_gap, bins, **settings)


class MaximumCalibrationError(Bins):
    """Maximum calibration error, as `babn.metrics.mce`."""

    def __init__(self, bins: int = 10, **settings: Any) -> None:
        super().__init__(calibrated.confidence_sums, calibrated.largest_gap, bins, **settings)


class ClasswiseCalibrationError(Bins):
    """Classwise calibration error, as `babn.metrics.classwise_ece`."""

    def __init__(self, num_classes: int, bins: int = 10, **settings: Any) -> None:
        super().__init__(calibrated.class_sums, calibrated.mean_gap, bins, num_classes, **settings)


class TopLabelCalibrationError(Bins):
    """Top-label calibration error, as `babn.metrics.top_label_ece`."""

    def __init__(self, num_classes: int, bins: int = 10, **settings: Any) -> None:
        super().__init__(
            calibrated.top_label_sums,
            calibrated.mean_gap,
            bins,
            num_classes,
            **settings,
        )


class AdaptiveCalibrationError(Gathered):
    """Calibration error over bins of equally many examples, as `babn.metrics.adaptive_ece`."""

    higher_is_better = False

    def __init__(self, bins: int = 10, **settings: Any) -> None:
        super().__init__(**settings)
        self.bins = check_whole(bins, "bins")

    def update(self, probs: Probs, labels: Labels) -> None:
        """Adds a batch of probabilities, or a prediction, and its labels."""
        self.keep(*scores_and_flags(*metrics.confidence_and_correct(probs, labels)))

    def value(self, scores: Float[Tensor, "example"], flags: Bool[Tensor, "example"]) -> float:
        """The error, from confidences and correctness."""
        sums = calibrated.equal_mass_sums(scores, flags.to(scores), self.bins)
        return calibrated.mean_gap(sums).item()


class OutOfDistributionAuroc(OutOfDistribution):
    """Probability that an out-of-distribution example scores higher, as `babn.metrics.auroc`."""

    higher_is_better = True

    def __init__(self, score: str = "entropy", **settings: Any) -> None:
        super().__init__(metrics.auroc, score, **settings)


class OutOfDistributionFpr95(OutOfDistribution):
    """False positive rate at a true positive rate of 95 %, as `babn.metrics.fpr95`."""

    higher_is_better = False

    def __init__(self, score: str = "entropy", **settings: Any) -> None:
        super().__init__(metrics.fpr95, score, **settings)


class OutOfDistributionAveragePrecision(OutOfDistribution):
    """Average precision of out-of-distribution detection, as `babn.metrics.average_precision`."""

    higher_is_better = True

    def __init__(self, score: str = "entropy", **settings: Any) -> None:
        super().__init__(metrics.average_precision, score, **settings)


class AreaUnderRiskCoverage(Selective):
    """Mean risk over all coverages, as `babn.metrics.aurc`."""

    higher_is_better = False

    def value(self, scores: Float[Tensor, "example"], flags: Bool[Tensor, "example"]) -> float:
        """The area, from confidences and correctness."""
        return metrics.aurc(scores, flags)


class ExcessAreaUnderRiskCoverage(Selective):
    """Mean risk above that of the optimal confidence, as `babn.metrics.e_aurc`."""

    higher_is_better = False

    def value(self, scores: Float[Tensor, "example"], flags: Bool[Tensor, "example"]) -> float:
        """The excess, from confidences and correctness."""
        return metrics.e_aurc(scores, flags)


class SelectiveAccuracy(Selective):
    """Accuracy on the most confident examples, as `babn.metrics.selective_accuracy`."""

    higher_is_better = True

    def __init__(self, coverage: float, **settings: Any) -> None:
        super().__init__(**settings)
        self.coverage = check_share(coverage, "coverage", whole=True)

    def value(self, scores: Float[Tensor, "example"], flags: Bool[Tensor, "example"]) -> float:
        """The accuracy, from confidences and correctness."""
        return metrics.selective_accuracy(scores, flags, self.coverage)


class PavpuScore(Counts):
    """PAvPU: share of predictions certain and correct or uncertain and wrong."""

    def value(self, counts: Pavpu) -> float:
        """The share."""
        return counts.value


class AccurateGivenCertain(Counts):
    """Share of correct among certain predictions; NaN without any."""

    def value(self, counts: Pavpu) -> float:
        """The share."""
        return counts.accurate_given_certain


class UncertainGivenInaccurate(Counts):
    """Share of uncertain among wrong predictions; NaN without any."""

    def value(self, counts: Pavpu) -> float:
        """The share."""
        return counts.uncertain_given_inaccurate


class AnsweredShare(Decisions):
    """Share of examples that an abstention answers: its coverage."""

    higher_is_better = True

    def __init__(self, abstention: "Abstention", **settings: Any) -> None:
        super().__init__(**settings)
        self.abstention = abstention

    def each(self, prediction: Prediction, labels: Labels) -> Tensor:
        """Whether each example is answered."""
        return self.abstention.answers(prediction)


class AnsweredRisk(Decisions):
    """Share of errors among the examples that an abstention answers; NaN if none is."""

    higher_is_better = False

    def __init__(self, abstention: "Abstention", **settings: Any) -> None:
        super().__init__(**settings)
        self.abstention = abstention

    def each(self, prediction: Prediction, labels: Labels) -> Tensor:
        """Whether each answer is wrong."""
        return (prediction.probs.argmax(-1) != labels)[self.abstention.answers(prediction)]


class ConformalCoverage(Decisions):
    """Share of prediction sets that hold the right class."""

    higher_is_better = True

    def __init__(self, sets: "ConformalSets", **settings: Any) -> None:
        super().__init__(**settings)
        self.sets = sets

    def each(self, prediction: Prediction, labels: Labels) -> Tensor:
        """Whether each set holds the right class."""
        return self.sets.sets(prediction).gather(-1, labels.unsqueeze(-1)).flatten()


class ConformalSetSize(Decisions):
    """Mean number of classes in a prediction set."""

    higher_is_better = False

    def __init__(self, sets: "ConformalSets", **settings: Any) -> None:
        super().__init__(**settings)
        self.sets = sets

    def each(self, prediction: Prediction, labels: Labels) -> Tensor:
        """The size of each set."""
        return self.sets.sets(prediction).sum(-1)
