"""Training the Weibull inference network on its evidence bound."""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor, nn

from babn.attention.rule import check_at_least, check_count
from babn.gbn.encoder import WeibullNetwork
from babn.gbn.sampling import check_counts
from babn.watch import Unwatched, Watch


def fit(
    encoder: WeibullNetwork,
    counts: Float[Tensor, "observation count"],
    steps: int = 2000,
    batch_size: int = 256,
    draws: int = 2,
    rate: float = 0.01,
    seed: int = 0,
    watch: Watch | None = None,
) -> list[float]:
    """Maximises the mean evidence bound by Adam, with a rate that falls to zero like a cosine.

    Args:
        encoder: The network, changed in place.
        counts: One row for each observation.
        steps: Steps of the optimizer.
        batch_size: Observations for each step.
        draws: Draws for each observation.
        rate: Learning rate at the beginning.
        seed: Sets the order of the data and the noise; the global random state is left as it was.
        watch: Is told of every step.

    Returns:
        The mean evidence bound at every step.
    """
    for name, value in {"steps": steps, "batch_size": batch_size, "draws": draws}.items():
        check_count(name, value)
    check_at_least("rate", rate, 0.0, strictly=True)
    check_counts(counts, encoder.network.weights[-1].shape[-2])
    optimizer = torch.optim.Adam(encoder.parameters(), rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    watch = watch or Unwatched()
    watch.begin("training the encoder", steps)
    history = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for batch in _batches(counts, batch_size, steps):
            bound = encoder.elbo(batch, draws).mean()
            optimizer.zero_grad()
            (-bound).backward()
            # Rare draws of small shapes have gradients that would undo many steps.
            nn.utils.clip_grad_norm_(encoder.parameters(), 10.0)
            optimizer.step()
            schedule.step()
            history.append(bound.item())
            watch.step(1)
    return history


def _batches(counts: Tensor, size: int, steps: int) -> Iterator[Tensor]:
    for _ in range(steps):
        yield counts[torch.randint(len(counts), (min(size, len(counts)),))]
