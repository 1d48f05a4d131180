"""Context managers around forward passes: evaluation mode, samples, posterior mean, KL."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

from torch import nn

from babn.attention.noise_source import GLOBAL_NOISE, FixedNoise, NoiseLike, NoiseSource
from babn.conversion.override import overriding
from babn.devices import device_of
from babn.errors import ConfigError

_locks: WeakKeyDictionary[nn.Module, threading.RLock] = WeakKeyDictionary()
_new_lock = threading.Lock()


@contextmanager
def evaluating(model: nn.Module, dropout: bool = False) -> Iterator[None]:
    """Puts a model into evaluation mode and restores the modes of its modules afterwards.

    Threads that use the same model take turns.

    Args:
        model: The model.
        dropout: Whether dropout stays on.
    """
    with _new_lock:
        lock = _locks.setdefault(model, threading.RLock())
    with lock:
        before = {module: module.training for module in model.modules()}
        if dropout or any(before.values()):
            model.train(dropout)
            for module in before:
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()
        try:
            yield
        finally:
            for module, mode in before.items():
                module.training = mode


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
    if seed is None:
        noise: NoiseLike = GLOBAL_NOISE
    else:
        noise = FixedNoise(seed) if fixed else NoiseSource([seed], device_of(model))
    with overriding(model, mode="sample", noise_source=noise):
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
