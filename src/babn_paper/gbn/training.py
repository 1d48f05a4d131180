"""Training the Weibull inference network on its evidence bound."""

import torch
from jaxtyping import Float
from torch import Tensor

from babn.progress import Progress
from babn.validation import check_count
from babn_paper.gbn.encoder import WeibullNetwork
from babn_paper.gbn.sampling import check_counts
from babn_paper.maximise import maximise


def fit(
    encoder: WeibullNetwork,
    counts: Float[Tensor, "observation count"],
    steps: int = 2000,
    batch_size: int = 256,
    draws: int = 2,
    rate: float = 0.01,
    seed: int = 0,
    progress: Progress | None = None,
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
        progress: Is told of every step.

    Returns:
        The mean evidence bound at every step.
    """
    for name, value in {"batch_size": batch_size, "draws": draws}.items():
        check_count(name, value)
    check_counts(counts, encoder.network.weights[-1].shape[-2])
    size = min(batch_size, len(counts))

    def bound() -> Tensor:
        batch = counts[torch.randint(len(counts), (size,))]
        return encoder.elbo(batch, draws).mean()

    title = "training the encoder"
    return maximise(
        bound, encoder.parameters(), title, steps=steps, rate=rate, seed=seed, progress=progress
    )
