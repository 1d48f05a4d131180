"""Attention with one random variable per key as one operation with gradients.

Compilers trace it down to the launches of the kernels, so that a compiled model launches them
itself.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from babn.kernels.key_attention import attend, attend_backward
from babn.kernels.key_draw import DrawSettings, Network, draw
from babn.kernels.key_draw_backward import draw_backward_into


class Call(NamedTuple):
    """What a call does.

    Attributes:
        own: Index of its layer.
        scale: Factor of the dot products.
        causal: Whether a query sees only keys up to its own index.
        noise: Settings of the draw.
    """

    own: int
    scale: float
    causal: bool
    noise: DrawSettings


class KeyAttention(torch.autograd.Function):
    """Output of a call, and the numbers of its variables that `KeyKL` takes.

    The output has the shape (batch, query, head, size). Its gradient is contiguous then, and
    compilers, which make gradients contiguous, need no copy. Takes queries, keys, values, uniform
    numbers, the keys that are seen, the log shapes and typical energies of all layers, the weights
    of the prior's MLP, and what the call does.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, u: Tensor, seen: Tensor | None,
        log_shape: Tensor, typical: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor,
        call: Call,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Draws the variables, and attends."""
        network = Network(w1, b1, w2, b2)
        bias, numbers, stats = draw(k, u, seen, log_shape, typical, call.own, network, call.noise)
        out, lse = attend(q, k, v, bias, call.scale, call.causal)
        ctx.save_for_backward(
            q, k, v, u, seen, log_shape, w1, b1, w2, b2, out, numbers, bias, lse, stats
        )
        ctx.call = call
        return out, numbers

    @staticmethod
    def backward(ctx: Any, dout: Tensor, dnumbers: Tensor) -> tuple[Any, ...]:
        """Gradients of queries, keys, values and parameters."""
        q, k, v, u, seen, log_shape, *network, out, numbers, bias, lse, stats = ctx.saved_tensors
        own, scale, causal, noise = ctx.call
        dout = dout.contiguous()
        dnumbers = dnumbers if dnumbers[0].is_contiguous() else dnumbers.contiguous()
        dq, dk, dv, dbias = attend_backward(q, k, v, bias, out, lse, dout, scale, causal)
        parts = draw_backward_into(
            dk, k, u, seen, log_shape, own, Network(*network), numbers, stats, dbias, dnumbers,
            noise,
        )  # fmt: skip
        dshape = total = parts.sum(0)
        gradients: list[Tensor | None] = [None] * 4
        if noise.with_kl:
            w1, b1, w2, b2 = network
            sizes = [1, b2.numel(), b1.numel(), w2.numel(), w1.numel()]
            dshape, db2, db1, dw2, dw1 = torch.split_with_sizes(total, sizes)
            found = dw1.view_as(w1), db1, dw2.view_as(w2), db2
            gradients = [like(x, d) for x, d in zip(network, found, strict=True)]
        if len(log_shape) > 1:
            dshape = torch.constant_pad_nd(dshape, (own, len(log_shape) - own - 1))
        dshape = like(log_shape, dshape)
        return dq, dk, dv, None, None, dshape, None, *gradients, None


def like(x: Tensor, gradient: Tensor) -> Tensor:
    """The gradient of a parameter in its precision; even calls that change nothing take time."""
    return gradient if gradient.dtype == x.dtype else gradient.to(x.dtype)
