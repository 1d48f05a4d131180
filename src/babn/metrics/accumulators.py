"""Metrics that keep sums and counts between batches."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from babn.errors import MissingExtraError
from babn.metrics.certainty import Pavpu, pavpu_counts
from babn.metrics.checks import check_share, check_whole, refuse
from babn.metrics.inputs import Labels, Probs, SampleProbs, examples, sampled_examples

try:
    from torchmetrics import Metric
except ImportError as error:
    raise MissingExtraError(
        "babn.metrics.streaming needs torchmetrics: pip install 'babn[metrics]'"
    ) from error


class Exact(Metric):
    """A metric whose state keeps its dtype wherever the model around it is moved."""

    is_differentiable = False
    full_state_update = False

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which a process without examples takes part in gathering."""
        return torch.float64

    def _apply(
        self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = ""
    ) -> nn.Module:
        """Moves the state to the device that `fn` moves to, and leaves its dtype alone."""
        return super()._apply(lambda x: x.to(fn(x).device), exclude_state)

    def zeros(self, name: str, *shape: int) -> None:
        """Adds a state that starts at zero and adds up over processes."""
        self.add_state(name, torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")


class Mean(Exact):
    """Mean over examples of what `each` gives for a batch."""

    total: Tensor
    count: Tensor

    def __init__(self, each: Callable[[Tensor, Tensor], Tensor], **settings: Any) -> None:
        super().__init__(**settings)
        self.each = each
        self.zeros("total")
        self.zeros("count")

    def update(self, probs: Probs, labels: Labels) -> None:
        """Adds a batch of probabilities, or a prediction, and its right classes."""
        values = self.each(*examples(probs, labels))
        self.total += values.sum()
        self.count += len(values)

    def compute(self) -> Float[Tensor, ""]:
        """The mean over all examples so far."""
        return self.total / self.count


class Bins(Exact):
    """`gap` between confidence and accuracy in the bins over which `add_up` sums.

    Args:
        add_up: Gives sums over bins from probabilities, labels and the number of bins.
        gap: Gives the error from the sums.
        bins: Number of bins, of each class if `num_classes` is given.
        num_classes: Number of classes that have bins of their own.
        settings: Those of torchmetrics.
    """

    higher_is_better = False
    sums: Tensor

    def __init__(
        self,
        add_up: Callable[[Tensor, Tensor, int], Tensor],
        gap: Callable[[Tensor], Tensor],
        bins: int,
        num_classes: int | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.add_up, self.gap = add_up, gap
        self.bins, self.num_classes = check_whole(bins, "bins"), num_classes
        groups = [] if num_classes is None else [check_whole(num_classes, "num_classes")]
        self.zeros("sums", *groups, self.bins, 3)

    def update(self, probs: Probs, labels: Labels) -> None:
        """Adds a batch of probabilities, or a prediction, and its right classes."""
        p, y = examples(probs, labels)
        if self.num_classes not in (None, p.shape[-1]):
            refuse(
                f"probs has {p.shape[-1]} classes and the metric num_classes={self.num_classes}",
                "Make them the same.",
            )
        self.sums += self.add_up(p, y, self.bins)

    def compute(self) -> Float[Tensor, ""]:
        """The calibration error of all examples so far."""
        return self.gap(self.sums)


class Counts(Exact):
    """Counts answers by accuracy and certainty."""

    higher_is_better = True
    counts: Tensor

    def __init__(self, alpha: float = 0.05, **settings: Any) -> None:
        super().__init__(**settings)
        self.alpha = check_share(alpha, "alpha", whole=False)
        self.zeros("counts", 4)

    def update(self, sample_probs: SampleProbs, labels: Labels) -> None:
        """Adds a batch of samples of probabilities, or a prediction, and its right classes."""
        self.counts += pavpu_counts(*sampled_examples(sample_probs, labels), self.alpha)

    def compute(self) -> Float[Tensor, ""]:
        """The metric of all examples so far."""
        value = self.value(Pavpu(*self.counts.long().tolist()))
        return torch.tensor(value, dtype=torch.float64, device=self.device)

    @abstractmethod
    def value(self, counts: Pavpu) -> float:
        """The metric, from all counts."""
