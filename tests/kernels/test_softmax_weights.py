"""Softmax weights by the kernel, against torch in double precision."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.library import opcheck
from weibull_cases import SCALE, Case, inputs_of, mask_of

from babn.attention.masking import normalize
from babn.kernels.softmax import softmax_weights

CASES = {
    "plain": Case(),
    "grouped-heads": Case(heads=4, groups=2),
    "cross-attention": Case(n=5, m=37, d=12),
    "one-query": Case(n=1, m=3, d=1),
    "several-tiles": Case(heads=1, n=70, m=35, mask="causal"),
    "full-tiles": Case(heads=1, n=64, m=64, d=16),
    "padding": Case(batch=2, mask="padding"),
    "causal": Case(mask="causal"),
    "arbitrary-mask": Case(mask="random"),
    "bias": Case(batch=2, bias=True),
    "bias-and-mask": Case(heads=4, groups=2, bias=True, mask="random"),
    "extreme-scores": Case(spread=30.0),
}
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def leaves(case: Case, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
    drawn = inputs_of(case)
    return {
        name: drawn[name].to(device, dtype, copy=True).requires_grad_()
        for name in ("q", "k", "bias")
        if drawn[name] is not None
    }


def readings(weights: Tensor, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights, and the gradients of a random combination of them."""
    toward = torch.randn(weights.shape, generator=torch.Generator().manual_seed(2)).to(weights)
    slopes = torch.autograd.grad((weights * toward).sum(), list(inputs.values()))
    return {"weights": weights.detach()} | dict(zip(inputs, slopes, strict=True))


def by_kernel(case: Case, device: torch.device) -> dict[str, Tensor]:
    inputs, mask = leaves(case, device, case.dtype), mask_of(case)
    mask = None if mask is None else mask.to(device)
    return readings(
        softmax_weights(inputs["q"], inputs["k"], mask, inputs.get("bias"), SCALE), inputs
    )


def by_torch(case: Case, device: torch.device) -> dict[str, Tensor]:
    inputs, mask = leaves(case, device, torch.float64), mask_of(case)
    key = inputs["k"].repeat_interleave(case.groups, 1)
    scores = inputs["q"] @ key.transpose(-1, -2) * SCALE
    if case.bias:
        scores = scores + inputs["bias"]
    return readings(normalize(scores, None if mask is None else mask.to(device)), inputs)


def errors(case: Case, device: torch.device) -> dict[str, float]:
    """How far each is off, over its largest number."""
    found, expected = by_kernel(case, device), by_torch(case, device)
    return {
        name: float((found[name].double() - x).abs().max() / x.abs().max())
        for name, x in expected.items()
    }


@cases
def test_weights_and_gradients_agree_with_torch(case: Case, device: torch.device) -> None:
    # The rounding of large scores is the error of their exponentials.
    found = errors(case, device)
    assert max(found.values()) < (1e-6 if case.spread == 1 else 1e-4), found


@pytest.mark.parametrize("name", ["plain", "grouped-heads", "bias-and-mask"])
def test_weights_and_gradients_agree_with_torch_in_float16(name: str, device: torch.device) -> None:
    found = errors(replace(CASES[name], dtype=torch.float16), device)
    assert max(found.values()) < 3e-3, found


@pytest.mark.gpu  # the interpreter has no bfloat16
@pytest.mark.parametrize("name", ["plain", "grouped-heads", "bias-and-mask"])
def test_weights_and_gradients_agree_with_torch_in_bfloat16(
    name: str, device: torch.device
) -> None:
    found = errors(replace(CASES[name], dtype=torch.bfloat16), device)
    assert max(found.values()) < 3e-2, found


@cases
def test_weights_sum_to_one_over_the_keys_that_take_part(case: Case, device: torch.device) -> None:
    weights, mask = by_kernel(case, device)["weights"], mask_of(case)
    seen = torch.ones_like(weights, dtype=torch.bool)
    if mask is not None:
        seen = mask.to(device).expand_as(weights)
    assert not weights[~seen].any()
    torch.testing.assert_close(weights.sum(-1), seen.any(-1).to(weights))


@pytest.mark.parametrize("name", ["plain", "bias-and-mask"])
def test_operator_is_registered_for_compilers(name: str, device: torch.device) -> None:
    case = CASES[name]
    inputs, mask = leaves(case, device, case.dtype), mask_of(case)
    mask = None if mask is None else mask.to(device)
    arguments = (inputs["q"], inputs["k"], mask, inputs.get("bias"), SCALE)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    opcheck(softmax_weights, arguments, test_utils=checks)
