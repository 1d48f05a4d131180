"""The upward path over keys in kernels, against torch."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.library import opcheck

from babn.kernels.upward_keys import upward_logits_over_keys, upward_over_keys


def reference(
    top: Tensor, weights: Tensor, biases: Tensor, lift_weights: Tensor, lift_biases: Tensor,
    mask: Tensor | None,
) -> list[Tensor]:  # fmt: skip
    state, states, lifts = top, [], []
    for maps in zip(weights, biases, lift_weights, lift_biases, strict=True):
        state = F.softplus(F.linear(state, *maps[:2]))
        state = state if mask is None else state.masked_fill(~mask, 0.0)
        states.append(state)
        lifts.append(F.linear(state, *maps[2:]))
    return [*lifts, *states]


def inputs(steps: int, n: int, keys: int, maps: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 3, n, keys), (steps, keys, keys), (steps, keys),
              (steps, maps * keys, keys), (steps, maps * keys)]  # fmt: skip
    top, *others = (torch.randn(shape, generator=generator) for shape in shapes)
    return [top.softmax(-1), *(x if x.dim() == 2 else x * keys**-0.5 for x in others)]


def mask_of(kind: str, keys: int) -> Tensor | None:
    if kind == "padded":
        return (torch.arange(keys) < torch.tensor([[keys - 3], [keys]]))[:, None, None]
    if kind == "with gaps":
        return torch.rand(2, 1, 1, keys, generator=torch.Generator().manual_seed(3)) > 0.3
    if kind == "one for all":
        return (torch.arange(keys) < keys - 1)[None, None, None]
    return None


def weighted(outputs: list[Tensor]) -> Tensor:
    """A sum of all numbers, each with a weight of its own."""
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(x.shape, generator=generator) for x in outputs]
    return torch.stack([(x * w.to(x)).sum() for x, w in zip(outputs, weights, strict=True)]).sum()


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["", "padded", "with gaps", "one for all"])
@pytest.mark.parametrize(
    ("steps", "n", "keys", "maps"),
    [(1, 43, 8, 2), (3, 64, 40, 1), (2, 45, 136, 2), (2, 128, 264, 2)],
)
def test_values_and_gradients_are_torchs(
    steps: int, n: int, keys: int, maps: int, kind: str, device: torch.device
) -> None:
    tensors = inputs(steps, n, keys, maps)
    # On a GPU products are computed in half precision.
    narrow_type = torch.bfloat16 if device.type == "cuda" else torch.float32
    tolerance = 3e-2 if device.type == "cuda" else 2e-5
    tensors = [x.to(narrow_type) for x in tensors]
    mask = mask_of(kind, keys)
    wide = [x.double().requires_grad_() for x in tensors]
    narrow = [x.to(device).requires_grad_() for x in tensors]
    expected = reference(*wide, mask)
    here = None if mask is None else mask.to(device)
    found = upward_logits_over_keys(*narrow, here)
    alone = upward_over_keys(*(x.detach() for x in narrow[:3]), here)
    for x, y in zip([*found, *alone], [*expected, *expected[steps:]], strict=True):
        torch.testing.assert_close(x.cpu().double(), y, atol=tolerance, rtol=tolerance)
    weighted(expected[:steps]).backward()
    weighted(found[:steps]).backward()
    for x, y in zip(narrow, wide, strict=True):
        size = y.grad.abs().max()
        torch.testing.assert_close(
            x.grad.cpu().double() / size, y.grad / size, atol=tolerance, rtol=0
        )


def test_masked_keys_are_zero_in_states(device: torch.device) -> None:
    mask = mask_of("padded", 16)
    assert mask is not None
    top, weights, biases, *_ = (x.to(device) for x in inputs(2, 43, 16))
    for state in upward_over_keys(top, weights, biases, mask.to(device)):
        assert not state[0, ..., -3:].any()
        assert state[1].all()


def test_lifts_that_nothing_reads_send_nothing_back(device: torch.device) -> None:
    tensors = inputs(3, 4, 8)
    wide = [x.double().requires_grad_() for x in tensors]
    narrow = [x.to(device).requires_grad_() for x in tensors]
    weighted(reference(*wide, None)[1:2]).backward()
    weighted(upward_logits_over_keys(*narrow, None)[1:2]).backward()
    for x, y in zip(narrow, wide, strict=True):
        size = y.grad.abs().max()
        torch.testing.assert_close(x.grad.cpu().double() / size, y.grad / size, atol=2e-3, rtol=0)


def test_operators_are_registered_for_compilers(device: torch.device) -> None:
    tensors = [x.to(device).requires_grad_() for x in inputs(2, 4, 8)]
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    opcheck(upward_logits_over_keys, (*tensors, None), test_utils=checks)
    alone = [x.detach() for x in tensors[:3]]
    opcheck(upward_over_keys, (*alone, None), test_utils=("test_schema", "test_faketensor"))
