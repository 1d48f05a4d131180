"""Special functions that stay finite and accurate where the textbook forms do not."""

import math
from collections.abc import Sequence
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


def saturating_exp(x: Floats) -> Floats:
    """`exp` that saturates at the two-thirds power of the largest number, with a finite gradient.

    The limit is far beyond any meaningful value, and sums over many elements stay finite.
    """
    value: Tensor = _SaturatingExp.apply(x)
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
