"""The upward path against loops written from the paper's equations."""

import numpy as np
import pytest
import torch
from attention_cases import LINEAR, array, causal, softmax, softplus
from torch import nn

from babn.attention.masking import normalize
from babn.attention.upward import AxisMap, upward_path
from babn.errors import KeyLengthError

axes = pytest.mark.parametrize("axis", ["keys", "heads"])


def make_maps(axis, count=3, size=2):
    maps = [AxisMap(axis, 6 if axis == "keys" else size).double() for _ in range(count)]
    generator = torch.Generator().manual_seed(0)
    for parameter in nn.ModuleList(maps).parameters():
        nn.init.normal_(parameter, generator=generator)
    return maps


def make_phi(keys=4, queries=4):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, 2, queries, keys, generator=generator, dtype=torch.float64)


@axes
def test_map_is_a_linear_layer(axis):
    (linear,), h = make_maps(axis, 1), make_phi()
    expected = LINEAR[axis](array(linear.weight), array(linear.bias), array(h))
    np.testing.assert_allclose(array(linear(h)), expected)


@axes
def test_the_path_is_the_papers_recursion(axis):
    maps, phi = make_maps(axis), make_phi()
    h = {len(maps) + 1: softmax(array(phi))}
    for layer in (3, 2, 1):
        f = maps[layer - 1]
        h[layer] = softplus(LINEAR[axis](array(f.weight), array(f.bias), h[layer + 1]))
    states = upward_path(maps, phi.softmax(-1), None)
    assert len(states) == 3
    for layer, state in enumerate(states, 1):
        np.testing.assert_allclose(array(state), h[layer])


@axes
def test_later_keys_change_nothing_in_earlier_rows(axis):
    maps, phi, mask = make_maps(axis), make_phi(), causal(4)
    other = phi.clone()
    other[..., 2:] = 7.0  # the first two queries do not see these
    states, changed = (upward_path(maps, normalize(x, mask), mask) for x in (phi, other))
    for before, after in zip(states, changed, strict=True):
        assert torch.equal(before[..., :2, :], after[..., :2, :])
        assert not torch.equal(before[..., 2:, :], after[..., 2:, :])


@axes
def test_a_prefix_alone_is_the_prefix_of_the_whole(axis):
    maps, phi = make_maps(axis), make_phi()
    whole = upward_path(maps, normalize(phi, causal(4)), causal(4))
    short = upward_path(maps, normalize(phi[..., :3, :3], causal(3)), causal(3))
    for long, prefix in zip(whole, short, strict=True):
        torch.testing.assert_close(long[..., :3, :3], prefix)


def test_a_map_over_keys_cannot_take_more_keys_than_it_was_built_for():
    (linear,) = make_maps("keys", 1)
    assert linear(make_phi(keys=6)).shape[-1] == 6
    with pytest.raises(KeyLengthError, match=r"7 keys.*max_length=6.*max_length=7.*heads"):
        linear(make_phi(keys=7))


def test_a_map_over_heads_takes_any_length():
    assert make_maps("heads", 1)[0](make_phi(keys=700)).shape == (2, 2, 4, 700)


@axes
def test_half_precision_weights_serve_float32_states(axis):
    linear = AxisMap(axis, 2).to(torch.bfloat16)
    assert linear(torch.zeros(1, 2, 1, 2)).dtype == torch.float32


@axes
def test_states_start_small_and_positive(axis):
    torch.manual_seed(0)
    (state,) = upward_path([AxisMap(axis, 64)], torch.full((1, 64, 2, 64), 1 / 64), None)
    assert (state > 0).all() and (state < 2).all()
