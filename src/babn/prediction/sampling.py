"""Forward passes that draw samples of attention."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from babn.attention.randomness import Randomness
from babn.conversion.passes import overriding


@contextmanager
def sampling(model: nn.Module, seed: int | None = None) -> Iterator[None]:
    """Makes forward passes draw samples of attention, in evaluation mode too.

    Args:
        model: A converted model.
        seed: Makes the whole series of passes reproducible and leaves torch's global random state
            alone; `None` draws from the global state.

    Example:
        with babn.sampling(model, seed=0):
            first, second = model(**batch), model(**batch)  # two different samples
    """
    randomness = Randomness(None if seed is None else [seed])
    with overriding(model, mode="sample", randomness=randomness):
        yield


@contextmanager
def posterior_mean(model: nn.Module) -> Iterator[None]:
    """Makes forward passes use the posterior mean, in training mode too."""
    with overriding(model, mode="mean"):
        yield


@contextmanager
def recording_kl(model: nn.Module) -> Iterator[None]:
    """Makes passes compute the divergence under `torch.no_grad()` in evaluation mode too.

    It is left out there otherwise, since nothing but curiosity needs it.
    """
    with overriding(model, record_kl=True):
        yield
