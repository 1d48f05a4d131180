"""Predictions and labels for the tests of metrics."""

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

seeds = st.integers(0, 2**31)
sizes = st.integers(1, 60)

patient = settings(deadline=None, max_examples=40)
"""For properties of which a busy machine may take its time; an example has up to 60 predictions."""


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def drawn(seed: int, examples: int = 200, classes: int = 5) -> tuple[Tensor, Tensor]:
    """Probabilities, some of them near 1, and labels that are mostly the predicted class."""
    source = generator(seed)
    labels = torch.randint(classes, (examples,), generator=source)
    logits = 3 * torch.randn(examples, classes, generator=source, dtype=torch.float64)
    logits[torch.arange(examples), labels] += 2
    return logits.softmax(-1), labels


def coarse(seed: int, examples: int = 60, classes: int = 4) -> tuple[Tensor, Tensor]:
    """Probabilities in tenths, many of them equal and on the edges of bins."""
    source = generator(seed)
    shares = torch.rand(examples, classes, generator=source)
    counts = (10 * shares / shares.sum(-1, keepdim=True)).floor()
    counts[:, 0] += 10 - counts.sum(-1)
    return counts.double() / 10, torch.randint(classes, (examples,), generator=source)


def sampled(seed: int, samples: int = 6, examples: int = 50, classes: int = 4) -> Tensor:
    """Samples of probabilities, of which some agree and some do not."""
    source = generator(seed)
    mean = torch.randn(examples, classes, generator=source, dtype=torch.float64)
    noise = torch.randn(samples, examples, classes, generator=source, dtype=torch.float64)
    return (mean + noise).softmax(-1)


def scored(seed: int, inside: int = 120, outside: int = 70) -> tuple[Tensor, Tensor]:
    """Integer scores with many ties, higher for outside examples."""
    source = generator(seed)
    return (
        torch.randint(8, (inside,), generator=source).double(),
        torch.randint(2, 10, (outside,), generator=source).double(),
    )


def answered(seed: int, examples: int = 50, levels: int = 8) -> tuple[Tensor, Tensor]:
    """Confidences with many ties, and correctness, more frequent at high confidence."""
    source = generator(seed)
    confidence = torch.randint(1, levels + 1, (examples,), generator=source).double() / levels
    return confidence, torch.rand(examples, generator=source).double() < confidence
