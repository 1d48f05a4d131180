"""Attention with one random variable per key as one operation with gradients."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from babn.kernels.key_attention import attend, attend_backward
from babn.kernels.key_draw import SHARE, DrawSettings, Network, draw
from babn.kernels.key_draw_backward import draw_backward_into
from babn.kernels.launch import Operator, block, token_by_token


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


@Operator
def key_attention(
    q: Tensor, k: Tensor, v: Tensor, u: Tensor, seen: Tensor | None, log_shape: Tensor,
    typical: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, own: int, scale: float,
    causal: bool, rho: float, level: float, truncated: bool, own_moment: bool, centred: bool,
    with_kl: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The output of a call, the numbers of its variables, and what backward needs."""
    noise = DrawSettings(rho, level, truncated, own_moment, centred, with_kl)
    network = Network(w1, b1, w2, b2)
    bias, numbers, stats = draw(k, u, seen, log_shape, typical, own, network, noise)
    out, lse = attend(q, k, v, bias, scale, causal)
    return out, numbers, bias, lse, stats


@Operator
def key_attention_backward(
    dout: Tensor, dnumbers: Tensor, q: Tensor, k: Tensor, v: Tensor, u: Tensor,
    seen: Tensor | None, log_shape: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor,
    out: Tensor, numbers: Tensor, bias: Tensor, lse: Tensor, stats: Tensor, own: int,
    scale: float, causal: bool, rho: float, level: float, truncated: bool, own_moment: bool,
    centred: bool, with_kl: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of queries, keys and values, and parts of those of the parameters."""
    noise = DrawSettings(rho, level, truncated, own_moment, centred, with_kl)
    dout = dout if dout.stride(-1) == 1 else dout.contiguous()
    dnumbers = dnumbers if dnumbers[0].is_contiguous() else dnumbers.contiguous()
    dq, dk, dv, dbias = attend_backward(q, k, v, bias, out, lse, dout, scale, causal)
    parts = draw_backward_into(
        dk, k, u, seen, log_shape, own, Network(w1, b1, w2, b2), numbers, stats, dbias, dnumbers,
        noise,
    )  # fmt: skip
    return dq, dk, dv, parts


@key_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, u: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    batch, key_heads, m, size = k.shape
    numbers = u.new_empty(3 if rest[-1] else 1, batch, key_heads, 1, m)
    stats = u.new_empty(batch, key_heads, block(size) + 2)
    return token_by_token(q), numbers, torch.empty_like(u), u.new_empty(q.shape[:3]), stats


@key_attention_backward.register_fake
def _(
    dout: Tensor, dnumbers: Tensor, q: Tensor, k: Tensor, v: Tensor, u: Tensor,
    seen: Tensor | None, log_shape: Tensor, *rest: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    size = sum(x.numel() for x in rest[:4]) + 1 if rest[-1] else 1
    rows = k.shape[0] * k.shape[1] * -(-k.shape[2] // SHARE)
    return token_by_token(q), token_by_token(k), token_by_token(v), u.new_empty(rows, size)


class KeyAttention(torch.autograd.Function):
    """Output of a call, and the numbers of its variables that `KeyKL` takes.

    Takes queries, keys, values, uniform numbers, the keys that are seen, the log shapes and typical
    energies of all layers, the weights of the prior's MLP, and what the call does.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, u: Tensor, seen: Tensor | None,
        log_shape: Tensor, typical: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor,
        call: Call,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Draws the variables, and attends."""
        own, scale, causal, noise = call
        network = w1, b1, w2, b2
        out, *rest = key_attention(
            q, k, v, u, seen, log_shape, typical, *network, own, scale, causal, *noise
        )
        ctx.save_for_backward(q, k, v, u, seen, log_shape, *network, out, *rest)
        ctx.call = call
        return out, rest[0]

    @staticmethod
    def backward(ctx: Any, dout: Tensor, dnumbers: Tensor) -> tuple[Any, ...]:
        """Gradients of queries, keys, values and parameters."""
        saved = ctx.saved_tensors
        log_shape, *network = saved[5:10]
        own, scale, causal, noise = ctx.call
        dq, dk, dv, parts = key_attention_backward(
            dout, dnumbers, *saved, own, scale, causal, *noise
        )
        total = parts.sum(0)
        dshape = torch.zeros_like(log_shape)
        dshape[own] = total[0]
        gradients: list[Tensor | None] = [None] * 4
        if noise.with_kl:
            w1, b1, w2, b2 = network
            sizes = [1, b2.numel(), b1.numel(), w2.numel(), w1.numel()]
            _, db2, db1, dw2, dw1 = total.split(sizes)
            found = dw1.view_as(w1), db1, dw2.view_as(w2), db2
            gradients = [d.to(x.dtype) for d, x in zip(found, network, strict=True)]
        return dq, dk, dv, None, None, dshape, None, *gradients, None
