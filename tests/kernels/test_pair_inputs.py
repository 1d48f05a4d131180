"""What is packed once a forward pass gives what the reference modules give in each call."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from babn.attention.noise_source import NoiseSource
from babn.attention.upward import AxisMap, upward_path
from babn.kernels.pair_inputs import for_each_call, packed_maps, upward_over_keys


def maps_over_keys(count: int, size: int) -> list[AxisMap]:
    torch.manual_seed(0)
    maps = [AxisMap("keys", size).double() for _ in range(count)]
    for parameter in nn.ModuleList(maps).parameters():
        nn.init.normal_(parameter, std=0.3)
    return maps


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_the_upward_path_over_keys_is_the_references(shared: bool, masked: bool) -> None:
    steps, keys = 3, 5
    maps = maps_over_keys(1 if shared else steps, keys)
    top = torch.rand(2, 3, 4, keys, dtype=torch.float64)
    mask = (torch.arange(keys) < torch.tensor([[3], [5]]))[:, None, None] if masked else None
    top = (top if mask is None else top * mask).requires_grad_()
    leaves = [top, *(x for each in maps for x in (each.weight, each.bias))]
    expected = upward_path(maps * steps if shared else maps[::-1], top, mask)[::-1]
    weights, biases = (torch.stack([getattr(f, x) for f in maps]) for x in ("weight", "bias"))
    found = upward_over_keys(top, mask, weights, biases, steps)
    factors = [torch.randn_like(h) for h in expected]
    slopes = [
        torch.autograd.grad(
            sum((h * c).sum() for h, c in zip(states, factors, strict=True)), leaves
        )
        for states in (found, expected)
    ]
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(*slopes)


def test_states_that_nothing_reads_send_nothing_back() -> None:
    (f,) = maps_over_keys(1, 5)
    top = torch.rand(1, 1, 2, 5, dtype=torch.float64)
    first, *_ = upward_over_keys(top, None, f.weight[None], f.bias[None], 3)
    expected = F.softplus(f(top))
    slopes = [torch.autograd.grad(h.sum(), [f.weight, f.bias]) for h in (first, expected)]
    torch.testing.assert_close(*slopes)


def test_calls_of_one_set_have_views_of_one_tensor() -> None:
    packed = [torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)]
    views = for_each_call(packed, [0, 1, 0, 0])
    sum(i * x.sum() for i, x in enumerate(views)).backward()
    assert [x.grad.tolist() for x in packed] == [[5.0, 5.0], [1.0, 1.0]]
    assert views[0].data_ptr() == views[3].data_ptr() == packed[0].data_ptr()


@pytest.mark.parametrize("keys", [4, 6])
def test_packed_maps_are_those_of_the_modules(keys: int) -> None:
    maps = maps_over_keys(3, 6)
    h = torch.randn(2, 2, 4, keys, dtype=torch.float64)
    weights, biases = packed_maps(maps, keys, h.dtype)
    both = weights[1:].transpose(0, 1).flatten(0, 1), biases[1:].t().flatten()
    found = [F.linear(h, weights[0], biases[0]), F.linear(h, *both)]
    last = torch.stack([f(h) for f in maps[1:]], -1).flatten(-2)
    expected = [maps[0](h), last]
    torch.testing.assert_close(found, expected)
    parameters = [*nn.ModuleList(maps).parameters()]
    slopes = [
        torch.autograd.grad(sum(x.sin().sum() for x in y), parameters) for y in (found, expected)
    ]
    torch.testing.assert_close(*slopes)


def test_seeds_of_a_block_depend_on_its_own_seed_alone() -> None:
    cpu = torch.device("cpu")
    both, second = (NoiseSource(seeds).draw_seeds(cpu, 3) for seeds in ([5, 6], [6]))
    assert [int(x[1]) for x in both] == [int(x[0]) for x in second]
    assert len({int(seed) for x in both for seed in x}) == 6
    assert not any(x.data_ptr() % 16 for x in (*both, *second))
