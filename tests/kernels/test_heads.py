"""Maps over heads against torch."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from babn.kernels.heads import SUMMED_PAIRS, logits_over_heads, logits_over_heads_backward


def by_torch(h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The maps' results before softplus, side by side for each pair."""
    mapped = torch.einsum("oh,bhnm->bonm", weight, h) + bias[:, None, None]
    return mapped.unflatten(1, (-1, h.shape[1])).movedim(1, -1).flatten(-2)


@pytest.mark.parametrize("maps", [1, 2])
@pytest.mark.parametrize(
    ("heads", "n", "m"), [(3, 5, 7), (12, 9, 40), (20, 4, 33), (2, 5, SUMMED_PAIRS)]
)
def test_values_and_gradients_are_torchs(
    maps: int, heads: int, n: int, m: int, device: torch.device
) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, heads, n, m), (maps * heads, heads), (maps * heads,)]
    tensors = [torch.randn(shape, generator=generator) for shape in shapes]
    h, weight, bias = (x.double().requires_grad_() for x in tensors)
    expected = by_torch(h, weight, bias)
    on_device = [x.to(device) for x in tensors]
    joint = torch.cat([on_device[1], on_device[2][:, None]], 1)
    found = logits_over_heads(on_device[0], joint)
    torch.testing.assert_close(found.cpu().double(), F.softplus(expected), atol=1e-5, rtol=1e-5)

    dlogits = torch.randn(expected.shape, generator=generator)
    expected.backward(dlogits.double())
    dh = torch.empty_like(on_device[0])
    dmaps = logits_over_heads_backward(on_device[0], joint, dlogits.to(device), dh)
    pairs = [(dh, h.grad), (dmaps[:, :-1], weight.grad), (dmaps[:, -1], bias.grad)]
    for x, y in pairs:
        size = y.abs().max()
        torch.testing.assert_close(x.cpu().double() / size, y / size, atol=1e-5, rtol=0)
