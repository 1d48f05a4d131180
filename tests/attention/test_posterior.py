"""How much normalised weights vary, from the spread of the variables."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import Float
from torch import Tensor

from babn.attention.noise_source import NoiseLike
from babn.attention.posterior import Posterior
from babn.distributions import Weibull


class Given(Posterior):
    """Mean weights and relative stds as they are given."""

    def __init__(self, mean: list[float], std: list[float]) -> None:
        self.mean, self.std = (torch.tensor([[[x]]], dtype=torch.float64) for x in (mean, std))

    def mean_weights(self) -> Float[Tensor, "batch head query key"]:
        return self.mean

    def sample_weights(self, noise_source: NoiseLike) -> Float[Tensor, "batch head query key"]:
        raise NotImplementedError

    def relative_std(self) -> Float[Tensor, "batch head query key"]:
        return self.std


@given(st.lists(st.floats(0.01, 100), min_size=2, max_size=6))
def test_exact_for_dirichlet_weights(alpha: list[float]) -> None:
    total = sum(alpha)
    mean = [a / total for a in alpha]
    found = Given(mean, [a**-0.5 for a in alpha]).weight_relative_std().flatten()
    expected = [((1 - w) / (w * (total + 1))) ** 0.5 for w in mean]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize(("k", "tolerance"), [(20.0, 0.03), (5.0, 0.1), (2.0, 0.15), (1.0, 0.15)])
def test_close_for_weibull_weights(k: float, tolerance: float) -> None:
    mean = [0.5, 0.3, 0.15, 0.05]
    q = Weibull(torch.tensor(k).double(), torch.tensor(0.0).double())
    generator = torch.Generator().manual_seed(0)
    draws = torch.empty(100_000, 4, dtype=torch.float64).exponential_(generator=generator)
    weights = (torch.tensor(mean).log() + draws.log() / k).softmax(-1)
    found = Given(mean, [float(q.relative_std)] * 4).weight_relative_std().flatten()
    torch.testing.assert_close(found, weights.std(0) / weights.mean(0), rtol=tolerance, atol=0)


@given(st.lists(st.floats(1e-6, 1), min_size=2, max_size=6), st.floats(1e-3, 1e3))
def test_no_more_than_a_weight_can_vary(mean: list[float], spread: float) -> None:
    mean = [w / sum(mean) for w in mean]
    found = Given(mean, [spread] * len(mean)).weight_relative_std().flatten().tolist()
    for w, each in zip(mean, found, strict=True):
        assert 0 <= each <= ((1 - w) / w) ** 0.5 * (1 + 1e-9)


def test_noise_beyond_all_numbers_gives_the_largest_spread() -> None:
    mean = [0.7, 0.2, 0.1]
    found = Given(mean, [torch.inf] * 3).weight_relative_std().flatten().tolist()
    assert found == pytest.approx([((1 - w) / w) ** 0.5 for w in mean])


def test_candidates_that_share_the_weight_are_unsure_and_one_alone_is_sure() -> None:
    spreads = []
    for candidates in (1, 2, 4):
        rest = 1e-4
        mean = [(1 - rest * (8 - candidates)) / candidates] * candidates + [rest] * (8 - candidates)
        spreads.append(float(Given(mean, [0.5] * 8).weight_relative_std()[0, 0, 0, 0]))
    assert spreads[0] < 0.01 < 0.3 < spreads[1] < spreads[2]
