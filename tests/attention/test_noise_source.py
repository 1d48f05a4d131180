"""Noise that belongs to a place in a text."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from babn.attention.noise_source import AHEAD, WORD, FixedNoise, mixed, uniform
from babn.distributions import noise_for
from babn.errors import SamplesError


def drawn(
    noise: FixedNoise,
    shape: tuple[int, ...],
    past: int = 0,
    layer: int = 0,
    crossed: bool = False,
    queries: int | None = None,
) -> Tensor:
    return noise.at(layer, past, crossed).uniform(torch.empty(shape), queries)


SEEDS = FixedNoise((5, 6))


def reference(word: int) -> int:
    """The published hash in Python's own whole numbers."""
    word ^= word >> 16
    word = word * 0x21F0AAAD % 2**32
    word ^= word >> 15
    word = word * 0x735A2D97 % 2**32
    return word ^ word >> 15


@given(st.lists(st.integers(0, WORD), min_size=1, max_size=20))
def test_words_are_mixed_without_overflow(words: list[int]) -> None:
    assert mixed(torch.tensor(words)).tolist() == [reference(word) for word in words]


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 12), st.integers(0, 11), st.integers(1, 40))
def test_a_part_of_a_text_has_the_noise_of_the_whole(length: int, start: int, window: int) -> None:
    """Rows from `start` on, with the keys that a cache of a sliding window still has."""
    start = min(start, length - 1)
    whole = drawn(SEEDS, (2, 3, length, length))
    keys = min(length, window + length - start)
    part = drawn(SEEDS, (2, 3, length - start, keys), past=start)
    assert torch.equal(part, whole[:, :, start:, length - keys :])


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 2 * AHEAD), min_size=1, max_size=5), st.integers(1, 700))
def test_keys_have_one_number_in_every_step(steps: list[int], window: int) -> None:
    """Steps of generation with one source give what new sources give for the whole text."""
    source, length, past = FixedNoise((5, 6), (0, 2)), sum(steps), 0
    whole = drawn(FixedNoise((5, 6), (0, 2)), (2, 3, 1, length), queries=length)
    for new in steps:
        keys = min(past + new, window + new)
        part = drawn(source, (2, 3, 1, keys), past=past, queries=new)
        assert torch.equal(part, whole[..., past + new - keys : past + new])
        past += new


def test_a_static_cache_with_room_left_changes_nothing() -> None:
    whole, static = drawn(SEEDS, (2, 3, 5, 5)), drawn(SEEDS, (2, 3, 1, 9), past=4)
    assert torch.equal(static[..., :5], whole[:, :, 4:])


def test_keys_of_another_sequence_keep_their_numbers() -> None:
    whole = drawn(SEEDS, (2, 3, 5, 4), crossed=True)
    assert torch.equal(drawn(SEEDS, (2, 3, 1, 4), past=4, crossed=True), whole[:, :, 4:])


def test_padding_on_the_left_changes_nothing() -> None:
    plain = drawn(FixedNoise((5,)), (1, 3, 4, 4))
    padded = drawn(FixedNoise((6, 5), (0, 2)), (2, 3, 6, 6))
    assert torch.equal(padded[1:, :, 2:, 2:], plain)


def test_a_sequence_depends_on_its_own_seed_alone() -> None:
    pair, alone = drawn(SEEDS, (2, 3, 4, 4)), drawn(FixedNoise((6,)), (1, 3, 4, 4))
    assert torch.equal(pair[1:], alone)
    assert not torch.equal(pair[:1], alone)


def test_beams_share_the_noise_of_their_sequence() -> None:
    beams, pair = drawn(SEEDS, (6, 3, 4, 4)), drawn(SEEDS, (2, 3, 4, 4))
    assert torch.equal(beams, pair.repeat_interleave(3, 0))
    with pytest.raises(SamplesError, match="3 rows cannot share 2 seeds"):
        drawn(SEEDS, (3, 1, 2, 2))


def test_one_seed_gives_each_row_its_own() -> None:
    three = drawn(FixedNoise(7), (3, 1, 4, 4))
    assert torch.equal(three[:2], drawn(FixedNoise(7), (2, 1, 4, 4)))
    assert len(three.flatten(1).unique(dim=0)) == 3


def test_seeds_count_with_all_their_bits() -> None:
    low, high = (drawn(FixedNoise((seed,)), (1, 1, 2, 2)) for seed in (1, 1 + 2**40))
    assert not torch.equal(low, high)


def test_numbers_are_uniform_and_independent() -> None:
    """Over rows, columns, heads, layers and seeds, by tests with a fixed outcome."""
    layers = [drawn(FixedNoise((1, 2)), (2, 4, 64, 64), layer=layer) for layer in (0, 1)]
    u = torch.stack(layers).double()
    assert u.min() > 0 and u.max() < 1
    assert stats.kstest(u.flatten().numpy(), "uniform").pvalue > 1e-3
    for axis in range(u.ndim):
        one, other = (x.flatten() for x in (u.narrow(axis, 0, u.shape[axis] - 1),
                                            u.narrow(axis, 1, u.shape[axis] - 1)))  # fmt: skip
        correlation = torch.corrcoef(torch.stack([one, other]))[0, 1]
        assert abs(correlation) * len(one) ** 0.5 < 3.5
    assert len(u.flatten().float().unique()) > 0.98 * u.numel()


@pytest.mark.parametrize("family", ["weibull", "lognormal"])
@pytest.mark.parametrize("name", ["exact", "truncated", "truncated-paper"])
def test_uniform_numbers_become_the_noise_that_generators_draw(family: str, name: str) -> None:
    noise = noise_for(family, name)
    u = uniform((torch.tensor(3),), torch.arange(20_000)).double()
    fresh = noise.sample(torch.empty(20_000, dtype=torch.float64), torch.Generator().manual_seed(0))
    made = noise.from_uniform(u)
    assert made.isfinite().all()
    assert stats.ks_2samp(made.numpy(), fresh.numpy()).pvalue > 1e-3
