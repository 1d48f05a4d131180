"""Posterior draws from parallel chains of the Gibbs sampler."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from babn.errors import ConfigError
from babn.validation import check_at_least, check_count
from babn_paper.gbn.gibbs import State, sweep
from babn_paper.gbn.network import GammaBeliefNetwork


@dataclass(frozen=True)
class Draws:
    """Draws from the posterior.

    Attributes:
        log_units: Logarithms of the units, layer by layer from the one nearest the prior.
    """

    log_units: list[Float[Tensor, "draw chain observation _"]]


def sample_posterior(
    network: GammaBeliefNetwork,
    counts: Float[Tensor, "observation count"],
    draws: int = 1000,
    warmup: int = 200,
    chains: int = 4,
    thin: int = 1,
    generator: torch.Generator | None = None,
) -> Draws:
    """Draws from the posterior of all units, given counts.

    Args:
        network: The network.
        counts: One row for each observation.
        draws: Number of draws per chain.
        warmup: Number of sweeps before the first draw.
        chains: Number of chains per observation, each started from a draw of the prior.
        thin: Number of sweeps between draws.
        generator: Random number generator.

    Example:
        >>> network = GammaBeliefNetwork(torch.ones(1), (torch.ones(1, 1),))
        >>> found = sample_posterior(network, torch.tensor([[3.0]]), draws=10)
        >>> found.log_units[0].shape
        torch.Size([10, 4, 1, 1])
    """
    for name, value in {"draws": draws, "chains": chains, "thin": thin}.items():
        check_count(name, value)
    check_at_least("warmup", warmup, 0)
    check_counts(counts, network.weights[-1].shape[-2])
    start = _start(network, len(counts), chains, generator)
    kept: list[State] = []
    data = counts.expand(chains, *counts.shape)
    for number, state in enumerate(_sweeps(start, data, generator)):
        if number >= warmup and (number - warmup + 1) % thin == 0:
            kept.append(state)
        if len(kept) == draws:
            break
    layers = zip(*(state.log_units for state in kept), strict=True)
    return Draws([torch.stack(layer) for layer in layers])


def check_counts(counts: Float[Tensor, "observation count"], columns: int) -> None:
    """Validates that counts are nonnegative integers and match the network."""
    if counts.shape[-1] != columns:
        raise ConfigError(
            f"counts has {counts.shape[-1]} columns and the network {columns}. Give one for each."
        )
    wrong = counts[~((counts >= 0) & (counts == counts.round()) & counts.isfinite())]
    if len(wrong):
        raise ConfigError(f"counts holds {wrong[0].item():g}. Give integers from 0 on.")


def _start(
    network: GammaBeliefNetwork,
    observations: int,
    chains: int,
    generator: torch.Generator | None,
) -> State:
    log_units, _ = network.draw(chains * observations, generator)
    return State(network, [units.unflatten(-2, (chains, observations)) for units in log_units])


def _sweeps(state: State, data: Tensor, generator: torch.Generator | None) -> Iterator[State]:
    while True:
        state = sweep(state, data, generator)
        yield state
