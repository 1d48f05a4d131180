"""Geweke's test (2004): two ways to simulate units and counts jointly must agree.

The one draws everything from the prior; the other goes back and forth between a sweep of the
sampler and new counts. Their means of test functions agree only if the sampler is right.
"""

from collections.abc import Callable

import torch
from network_cases import generator

from babn_paper.gbn import GammaBeliefNetwork
from babn_paper.gbn.gibbs import State
from babn_paper.gbn.sampling import prior_weights
from babn_paper.simulation.draws import effective_sample_size

Sweep = Callable[[State, torch.Tensor, torch.Generator], State]


def functions(state: State, counts: torch.Tensor) -> dict[str, torch.Tensor]:
    """Test functions, one value for each chain."""
    found = {"count": counts[..., 0], "count^2": counts[..., 0] ** 2, "zero": counts[..., 0] == 0}
    for layer, log_units in enumerate(state.log_units):
        units = log_units[..., 0].exp()
        found |= {f"S{layer}": units, f"S{layer}^2": units**2, f"exp(-S{layer})": (-units).exp()}
        found[f"log S{layer}"] = log_units[..., -1].clamp(min=-50)
        found[f"S{layer} count"] = units * counts[..., 0]
    found["across layers"] = state.log_units[0].exp().sum(-1) * state.log_units[-1].exp().sum(-1)
    found = {name: value.double().mean(-1) for name, value in found.items()}
    for i, weight in enumerate(state.network.weights):
        if weight.dim() > 2:
            found |= {f"W{i}": weight[..., 0, 0], f"W{i}^2": weight[..., 0, 0] ** 2}
            # Weights and units together: a wrong order of the two would show here.
            found[f"W{i} S"] = weight[..., 0, 0] * state.log_units[i].exp()[..., 0].mean(-1)
    return found


def z_scores(
    network: GammaBeliefNetwork,
    sweep: Sweep,
    chains: int = 400,
    steps: int = 200,
    observations: int = 1,
    concentration: float | None = None,
) -> dict[str, float]:
    """How many standard errors the two simulators are apart, by test function."""
    random = generator(7)

    def prior(size: int) -> tuple[State, torch.Tensor]:
        drawn = network
        if concentration is not None:
            drawn = prior_weights(network, size, concentration, random)
            return (s := State(drawn, drawn.draw(observations, random)[0])), drawn.draw_counts(
                s.log_units[-1], random
            )
        log_units, counts = drawn.draw(size * observations, random)
        shape = (size, observations)
        return State(drawn, [u.unflatten(-2, shape) for u in log_units]), counts.unflatten(
            -2, shape
        )

    independent = functions(*prior(100_000))
    state, counts = prior(chains)
    followed = []
    for _ in range(steps):
        state = sweep(state, counts, random)
        counts = state.network.draw_counts(state.log_units[-1], random)
        followed.append(functions(state, counts))
    return {
        name: _z(values, torch.stack([each[name] for each in followed]))
        for name, values in independent.items()
    }


def _z(independent: torch.Tensor, chain: torch.Tensor) -> float:
    size = effective_sample_size(chain)
    variance = independent.var() / len(independent) + chain.var() / size
    return ((independent.mean() - chain.mean()) / variance.sqrt()).item()
