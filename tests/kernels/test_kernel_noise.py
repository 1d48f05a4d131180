"""Noise inside kernels: its law, its independence, and that backward draws it again."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from small_kernels import applied, draws, exact_noise_at, mixed, truncated_noise_at
from torch import Tensor

from babn.distributions import noise_for
from babn.kernels.op import weibull_attention

SHAPE = (2, 2, 128, 256)
LAWS = {"exact": stats.uniform(0, 1), "truncated": stats.uniform(0.1, 0.8)}
laws = pytest.mark.parametrize("name", LAWS)


def seeds(*values: int, device: torch.device) -> Tensor:
    return torch.tensor(values, device=device)


@pytest.fixture(scope="module")
def bits(device: torch.device) -> Tensor:
    return draws(seeds(5, device=device), SHAPE)[0].cpu()


@pytest.fixture(scope="module", params=LAWS)
def named_noise(request: pytest.FixtureRequest, device: torch.device) -> tuple[str, Tensor]:
    noise = draws(seeds(5, device=device), SHAPE, truncated=request.param == "truncated")[1]
    return request.param, noise.flatten().cpu()


def correlation(a: Tensor, b: Tensor) -> float:
    """Of two sets of bits as numbers, in standard deviations of what independent ones give."""
    a, b = a.flatten().double(), b.flatten().double()
    return float(torch.corrcoef(torch.stack([a, b]))[0, 1]) * len(a) ** 0.5


def test_every_byte_is_uniform(bits: Tensor) -> None:
    assert bits.min() >= 0 and bits.max() < 2**32
    for shift in (0, 8, 16, 24):
        counts = torch.bincount((bits.flatten() >> shift) & 255, minlength=256)
        assert stats.chisquare(counts.numpy()).pvalue > 1e-3


def test_bits_are_uniform_in_each_row_and_column(bits: Tensor) -> None:
    uniform = bits.double() / 2**32
    spread = 1 / 12**0.5
    for axis in (2, 3):
        means = uniform.mean(axis).flatten()
        scores = (means - 0.5) / spread * SHAPE[axis] ** 0.5
        assert stats.kstest(scores.numpy(), "norm").pvalue > 1e-3


def test_neighbouring_bits_of_one_number_are_independent(bits: Tensor) -> None:
    pairs = bits ^ (bits >> 1)
    for place in range(31):
        ones = ((pairs >> place) & 1).sum().item()
        assert abs(ones - bits.numel() / 2) < 4.5 * bits.numel() ** 0.5 / 2


def test_noise_follows_its_law(named_noise: tuple[str, Tensor]) -> None:
    name, noise = named_noise
    quantiles = stats.gumbel_l.cdf(noise.numpy())
    assert stats.kstest(quantiles, LAWS[name].cdf).pvalue > 1e-3


@pytest.mark.parametrize("scale", [0.05, 0.3, 1.0, 2.0])
def test_mean_of_the_noise_is_the_stated_moment(
    named_noise: tuple[str, Tensor], scale: float
) -> None:
    name, noise = named_noise
    s = (scale * noise).exp()
    t = torch.tensor(scale, dtype=torch.float64)
    stated = noise_for("weibull", name).log_moment(t).exp().item()
    assert abs(s.mean().item() - stated) < 4.5 * s.std().item() / len(s) ** 0.5


# The first and last numbers of the range: all others lie between them.
ENDS = [0, 1, 511, 512, 2**32 - 512, 2**32 - 257, 2**32 - 256, 2**32 - 1]


def test_truncated_noise_stays_between_its_quantiles(device: torch.device) -> None:
    noise = applied(truncated_noise_at, torch.tensor(ENDS, device=device)) * math.log(2)
    quantiles = stats.gumbel_l.cdf(noise.numpy())
    assert quantiles.min() == pytest.approx(0.1, abs=1e-6)
    assert quantiles.max() == pytest.approx(0.9, abs=1e-6)


def test_exact_noise_is_finite(device: torch.device) -> None:
    noise = applied(exact_noise_at, torch.tensor(ENDS, device=device)) * math.log(2)
    assert torch.isfinite(noise).all()
    assert noise.min() < math.log(1e-7) and noise.max() > math.log(16)


def test_exact_noise_is_the_quantile_of_its_bits(device: torch.device) -> None:
    number = torch.logspace(8, 31.99, 2001, base=2, dtype=torch.float64).long().to(device)
    uniform = number.cpu().numpy() / 2**32
    noise = applied(exact_noise_at, number) * math.log(2)
    # The grid of float32 below one, and the rounding of log(1 - u).
    slack = 2.0**-22 + 3e-5 * uniform
    assert (np.abs(stats.gumbel_l.cdf(noise.numpy()) - uniform) < slack).all()


@pytest.mark.parametrize("axis", [0, 1, 2, 3], ids=["batch", "head", "row", "key"])
def test_neighbours_are_independent(bits: Tensor, axis: int) -> None:
    near, far = bits.narrow(axis, 0, SHAPE[axis] - 1), bits.narrow(axis, 1, SHAPE[axis] - 1)
    assert abs(correlation(near, far)) < 4
    # What a bad mix leaves: low bits that agree.
    assert abs(correlation(near & 0xFFFF, far & 0xFFFF)) < 4


def test_rows_that_share_their_first_key_are_independent(device: torch.device) -> None:
    generator = torch.Generator().manual_seed(0)
    second = torch.randint(2**32, (64,), generator=generator).to(device)
    bits = mixed(torch.full_like(second, 123456789), second, 512).cpu()
    assert abs(correlation(bits[1:], bits[:-1])) < 4
    assert bits.unique().numel() > 0.999 * bits.numel()


@pytest.mark.parametrize("seed", [6, 5 + 2**32])
def test_other_seeds_are_independent(bits: Tensor, device: torch.device, seed: int) -> None:
    other = draws(seeds(seed, device=device), SHAPE)[0].cpu()
    assert abs(correlation(bits, other)) < 4
    assert (bits == other).float().mean() < 1e-4


def test_the_same_seed_draws_the_same(device: torch.device) -> None:
    first, second = (draws(seeds(9, device=device), (1, 2, 20, 21))[1] for _ in range(2))
    assert torch.equal(first, second)


def test_a_block_depends_on_its_own_seed_alone(device: torch.device) -> None:
    together = draws(seeds(7, 8, device=device), (4, 2, 20, 21))[1]
    apart = [draws(seeds(seed, device=device), (2, 2, 20, 21))[1] for seed in (7, 8)]
    assert torch.equal(together, torch.cat(apart))


def test_noise_does_not_depend_on_the_number_of_keys_and_rows(device: torch.device) -> None:
    seed = seeds(3, device=device)
    small, large = (draws(seed, (1, 2, size, size + 5))[1] for size in (20, 90))
    assert torch.equal(small, large[:, :, :20, :25])


@laws
@pytest.mark.parametrize("size", [21, 32])
def test_backward_draws_the_noise_of_forward(device: torch.device, name: str, size: int) -> None:
    q, k = torch.randn(2, 1, 2, size, 8, generator=torch.Generator().manual_seed(0)).to(device)
    # With these values the output is the weights, and with this gradient so is the values'.
    one = torch.eye(size, device=device).expand(1, 2, size, size).contiguous()
    v = one.clone().requires_grad_()
    truncated = float(name == "truncated")
    numbers = [0.3, 0.0, 2.0, 0.0, 1.0, 1.0, 1.0, 1.0, truncated, truncated, 0.0]
    weights, *_ = weibull_attention(q, k, v, *[None] * 5, seeds(4, device=device), numbers)
    weights = weights.transpose(1, 2)
    (found,) = torch.autograd.grad(weights, v, one)
    torch.testing.assert_close(found, weights.transpose(-1, -2), rtol=1e-5, atol=1e-7)
