"""Temperature scaling where there is no further data to fit the temperature on."""

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from babn.evaluation.calibration import fit_temperature
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
    logits = prediction.sample_logits
    tempered = logits.clone()
    for own, others in folds(len(labels)):
        temperature = fit_temperature(Prediction(logits[:, others]), labels[others])
        tempered[:, own] = logits[:, own] / temperature
    return Prediction(tempered)
