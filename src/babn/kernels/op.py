"""Weibull attention as one operation with gradients, for eager and compiled models.

The upward path enters in one of two forms: `upward` has shape and scale logits, interleaved; or it
is the upward state, and `maps` are maps over heads that the operator applies itself. Backward
applies them again: their result is the largest tensor of the layer and cheap.

The prior is an MLP over keys, `network`, or else the number `alpha`.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from babn.kernels.backward import attend_backward_columns, attend_backward_rows
from babn.kernels.flags import call_options
from babn.kernels.forward import attend_forward
from babn.kernels.heads import logits_over_heads, logits_over_heads_backward
from babn.kernels.launch import Launcher, Operator, Types, broadcast, ceil_div, token_by_token
from babn.kernels.prior import prior_of_keys, prior_of_keys_backward
from babn.kernels.settings import ROWS_OF_A_PART, examples_at_a_time

ROW_NUMBERS = 5
"""Numbers of each row that forward keeps for backward; `parts_of_stats` lists them."""

launch_forward = Launcher(attend_forward)
launch_rows = Launcher(attend_backward_rows)
launch_columns = Launcher(attend_backward_columns)


@Operator
def pair_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    upward: Tensor | None,
    maps: Tensor | None,
    network: Tensor | None,
    mask: Tensor | None,
    bias: Tensor | None,
    seeds: Tensor | None,
    numbers: Sequence[float],
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, the KL of each row, and what backward needs, as `parts_of_stats` lists it.

    In the output the heads of a token are adjacent, as models take it. Its gradient is contiguous
    then, and compilers, which make gradients contiguous, need no copy.

    Args:
        q: Queries.
        k: Keys.
        v: Values.
        upward: Shape and scale logits, or the upward state.
        maps: Maps over heads, one below the other, with the bias as the last column.
        network: Weight and bias of the two layers of the prior's MLP, concatenated; for a KL.
        mask: The pairs that take part.
        bias: Added to the scores.
        seeds: One for each block of the batch.
        numbers: Those of `Settings`.
    """
    batch, heads, n, _ = q.shape
    _, key_heads, m, _ = k.shape
    count, over_heads = _logits_per_pair(upward, maps, heads, m), maps is not None
    options = call_options(q, v, m, mask, bias, numbers, network is not None, count, over_heads)
    types = _types(q, k, v, upward, network, mask, bias)
    out, kl, stats = _results(q, k, v, network)
    row_count = batch * heads * n
    if network is not None:
        prior_of_keys(k, network, mask, stats, ROW_NUMBERS * row_count, types)
    if upward is not None and maps is not None:
        upward = logits_over_heads(upward, maps)
    logits = q if upward is None else upward
    optional, optional_strides, per_seed = _optional(q, mask, bias, seeds)
    launch_forward(
        (ceil_div(n, options.forward["C"].BLOCK_M) * batch * heads, 1),
        ((q, k, v, logits, *optional), (out, stats, kl)),
        ((q.stride(), k.stride(), v.stride(), _by_head(out), logits.stride(), *optional_strides),
         (heads, heads // key_heads, n, m, row_count, batch * key_heads * m, per_seed),
         options.forward_numbers),
        options.forward,
        types,
    )  # fmt: skip
    return out, kl, stats


def _results(
    q: Tensor, k: Tensor, v: Tensor, network: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Empty tensors for the results."""
    batch, heads, n, _ = q.shape
    prior = 0 if network is None else batch * k.shape[1] * (k.shape[2] + 1)
    return (
        q.new_empty((batch, n, heads, v.shape[3])),
        q.new_empty((batch, heads, n), dtype=torch.float32),
        q.new_empty(ROW_NUMBERS * batch * heads * n + prior, dtype=torch.float32),
    )


def _by_head(x: Tensor) -> tuple[int, ...]:
    """Strides for examples, heads, tokens and sizes of a tensor with heads after tokens."""
    example, token, head, size = x.stride()
    return example, head, token, size


def _types(q: Tensor, *others: Tensor | None) -> Types:
    """What determines the types of the tensors of a call."""
    return q.dtype, *[q.dtype if x is None else x.dtype for x in others]


@pair_attention.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, upward: Tensor | None, maps: Tensor | None,
    network: Tensor | None, *rest: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    return _results(q, k, v, network)


def part_size(q: Tensor, m: int, maps: Tensor | None) -> int:
    """Number of examples that backward computes at a time."""
    batch, heads, n, _ = q.shape
    count = 0 if maps is None else maps.shape[0] // heads
    return examples_at_a_time(batch, heads * n * m * q.element_size(), count)


@Operator
def pair_attention_backward(
    dout: Tensor,
    dkl: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    upward: Tensor | None,
    maps: Tensor | None,
    network: Tensor | None,
    mask: Tensor | None,
    bias: Tensor | None,
    seeds: Tensor | None,
    out: Tensor,
    stats: Tensor,
    numbers: Sequence[float],
) -> list[Tensor]:
    """Gradients of queries, keys and values, and of `upward`, `maps`, `network` and scores.

    Of the last four, those that the call has; scores have a gradient if there is a bias.
    """
    batch, heads, n, _ = q.shape
    _, key_heads, m, _ = k.shape
    row_count = batch * heads * n
    dq, dk, dv = token_by_token(q), token_by_token(q, m), token_by_token(q, m, v.shape[3])
    size = part_size(q, m, maps)
    weights = q.new_empty(size, heads, n, m)
    dscores = q.new_empty(size if bias is None else batch, heads, n, m)
    dupward = None if upward is None else _gradient_of(upward, maps)
    dmaps = None
    logits, dlogits = (q, q) if upward is None or dupward is None else (upward, dupward)
    count, over_heads = _logits_per_pair(upward, maps, heads, m), maps is not None
    options = call_options(q, v, m, mask, bias, numbers, network is not None, count, over_heads)
    types = _types(q, k, v, upward, network, mask, bias, dout)
    row_tiles = ceil_div(n, options.rows["C"].BLOCK_M)
    parts = row_tiles * options.rows["C"].BLOCK_M // ROWS_OF_A_PART
    dprior = q if network is None else stats.new_empty(batch, heads, parts, m)
    optional, optional_strides, per_seed = _optional(q, mask, bias, seeds)
    for first in range(0, max(batch, 1), max(size, 1)):
        part = min(size, batch - first)
        here = slice(first, first + part)
        if upward is not None and maps is not None:
            # These logits are not needed again; the kernel overwrites them.
            logits = dlogits = logits_over_heads(upward[here], maps)
        launch_rows(
            (row_tiles * part * heads, 1),
            ((q, k, v, logits, *optional), (out, stats, dout, dkl),
             (dlogits, weights, dscores, dprior, dq)),
            ((q.stride(), k.stride(), v.stride(), _by_head(out), _by_head(dout), dkl.stride(),
              dq.stride(), logits.stride(), *optional_strides),
             (heads, heads // key_heads, n, m, row_count, parts, per_seed), first, options.numbers),
            options.rows,
            types,
        )  # fmt: skip
        launch_columns(
            (ceil_div(m, options.columns["C"].BLOCK_N) * part * heads, 1),
            ((q, dout, weights, dscores, stats), (dk, dv)),
            ((q.stride(), _by_head(dout), dk.stride(), dv.stride()), (heads, n, m, row_count),
             first, options.numbers[0]),
            options.columns,
            types,
        )  # fmt: skip
        if upward is not None and maps is not None and dupward is not None:
            more = logits_over_heads_backward(upward[here], maps, dlogits, dupward[here])
            dmaps = more if dmaps is None else dmaps + more
    if key_heads < heads:
        dk, dv = (x.unflatten(1, (key_heads, -1)).sum(2).contiguous() for x in (dk, dv))
    dnetwork = None
    if network is not None:
        start = ROW_NUMBERS * row_count
        dnetwork = prior_of_keys_backward(k, network, mask, stats, start, dprior, dkl, dk, types)
    dbias = None if bias is None else dscores
    return [x for x in (dq, dk, dv, dupward, dmaps, dnetwork, dbias) if x is not None]


@pair_attention_backward.register_fake
def _(
    dout: Tensor, dkl: Tensor, q: Tensor, k: Tensor, v: Tensor, upward: Tensor | None,
    maps: Tensor | None, network: Tensor | None, mask: Tensor | None, bias: Tensor | None,
    *rest: Any,
) -> list[Tensor]:  # fmt: skip
    m = k.shape[2]
    if k.shape[1] == q.shape[1]:
        dk, dv = (token_by_token(q, m, x.shape[-1]) for x in (k, v))
    else:
        dk, dv = (q.new_empty(x.shape) for x in (k, v))
    found = [token_by_token(q), dk, dv]
    if upward is not None:
        found.append(_gradient_of(upward, maps))
    for x in (maps, network):
        if x is not None:
            found.append(x.new_empty(x.shape, dtype=torch.float32))
    return found if bias is None else [*found, q.new_empty(*q.shape[:3], m)]


def _optional(
    q: Tensor, mask: Tensor | None, bias: Tensor | None, seeds: Tensor | None
) -> tuple[tuple[Tensor, ...], tuple[tuple[int, ...], ...], int]:
    """Mask, bias and seeds as kernels take them; strides of the first two; examples of a seed."""
    seen, mask_strides = broadcast(mask, q)
    added, bias_strides = broadcast(bias, q)
    per_seed = 1 if seeds is None else len(q) // len(seeds)
    return (seen, added, q if seeds is None else seeds), (mask_strides, bias_strides), per_seed


def _gradient_of(upward: Tensor, maps: Tensor | None) -> Tensor:
    """An empty tensor, with the strides of logits; the upward state's gradient is contiguous."""
    return torch.empty_like(upward) if maps is None else upward.new_empty(upward.shape)


def _logits_per_pair(upward: Tensor | None, maps: Tensor | None, heads: int, m: int) -> int:
    """Number of logits of the upward path for each pair."""
    if upward is None:
        return 0
    return upward.shape[3] // m if maps is None else maps.shape[0] // heads


class WeibullAttention(torch.autograd.Function):
    """`pair_attention` with gradients, without what backward needs.

    Takes its arguments; and where logits are a map over keys, the upward state and the map's weight
    and bias in place of `upward`.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, upward: Tensor | None, maps: Tensor | None,
        network: Tensor | None, mask: Tensor | None, bias: Tensor | None, seeds: Tensor | None,
        numbers: Sequence[float], *over_keys: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Attends, and keeps what backward needs."""
        if over_keys:
            upward = F.linear(*over_keys)
        tensors = q, k, v, upward, maps, network, mask, bias, seeds
        out, kl, stats = pair_attention(*tensors, numbers)
        ctx.numbers = numbers
        ctx.save_for_backward(*tensors, out, stats, *over_keys[:2])
        return out, kl

    @staticmethod
    def backward(ctx: Any, dout: Tensor, dkl: Tensor) -> tuple[Any, ...]:
        """Gradients of all tensors but mask and seeds."""
        saved = ctx.saved_tensors  # once, as activation checkpointing requires
        _, _, _, upward, maps, network, _, bias, *_ = saved
        dout = dout if dout.stride(-1) == 1 else dout.contiguous()
        dq, dk, dv, *rest = pair_attention_backward(dout, dkl, *saved[:11], ctx.numbers)
        found = [*rest]  # a list for the compiler of torch 2.11, too
        dupward = None if upward is None else found.pop(0)
        dmaps = None if maps is None else found.pop(0).to(maps.dtype)
        dnetwork = None if network is None else found.pop(0).to(network.dtype)
        dbias = None if bias is None else found.pop(0).sum_to_size(bias.shape).to(bias.dtype)
        over_keys: tuple[Tensor, ...] = ()
        if dupward is not None and len(saved) > 11:
            h, weight = saved[11:]
            flat, dupward = dupward.flatten(0, 2), None
            over_keys = (flat @ weight).view(h.shape), flat.t() @ h.flatten(0, 2), flat.sum(0)
        return dq, dk, dv, dupward, dmaps, dnetwork, None, dbias, None, None, *over_keys


def weibull_attention(*arguments: Any) -> tuple[Tensor, Tensor]:
    """Output and KL of the rows, with gradients, from the arguments of `WeibullAttention`."""
    found: tuple[Tensor, Tensor] = WeibullAttention.apply(*arguments)
    return found
