"""The gradients of Weibull attention by the backward kernels, for a part of the batch at a time."""

from typing import NamedTuple, TypeAlias, TypeVar

import torch
import triton
from torch import Tensor

from babn.kernels.backward import attend_backward_columns, attend_backward_rows
from babn.kernels.heads import logits_over_heads, logits_over_heads_backward
from babn.kernels.launch import Launcher, Pairs, compiled_for, flags_of, numbers_of
from babn.kernels.settings import ROWS_OF_A_PART, Prior, Settings, examples_at_a_time

launch_rows = Launcher(attend_backward_rows)
launch_columns = Launcher(attend_backward_columns)


class Saved(NamedTuple):
    """Inputs and results of forward and gradients of its outputs, for all examples or some.

    Attributes:
        upward: Shape and scale logits, or the upward state that maps over heads turn into them.
        smallest: The smallest k of each row, at most 1.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    upward: Tensor | None
    prior: Tensor | None
    mask: Tensor | None
    bias: Tensor | None
    out: Tensor
    lse: Tensor
    score_lse: Tensor
    prior_lse: Tensor
    smallest: Tensor
    row_end: Tensor
    dout: Tensor
    dkl: Tensor


class Outputs(NamedTuple):
    """The tensors that receive gradients: of each head, and of scores if they have a bias.

    Attributes:
        prior: In parts of a few rows each, to be summed.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    upward: Tensor | None
    prior: Tensor | None
    scores: Tensor | None


Maps: TypeAlias = tuple[Tensor, Tensor]
"""Weight and bias of maps over heads."""

Tensors = TypeVar("Tensors", Saved, Outputs)


def part_size(q: Tensor, m: int, head_weight: Tensor | None) -> int:
    """Number of examples that backward computes at a time."""
    batch, heads, n, _ = q.shape
    maps = 0 if head_weight is None else head_weight.shape[0] // heads
    return examples_at_a_time(batch, heads * n * m * q.element_size(), maps)


def some(tensors: Tensors, first: int, end: int) -> Tensors:
    """The tensors of some examples; masks and biases may be shared by all."""
    parts = [x if x is None or len(x) == 1 else x[first:end] for x in tensors]
    return type(tensors)(*parts)  # type: ignore[arg-type]


def prior_parts(
    q: Tensor, v: Tensor, m: int, mask: Tensor | None, bias: Tensor | None, prior: Prior
) -> Tensor | None:
    """An empty tensor for the parts of the prior's gradient, if it has one."""
    if prior not in (Prior.CONTEXTUAL, Prior.ROWWISE):
        return None
    batch, heads, n, _ = q.shape
    rows = compiled_for("rows", q, v, m, mask, bias)[0].BLOCK_M
    parts = triton.cdiv(n, rows) * rows // ROWS_OF_A_PART
    return q.new_empty(batch, heads, parts, m, dtype=torch.float32)


def gradients(
    saved: Saved, outputs: Outputs, maps: Maps | None, seeds: Tensor | None, settings: Settings
) -> Tensor | None:
    """Writes all gradients, and returns those of maps over heads, if there are any."""
    batch = len(saved.q)
    size = part_size(saved.q, saved.k.shape[2], None if maps is None else maps[0])
    if size >= batch:
        return _gradients(saved, outputs, maps, seeds, settings, batch)
    found = [
        _gradients(
            some(saved, i, i + size), some(outputs, i, i + size), maps, seeds, settings, batch, i
        )
        for i in range(0, batch, size)
    ]
    return None if maps is None else torch.stack([x for x in found if x is not None]).sum(0)


def _gradients(
    saved: Saved, outputs: Outputs, maps: Maps | None, seeds: Tensor | None, settings: Settings,
    whole_batch: int, first_example: int = 0,
) -> Tensor | None:  # fmt: skip
    """The gradients of a part of the batch."""
    q, k, v, mask, bias = saved.q, saved.k, saved.v, saved.mask, saved.bias
    batch, heads, n, _ = q.shape
    m = k.shape[2]
    upward, dupward = saved.upward, outputs.upward
    if maps is not None and upward is not None:
        # These logits are not needed again; the kernel overwrites them.
        upward = dupward = logits_over_heads(upward, *maps)
    pairs = Pairs.of(q, m, mask, bias)
    logits, dlogits = (q if x is None else x for x in (upward, dupward))
    kinds = 0 if upward is None else upward.shape[3] // m
    weights = q.new_empty(batch, heads, n, m)
    dscores = torch.empty_like(weights) if outputs.scores is None else outputs.scores
    prior, numbers = settings.prior(saved.prior, mask), numbers_of(settings)
    prior_or_any, parts = (q if x is None else x for x in (saved.prior, outputs.prior))
    flags, options = compiled_for(
        "rows" if kinds else "rows without logits", q, v, m, mask, bias,
        **flags_of(settings, prior), IS_POSITIVE=maps is not None,
        NUM_LOGITS=kinds, IS_COMPLETE=settings.complete(prior),
    )  # fmt: skip
    launch_rows(
        (triton.cdiv(n, flags.BLOCK_M) * batch * heads, 1),
        ((q, k, v, logits, prior_or_any, pairs.mask, pairs.bias,
          q if seeds is None else seeds),
         (saved.out, saved.lse, saved.score_lse, saved.prior_lse, saved.smallest, saved.row_end,
          saved.dout, saved.dkl),
         (dlogits, weights, dscores, parts, outputs.q)),
        ((q.stride(), k.stride(), v.stride(), saved.out.stride(), saved.dout.stride(),
          outputs.q.stride(), logits.stride(), pairs.mask_strides, pairs.bias_strides),
         (heads, heads // k.shape[1], n, m, parts.shape[2],
          1 if seeds is None else whole_batch // len(seeds)),
         first_example, numbers),
        C=flags, **options,
    )  # fmt: skip
    flags, options = compiled_for("columns", q, v, m, mask, bias)
    launch_columns(
        (triton.cdiv(m, flags.BLOCK_N) * batch * heads, 1),
        ((q, saved.dout, weights, dscores, saved.row_end), (outputs.k, outputs.v)),
        ((q.stride(), saved.dout.stride(), outputs.k.stride(), outputs.v.stride()),
         (heads, n, m), numbers[0]),
        C=flags, **options,
    )  # fmt: skip
    if maps is None or saved.upward is None or outputs.upward is None or dupward is None:
        return None
    return logits_over_heads_backward(saved.upward, maps[0], dupward, outputs.upward)
