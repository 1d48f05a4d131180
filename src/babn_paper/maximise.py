"""Maximises an evidence bound of a small model, for the simulations.

The models train in seconds on simulated data. They need none of what the training loop of
`babn_paper.experiments` is for: batches of a data set, checkpoints, logs or several processes.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from babn.validation import check_at_least, check_count


def maximise(
    bound: Callable[[], Tensor],
    parameters: Iterable[nn.Parameter],
    *,
    steps: int,
    rate: float,
    seed: int,
    weight: float = 1.0,
    largest: float = 10.0,
) -> list[float]:
    """Maximises a bound by Adam with cosine learning rate decay.

    Args:
        bound: Draws data and noise and returns the mean bound.
        parameters: The parameters to train.
        steps: Optimizer steps.
        rate: Initial learning rate.
        seed: Seed of data and noise; the global random state is restored.
        weight: Factor of the gradients.
        largest: Gradient norm for clipping. Rare samples with small shapes have gradients that
            would undo many steps.

    Returns:
        The mean bound of every step.
    """
    check_count("steps", steps)
    check_at_least("rate", rate, 0.0, strictly=True)
    trained = list(parameters)
    optimizer = torch.optim.Adam(trained, rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    history = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for _ in range(steps):
            value = bound()
            optimizer.zero_grad()
            (-value * weight).backward()
            nn.utils.clip_grad_norm_(trained, largest)
            optimizer.step()
            schedule.step()
            history.append(value.item())
    return history
