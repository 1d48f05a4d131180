"""The metrics for torchmetrics: fed batch by batch, gathered over processes, in float64.

Sums and counts are kept where they suffice, and two numbers of every example elsewhere.
Wherever probabilities are taken, a `Prediction` is taken too.
"""

from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

from babn import metrics
from babn.metrics import bins as binned
from babn.metrics import scores as scored
from babn.metrics.accumulators import Bins, Counts, Mean
from babn.metrics.certainty import Pavpu
from babn.metrics.checks import check_share, check_whole
from babn.metrics.gathering import Gathered, OutOfDistribution, Selective
from babn.metrics.inputs import Labels, Probs, answers


class Accuracy(Mean):
    """Share of right answers, as `babn.metrics.accuracy`."""

    higher_is_better = True

    def __init__(self, **settings: Any) -> None:
        super().__init__(scored.right, **settings)


class NegativeLogLikelihood(Mean):
    """Mean negative log likelihood in nats, as `babn.metrics.nll`."""

    higher_is_better = False

    def __init__(self, **settings: Any) -> None:
        super().__init__(scored.surprise, **settings)


class BrierScore(Mean):
    """Multi-class Brier score, as `babn.metrics.brier`."""

    higher_is_better = False

    def __init__(self, **settings: Any) -> None:
        super().__init__(scored.squared_error, **settings)


class CalibrationError(Bins):
    """Expected calibration error, as `babn.metrics.ece`."""

    def __init__(self, bins: int = 10, **settings: Any) -> None:
        super().__init__(binned.confidence_sums, binned.mean_gap, bins, **settings)


class MaximumCalibrationError(Bins):
    """Maximum calibration error, as `babn.metrics.mce`."""

    def __init__(self, bins: int = 10, **settings: Any) -> None:
        super().__init__(binned.confidence_sums, binned.largest_gap, bins, **settings)


class ClasswiseCalibrationError(Bins):
    """Classwise calibration error, as `babn.metrics.classwise_ece`."""

    def __init__(self, num_classes: int, bins: int = 10, **settings: Any) -> None:
        super().__init__(binned.class_sums, binned.mean_gap, bins, num_classes, **settings)


class TopLabelCalibrationError(Bins):
    """Top-label calibration error, as `babn.metrics.top_label_ece`."""

    def __init__(self, num_classes: int, bins: int = 10, **settings: Any) -> None:
        super().__init__(binned.top_label_sums, binned.mean_gap, bins, num_classes, **settings)


class AdaptiveCalibrationError(Gathered):
    """Calibration error over bins of equally many examples, as `babn.metrics.adaptive_ece`."""

    higher_is_better = False

    def __init__(self, bins: int = 10, **settings: Any) -> None:
        super().__init__(**settings)
        self.bins = check_whole(bins, "bins")

    def update(self, probs: Probs, labels: Labels) -> None:
        """Adds a batch of probabilities, or a prediction, and its right classes."""
        self.keep(*answers(*metrics.confidence_and_correct(probs, labels)))

    def value(self, scores: Float[Tensor, "example"], flags: Bool[Tensor, "example"]) -> float:
        """The error, from confidences and right answers."""
        return binned.mean_gap(binned.equal_mass_sums(scores, flags.to(scores), self.bins)).item()


class OutOfDistributionAuroc(OutOfDistribution):
    """Chance that a foreign example scores higher, as `babn.metrics.auroc`."""

    higher_is_better = True

    def __init__(self, **settings: Any) -> None:
        super().__init__(metrics.auroc, **settings)


class OutOfDistributionFpr95(OutOfDistribution):
    """False positive rate where 95 % of foreign examples are found, as `babn.metrics.fpr95`."""

    higher_is_better = False

    def __init__(self, **settings: Any) -> None:
        super().__init__(metrics.fpr95, **settings)


class OutOfDistributionAveragePrecision(OutOfDistribution):
    """Average precision of finding foreign examples, as `babn.metrics.average_precision`."""

    higher_is_better = True

    def __init__(self, **settings: Any) -> None:
        super().__init__(metrics.average_precision, **settings)


class AreaUnderRiskCoverage(Selective):
    """Mean risk over all coverages, as `babn.metrics.aurc`."""

    higher_is_better = False

    def value(self, scores: Float[Tensor, "example"], flags: Bool[Tensor, "example"]) -> float:
        """The area, from confidences and right answers."""
        return metrics.aurc(scores, flags)


class ExcessAreaUnderRiskCoverage(Selective):
    """Mean risk above that of the best confidence, as `babn.metrics.e_aurc`."""

    higher_is_better = False

    def value(self, scores: Float[Tensor, "example"], flags: Bool[Tensor, "example"]) -> float:
        """The excess, from confidences and right answers."""
        return metrics.e_aurc(scores, flags)


class SelectiveAccuracy(Selective):
    """Accuracy on the surest examples, as `babn.metrics.selective_accuracy`."""

    higher_is_better = True

    def __init__(self, coverage: float, **settings: Any) -> None:
        super().__init__(**settings)
        self.coverage = check_share(coverage, "coverage", whole=True)

    def value(self, scores: Float[Tensor, "example"], flags: Bool[Tensor, "example"]) -> float:
        """The accuracy, from confidences and right answers."""
        return metrics.selective_accuracy(scores, flags, self.coverage)


class PavpuScore(Counts):
    """Share of answers certain and right or uncertain and wrong, as `babn.metrics.pavpu`."""

    def value(self, counts: Pavpu) -> float:
        """The share."""
        return counts.value


class AccurateGivenCertain(Counts):
    """Share of right among certain answers; NaN without any."""

    def value(self, counts: Pavpu) -> float:
        """The share."""
        return counts.accurate_given_certain


class UncertainGivenInaccurate(Counts):
    """Share of uncertain among wrong answers; NaN without any."""

    def value(self, counts: Pavpu) -> float:
        """The share."""
        return counts.uncertain_given_inaccurate
