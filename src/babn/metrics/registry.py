"""The metrics by name; names include the settings, such as `ECE-10`."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import SupportsFloat

from babn.errors import MetricInputError
from babn.metrics.accuracy_nll_brier import accuracy, brier, confidence_and_correct, nll
from babn.metrics.calibration_error import adaptive_ece, classwise_ece, ece, mce, top_label_ece
from babn.metrics.inputs import Labels, Probs
from babn.metrics.pavpu_counts import pavpu
from babn.metrics.ranking import aurc, e_aurc
from babn.prediction.result import Prediction
from babn.validation import check_count, check_share


@dataclass(frozen=True)
class Metric:
    """A number computed from a prediction and its labels.

    Attributes:
        function: Computes it.
        lower_is_better: Whether smaller is better.
        needs_samples: Whether the prediction needs more than one sample.
    """

    function: Callable[[Probs, Labels], SupportsFloat]
    lower_is_better: bool = True
    needs_samples: bool = False


def metrics_for(bins: int = 10, alpha: float = 0.05) -> dict[str, Metric]:
    """All metrics by name, with the given settings.

    Args:
        bins: Number of bins of the calibration errors.
        alpha: Significance level of PAvPU.
    """
    check_share("alpha", alpha, error=MetricInputError)
    check_count("bins", bins, MetricInputError)
    return {
        "accuracy": Metric(accuracy, lower_is_better=False),
        "NLL": Metric(nll),
        "Brier": Metric(brier),
        f"ECE-{bins}": Metric(partial(ece, bins=bins)),
        f"MCE-{bins}": Metric(partial(mce, bins=bins)),
        f"adaptive ECE-{bins}": Metric(partial(adaptive_ece, bins=bins)),
        f"classwise ECE-{bins}": Metric(partial(classwise_ece, bins=bins)),
        f"top-label ECE-{bins}": Metric(partial(top_label_ece, bins=bins)),
        "AURC": Metric(lambda p, y: aurc(*confidence_and_correct(p, y))),
        "E-AURC": Metric(lambda p, y: e_aurc(*confidence_and_correct(p, y))),
        f"PAvPU (p<{alpha:g})": Metric(
            partial(pavpu, alpha=alpha), lower_is_better=False, needs_samples=True
        ),
    }


def evaluate(prediction: Probs, labels: Labels, bins: int = 10) -> dict[str, float]:
    """Computes every metric that the prediction allows, by name.

    Args:
        prediction: The result of `babn.predict`, or probabilities, which have no samples.
        labels: The correct classes.
        bins: Number of bins of the calibration errors.
    """
    sampled = isinstance(prediction, Prediction) and len(prediction.sample_logits) > 1
    return {
        name: float(metric.function(prediction, labels))
        for name, metric in metrics_for(bins).items()
        if sampled or not metric.needs_samples
    }


METRICS = metrics_for()
"""The metrics with the settings of the paper: 10 bins, p below 0.05."""
