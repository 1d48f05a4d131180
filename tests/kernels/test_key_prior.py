"""The prior's network over keys against torch."""

import pytest
import torch
from torch import Tensor

from babn.kernels.prior import KEYS, key_prior

HIDDEN = 10


def reference(
    key: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, mask: Tensor | None, norm: bool
) -> Tensor:
    values = (torch.relu(key @ w1.T + b1) @ w2.T + b2).squeeze(-1)
    if not norm:
        return values
    if mask is None:
        return values.log_softmax(-1)
    seen = mask[:, :, 0]
    return values.masked_fill(~seen, -torch.inf).log_softmax(-1).masked_fill(~seen, 0.0)


def inputs(m: int, d: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 3, m, d), (HIDDEN, d), (HIDDEN,), (1, HIDDEN), (1,)]
    drawn = [torch.randn(shape, generator=generator) for shape in shapes]
    return [drawn[0].to(dtype), *drawn[1:]]


@pytest.mark.parametrize("kind", ["plain", "masked", "not normalised"])
@pytest.mark.parametrize(("m", "d"), [(5, 8), (KEYS, 16), (KEYS + 9, 24), (KEYS + 9, 256)])
def test_values_and_gradients_are_torchs(m: int, d: int, kind: str, device: torch.device) -> None:
    mask = None
    if kind == "masked":
        mask = (torch.arange(m) < torch.tensor([[m - 2], [m]]))[:, None, None].to(device)
    normalized = kind != "not normalised"
    tensors = inputs(m, d)
    wide = [x.double().to(device).requires_grad_() for x in tensors]
    narrow = [x.to(device).requires_grad_() for x in tensors]
    expected = reference(*wide, mask, normalized)
    found = key_prior(*narrow, mask, normalized)
    # Sums of d products round as they grow.
    atol = 1e-5 * max(1.0, d / 24)
    torch.testing.assert_close(found.double(), expected, atol=atol, rtol=1e-5)
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1)).to(device)
    (expected * weights).sum().backward()
    (found * weights).sum().backward()
    for x, y in zip(narrow, wide, strict=True):
        # The gradient of the last bias is zero under softmax, but for rounding.
        size = max(float(y.grad.abs().max()), 1.0)
        torch.testing.assert_close(x.grad.double() / size, y.grad / size, atol=10 * atol, rtol=0)


def test_half_precision_keys_and_other_strides(device: torch.device) -> None:
    key, *network = inputs(20, 8, torch.float16)
    key = key.transpose(1, 2).contiguous().transpose(1, 2).to(device).requires_grad_()
    network = [x.to(device).requires_grad_() for x in network]
    found = key_prior(key, *network, None, True)
    expected = reference(key.detach().float(), *(x.detach() for x in network), None, True)
    torch.testing.assert_close(found, expected, atol=5e-3, rtol=5e-3)
    found.square().sum().backward()
    assert key.grad.dtype == torch.float16 and network[0].grad.dtype == torch.float32


def test_compilers_are_told_the_truth(device: torch.device) -> None:
    tensors = [x.to(device).requires_grad_() for x in inputs(9, 8)]
    torch.library.opcheck(key_prior, (*tensors, None, True))
