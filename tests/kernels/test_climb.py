"""The upward path over heads in kernels, against torch."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from babn.kernels import climb as kernels
from babn.kernels.climb import STEPS, climb
from babn.kernels.heads import SUMMED_PAIRS


def reference(top: Tensor, weights: Tensor, biases: Tensor) -> list[Tensor]:
    states = [top]
    for weight, bias in zip(weights, biases, strict=True):
        mapped = torch.einsum("oh,bhnm->bonm", weight, states[-1]) + bias[:, None, None]
        states.append(F.softplus(mapped))
    return states[1:]


def inputs(steps: int, heads: int, n: int, m: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, heads, n, m), (steps, heads, heads), (steps, heads)]
    drawn = [torch.randn(shape, generator=generator) for shape in shapes]
    return [drawn[0].softmax(-1), drawn[1] * heads**-0.5, drawn[2]]


def weighted(states: list[Tensor], used: slice) -> Tensor:
    """A sum of all numbers of some states, each with a weight of its own."""
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(state.shape, generator=generator) for state in states]
    both = list(zip(states, weights, strict=True))[used]
    return torch.stack([(state * weight.to(state)).sum() for state, weight in both]).sum()


@pytest.mark.parametrize(
    ("steps", "heads", "n", "m"),
    [
        (1, 3, 5, 7),
        (3, 12, 9, 40),
        (STEPS, 16, 4, 33),
        (STEPS + 2, 2, 5, SUMMED_PAIRS),
        (2 * STEPS, 4, 3, 5),
    ],
)
def test_values_and_gradients_are_torchs(
    steps: int, heads: int, n: int, m: int, device: torch.device
) -> None:
    tensors = inputs(steps, heads, n, m)
    wide = [x.double().requires_grad_() for x in tensors]
    narrow = [x.to(device).requires_grad_() for x in tensors]
    expected, found = reference(*wide), climb(*narrow)
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x.cpu().double(), y, atol=1e-5, rtol=1e-5)
    weighted(expected, slice(None)).backward()
    weighted(found, slice(None)).backward()
    for x, y in zip(narrow, wide, strict=True):
        size = y.grad.abs().max()
        torch.testing.assert_close(x.grad.cpu().double() / size, y.grad / size, atol=2e-5, rtol=0)


def test_places_of_64_bits_are_the_same(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for wide_from in (kernels.WIDE_FROM, 0):
        monkeypatch.setattr(kernels, "WIDE_FROM", wide_from)
        tensors = [x.to(device).requires_grad_() for x in inputs(3, 4, 5, 6)]
        weighted(climb(*tensors), slice(None)).backward()
        found.append([x.grad for x in tensors])
    for x, y in zip(*found, strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("used", [slice(0, 1), slice(STEPS, None)])
def test_states_that_nothing_reads_send_nothing_back(used: slice, device: torch.device) -> None:
    tensors = inputs(STEPS + 1, 3, 4, 5)
    wide = [x.double().requires_grad_() for x in tensors]
    narrow = [x.to(device).requires_grad_() for x in tensors]
    weighted(reference(*wide), used).backward()
    weighted(climb(*narrow), used).backward()
    for x, y in zip(narrow, wide, strict=True):
        torch.testing.assert_close(x.grad.cpu().double(), y.grad, atol=1e-4, rtol=1e-4)


def test_softplus_keeps_small_values_and_their_slopes(device: torch.device) -> None:
    h = torch.full((1, 1, 1, 4), -15.0, device=device).requires_grad_()
    one, zero = torch.ones(1, 1, 1, device=device), torch.zeros(1, 1, device=device)
    (found,) = climb(h, one, zero)
    found.sum().backward()
    expected = torch.full_like(found, 3.0590e-07)
    torch.testing.assert_close(found, expected, atol=0, rtol=1e-3)
    torch.testing.assert_close(h.grad, expected, atol=0, rtol=1e-3)


def test_half_precision_keeps_parameters_gradients_in_their_own(device: torch.device) -> None:
    top, weights, biases = inputs(2, 4, 3, 5)
    weights, biases = (x.to(device).requires_grad_() for x in (weights, biases))
    found = climb(top.to(device, torch.float16), weights, biases)
    weighted([state.float() for state in found], slice(None)).backward()
    assert {state.dtype for state in found} == {torch.float16}
    assert weights.grad.dtype == biases.grad.dtype == torch.float32


def test_tensors_need_not_be_contiguous(device: torch.device) -> None:
    top, weights, biases = (x.to(device) for x in inputs(2, 4, 3, 5))
    turned = top.transpose(2, 3).contiguous().transpose(2, 3)
    for x, y in zip(climb(turned, weights, biases), climb(top, weights, biases), strict=True):
        assert torch.equal(x, y)


def test_compilers_are_told_the_truth(device: torch.device) -> None:
    tensors = [x.to(device).requires_grad_() for x in inputs(2, 3, 4, 5)]
    torch.library.opcheck(climb, tuple(tensors))
