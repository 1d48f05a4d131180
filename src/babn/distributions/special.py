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
    """`exp` that stops at the largest finite number, with a finite gradient there."""
    value: Tensor = _SaturatingExp.apply(x)
    return value


def finite_gradient(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """`x` itself; gradients that overflow on their way back are cut to the largest finite number.

    Near the ends of the float32 range the true derivative of a divergence may not be representable
    although its value is; an infinity there would turn the whole update into NaN.
    """
    return _FiniteGradient.apply(x) if x.requires_grad else x


class _SaturatingExp(torch.autograd.Function):
    """Value and derivative are the same number, so saving the value is enough."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        largest = math.log(torch.finfo(x.dtype).max) * (1 - 1e-7)
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
