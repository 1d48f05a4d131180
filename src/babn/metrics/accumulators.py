"""Base classes of the streaming metrics: they keep sums, counts, or two numbers per example."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from babn.errors import MissingExtraError
from babn.metrics import inputs
from babn.metrics.calibration_error import mean_gap
from babn.metrics.inputs import Labels, Probs, SampleProbs
from babn.metrics.pavpu_counts import Pavpu, pavpu_counts
from babn.prediction.result import Prediction

if TYPE_CHECKING:
    from babn.evaluation.decisions import Abstention, ConformalSets

try:
    from torchmetrics import Metric
except ImportError as error:
    raise MissingExtraError(
        "babn.metrics.streaming needs torchmetrics: pip install 'babn[metrics]'"
    ) from error


SCORES = ("entropy", "mutual_information", "disagreement")
"""Attributes of a prediction that are larger for less certain examples."""


class Exact(Metric):
    """A metric whose state keeps its dtype when the model around it is moved."""

    is_differentiable = False
    full_state_update = False

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that a process without examples gathers in."""
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
    """Mean over examples of the values that `each` returns for a batch; NaN without any."""

    each: Callable[[Any, Any], Tensor]
    total: Tensor
    count: Tensor

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.zeros("total")
        self.zeros("count")

    def update(self, probs: Probs, labels: Labels) -> None:
        """Adds a batch of probabilities, or a prediction, and its labels."""
        self.add(self.each(*inputs.examples(probs, labels)))

    def add(self, values: Tensor) -> None:
        """Adds one value for each of any number of examples."""
        self.total += values.double().sum()
        self.count += len(values)

    def compute(self) -> Float[Tensor, ""]:
        """The mean over all values so far."""
        return self.total / self.count


class Decisions(Mean):
    """Mean of the values that `each` returns for a batch of predictions."""

    def update(self, prediction: Prediction, labels: Labels) -> None:  # type: ignore[override]
        """Adds a batch of predictions and its labels."""
        _, right = inputs.examples(prediction, labels)
        self.add(self.each(prediction, right))


class AbstentionMean(Decisions):
    """A mean that depends on an abstention."""

    def __init__(self, abstention: "Abstention", **settings: Any) -> None:
        super().__init__(**settings)
        self.abstention = abstention


class ConformalMean(Decisions):
    """A mean that depends on prediction sets."""

    def __init__(self, sets: "ConformalSets", **settings: Any) -> None:
        super().__init__(**settings)
        self.sets = sets


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

    higher_is_better = False
    add_up: Callable[[Tensor, Tensor, int], Tensor]
    gap: Callable[[Tensor], Tensor]
    sums: Tensor

    def __init__(self, bins: int = 10, num_classes: int | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self.bins, self.num_classes = inputs.check_whole(bins, "bins"), num_classes
        groups = [] if num_classes is None else [inputs.check_whole(num_classes, "num_classes")]
        self.zeros("sums", *groups, self.bins, 3)

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


class BinsPerClass(Bins):
    """Mean calibration error with separate bins for each class."""

    gap = staticmethod(mean_gap)

    def __init__(self, num_classes: int, bins: int = 10, **settings: Any) -> None:
        super().__init__(bins, num_classes, **settings)


class Counts(Exact):
    """Counts predictions by accuracy and certainty; `share` is the attribute of `Pavpu`."""

    higher_is_better = True
    share: str
    counts: Tensor

    def __init__(self, alpha: float = 0.05, **settings: Any) -> None:
        super().__init__(**settings)
        self.alpha = inputs.check_share(alpha, "alpha", whole=False)
        self.zeros("counts", 4)

    def update(self, sample_probs: SampleProbs, labels: Labels) -> None:
        """Adds a batch of sampled probabilities, or a prediction, and its labels."""
        self.counts += pavpu_counts(*inputs.sampled_examples(sample_probs, labels), self.alpha)

    def compute(self) -> Float[Tensor, ""]:
        """The metric of all examples so far."""
        value = getattr(Pavpu(*self.counts.long().tolist()), self.share)
        return torch.tensor(value, dtype=torch.float64, device=self.device)


class Gathered(Exact):
    """Keeps a score and a flag of every example, for metrics that need all examples at once.

    Attributes:
        measure: Returns the metric from all scores and flags.
    """

    measure: Callable[[Tensor, Tensor], float]
    scores: list[Tensor] | Tensor
    flags: list[Tensor] | Tensor

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.add_state("scores", [], dist_reduce_fx="cat")
        self.add_state("flags", [], dist_reduce_fx="cat")

    def keep(self, scores: Float[Tensor, "example"], flags: Float[Tensor, "example"]) -> None:
        """Adds the numbers of a batch, in float64."""
        assert isinstance(self.scores, list) and isinstance(self.flags, list)
        self.scores.append(scores)
        self.flags.append(flags)

    def compute(self) -> Float[Tensor, ""]:
        """The metric of all examples so far."""
        value = self.measure(_joined(self.scores), _joined(self.flags) > 0)
        return torch.tensor(value, dtype=torch.float64, device=self.device)


class OutOfDistribution(Gathered):
    """Applies `contrast` to the scores of in-distribution and out-of-distribution examples.

    Args:
        score: Score of predictions: `"entropy"`, `"mutual_information"` or `"disagreement"`.
        settings: Arguments of `torchmetrics.Metric`.
    """

    contrast: Callable[[Tensor, Tensor], float]

    def __init__(self, score: str = "entropy", **settings: Any) -> None:
        super().__init__(**settings)
        if score not in SCORES:
            inputs.fail(f"score={score!r} is not possible", f"Choose one of {list(SCORES)}.")
        self.score = score

    def update(
        self, scores: Prediction | Float[Tensor, "*batch"], outside: Bool[Tensor, "*batch"]
    ) -> None:
        """Adds a batch of predictions or scores, and flags of the out-of-distribution examples."""
        values = getattr(scores, self.score) if isinstance(scores, Prediction) else scores
        self.keep(*inputs.scores_and_flags(values, outside, ("scores", "outside")))

    def measure(self, scores: Float[Tensor, "example"], flags: Bool[Tensor, "example"]) -> float:
        """The metric, from all examples."""
        return self.contrast(scores[~flags], scores[flags])


class Selective(Gathered):
    """Keeps confidences and whether predictions are correct."""

    def update(self, confidence: Float[Tensor, "*batch"], correct: Bool[Tensor, "*batch"]) -> None:
        """Adds a batch of confidences, and whether the predictions are correct."""
        self.keep(*inputs.scores_and_flags(confidence, correct))


def _joined(state: list[Tensor] | Tensor) -> Tensor:
    """A state as one tensor: a list before processes are gathered, a tensor afterwards."""
    parts = [state] if isinstance(state, Tensor) else state
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.float64)
