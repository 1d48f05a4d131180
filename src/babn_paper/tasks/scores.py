"""The official scores of GLUE, and the other measures of its tasks."""

import math
from collections.abc import Callable

from jaxtyping import Float, Int, Real
from torch import Tensor

from babn.metrics import METRICS, Metric
from babn.metrics.inputs import Probs
from babn.prediction.predict import Prediction


def f1(chosen: Int[Tensor, "example"], labels: Int[Tensor, "example"]) -> float:
    r"""Harmonic mean of precision and recall of class 1; 0 where it is neither chosen nor right.

    $$\frac{2\,tp}{2\,tp + fp + fn}$$
    """
    hits = int(((chosen == 1) & (labels == 1)).sum())
    either = int((chosen == 1).sum() + (labels == 1).sum())
    return 2 * hits / either if either else 0.0


def matthews(chosen: Int[Tensor, "example"], labels: Int[Tensor, "example"]) -> float:
    """Matthews correlation of two classes; 0 where one side is constant."""
    found = pearson(chosen, labels)
    return 0.0 if math.isnan(found) else found


def pearson(x: Real[Tensor, "example"], y: Real[Tensor, "example"]) -> float:
    r"""Pearson correlation; NaN where one side is constant, as it is not defined there.

    $$\frac{\sum_i (x_i - \bar x)(y_i - \bar y)}
    {\lVert x - \bar x \rVert \lVert y - \bar y \rVert}$$
    """
    x, y = x.double(), y.double()
    if bool((x == x[0]).all()) or bool((y == y[0]).all()):
        return math.nan
    x, y = (each - each.mean() for each in (x, y))
    # Each divided by its own length first, so that small numbers do not vanish in a product.
    return float((x / x.norm() @ (y / y.norm())).clamp(-1, 1))


def spearman(x: Real[Tensor, "example"], y: Real[Tensor, "example"]) -> float:
    """Pearson correlation of ranks; equal values share the mean of theirs."""
    if bool(x.isnan().any()) or bool(y.isnan().any()):
        return math.nan
    return pearson(ranks(x), ranks(y))


def ranks(x: Real[Tensor, "example"]) -> Float[Tensor, "example"]:
    """The place of each value in ascending order, from 1 on; equal values share the mean."""
    _, group, counts = x.unique(return_inverse=True, return_counts=True)
    return (counts.cumsum(0) - (counts - 1) / 2).double()[group]


def squared_error(x: Real[Tensor, "example"], y: Real[Tensor, "example"]) -> float:
    """Mean squared error."""
    return float((x.double() - y.double()).square().mean())


def _classes(function: Callable[[Tensor, Tensor], float]) -> Metric:
    """A score of the most probable classes."""
    return Metric(lambda p, y: function(_probs(p).argmax(-1), y), lower_is_better=False)


def _values(function: Callable[[Tensor, Tensor], float], lower_is_better: bool = False) -> Metric:
    """A score of the means over samples."""
    return Metric(lambda p, y: function(_probs(p)[..., 0], y), lower_is_better)


def _probs(prediction: Probs) -> Tensor:
    return prediction.probs if isinstance(prediction, Prediction) else prediction


SCORES: dict[str, Metric] = {
    "accuracy": METRICS["accuracy"],
    "F1": _classes(f1),
    "Matthews": _classes(matthews),
    "Pearson": _values(pearson),
    "Spearman": _values(spearman),
    "MSE": _values(squared_error, lower_is_better=True),
}
"""Scores by name."""
