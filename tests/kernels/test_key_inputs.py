"""What the calls of a chain with noise per key share in a forward pass."""

from typing import Any

import pytest
import torch
from torch import Tensor

from babn.attention.belief import BeliefConfig
from babn.attention.inputs import Inputs
from babn.attention.keys import KeyBeliefMethod
from babn.attention.method import ChainShape
from babn.attention.noise_source import GLOBAL_NOISE, FixedNoise, NoiseSource
from babn.kernels.dispatch import Request
from babn.kernels.key_inputs import attend, key_inputs
from babn.kernels.launch import Launcher

REQUEST = Request(sample=True, with_kl=True)


def method_of(*sets: int) -> KeyBeliefMethod:
    method = BeliefConfig(prior_hidden=3).build(ChainShape(2, 8, sets))
    assert isinstance(method, KeyBeliefMethod)
    with torch.no_grad():
        for parameter in method.parameters():
            parameter.normal_()
    return method


def call(keys: int = 5, mask: Tensor | None = None, batch: int = 2) -> Inputs:
    x = torch.randn(batch, 2, keys, 8)
    return Inputs(x, x, x, scale=0.3, mask=mask)


def by_hand(method: KeyBeliefMethod, own: int) -> Tensor:
    net: Any = method.prior_nets[own]
    layers = net.outer.bias, net.inner.bias, net.outer.weight, net.inner.weight
    return torch.cat([method.log_shape[own : own + 1], *(x.flatten() for x in layers)])


@pytest.mark.parametrize("sets", [(0, 1, 2), (1, 0, 1), (0, 0)])
def test_parameters_are_packed_and_their_gradients_added(sets: tuple[int, ...]) -> None:
    method = method_of(*sets)
    found = key_inputs(method, call(), REQUEST, GLOBAL_NOISE).parameters
    expected = [by_hand(method, own) for own in sets]
    weights = [torch.randn(len(x)) for x in expected]
    gradients = []
    for vectors in (found, expected):
        torch.testing.assert_close([*vectors], expected)
        loss = sum((x.sin() * w).sum() for x, w in zip(vectors, weights, strict=True))
        gradients.append(torch.autograd.grad(loss, [*method.parameters()]))
    torch.testing.assert_close(*gradients)


def test_without_the_kl_only_log_shapes_are_packed() -> None:
    method = method_of(0, 1)
    found = key_inputs(method, call(), Request(True, False), GLOBAL_NOISE).parameters
    torch.testing.assert_close([*found], [*method.log_shape.split(1)])


@pytest.mark.parametrize("source", [GLOBAL_NOISE, NoiseSource([3]), NoiseSource([3, 4])])
def test_uniform_numbers_of_all_calls_are_drawn_at_once(source: NoiseSource) -> None:
    shared = key_inputs(method_of(0, 1), call(), REQUEST, source)
    assert shared.uniform is not None and len(shared.uniform) == 2
    drawn = torch.stack([each[: 2 * 2 * 5] for each in shared.uniform])
    assert ((drawn >= 0) & (drawn < 1)).all() and drawn.unique().numel() == drawn.numel()
    assert all(each.data_ptr() % 16 == 0 for each in (*shared.uniform, *shared.parameters))


def test_uniform_numbers_of_a_block_depend_on_its_seed_alone() -> None:
    both, second = (
        key_inputs(method_of(0, 1), call(batch=rows), REQUEST, NoiseSource(seeds)).uniform
        for rows, seeds in [(2, [5, 6]), (1, [6])]
    )
    assert both is not None and second is not None
    for of_both, alone in zip(both, second, strict=True):
        assert torch.equal(of_both[2 * 5 : 2 * 2 * 5], alone[: 2 * 5])


def test_noise_of_positions_is_drawn_by_each_call() -> None:
    assert key_inputs(method_of(0, 1), call(), REQUEST, FixedNoise(3)).uniform is None


def test_calls_of_another_size_get_numbers_and_a_mask_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[tuple[Any, ...]] = []
    monkeypatch.setattr(Launcher, "__call__", lambda self, grid, tensors, *_: given.append(tensors))
    method = method_of(0, 1)
    mask = torch.ones(2, 1, 1, 5, dtype=torch.bool)
    first, other = call(5, mask), call(7, torch.ones(2, 1, 1, 7, dtype=torch.bool))
    shared = key_inputs(method, first, REQUEST, GLOBAL_NOISE)
    for step, inputs in enumerate((first, other)):
        attend(method, step, inputs, shared, GLOBAL_NOISE)
    assert shared.uniform is not None
    (_, u, seen, *_), _, (_, other_u, other_seen, *_), _ = given
    assert u is shared.uniform[0] and seen is shared.seen
    assert other_u.shape == (2, 2, 1, 7) and other_seen.shape == (2, 7)
