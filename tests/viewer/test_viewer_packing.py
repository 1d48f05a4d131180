"""Packing of attention into bytes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import random_weights, unpack

from babn.prediction.attention_maps import AttentionMap
from babn.viewer.packing import (
    DRAWN,
    DRAWN_LONG,
    gaps,
    largest,
    pack,
    quantise,
    share,
    with_average,
)


def maps(layers: int, heads: int, tokens: int) -> list[AttentionMap]:
    shape = torch.zeros(1, 1, 1, 1).expand(1, heads, tokens, tokens)
    return [AttentionMap(f"chain/{i}", shape, shape) for i in range(layers)]


def packed(kept: int, keys: int = 300, most: float = 1.0) -> tuple[dict, dict]:
    """What went into a layer, and what comes out."""
    weights, spread = random_weights(3, 5, keys), 2 * random_weights(3, 5, keys, seed=1)
    sample = most * random_weights(3, 5, keys, seed=2)
    full = {"mean": weights, "std": spread, "sample 0": sample}
    full = {name: with_average(x) for name, x in full.items()}
    places = largest(full["mean"], kept)
    mean, std, drawn = (x.gather(-1, places) for x in full.values())
    layer = pack(places, keys, mean, std, [drawn])
    chain = {"layers": [layer], "size": [5, keys], "kept": places.shape[-1], "heads": 3}
    return full, unpack(chain, 0, 1)


@given(st.floats(0, 1))
def test_weights_are_right_to_four_thousandths_and_finer_when_small(weight: float) -> None:
    byte = int(quantise(torch.tensor([weight]).sqrt())[0])
    error = abs((byte / 255) ** 2 - weight)
    assert error <= 0.004
    assert error <= weight**0.5 / 255 + 1 / 510**2 + 1e-6


def test_every_key_survives_when_all_are_kept() -> None:
    full, found = packed(kept=300)
    assert torch.tensor(found["mean"]).sub(full["mean"]).abs().max() < 0.004
    assert torch.tensor(found["sample 0"]).sub(full["sample 0"]).abs().max() < 0.004
    step = float(full["std"].max()) / 255
    assert torch.tensor(found["std"]).sub(full["std"]).abs().max() <= step / 2 + 1e-6


def test_the_largest_weights_are_kept_at_their_places() -> None:
    full, found = packed(kept=7)
    expected = full["mean"].topk(7, dim=-1)
    mean = torch.tensor(found["mean"])
    assert (mean > 0).sum(-1).max() <= 7
    assert mean.gather(-1, expected.indices).sub(expected.values).abs().max() < 0.004
    std = torch.tensor(found["std"]).gather(-1, expected.indices)
    assert std.sub(full["std"].gather(-1, expected.indices)).abs().max() < 0.01


def test_the_first_head_is_the_mean_over_heads() -> None:
    weights = random_weights(4, 3, 3)
    made = with_average(weights)
    assert torch.equal(made[1:], weights)
    assert torch.allclose(made[0], weights.mean(0))


def test_weights_above_one_have_a_scale() -> None:
    full, found = packed(kept=300, most=3.0)
    assert full["sample 0"].max() > 1
    assert torch.tensor(found["sample 0"]).sub(full["sample 0"]).abs().max() < 0.012


def test_distances_above_255_take_two_bytes() -> None:
    low, high = gaps(torch.tensor([[[0, 255, 600]]]))
    assert low.tolist() == [[[1, 255, 345 - 256]]]
    assert high.tolist() == [[[0, 0, 1]]]


def test_short_texts_keep_everything() -> None:
    assert share(maps(12, 12, 30)) == (30, DRAWN)


@pytest.mark.parametrize("tokens", [128, 512, 1024])
def test_long_texts_stay_within_the_budget(tokens: int) -> None:
    kept, drawn = share(maps(12, 12, tokens), budget=5_000_000)
    assert drawn == DRAWN_LONG
    assert 4 <= kept < tokens
    assert 12 * 13 * tokens * kept * (4 + drawn) <= 5_000_000


def test_something_is_kept_whatever_the_budget() -> None:
    assert share(maps(2, 2, 64), budget=1)[0] == 1
