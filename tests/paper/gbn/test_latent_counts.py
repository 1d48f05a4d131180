"""Splits and tables against their exact distributions."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from network_cases import generator, tensor
from scipy import stats

from babn_paper.gbn import gibbs
from babn_paper.gbn.gibbs import draw_tables, split_counts


def stirling_row(m: int) -> list[int]:
    """Unsigned Stirling numbers of the first kind |s(m, 0..m)|, by their recurrence."""
    row = [1]
    for n in range(m):
        row = [(row[z - 1] if z else 0) + n * (row[z] if z <= n else 0) for z in range(n + 2)]
    return row


def table_probabilities(m: int, r: float) -> list[float]:
    log_scale = math.lgamma(r) - math.lgamma(m + r)
    return [
        math.exp(log_scale + math.log(s) + z * math.log(r)) if s else 0.0
        for z, s in enumerate(stirling_row(m))
    ]


def agrees(draws: torch.Tensor, probabilities: list[float]) -> bool:
    """A chi-squared test in which rare outcomes are taken together."""
    observed = torch.bincount(draws.long(), minlength=len(probabilities)).double()
    expected = tensor(probabilities) * len(draws)
    often = expected >= 5
    pairs = [torch.stack([observed[often], expected[often]], -1)]
    pairs.append(torch.stack([observed[~often].sum(), expected[~often].sum()])[None])
    table = torch.cat(pairs)
    table = table[table[:, 1] >= 1]
    if len(table) == 1:
        return bool(table[0, 0] == len(draws))
    expected = table[:, 1] * table[:, 0].sum() / table[:, 1].sum()
    return stats.chisquare(table[:, 0].numpy(), expected.numpy()).pvalue > 1e-4


@pytest.mark.parametrize("r", [1e-3, 0.4, 1.0, 7.5, 300.0])
@pytest.mark.parametrize("m", [1, 2, 5, 30])
def test_tables_follow_the_exact_distribution(m, r):
    draws = draw_tables(
        tensor([m]).expand(20_000), tensor([math.log(r)]).expand(20_000), generator(m)
    )
    assert agrees(draws, table_probabilities(m, r))


def test_tables_of_a_ragged_tensor_follow_each_its_own_distribution(monkeypatch):
    monkeypatch.setattr(gibbs, "CHUNK", 1000)  # several chunks, cut inside restaurants
    customers = tensor([[0, 3, 12], [7, 1, 0]]).expand(20_000, 2, 3)
    log_shape = tensor([[0.1, 0.5, 2.0], [30.0, 1.0, 4.0]]).log().expand(20_000, 2, 3)
    draws = draw_tables(customers, log_shape, generator(0))
    for i in range(2):
        for j in range(3):
            m, r = int(customers[0, i, j]), log_shape[0, i, j].exp().item()
            assert agrees(draws[:, i, j], table_probabilities(m, r))


def test_one_table_when_the_shape_vanishes():
    draws = draw_tables(tensor([0, 1, 50]), tensor([-1e250, -600.0, -1e250]), generator(0))
    assert draws.tolist() == [0, 1, 1]


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.floats(-20, 8))
@settings(max_examples=40, deadline=None)
def test_tables_lie_between_one_and_the_customers(customers, log_shape):
    m = tensor(customers)
    z = draw_tables(m, torch.full_like(m, log_shape), generator(1))
    assert bool(((z >= (m > 0)) & (z <= m)).all())


def test_splits_are_multinomial():
    probabilities = [0.5, 0.05, 0.3, 0.15]
    split = split_counts(tensor([6.0]).expand(30_000), tensor(probabilities).log(), generator(3))
    for part, p in zip(split.unbind(-1), probabilities, strict=True):
        assert agrees(part, [stats.binom(6, p).pmf(x) for x in range(7)])
    covariance = torch.cov(split.T)
    expected = 6 * (torch.diag(tensor(probabilities)) - torch.outer(*[tensor(probabilities)] * 2))
    torch.testing.assert_close(covariance, expected, atol=0.05, rtol=0)


@given(st.integers(0, 5000), st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=5))
@settings(max_examples=40, deadline=None)
def test_splits_add_up(count, logits):
    split = split_counts(tensor([count]), tensor([logits]), generator(5))
    assert split.sum().item() == count
    assert bool((split >= 0).all())
