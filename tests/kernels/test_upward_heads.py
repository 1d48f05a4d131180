"""The upward path over heads in kernels, against torch."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from babn.attention.inputs import Inputs
from babn.kernels.heads import SUMMED_PAIRS, states_over_heads, upward_over_heads
from babn.kernels.pair_inputs import softmax_weights


def reference(scores: Tensor, weights: Tensor, biases: Tensor) -> list[Tensor]:
    states = [scores.softmax(-1)]
    for weight, bias in zip(weights, biases, strict=True):
        mapped = torch.einsum("oh,bhnm->bonm", weight, states[-1]) + bias[:, None, None]
        states.append(F.softplus(mapped))
    return states[1:]


def states_of(scores: Tensor, weights: Tensor, biases: Tensor) -> list[Tensor]:
    return upward_over_heads(scores.softmax(-1), joined(weights, biases))


def joined(weights: Tensor, biases: Tensor) -> Tensor:
    return torch.cat([weights, biases.unsqueeze(-1)], -1)


def inputs(steps: int, heads: int, n: int, m: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, heads, n, m), (steps, heads, heads), (steps, heads)]
    drawn = [torch.randn(shape, generator=generator) for shape in shapes]
    return [drawn[0], drawn[1] * heads**-0.5, drawn[2]]


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
        (3, 16, 4, 33),
        pytest.param(3, 12, 9, 40, marks=pytest.mark.thorough),
        pytest.param(5, 2, 5, SUMMED_PAIRS, marks=pytest.mark.thorough),
    ],
)
def test_values_and_gradients_are_torchs(
    steps: int, heads: int, n: int, m: int, device: torch.device
) -> None:
    tensors = inputs(steps, heads, n, m)
    wide = [x.double().requires_grad_() for x in tensors]
    narrow = [x.to(device).requires_grad_() for x in tensors]
    expected, found = reference(*wide), states_of(*narrow)
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x.cpu().double(), y, atol=1e-5, rtol=1e-5)
    weighted(expected, slice(None)).backward()
    weighted(found, slice(None)).backward()
    for x, y in zip(narrow, wide, strict=True):
        size = y.grad.abs().max()
        torch.testing.assert_close(x.grad.cpu().double() / size, y.grad / size, atol=2e-5, rtol=0)


@pytest.mark.parametrize("used", [slice(0, 1), slice(3, None)])
def test_states_that_nothing_reads_send_nothing_back(used: slice, device: torch.device) -> None:
    tensors = inputs(4, 3, 4, 5)
    wide = [x.double().requires_grad_() for x in tensors]
    narrow = [x.to(device).requires_grad_() for x in tensors]
    weighted(reference(*wide), used).backward()
    weighted(states_of(*narrow), used).backward()
    for x, y in zip(narrow, wide, strict=True):
        torch.testing.assert_close(x.grad.cpu().double(), y.grad, atol=1e-4, rtol=1e-4)


def test_softplus_keeps_small_values_and_their_slopes(device: torch.device) -> None:
    scores, one = torch.zeros(1, 1, 1, 4, device=device), torch.zeros(1, 1, 1, device=device)
    bias = torch.full((1, 1), -15.0, device=device).requires_grad_()
    (found,) = states_of(scores, one, bias)
    found.sum().backward()
    torch.testing.assert_close(found, torch.full_like(found, 3.0590e-07), atol=0, rtol=1e-3)
    torch.testing.assert_close(bias.grad, torch.full_like(bias, 4 * 3.0590e-07), atol=0, rtol=1e-3)


def test_half_precision_keeps_parameters_gradients_in_their_own(device: torch.device) -> None:
    scores, weights, biases = inputs(2, 4, 3, 5)
    weights, biases = (x.to(device).requires_grad_() for x in (weights, biases))
    found = states_of(scores.to(device, torch.float16), weights, biases)
    weighted([state.float() for state in found], slice(None)).backward()
    assert {state.dtype for state in found} == {torch.float16}
    assert weights.grad.dtype == biases.grad.dtype == torch.float32


def test_tensors_need_not_be_contiguous(device: torch.device) -> None:
    scores, weights, biases = (x.to(device) for x in inputs(2, 4, 3, 5))
    apart = scores.transpose(1, 2).contiguous().transpose(1, 2)
    turned = weights.transpose(1, 2).contiguous().transpose(1, 2)
    both = states_of(apart, turned, biases), states_of(scores, weights, biases)
    for x, y in zip(*both, strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("masked", [False, True])
def test_the_beginning_is_attentions_softmax(masked: bool, device: torch.device) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 4, 5, 8), (2, 2, 6, 8), (2, 1, 5, 6), (1, 4, 4), (1, 4)]
    drawn = [torch.randn(shape, generator=generator) for shape in shapes]
    mask = torch.arange(6) < torch.tensor([4, 6])[:, None] if masked else torch.ones(2, 6) > 0
    wide = [x.double().requires_grad_() for x in drawn]
    narrow = [x.to(device).requires_grad_() for x in drawn]
    q, k, bias, *maps = wide
    scores = q @ k.repeat_interleave(2, 1).transpose(-1, -2) * 0.3 + bias
    expected = reference(scores.masked_fill(~mask[:, None, None], -torch.inf), *maps)
    q, k, bias, *maps = narrow
    seen = mask[:, None, None].to(device) if masked else None
    call = Inputs(q, k, k, 0.3, seen, bias)
    found = upward_over_heads(softmax_weights(call), joined(*maps))
    weighted(expected, slice(None)).backward()
    weighted(found, slice(None)).backward()
    torch.testing.assert_close(found[0].cpu().double(), expected[0], atol=1e-5, rtol=1e-5)
    for x, y in zip(narrow, wide, strict=True):
        torch.testing.assert_close(x.grad.cpu().double(), y.grad, atol=1e-4, rtol=1e-4)


@pytest.mark.thorough
def test_operator_is_registered_for_compilers(device: torch.device) -> None:
    scores, *maps = [x.to(device).requires_grad_() for x in inputs(2, 3, 4, 5)]
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(states_over_heads.compiled, (scores, joined(*maps)), test_utils=checks)
