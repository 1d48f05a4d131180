"""Metrics that need every example at once, and keep two numbers of each."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from babn.metrics.accumulators import Exact
from babn.metrics.inputs import answers


class Gathered(Exact):
    """Keeps a score of every example, and whether it is one of those that count."""

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
        value = self.value(_joined(self.scores), _joined(self.flags) > 0)
        return torch.tensor(value, dtype=torch.float64, device=self.device)

    @abstractmethod
    def value(self, scores: Float[Tensor, "example"], flags: Bool[Tensor, "example"]) -> float:
        """The metric, from all examples."""


class OutOfDistribution(Gathered):
    """Compares the scores of foreign examples with those of familiar ones by `contrast`."""

    def __init__(self, contrast: Callable[[Tensor, Tensor], float], **settings: Any) -> None:
        super().__init__(**settings)
        self.contrast = contrast

    def update(self, scores: Float[Tensor, "*batch"], outside: Bool[Tensor, "*batch"]) -> None:
        """Adds a batch of scores, higher for the more foreign, and which ones are foreign."""
        self.keep(*answers(scores, outside, ("scores", "outside")))

    def value(self, scores: Float[Tensor, "example"], flags: Bool[Tensor, "example"]) -> float:
        """The comparison of all examples."""
        return self.contrast(scores[~flags], scores[flags])


class Selective(Gathered):
    """Keeps confidences and which answers are right."""

    def update(self, confidence: Float[Tensor, "*batch"], correct: Bool[Tensor, "*batch"]) -> None:
        """Adds a batch of confidences, and which answers are right."""
        self.keep(*answers(confidence, correct))


def _joined(state: list[Tensor] | Tensor) -> Tensor:
    """A state as one tensor: a list before processes are gathered, a tensor afterwards."""
    parts = [state] if isinstance(state, Tensor) else state
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.float64)
