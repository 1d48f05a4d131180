"""Attention with one random variable per key as one operation with gradients.

Compiled models call operators, which compilers do not look into; others call the functions behind
them, which takes less time.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from babn.kernels.key_attention import attend, attend_backward
from babn.kernels.key_draw import SHARE, draw
from babn.kernels.key_draw_backward import draw_backward_into
from babn.kernels.launch import VERSION, block, token_by_token
from babn.kernels.prior import network_size
from babn.kernels.settings import KeySettings


def key_attention(
    q: Tensor, k: Tensor, v: Tensor, u: Tensor, seen: Tensor | None, log_shape: Tensor,
    typical: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, numbers: Sequence[float],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The output of a call, the numbers of its variables, and what backward needs.

    `numbers` are those of `KeySettings`.
    """
    settings, network = KeySettings.of(numbers), (w1, b1, w2, b2)
    bias, drawn, stats = draw(k, u, seen, log_shape, typical, network, settings)
    out, lse = attend(q, k, v, bias, settings.scale, settings.causal)
    return out, drawn, bias, lse, stats


def key_attention_backward(
    dout: Tensor, ddrawn: Tensor, q: Tensor, k: Tensor, v: Tensor, u: Tensor,
    seen: Tensor | None, log_shape: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor,
    out: Tensor, drawn: Tensor, bias: Tensor, lse: Tensor, stats: Tensor, numbers: Sequence[float],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of queries, keys and values, and parts of those of the parameters."""
    settings, network = KeySettings.of(numbers), (w1, b1, w2, b2)
    dout = dout if dout.stride(-1) == 1 else dout.contiguous()
    ddrawn = ddrawn if ddrawn[0].is_contiguous() else ddrawn.contiguous()
    dq, dk, dv, dbias = attend_backward(
        q, k, v, bias, out, lse, dout, settings.scale, settings.causal
    )
    parts = draw_backward_into(
        dk, k, u, seen, log_shape, network, drawn, stats, dbias, ddrawn, settings
    )
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
    batch, key_heads, m, size = k.shape
    drawn = u.new_empty(3 if KeySettings.of(rest[-1]).with_kl else 1, batch, key_heads, 1, m)
    stats = u.new_empty(batch, key_heads, block(size) + 2)
    return token_by_token(q), drawn, torch.empty_like(u), u.new_empty(q.shape[:3]), stats


@torch.library.register_fake(_backward)
def _(
    dout: Tensor, ddrawn: Tensor, q: Tensor, k: Tensor, v: Tensor, u: Tensor,
    seen: Tensor | None, log_shape: Tensor, w1: Tensor, *rest: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    size = network_size(w1) + 1 if KeySettings.of(rest[-1]).with_kl else 1
    rows = k.shape[0] * k.shape[1] * -(-k.shape[2] // SHARE)
    return token_by_token(q), token_by_token(k), token_by_token(v), u.new_empty(rows, size)


class KeyAttention(torch.autograd.Function):
    """Output of a call, and the numbers of its variables that `KeyKL` takes.

    Takes queries, keys, values, uniform numbers, the keys that are seen, the log shapes and typical
    energies of all layers, the weights of the prior's MLP, and the settings of the call.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, u: Tensor, seen: Tensor | None,
        log_shape: Tensor, typical: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor,
        settings: KeySettings,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Draws the variables, and attends."""
        network = w1, b1, w2, b2
        compute: Any = _forward if torch.compiler.is_compiling() else key_attention
        out, *rest = compute(
            q, k, v, u, seen, log_shape, typical, *network, list(map(float, settings))
        )
        ctx.save_for_backward(q, k, v, u, seen, log_shape, *network, out, *rest)
        ctx.settings = settings
        return out, rest[0]

    @staticmethod
    def backward(ctx: Any, dout: Tensor, ddrawn: Tensor) -> tuple[Any, ...]:
        """Gradients of queries, keys, values and parameters."""
        saved = ctx.saved_tensors
        log_shape, *network = saved[5:10]
        settings = ctx.settings
        compute: Any = _backward if torch.compiler.is_compiling() else key_attention_backward
        dq, dk, dv, parts = compute(dout, ddrawn, *saved, list(map(float, settings)))
        total = parts.sum(0)
        dshape = torch.zeros_like(log_shape)
        dshape[settings.own] = total[0]
        gradients: list[Tensor | None] = [None] * 4
        if settings.with_kl:
            w1, b1, w2, b2 = network
            sizes = [1, b2.numel(), b1.numel(), w2.numel(), w1.numel()]
            _, db2, db1, dw2, dw1 = total.split(sizes)
            found = dw1.view_as(w1), db1, dw2.view_as(w2), db2
            gradients = [d.to(x.dtype) for d, x in zip(found, network, strict=True)]
        return dq, dk, dv, None, None, dshape, None, *gradients, None
