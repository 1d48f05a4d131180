"""Synthetic predictions: logits of the label plus noise, at a wrong scale."""

import torch
from torch import Tensor

from babn.evaluation.predictions import Evaluation
from babn.prediction.result import Prediction

SIZE, CLASSES = 400, 3


def labels(size: int = SIZE) -> Tensor:
    return torch.randint(CLASSES, (size,), generator=torch.Generator().manual_seed(0))


def logits(
    seed: int = 0, samples: int = 1, scale: float = 1.0, signal: float = 1.0, size: int = SIZE
) -> Tensor:
    """Calibrated at scale 1: normal noise of variance one around `signal` for the right class."""
    generator = torch.Generator().manual_seed(seed)
    right = torch.nn.functional.one_hot(labels(size), CLASSES).double()
    noise = torch.randn(1, size, CLASSES, generator=generator, dtype=torch.float64)
    wobble = torch.randn(samples, size, CLASSES, generator=generator, dtype=torch.float64)
    return scale * signal * (signal * right + noise + 0.2 * wobble * (samples > 1))


def evaluation(
    method: str, seed: int = 0, samples: int = 1, outside: bool = False, **how: float
) -> Evaluation:
    foreign = None
    if outside:
        generator = torch.Generator().manual_seed(100 + seed)
        drawn = torch.randn(samples, 150, CLASSES, generator=generator, dtype=torch.float64)
        foreign = Prediction(0.3 * drawn)
    return Evaluation(
        method, Prediction(logits(seed, samples, **how)), labels(), seed, foreign, {"task": "toy"}
    )
