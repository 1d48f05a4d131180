"""The metrics by name; names include the settings, such as `ECE-10`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import SupportsFloat

from babn.metrics.accuracy_nll_brier import accuracy, brier, confidence_and_correct, nll
from babn.metrics.calibration_error import adaptive_ece, ece, mce
from babn.metrics.inputs import Labels, Probs
from babn.metrics.pavpu_counts import pavpu
from babn.metrics.ranking import aurc
from babn.prediction.result import Prediction


@dataclass(frozen=True)
class Metric:
    """A number computed from a prediction and its labels.

    Attributes:
        function: Computes it.
        needs_samples: Whether the prediction needs more than one sample.
    """

    function: Callable[[Probs, Labels], SupportsFloat]
    needs_samples: bool = False


METRICS = {
    "accuracy": Metric(accuracy),
    "NLL": Metric(nll),
    "Brier": Metric(brier),
    "ECE-10": Metric(ece),
    "MCE-10": Metric(mce),
    "adaptive ECE-10": Metric(adaptive_ece),
    "AURC": Metric(lambda probs, labels: aurc(*confidence_and_correct(probs, labels))),
    "PAvPU (p<0.05)": Metric(pavpu, needs_samples=True),
}
"""The metrics with the settings of the paper: 10 bins, p below 0.05."""


def evaluate(prediction: Probs, labels: Labels) -> dict[str, float]:
    """Computes every metric that the prediction allows, by name.

    Args:
        prediction: The result of `babn.predict`, or probabilities, which have no samples.
        labels: The correct classes.
    """
    sampled = isinstance(prediction, Prediction) and len(prediction.sample_logits) > 1
    return {
        name: float(metric.function(prediction, labels))
        for name, metric in METRICS.items()
        if sampled or not metric.needs_samples
    }
