"""Attention with one random variable per key as one operation with gradients.

Compiled models call operators, which compilers do not look into; others call the functions behind
them, which takes less time.
"""

from typing import Any

import torch
from torch import Tensor

from babn.kernels.key_attention import attend, attend_backward
from babn.kernels.key_noise import SHARE, DrawSettings, Network, draw, draw_backward_into
from babn.kernels.launch import VERSION, block, token_by_token


def key_attention(
    q: Tensor, k: Tensor, v: Tensor, u: Tensor, seen: Tensor | None, log_shape: Tensor,
    typical: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, scale: float, causal: bool,
    rho: float, level: float, truncated: bool, own_moment: bool, centred: bool, with_kl: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The output of a call; scales, locations and logits of its variables; what backward needs.

    Locations and logits are empty unless the KL is needed.
    """
    noise = DrawSettings(rho, level, truncated, own_moment, centred, with_kl)
    network = Network(w1, b1, w2, b2)
    bias, scales, loc, logits, stats = draw(k, u, seen, log_shape, typical, network, noise)
    out, lse = attend(q, k, v, bias, scale, causal)
    return out, scales, loc, logits, bias, lse, stats


def key_attention_backward(
    dout: Tensor, dscales: Tensor, dloc: Tensor, dlogits: Tensor, q: Tensor, k: Tensor, v: Tensor,
    u: Tensor, seen: Tensor | None, log_shape: Tensor, w1: Tensor, b1: Tensor, w2: Tensor,
    b2: Tensor, out: Tensor, scales: Tensor, bias: Tensor, lse: Tensor, stats: Tensor,
    scale: float, causal: bool, rho: float, level: float, truncated: bool, own_moment: bool,
    centred: bool, with_kl: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of queries, keys and values, and parts of those of the parameters."""
    noise = DrawSettings(rho, level, truncated, own_moment, centred, with_kl)
    dq, dk, dv, dbias = attend_backward(q, k, v, bias, out, lse, dout, scale, causal)
    parts = draw_backward_into(
        dk, k, u, seen, log_shape, Network(w1, b1, w2, b2), scales, stats, dbias,
        (dscales, dloc, dlogits), noise,
    )  # fmt: skip
    return dq, dk, dv, parts


def _operator(function: Any) -> Any:
    """An operator without the checks of `torch.library.custom_op`, which take 40 us a call."""
    name = f"{function.__name__}_v{VERSION}"
    _LIBRARY.define(name + torch.library.infer_schema(function, mutates_args=()))
    _LIBRARY.impl(name, function, "CompositeExplicitAutograd")
    return getattr(torch.ops.babn, name).default


_LIBRARY = torch.library.Library("babn", "FRAGMENT")
_forward, _backward = _operator(key_attention), _operator(key_attention_backward)


@torch.library.register_fake(_forward)
def _(q: Tensor, k: Tensor, v: Tensor, u: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    with_kl = rest[-1]
    scales = u.new_empty(k.shape[:3])
    loc, logits = (torch.empty_like(scales if with_kl else scales[:0]) for _ in range(2))
    stats = u.new_empty(*k.shape[:2], block(k.shape[-1]) + 2)
    out = token_by_token(q, q.shape[2], v.shape[-1])
    return out, scales, loc, logits, torch.empty_like(u), u.new_empty(q.shape[:3]), stats


@torch.library.register_fake(_backward)
def _(
    dout: Tensor, dscales: Tensor, dloc: Tensor, dlogits: Tensor, q: Tensor, k: Tensor, v: Tensor,
    u: Tensor, seen: Tensor | None, log_shape: Tensor, *rest: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    *network, with_kl = *rest[:4], rest[-1]
    size = sum(x.numel() for x in network) + 1 if with_kl else 1
    dq, dk, dv = (token_by_token(x, x.shape[2], x.shape[3]) for x in (q, k, v))
    return dq, dk, dv, u.new_empty(k.shape[0] * k.shape[1] * -(-k.shape[2] // SHARE), size)


class KeyAttention(torch.autograd.Function):
    """`key_attention`; returns the output, scales, locations and logits."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, ...]:
        """Computes output and variables."""
        compute: Any = _forward if torch.compiler.is_compiling() else key_attention
        out, scales, loc, logits, bias, lse, stats = compute(*arguments)
        q, k, v, u, seen, log_shape, _, w1, b1, w2, b2 = arguments[:11]
        ctx.save_for_backward(
            q, k, v, u, seen, log_shape, w1, b1, w2, b2, out, scales, bias, lse, stats
        )
        ctx.settings = arguments[11:]
        return out, scales, loc, logits

    @staticmethod
    def backward(ctx: Any, dout: Tensor, *others: Tensor) -> tuple[Any, ...]:
        """Gradients of queries, keys, values and parameters."""
        compute: Any = _backward if torch.compiler.is_compiling() else key_attention_backward
        saved = ctx.saved_tensors
        log_shape, *network = saved[5:10]
        dout = dout if dout.stride(-1) == 1 else dout.contiguous()
        others = tuple(each.contiguous() for each in others)
        dq, dk, dv, parts = compute(dout, *others, *saved, *ctx.settings)
        gradients: list[Tensor | None] = [None] * 4
        total = parts.sum(0)
        if ctx.settings[-1]:
            w1, b1, w2, b2 = network
            sizes = [1, b2.numel(), b1.numel(), w2.numel(), w1.numel()]
            _, db2, db1, dw2, dw1 = total.split(sizes)
            found = dw1.view_as(w1), db1, dw2.view_as(w2), db2
            gradients = [d.to(x.dtype) for d, x in zip(found, network, strict=True)]
        dshape = total[0].to(log_shape.dtype)
        return dq, dk, dv, None, None, dshape, None, *gradients, *([None] * len(ctx.settings))
