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
    """Maximises a bound with Adam and a cosine schedule of the learning rate.

    Args:
        bound: Draws data and noise and returns the mean bound.
        parameters: Parameters to train.
        title: Title of the progress display.
        steps: Number of optimizer steps.
        rate: Initial learning rate.
        seed: Seed of data and noise; the global random state is restored.
        progress: Is notified of every step.
        weight: Factor of the gradients.
        largest: Maximum norm of the gradient. Rare draws of small shapes have gradients that would
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
