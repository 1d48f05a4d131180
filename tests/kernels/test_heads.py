"""Maps over heads against torch."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from babn.kernels.heads import SUMMED_PAIRS, head_map


def reference(h: Tensor, weight: Tensor, bias: Tensor, softplus: bool) -> Tensor:
    mapped = torch.einsum("oh,bhnm->bonm", weight, h) + bias[:, None, None]
    return F.softplus(mapped) if softplus else mapped


def inputs(heads: int, outs: int, n: int, m: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, heads, n, m), (outs, heads), (outs,)]
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


@pytest.mark.parametrize("softplus", [False, True])
@pytest.mark.parametrize(
    ("heads", "outs", "n", "m"),
    [(3, 6, 5, 7), (12, 12, 9, 40), (20, 40, 4, 33), (2, 2, 5, SUMMED_PAIRS)],
)
def test_values_and_gradients_are_torchs(
    heads: int, outs: int, n: int, m: int, softplus: bool, device: torch.device
) -> None:
    tensors = inputs(heads, outs, n, m, torch.float32)
    wide = [x.double().requires_grad_() for x in tensors]
    narrow = [x.to(device).requires_grad_() for x in tensors]
    expected, found = reference(*wide, softplus), head_map(*narrow, softplus)
    torch.testing.assert_close(found.cpu().double(), expected, atol=1e-5, rtol=1e-5)
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    (expected * weights).sum().backward()
    (found * weights.to(device)).sum().backward()
    for x, y in zip(narrow, wide, strict=True):
        size = y.grad.abs().max()
        torch.testing.assert_close(x.grad.cpu().double() / size, y.grad / size, atol=1e-5, rtol=0)


def test_softplus_keeps_small_values_and_their_slopes(device: torch.device) -> None:
    h = torch.full((1, 1, 1, 4), -15.0, device=device).requires_grad_()
    one, zero = torch.ones(1, 1, device=device), torch.zeros(1, device=device)
    found = head_map(h, one, zero, True)
    found.sum().backward()
    expected = torch.full_like(found, 3.0590e-07)
    torch.testing.assert_close(found, expected, atol=0, rtol=1e-3)
    torch.testing.assert_close(h.grad, expected, atol=0, rtol=1e-3)


def test_half_precision_keeps_parameters_gradients_in_their_own(device: torch.device) -> None:
    h, weight, bias = inputs(4, 8, 3, 5, torch.float32)
    weight, bias = (x.to(device).requires_grad_() for x in (weight, bias))
    found = head_map(h.to(device, torch.float16), weight, bias, True)
    found.float().sum().backward()
    assert found.dtype == torch.float16
    assert weight.grad.dtype == bias.grad.dtype == torch.float32


def test_compilers_are_told_the_truth(device: torch.device) -> None:
    tensors = [x.to(device).requires_grad_() for x in inputs(3, 6, 4, 5, torch.float32)]
    torch.library.opcheck(head_map, (*tensors, True))
