"""Functions that stay finite and accurate where the textbook forms do not."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def log_softplus(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    r"""$\log\log(1 + e^x)$, which tends to $x$ where `softplus` underflows."""
    tail = x < -15.0
    body = F.softplus(x.masked_fill(tail, 0.0)).log()
    return torch.where(tail, x - 0.5 * x.clamp(max=-15.0).exp(), body)


def saturating_exp(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """`exp` that stops at the two-thirds power of the largest number, with a finite gradient.

    Far beyond anything meaningful, and small enough for sums over many elements to stay finite.
    """
    value: Tensor = _SaturatingExp.apply(x)
    return value


def finite_gradient(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """`x` itself; gradients that overflow on their way back are cut to the largest finite number.

    Near the ends of the float32 range the true derivative of a divergence may not be representable
    although its value is; an infinity there would turn the whole update into NaN.
    """
    return _FiniteGradient.apply(x) if x.requires_grad else x


def saturating_cast(x: Float[Tensor, "..."], dtype: torch.dtype) -> Float[Tensor, "..."]:
    """`x` in a narrower type; numbers too large for it become its largest, gradients stay."""
    value: Tensor = _SaturatingCast.apply(x, dtype)
    return value


class _SaturatingExp(torch.autograd.Function):
    """Value and derivative are the same number, so saving the value is enough."""

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
