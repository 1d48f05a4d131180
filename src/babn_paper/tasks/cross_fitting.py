"""Temperature scaling where there is no further data to fit the temperature on."""

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from babn.evaluation.temperature_scaling import Losses, best_temperatures, nll_losses
from babn.prediction.predict import Prediction

FOLDS = 10


def folds(
    examples: int,
) -> Iterator[tuple[Bool[Tensor, "example"], Bool[Tensor, "example"]]]:
    """A tenth of the examples and all others, for each tenth; nothing for a single example.

    The tenths are drawn, the same each time, since neighbours in a data set are often alike.
    """
    count = min(FOLDS, examples)
    drawn = torch.randperm(examples, generator=torch.Generator().manual_seed(0))
    for fold in range(count if count > 1 else 0):
        own = drawn % count == fold
        yield own, ~own


def cross_tempered(prediction: Prediction, labels: Int[Tensor, "example"]) -> Prediction:
    """Answers divided by temperatures that have not seen them.

    The temperature of each tenth of the examples is fitted on the other nine tenths. A single
    example keeps its answer.
    """
    losses = nll_losses(prediction.sample_logits, labels)
    return with_temperatures(prediction, losses)


def with_temperatures(prediction: Prediction, losses: Losses) -> Prediction:
    """Each tenth of the answers divided by the temperature that is best for the other nine tenths.

    Args:
        prediction: The answers.
        losses: The loss of each of them at a temperature.
    """
    tempered = prediction.sample_logits.clone()
    tenths = list(folds(tempered.shape[1]))
    if tenths:
        found = best_temperatures(losses, torch.stack([others for _, others in tenths]))
        for (own, _), temperature in zip(tenths, found, strict=True):
            tempered[:, own] = tempered[:, own] / temperature
    return Prediction(tempered, prediction.activation)
