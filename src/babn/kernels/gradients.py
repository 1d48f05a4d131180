"""The gradients of Weibull attention, by the backward kernels, a part of the batch at a time."""

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias, TypeVar

import torch
import triton
from torch import Tensor

from babn.kernels import limits
from babn.kernels.backward import (
    attend_backward_columns,
    attend_backward_queries,
    attend_backward_rows,
)
from babn.kernels.heads import Shares, lifted_by_heads, lifted_by_heads_backward
from babn.kernels.launch import (
    CONTEXTUAL,
    ROWWISE,
    Launcher,
    Lift,
    Pairs,
    Settings,
    head_sizes,
    tile_options,
)

launch_rows = Launcher(attend_backward_rows)
launch_columns = Launcher(attend_backward_columns)
launch_queries = Launcher(attend_backward_queries)


class Saved(NamedTuple):
    """What forward leaves and what comes back to it, for all examples or some of them.

    Attributes:
        lift: The lift, or the state that maps over heads make it of.
        lifted: What they made of it, if it was kept; empty otherwise.
        smallest: The smallest k of each row.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    lift: Tensor | None
    lifted: Tensor
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


class Room(NamedTuple):
    """Where gradients are written: those of each head, and of scores if a bias is added to them.

    Attributes:
        prior: For a few rows at a time, which are still to be added up.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    lift: Tensor | None
    prior: Tensor | None
    scores: Tensor | None


class Maps(NamedTuple):
    """Maps over heads."""

    weight: Tensor
    bias: Tensor


Tensors = TypeVar("Tensors", Saved, Room)
MaskAndBias: TypeAlias = tuple[Tensor | None, Tensor | None]


def part_size(q: Tensor, m: int, head_weight: Tensor | None) -> int:
    """How many examples backward takes at a time."""
    batch, heads, n, _ = q.shape
    maps = 0 if head_weight is None else head_weight.shape[0] // heads
    return limits.examples_at_a_time(batch, heads * n * m * q.element_size(), maps)


def ranges(batch: int, size: int) -> Iterator[tuple[int, int]]:
    """The first example of each part, and the first that is not of it."""
    for first in range(0, batch, size):
        yield first, min(first + size, batch)


def some(tensors: Tensors, first: int, end: int) -> Tensors:
    """A part of the examples; masks and biases may be the same for all."""
    parts = [x if x is None or len(x) == 1 else x[first:end] for x in tensors]
    return type(tensors)(*parts)  # type: ignore[arg-type]


def map_parts(state: Tensor, size: int) -> int:
    """In how many parts the gradients of maps over heads come; also for sizes that are symbols."""
    batch, pairs = state.shape[0], state.shape[2] * state.shape[3]
    before = (batch - 1) // size
    last = Shares.of(batch - before * size, pairs)
    return before * Shares.of(size, pairs).parts + last.parts


def room_for_prior(q: Tensor, v: Tensor, m: int, pairs: MaskAndBias, kind: int) -> Tensor | None:
    """Room for the gradient of a prior of some kind, if there is one."""
    if kind not in (CONTEXTUAL, ROWWISE):
        return None
    batch, heads, n, _ = q.shape
    tiles = tile_options("rows", q, m, *pairs, head_sizes(q, v))
    parts = triton.cdiv(n, tiles["BM"]) * tiles["BM"] // limits.ROWS_OF_A_PART
    parts += kind == ROWWISE
    return q.new_empty(batch, heads, parts, m, dtype=torch.float32)


def gradients(
    saved: Saved, room: Room, maps: Maps | None, seeds: Tensor | None, settings: Settings
) -> Tensor | None:
    """Writes all gradients, and returns those of maps over heads, if there are any, in parts."""
    batch = len(saved.q)
    size = part_size(saved.q, saved.k.shape[2], None if maps is None else maps.weight)
    if size >= batch:
        return _gradients(saved, room, maps, seeds, settings, batch)
    found = [
        _gradients(some(saved, i, j), some(room, i, j), maps, seeds, settings, batch, i)
        for i, j in ranges(batch, size)
    ]
    return None if maps is None else torch.cat([each for each in found if each is not None])


def _gradients(
    saved: Saved, room: Room, maps: Maps | None, seeds: Tensor | None, settings: Settings,
    whole_batch: int, first_example: int = 0,
) -> Tensor | None:  # fmt: skip
    """Those of a part of the batch."""
    q, k, v, mask, bias, prior = saved.q, saved.k, saved.v, saved.mask, saved.bias, saved.prior
    batch, heads, n, _ = q.shape
    groups, m = heads // k.shape[1], k.shape[2]
    lift, dlift = saved.lift, room.lift
    if maps is not None and lift is not None:
        if saved.lifted.numel():
            lift, dlift = saved.lifted, torch.empty_like(saved.lifted)
        else:
            # What is computed here is not needed again; the kernel writes in its place.
            lift = dlift = lifted_by_heads(lift, maps.weight, maps.bias)
    pairs, lifted, dlifted = Pairs.of(q, m, mask, bias), Lift.of(lift, q, m), Lift.of(dlift, q, m)
    weights = q.new_empty(batch, heads, n, m)
    dscores = torch.empty_like(weights) if room.scores is None else room.scores
    row_sum, prior_sum = q.new_empty(2, batch, heads, n, dtype=torch.float32)
    sizes = head_sizes(q, v)
    kernel = "rows" if lifted.kind else "rows without lift"
    tiles = tile_options(kernel, q, m, mask, bias, sizes)
    options, numbers = settings.options(prior, mask), settings.numbers()
    prior_or_any, parts = (q if x is None else x for x in (prior, room.prior))
    balanced = settings.balanced(prior, mask)
    launch_rows(
        (triton.cdiv(n, tiles["BM"]), batch * heads),
        (q, k, v, lifted.first, lifted.second, prior_or_any, pairs.mask, pairs.bias,
         q if seeds is None else seeds, saved.out, saved.lse, saved.score_lse, saved.prior_lse,
         saved.smallest, saved.row_end, saved.dout, saved.dkl,
         dlifted.first, dlifted.second, weights, dscores, row_sum, prior_sum, parts, room.q),
        (q.stride(), k.stride(), v.stride(), saved.out.stride(), saved.dout.stride(),
         room.q.stride(), lifted.strides, pairs.mask_strides, pairs.bias_strides,
         heads, groups, n, m, parts.shape[2], first_example,
         1 if seeds is None else whole_batch // len(seeds), *numbers),
        **sizes, **tiles, **options, POSITIVE=maps is not None, LIFTS=lifted.kind,
        BALANCED=balanced,
    )  # fmt: skip
    finish = settings.normalized and not balanced
    head = max(sizes["BD"], sizes["BDV"]) * q.element_size()
    whole = not balanced and m <= limits.WHOLE and head <= limits.LARGEST_WHOLE_HEAD
    tiles = tile_options("whole" if whole else "columns", q, m, mask, bias, sizes)
    launch_columns(
        (triton.cdiv(m, tiles["BN"]), batch * heads),
        (q, k, prior_or_any, pairs.mask, pairs.bias, saved.score_lse, saved.prior_lse,
         saved.row_end, saved.dout, weights, dscores, row_sum, prior_sum,
         room.k, room.v, parts, room.q),
        (q.stride(), k.stride(), saved.dout.stride(), room.k.stride(), room.v.stride(),
         room.q.stride(), pairs.mask_strides, pairs.bias_strides,
         heads, groups, n, m, parts.shape[2], numbers[0]),
        **sizes, **tiles, NORMALIZED=finish, PRIORS=options["PRIORS"], WHOLE=whole,
    )  # fmt: skip
    if not balanced and not whole:
        tiles = tile_options("queries", q, m, mask, bias, sizes)
        launch_queries(
            (triton.cdiv(n, tiles["BM"]), batch * heads),
            (q, k, pairs.mask, pairs.bias, saved.score_lse, saved.row_end, dscores, row_sum,
             room.q),
            (q.stride(), k.stride(), room.q.stride(), pairs.mask_strides, pairs.bias_strides,
             heads, groups, n, m, numbers[0]),
            D=sizes["D"], BD=sizes["BD"], **tiles, NORMALIZED=finish,
        )  # fmt: skip
    if maps is None or saved.lift is None or room.lift is None or dlift is None:
        return None
    return lifted_by_heads_backward(saved.lift, maps.weight, dlift, room.lift)
