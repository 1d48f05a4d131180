"""Special functions that stay finite and accurate where the textbook forms do not."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

Floats = Float[Tensor, "..."]
"""A floating-point tensor of any shape."""


def log_softplus(x: Floats) -> Floats:
    r"""$\log\log(1 + e^x)$, which tends to $x$ where `softplus` underflows.

    Example:
        >>> log_softplus(torch.tensor(-200.0))
        tensor(-200.)
    """
    tail = x < -15.0
    body = F.softplus(x.masked_fill(tail, 0.0)).log()
    return torch.where(tail, x - 0.5 * x.clamp(max=-15.0).exp(), body)


def polynomial(coefficients: Sequence[float], x: Tensor) -> Tensor:
    """Evaluates a polynomial by Horner's rule, in place."""
    value = torch.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value.mul_(x).add_(coefficient)
    return value


def finite(x: Floats) -> Floats:
    """`x` with infinities replaced by the largest numbers of its type; NaN stays."""
    largest = torch.finfo(x.dtype).max
    return x.clamp(-largest, largest)


def in_single(function: Callable[[Tensor], Tensor], x: Floats) -> Tensor:
    """`function(x)`, computed in float32 for half precision, where it may overflow or not exist."""
    if x.dtype not in (torch.float16, torch.bfloat16):
        return function(x)
    return saturating_cast(function(x.float()), x.dtype)


def saturating_exp(x: Floats) -> Floats:
    """`exp` that saturates at the two-thirds power of the largest number, with a finite gradient.

    The limit is far beyond any meaningful value, and sums over many elements stay finite.
    """
    value: Tensor = _SaturatingExp.apply(x)
    return value


def finite_gradient(x: Floats) -> Floats:
    """`x` itself; gradients that overflow in backward become the largest finite number.

    Near the ends of the float32 range the derivative of a KL may not be representable although its
    value is; an infinity there would turn the whole update into NaN.
    """
    return _FiniteGradient.apply(x) if x.requires_grad else x


def saturating_cast(x: Floats, dtype: torch.dtype) -> Floats:
    """`x` in a narrower type; values too large for it become its largest number."""
    value: Tensor = _SaturatingCast.apply(x, dtype)
    return value


class _SaturatingExp(torch.autograd.Function):
    """Saves the value, which is also the derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        largest = math.log(torch.finfo(x.dtype).max) * 2 / 3
        value = x.clamp(max=largest).exp()
        ctx.save_for_backward(value)
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (value,) = ctx.saved_tensors
        return grad * value


class _FiniteGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return torch.nan_to_num(grad, nan=0.0)


class _SaturatingCast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.wide = x.dtype
        largest = torch.finfo(dtype).max
        return x.clamp(-largest, largest).to(dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.to(ctx.wide), None
