"""Small networks for the tests."""

import torch

from babn_paper.gbn import GammaBeliefNetwork


def tensor(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def columns(below: int, above: int, seed: int) -> torch.Tensor:
    """Random weights with columns that sum to one."""
    raw = torch.rand(below, above, generator=generator(seed), dtype=torch.float64)
    return raw / raw.sum(0)


def scalar(*weights: float, shape: float = 1.3, rate: float = 0.7) -> GammaBeliefNetwork:
    """One unit in each layer and one count."""
    return GammaBeliefNetwork(tensor([shape]), tuple(tensor([[w]]) for w in weights), rate)


def two_layers(rate: float = 0.8) -> GammaBeliefNetwork:
    """Two units over three over two counts, with weights of no special form."""
    upper = tensor([[0.5, 1.2], [1.5, 0.2], [0.4, 0.9]])
    lower = tensor([[1.0, 0.3, 2.0], [0.2, 1.7, 0.6]])
    return GammaBeliefNetwork(tensor([0.8, 1.5]), (upper, lower), rate)
