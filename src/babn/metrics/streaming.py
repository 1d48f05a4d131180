"""The metrics as torchmetrics classes, updated batch by batch and gathered over processes.

States are in float64: sums and counts where they suffice, otherwise two numbers per example.
Metrics that take probabilities also take a `Prediction`.
"""

from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

from babn import metrics
from babn.metrics import accumulators as base
from babn.metrics import calibration_error as calibrated
from babn.metrics import scores
from babn.metrics.inputs import Labels, Probs, check_share, check_whole, scores_and_flags
from babn.prediction.result import Prediction


class Accuracy(base.Mean):
    """Share of correct predictions, as `babn.metrics.accuracy`."""

    higher_is_better = True
    each = staticmethod(scores.correctness)


class NegativeLogLikelihood(base.Mean):
    """Mean negative log likelihood in nats, as `babn.metrics.nll`."""

    higher_is_better = False
    each = staticmethod(scores.negative_log_probs)


class BrierScore(base.Mean):
    """Multi-class Brier score, as `babn.metrics.brier`."""

    higher_is_better = False
    each = staticmethod(scores.squared_errors)


class CalibrationError(base.Bins):
    """Expected calibration error, as `babn.metrics.ece`."""

    add_up = staticmethod(calibrated.confidence_sums)
    gap = staticmethod(calibrated.mean_gap)


class MaximumCalibrationError(base.Bins):
    """Maximum calibration error, as `babn.metrics.mce`."""

    add_up = staticmethod(calibrated.confidence_sums)
    gap = staticmethod(calibrated.largest_gap)


class ClasswiseCalibrationError(base.BinsPerClass):
    """Classwise calibration error, as `babn.metrics.classwise_ece`."""

    add_up = staticmethod(calibrated.class_sums)


class TopLabelCalibrationError(base.BinsPerClass):
    """Top-label calibration error, as `babn.metrics.top_label_ece`."""

    add_up = staticmethod(calibrated.top_label_sums)


class AdaptiveCalibrationError(base.Gathered):
    """Calibration error over bins of equally many examples, as `babn.metrics.adaptive_ece`."""

    higher_is_better = False

    def __init__(self, bins: int = 10, **settings: Any) -> None:
        super().__init__(**settings)
        self.bins = check_whole(bins, "bins")

    def update(self, probs: Probs, labels: Labels) -> None:
        """Adds a batch of probabilities, or a prediction, and its labels."""
        self.keep(*scores_and_flags(*metrics.confidence_and_correct(probs, labels)))

    def measure(self, scores: Float[Tensor, "example"], flags: Bool[Tensor, "example"]) -> float:
        """The error, from confidences and correctness."""
        sums = calibrated.equal_mass_sums(scores, flags.to(scores), self.bins)
        return calibrated.mean_gap(sums).item()


class OutOfDistributionAuroc(base.OutOfDistribution):
    """Probability that an out-of-distribution example scores higher, as `babn.metrics.auroc`."""

    higher_is_better = True
    contrast = staticmethod(metrics.auroc)


class OutOfDistributionFpr95(base.OutOfDistribution):
    """False positive rate at a true positive rate of 95 %, as `babn.metrics.fpr95`."""

    higher_is_better = False
    contrast = staticmethod(metrics.fpr95)


class OutOfDistributionAveragePrecision(base.OutOfDistribution):
    """Average precision of out-of-distribution detection, as `babn.metrics.average_precision`."""

    higher_is_better = True
    contrast = staticmethod(metrics.average_precision)


class AreaUnderRiskCoverage(base.Selective):
    """Mean risk over all coverages, as `babn.metrics.aurc`."""

    higher_is_better = False
    measure = staticmethod(metrics.aurc)


class ExcessAreaUnderRiskCoverage(base.Selective):
    """Mean risk above that of the optimal confidence, as `babn.metrics.e_aurc`."""

    higher_is_better = False
    measure = staticmethod(metrics.e_aurc)


class SelectiveAccuracy(base.Selective):
    """Accuracy on the most confident examples, as `babn.metrics.selective_accuracy`."""

    higher_is_better = True

    def __init__(self, coverage: float, **settings: Any) -> None:
        super().__init__(**settings)
        self.coverage = check_share(coverage, "coverage", whole=True)

    def measure(self, scores: Float[Tensor, "example"], flags: Bool[Tensor, "example"]) -> float:
        """The accuracy, from confidences and correctness."""
        return metrics.selective_accuracy(scores, flags, self.coverage)


class PavpuScore(base.Counts):
    """PAvPU: share of predictions certain and correct or uncertain and wrong."""

    share = "value"


class AccurateGivenCertain(base.Counts):
    """Share of correct among certain predictions; NaN without any."""

    share = "accurate_given_certain"


class UncertainGivenInaccurate(base.Counts):
    """Share of uncertain among wrong predictions; NaN without any."""

    share = "uncertain_given_inaccurate"


class AnsweredShare(base.AbstentionMean):
    """Share of examples that an abstention answers: its coverage."""

    higher_is_better = True

    def each(self, prediction: Prediction, labels: Labels) -> Tensor:
        """Whether each example is answered."""
        return self.abstention.answers(prediction)


class AnsweredRisk(base.AbstentionMean):
    """Share of errors among the examples that an abstention answers; NaN if none is."""

    higher_is_better = False

    def each(self, prediction: Prediction, labels: Labels) -> Tensor:
        """Whether each answer is wrong."""
        return (prediction.probs.argmax(-1) != labels)[self.abstention.answers(prediction)]


class ConformalCoverage(base.ConformalMean):
    """Share of prediction sets that hold the right class."""

    higher_is_better = True

    def each(self, prediction: Prediction, labels: Labels) -> Tensor:
        """Whether each set holds the right class."""
        return self.sets.sets(prediction).gather(-1, labels.unsqueeze(-1)).flatten()


class ConformalSetSize(base.ConformalMean):
    """Mean number of classes in a prediction set."""

    higher_is_better = False

    def each(self, prediction: Prediction, labels: Labels) -> Tensor:
        """The size of each set."""
        return self.sets.sets(prediction).sum(-1)
