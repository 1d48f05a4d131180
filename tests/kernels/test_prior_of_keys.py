"""The prior's network over keys against torch."""

import pytest
import torch
from torch import Tensor

from babn.kernels.prior import FEW_PARTS, KEYS, SHARE, prior_of_keys, prior_of_keys_backward

BATCH, HEADS, HIDDEN = 2, 3, 10
START = 7
EULER = 0.57721566490153286


def reference(
    key: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Shapes (what the layers give, if queries see different keys), and the sums that they add."""
    values = (torch.relu(key @ w1.T + b1) @ w2.T + b2).squeeze(-1)
    if mask is not None and mask.shape[2] > 1:
        return values, values.sum(-1)
    seen = torch.ones_like(values, dtype=torch.bool) if mask is None else mask[:, :, 0]
    shapes = values.masked_fill(~seen, -torch.inf).softmax(-1)
    rest = torch.lgamma(shapes.masked_fill(~seen, 1.0)) - EULER - 1
    return shapes, rest.masked_fill(~seen, 0.0).sum(-1)


def inputs(m: int, d: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(BATCH, HEADS, m, d), (HIDDEN, d), (HIDDEN,), (1, HIDDEN), (1,)]
    drawn = [torch.randn(shape, generator=generator) for shape in shapes]
    return [drawn[0].to(dtype), *drawn[1:]]


def by_kernel(
    key: Tensor, network: list[Tensor], mask: Tensor | None
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor | None, Tensor, int]]:
    """Shapes, the sums that they add, and what backward takes."""
    packed, shapes = torch.cat([x.flatten() for x in network]), key.shape[:3].numel()
    stats = packed.new_full((START + shapes + BATCH * HEADS,), torch.nan, dtype=torch.float32)
    prior_of_keys(key, packed, mask, stats, START)
    assert stats[:START].isnan().all()
    found, rest = stats[START:].split([shapes, BATCH * HEADS])
    return found.view(key.shape[:3]), rest.view(BATCH, HEADS), (packed, mask, stats, START)


def mask_of(kind: str, m: int) -> Tensor | None:
    if kind == "padded":
        return (torch.arange(m) < torch.tensor([[m - 2], [m]]))[:, None, None]
    return torch.ones(1, 1, m, m, dtype=torch.bool).tril() if kind == "rowwise" else None


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["plain", "padded", "rowwise"])
@pytest.mark.parametrize(
    ("m", "d", "groups", "parts"),
    [
        (5, 8, 1, 1),
        (KEYS, 16, 1, 3),
        (KEYS + 9, 24, 2, 4),
        (KEYS + 9, 256, 1, 9),
        (3 * KEYS, 8, 1, 2),
        (2 * SHARE + 9, 8, 1, 2),
        (5, 8, 2, FEW_PARTS),
    ],
)
def test_values_and_gradients_are_torchs(
    m: int, d: int, groups: int, parts: int, kind: str, device: torch.device
) -> None:
    mask = mask_of(kind, m)
    mask = None if mask is None else mask.to(device)
    tensors = inputs(m, d)
    wide = [x.double().to(device).requires_grad_() for x in tensors]
    key, *network = (x.to(device) for x in tensors)
    expected, expected_rest = reference(*wide, mask)
    found, rest, saved = by_kernel(key, network, mask)
    # Sums of d products round as they grow.
    atol = 1e-5 * max(1.0, d / 24)
    torch.testing.assert_close(found.double(), expected, atol=atol, rtol=1e-5)
    if kind != "rowwise":
        torch.testing.assert_close(rest.double(), expected_rest, atol=m * atol, rtol=1e-5)

    generator = torch.Generator().manual_seed(1)
    dprior = torch.randn(BATCH, groups * HEADS, parts, m, generator=generator).to(device)
    dkl = torch.rand(BATCH, groups * HEADS, 7, generator=generator).to(device) / m
    before = torch.randn(key.shape, generator=generator).to(device)
    dkey = before.clone()
    sums = prior_of_keys_backward(key, *saved, dprior, dkl, dkey)
    total = dprior.double().sum(2).unflatten(1, (HEADS, groups)).sum(2)
    if mask is not None and kind == "padded":
        total = total.masked_fill(~mask[:, :, 0], 0.0)
    value = (expected * total).sum()
    if kind != "rowwise":
        value = value + (dkl.double().sum(2).unflatten(1, (HEADS, -1)).sum(2) * expected_rest).sum()
    slopes = torch.autograd.grad(value, wide)
    pieces = sums.split([x.numel() for x in network])
    for x, y in zip([dkey - before, *pieces], slopes, strict=True):
        # The gradient of the last bias is zero under softmax, but for rounding.
        size = max(float(y.abs().max()), 1.0)
        atol_here = 10 * atol * parts * groups
        torch.testing.assert_close(x.view_as(y).double() / size, y / size, atol=atol_here, rtol=0)


@pytest.mark.parametrize(
    "dtype",
    [torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)],  # not in the interpreter
)
def test_half_precision_keys_and_other_strides(dtype: torch.dtype, device: torch.device) -> None:
    key, *network = (x.to(device) for x in inputs(KEYS + 20, 8, dtype))
    key = key.transpose(1, 2).contiguous().transpose(1, 2)
    found, _, saved = by_kernel(key, network, None)
    wide = [x.double().requires_grad_() for x in (key, *network)]
    expected, _ = reference(*wide, None)
    torch.testing.assert_close(found.double(), expected, atol=5e-3, rtol=2e-2)

    generator = torch.Generator().manual_seed(1)
    dprior = torch.randn(BATCH, HEADS, 2, KEYS + 20, generator=generator).to(device)
    dkl, dkey = torch.zeros(BATCH, HEADS, 7, device=device), torch.zeros_like(key)
    sums = prior_of_keys_backward(key, *saved, dprior, dkl, dkey)
    slopes = torch.autograd.grad((expected * dprior.double().sum(2)).sum(), wide[:-1])
    pieces = sums.split([x.numel() for x in network])[:-1]
    for x, y in zip([dkey, *pieces], slopes, strict=True):
        assert float((x.view_as(y).double() - y).norm()) < 0.02 * float(y.norm())
