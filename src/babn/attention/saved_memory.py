"""Functions whose own gradients save less memory between forward and backward than autograd."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from babn.attention.masking import zero_masked


class MaskedSoftplus(torch.autograd.Function):
    r"""Softplus, with zeros at masked keys.

    The derivative is $1 - e^{-h}$ in the value $h$, which the next map saves anyway.

    Example:
        >>> x = torch.zeros(1, 1, 1, 2)
        >>> MaskedSoftplus.apply(x, torch.tensor([[[[True, False]]]]))
        tensor([[[[0.6931, 0.0000]]]])
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor | None) -> Tensor:
        """Computes and keeps the value."""
        h = zero_masked(F.softplus(x), mask)
        ctx.save_for_backward(h)
        return h

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """The gradient of the argument."""
        (h,) = ctx.saved_tensors
        return grad * -torch.expm1(-h), None


class KeyScale(torch.autograd.Function):
    r"""The scale $1 / k_j$ of each key's variable, as `KeyBeliefMethod` defines it.

    Saves the keys, which attention saves as well, and nothing else of their size.

    Example:
        >>> key, log_shape = torch.tensor([[[[0.0], [2.0]]]]), torch.zeros(1)
        >>> KeyScale.apply(key, log_shape, 0, 2.0, None, None, (0.1, 1e4, 1e-6))  # equally far
        tensor([[[0.5000, 0.5000]]])
    """

    @staticmethod
    def forward(
        ctx: Any,
        key: Float[Tensor, "batch keyhead key dim"],
        log_shape: Float[Tensor, " set"],
        own: int,
        rho: float,
        typical: Float[Tensor, " keyhead"] | None,
        seen: Bool[Tensor, "#batch 1 key 1"] | None,
        limits: tuple[float, float, float],
    ) -> Float[Tensor, "batch keyhead key"]:
        """Computes the scales; `limits` are those of k, and the floor of the mean energy."""
        smallest_k, largest_k, smallest_energy = limits
        wide = torch.promote_types(key.dtype, torch.float32)
        mean = None if typical is not None else _mean(key, seen, wide)
        centred = key if mean is None else zero_masked(key - mean, seen)
        energy = torch.linalg.vector_norm(centred, dim=-1, dtype=wide).square_()
        if typical is not None:
            average, relative = typical.to(wide)[:, None], energy / typical.to(wide)[:, None]
        else:
            average = _mean(energy.unsqueeze(-1), seen, wide).squeeze(-1)
            equal = average <= smallest_energy
            average.masked_fill_(equal, torch.inf)
            relative = energy.div_(average).add_(equal)
        factor = log_shape[own].to(wide).exp() * rho
        scale = relative.mul_(factor).clamp_(smallest_k, largest_k).reciprocal_()
        ctx.save_for_backward(key, log_shape, mean, average, factor, scale, seen)
        ctx.own, ctx.bounds = own, (1 / largest_k, 1 / smallest_k)
        return scale

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the keys and of the logarithms of the shapes."""
        key, log_shape, mean, average, factor, scale, seen = ctx.saved_tensors
        # -d scale / d log k, zero where k is clamped
        slope = torch.ops.aten.hardtanh_backward(grad * scale, scale, *ctx.bounds)
        d_log_shape = torch.zeros_like(log_shape)
        d_log_shape[ctx.own] = -slope.sum()
        d_energy = slope * scale * factor
        if mean is None:
            d_key = key * (d_energy * (-2 / average)).unsqueeze(-1)
        else:
            d_energy = (d_energy - _mean(slope.unsqueeze(-1), seen, slope.dtype).squeeze(-1)) * (
                -2 / average
            )
            d_key = zero_masked(key - mean, seen) * d_energy.unsqueeze(-1)
            d_key = zero_masked(d_key - _mean(d_key, seen, d_key.dtype), seen)
        return d_key.to(key.dtype), d_log_shape, None, None, None, None, None


def _mean(
    x: Float[Tensor, "batch head key dim"], seen: Tensor | None, dtype: torch.dtype
) -> Float[Tensor, "batch head 1 dim"]:
    """The mean over the keys that any query sees."""
    if seen is None:
        return x.mean(-2, keepdim=True, dtype=dtype)
    count = seen.sum(-2, keepdim=True).clamp(min=1)
    return zero_masked(x, seen).sum(-2, keepdim=True, dtype=dtype) / count
