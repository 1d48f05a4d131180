"""Context managers: forward passes with samples of attention, or with the posterior mean."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from babn.attention.noise_source import FixedNoise, NoiseSource
from babn.conversion.override import overriding
from babn.errors import ConfigError


@contextmanager
def sampling(model: nn.Module, seed: int | None = None, *, fixed: bool = False) -> Iterator[None]:
    """Makes forward passes draw samples of attention, in evaluation mode too.

    Args:
        model: A converted model.
        seed: Makes the series of passes reproducible without touching torch's global random state;
            `None` draws from the global state.
        fixed: Whether all passes share one draw of noise, as generation needs. The noise then
            depends only on the seed, the row of the batch, the layer, the head and the positions,
            so that results with and without a cache agree. Needs a seed.

    Example:
        with babn.sampling(model, seed=0):
            first, second = model(**batch), model(**batch)  # two different samples
        with babn.sampling(model, seed=0, fixed=True):
            tokens = model.generate(**batch)  # one sample for each row
    """
    if fixed and seed is None:
        raise ConfigError("fixed=True needs a seed. Give one, for example seed=0.")
    noise_source = NoiseSource(None if seed is None else [seed])
    noise = FixedNoise(seed) if fixed and seed is not None else None
    with overriding(model, mode="sample", noise_source=noise_source, fixed_noise=noise):
        yield


@contextmanager
def posterior_mean(model: nn.Module) -> Iterator[None]:
    """Makes forward passes use the posterior mean, in training mode too."""
    with overriding(model, mode="mean"):
        yield


@contextmanager
def recording_kl(model: nn.Module) -> Iterator[None]:
    """Makes forward passes compute the KL in evaluation mode under `torch.no_grad()` too."""
    with overriding(model, record_kl=True):
        yield
