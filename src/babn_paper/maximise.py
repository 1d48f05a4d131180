"""Short training of small models on an evidence bound."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from babn.progress import NoProgress, Progress
from babn.validation import check_at_least, check_count


def maximise(
    bound: Callable[[], Tensor],
    parameters: Iterable[nn.Parameter],
    title: str,
    *,
    steps: int,
    rate: float,
    seed: int,
    progress: Progress | None = None,
    weight: float = 1.0,
    largest: float = 10.0,
) -> list[float]:
    """Maximises a bound by Adam, with a rate that falls to zero like a cosine.

    Args:
        bound: Draws data and noise and returns the mean bound.
        parameters: What is trained.
        title: What is told of it while it is done.
        steps: Steps of the optimizer.
        rate: Learning rate at the beginning.
        seed: Sets data and noise; the global random state is left as it was.
        progress: Is told of every step.
        weight: What gradients are multiplied by.
        largest: Largest norm of the gradient. Rare draws of small shapes have gradients that would
            undo many steps.

    Returns:
        The mean bound at every step.
    """
    check_count("steps", steps)
    check_at_least("rate", rate, 0.0, strictly=True)
    trained = list(parameters)
    optimizer = torch.optim.Adam(trained, rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    progress = progress or NoProgress()
    progress.begin(title, steps)
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
            progress.step(1)
    return history
