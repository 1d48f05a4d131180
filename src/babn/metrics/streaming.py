"""The metrics as torchmetrics classes, updated batch by batch and gathered over processes.

States are in float64: sums and counts where they suffice, otherwise two numbers per example.
Metrics that take probabilities also take a `Prediction`.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from babn import metrics
from babn.errors import MetricInputError, MissingExtraError
from babn.metrics import accuracy_nll_brier, inputs
from babn.metrics import calibration_error as calibrated
from babn.metrics.inputs import Flags, Labels, Probs, SampleProbs, Scores, Values
from babn.metrics.pavpu_counts import Pavpu, pavpu_counts
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
        self.add(self.each(*inputs.examples(probs, labels)))

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
        _, flat_labels = inputs.examples(prediction, labels)
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


class Bins(Exact):
    """Calibration error from sums over bins.

    Args:
        bins: Number of bins, per class if `num_classes` is given.
        num_classes: Number of classes with separate bins.
        settings: Arguments of `torchmetrics.Metric`.

    Attributes:
        add_up: Returns sums over bins from probabilities, labels and the number of bins.
        gap: Returns the error from the sums.
    """

    add_up: Callable[[Tensor, Tensor, int], Tensor]
    gap: Callable[[Tensor], Tensor] = staticmethod(calibrated.mean_gap)
    sums: Tensor

    def __init__(self, bins: int = 10, num_classes: int | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        check_count("bins", bins, MetricInputError)
        if num_classes is not None:
            check_count("num_classes", num_classes, MetricInputError)
        self.bins, self.num_classes = bins, num_classes
        self.zeros("sums", *([] if num_classes is None else [num_classes]), bins, 3)

    def update(self, probs: Probs, labels: Labels) -> None:
        """Adds a batch of probabilities, or a prediction, and its labels."""
        p, y = inputs.examples(probs, labels)
        if self.num_classes not in (None, p.shape[-1]):
            inputs.fail(
                f"probs has {p.shape[-1]} classes and the metric num_classes={self.num_classes}",
                "Make them the same.",
            )
        self.sums += self.add_up(p, y, self.bins)

    def compute(self) -> Float[Tensor, ""]:
        """The calibration error of all examples so far."""
        return self.gap(self.sums)


class CalibrationError(Bins):
    """Expected calibration error, as `babn.metrics.ece`."""

    add_up = staticmethod(calibrated.confidence_sums)


class MaximumCalibrationError(Bins):
    """Maximum calibration error, as `babn.metrics.mce`."""

    add_up = staticmethod(calibrated.confidence_sums)
    gap = staticmethod(calibrated.largest_gap)


class ClasswiseCalibrationError(Bins):
    """Classwise calibration error, as `babn.metrics.classwise_ece`."""

    add_up = staticmethod(calibrated.class_sums)

    def __init__(self, num_classes: int, bins: int = 10, **settings: Any) -> None:
        super().__init__(bins, num_classes, **settings)


class TopLabelCalibrationError(ClasswiseCalibrationError):
    """Top-label calibration error, as `babn.metrics.top_label_ece`."""

    add_up = staticmethod(calibrated.top_label_sums)


class Counts(Exact):
    """Counts predictions by accuracy and certainty; `share` is the attribute of `Pavpu`."""

    higher_is_better = True
    share: str
    counts: Tensor

    def __init__(self, alpha: float = 0.05, **settings: Any) -> None:
        super().__init__(**settings)
        check_share("alpha", alpha, error=MetricInputError)
        self.alpha = alpha
        self.zeros("counts", 4)

    def update(self, sample_probs: SampleProbs, labels: Labels) -> None:
        """Adds a batch of sampled probabilities, or a prediction, and its labels."""
        self.counts += pavpu_counts(*inputs.sampled_examples(sample_probs, labels), self.alpha)

    def compute(self) -> Float[Tensor, ""]:
        """The metric of all examples so far."""
        value = getattr(Pavpu(*self.counts.long().tolist()), self.share)
        return torch.tensor(value, dtype=torch.float64, device=self.device)


class PavpuScore(Counts):
    """PAvPU: share of predictions certain and correct or uncertain and wrong."""

    share = "value"


class AccurateGivenCertain(Counts):
    """Share of correct among certain predictions; NaN without any."""

    share = "accurate_given_certain"


class UncertainGivenInaccurate(Counts):
    """Share of uncertain among wrong predictions; NaN without any."""

    share = "uncertain_given_inaccurate"


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
        scores, flags = inputs.scores_and_flags(confidence, correct, self.names)
        self.scores.append(scores)
        self.flags.append(flags)

    def compute(self) -> Float[Tensor, ""]:
        """The metric of all examples so far."""
        value = self.measure(dim_zero_cat(self.scores), dim_zero_cat(self.flags) > 0)
        return torch.tensor(value, dtype=torch.float64, device=self.device)


class AreaUnderRiskCoverage(Gathered):
    """Mean risk over all coverages, as `babn.metrics.aurc`."""

    measure = staticmethod(metrics.aurc)


class ExcessAreaUnderRiskCoverage(Gathered):
    """Mean risk above the smallest possible one, as `babn.metrics.e_aurc`."""

    measure = staticmethod(metrics.e_aurc)


class SelectiveAccuracy(Gathered):
    """Accuracy on the most confident examples, as `babn.metrics.selective_accuracy`."""

    higher_is_better = True

    def __init__(self, coverage: float, **settings: Any) -> None:
        super().__init__(**settings)
        check_share("coverage", coverage, up_to_one=True, error=MetricInputError)
        self.coverage = coverage

    def measure(self, scores: Values, flags: Bool[Tensor, "example"]) -> float:
        """The accuracy, from confidences and correctness."""
        return metrics.selective_accuracy(scores, flags, self.coverage)


class AdaptiveCalibrationError(Gathered):
    """Calibration error over bins of equally many examples, as `babn.metrics.adaptive_ece`."""

    def __init__(self, bins: int = 10, **settings: Any) -> None:
        super().__init__(**settings)
        check_count("bins", bins, MetricInputError)
        self.bins = bins

    def update(self, probs: Probs, labels: Labels) -> None:
        """Adds a batch of probabilities, or a prediction, and its labels."""
        super().update(*metrics.confidence_and_correct(probs, labels))

    def measure(self, scores: Values, flags: Bool[Tensor, "example"]) -> float:
        """The error, from confidences and correctness."""
        sums = calibrated.equal_mass_sums(scores, flags.to(scores), self.bins)
        return calibrated.mean_gap(sums).item()


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
            inputs.fail(f"score={score!r} is invalid", f"Choose one of {list(SCORES)}.")
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


class OutOfDistributionAveragePrecision(OutOfDistribution):
    """Average precision of out-of-distribution detection, as `babn.metrics.average_precision`."""

    higher_is_better = True
    contrast = staticmethod(metrics.average_precision)
