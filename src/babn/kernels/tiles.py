"""Operations of all kernels on a tile: load, mask, score, normalise, store."""

import triton
import triton.language as tl

from babn.kernels.special import LOG2_E

LOWEST = tl.constexpr(-1e30)
"""Stands for minus infinity, differences of which are NaN."""

BOTTOM = tl.constexpr(-5e29)
"""Start of running maxima: above masked numbers, so that their exponentials vanish."""


@triton.jit
def tile_and_plane(size, BLOCK: tl.constexpr):
    """Tile of this program, and the plane of an example and head that it is in.

    Programs have one index, since the others end at 65535; those of a plane are adjacent.
    """
    tiles = tl.cdiv(size, BLOCK)
    return tl.program_id(0) % tiles, tl.program_id(0) // tiles


@triton.jit
def at_head(X, strides, batch, head):
    """Address of a head of an example."""
    return X + batch.to(tl.int64) * strides[0] + head.to(tl.int64) * strides[1]


@triton.jit
def parts_of_stats(STATS, row_count, prior_count):
    """Addresses of what forward keeps in one tensor: five numbers of each row, and the prior.

    For each row the log normalisers of logits, scores and prior, the smallest k up to 1, and the
    end of the keys it sees. Of the prior its shapes, and for each head of keys their part of the KL
    of a row. Only the numbers that a call needs are set.
    """
    SCORE_LSE = STATS + row_count
    PRIOR_LSE = SCORE_LSE + row_count
    SMALLEST = PRIOR_LSE + row_count
    ROW_END = SMALLEST + row_count
    PRIOR = ROW_END + row_count
    return STATS, SCORE_LSE, PRIOR_LSE, SMALLEST, ROW_END, PRIOR, PRIOR + prior_count


@triton.jit
def load_rows(
    X, rows, columns, stride, row_count,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, EVEN_MN: tl.constexpr,
):  # fmt: skip
    """Loads rows, with zeros beyond their number and their size."""
    at = X + rows[:, None] * stride + columns[None, :]
    if EVEN_MN and SIZE == BLOCK:
        return tl.load(at)
    else:
        inside = (rows[:, None] < row_count) & (columns[None, :] < SIZE)
        return tl.load(at, mask=inside, other=0.0)


@triton.jit
def store_rows(
    X, rows, columns, stride, row_count, values, SIZE: tl.constexpr, EVEN: tl.constexpr = False
):
    """Stores rows in the precision of the tensor; EVEN if the block has no others."""
    at = X + rows[:, None] * stride + columns[None, :]
    if EVEN:
        tl.store(at, values.to(X.dtype.element_ty))
    else:
        inside = (rows[:, None] < row_count) & (columns[None, :] < SIZE)
        tl.store(at, values.to(X.dtype.element_ty), mask=inside)


@triton.jit
def pair_offsets(rows, keys, row_stride, key_stride):
    """Offsets of the pairs of a tile, in 64 bits since 32 may not suffice."""
    return rows[:, None].to(tl.int64) * row_stride + keys[None, :] * key_stride


@triton.jit
def load_as_is(X, offsets, inside, EVEN_MN: tl.constexpr):
    """Loads a number for each pair, with zeros outside."""
    if EVEN_MN:
        return tl.load(X + offsets)
    else:
        return tl.load(X + offsets, mask=inside, other=0.0)


@triton.jit
def load_pairs(X, offsets, inside, EVEN_MN: tl.constexpr):
    """The same in float32."""
    return load_as_is(X, offsets, inside, EVEN_MN).to(tl.float32)


@triton.jit
def load_logits(LOGITS, rows, start, row_stride, in_rows, m, C: tl.constexpr):
    """Shape and scale logits of a tile, which are interleaved."""
    columns = C.NUM_LOGITS * start + tl.arange(0, C.NUM_LOGITS * C.BLOCK_N)
    inside = in_rows[:, None] & (columns < C.NUM_LOGITS * m)[None, :]
    return load_as_is(LOGITS, pair_offsets(rows, columns, row_stride, 1), inside, C.EVEN_MN)


@triton.jit
def split_logits(x, C: tl.constexpr):
    """Shape and scale logits of a tile in float32; the same ones if of one kind."""
    if C.NUM_LOGITS == 2:
        shape_logits, scale_logits = tl.split(tl.reshape(x, [C.BLOCK_M, C.BLOCK_N, 2]))
        return shape_logits.to(tl.float32), scale_logits.to(tl.float32)
    else:
        return x.to(tl.float32), x.to(tl.float32)


@triton.jit
def store_logits(
    LOGITS, rows, start, row_stride, in_rows, m, shape_logits, scale_logits,
    IS_SHAPE: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Stores numbers as `load_logits` loads them; of one kind, those of the shape if IS_SHAPE."""
    columns = C.NUM_LOGITS * start + tl.arange(0, C.NUM_LOGITS * C.BLOCK_N)
    inside = in_rows[:, None] & (columns < C.NUM_LOGITS * m)[None, :]
    DTYPE: tl.constexpr = LOGITS.dtype.element_ty
    x = shape_logits if IS_SHAPE else scale_logits
    if C.NUM_LOGITS == 2:
        x = tl.interleave(shape_logits.to(DTYPE), scale_logits.to(DTYPE))
    store_pairs(LOGITS, pair_offsets(rows, columns, row_stride, 1), x, inside, C.EVEN_MN)


@triton.jit
def store_pairs(X, offsets, values, inside, EVEN_MN: tl.constexpr):
    """Stores a number for each pair in the precision of the tensor."""
    if EVEN_MN:
        tl.store(X + offsets, values.to(X.dtype.element_ty))
    else:
        tl.store(X + offsets, values.to(X.dtype.element_ty), mask=inside)


@triton.jit
def keys_seen(MASK, keys, m, stride, HAS_MASK: tl.constexpr):
    """The keys that take part, under a mask of keys."""
    seen = keys < m
    if HAS_MASK:
        seen = tl.load(MASK + keys * stride, mask=seen, other=0) != 0
    return seen


@triton.jit
def load_mlp(W1, B1, W2, columns, units, SIZE: tl.constexpr, HIDDEN: tl.constexpr):
    """Weights of the two layers of the prior's MLP and the first bias, zero beyond their sizes."""
    inside = (units < HIDDEN)[:, None] & (columns < SIZE)[None, :]
    w1 = tl.load(W1 + units[:, None] * SIZE + columns[None, :], mask=inside, other=0.0)
    b1 = tl.load(B1 + units, mask=units < HIDDEN, other=0.0).to(tl.float32)
    w2 = tl.load(W2 + units, mask=units < HIDDEN, other=0.0).to(tl.float32)
    return w1, b1, w2


@triton.jit
def visible(MASK, strides, rows, keys, n, m, C: tl.constexpr):
    """The pairs of a tile that take part, or one row for all queries."""
    inside = keys_seen(MASK, keys, m, strides[3], C.MASK_TYPE == "keys")[None, :]
    if C.MASK_TYPE == "pairs":
        inside = (rows < n)[:, None] & inside
        offsets = pair_offsets(rows, keys, strides[2], strides[3])
        if C.EVEN_MN:
            inside = tl.load(MASK + offsets) != 0
        else:
            inside = tl.load(MASK + offsets, mask=inside, other=0) != 0
    return inside


@triton.jit
def where_seen(seen, x, other, C: tl.constexpr):
    """`x` at pairs that take part, unless all do."""
    if C.EVEN_MN and C.MASK_TYPE == "none":
        return x
    else:
        return tl.where(seen, x, other)


@triton.jit
def dot(a, b, IS_IEEE: tl.constexpr):
    """A product of matrices, of float32 with all digits or in TF32.

    Functions take flags rather than names, since Triton 3.6 passes no strings of `C` to them.
    """
    return tl.dot(a, b, input_precision="ieee" if IS_IEEE else "tf32")


@triton.jit
def scores(q, k, BIAS, strides, rows, keys, n, m, factor, C: tl.constexpr):
    """Scaled dot products of a tile, plus bias, to base 2."""
    s = dot(q, tl.trans(k), C.PRECISION == "ieee") * factor
    if C.HAS_BIAS:
        inside = (rows < n)[:, None] & (keys < m)[None, :]
        offsets = pair_offsets(rows, keys, strides[2], strides[3])
        s += LOG2_E * load_pairs(BIAS, offsets, inside, C.EVEN_MN)
    return s


@triton.jit
def load_prior(PRIOR, keys, m):
    """The prior's shapes, or their unnormalised logarithms if rows normalise them."""
    return tl.load(PRIOR + keys, mask=keys < m, other=0.0)[None, :]


@triton.jit
def log_shape_of_rows(PRIOR, keys, m, seen, prior_lse, C: tl.constexpr):
    """Base-2 logarithms of shapes, normalised over the keys that each row sees."""
    return where_seen(seen, LOG2_E * load_prior(PRIOR, keys, m) - prior_lse[:, None], 0.0, C)


@triton.jit
def prior_shape(PRIOR, keys, m, seen, prior_lse, C: tl.constexpr):
    """The prior's shapes."""
    if C.PRIOR_TYPE == "rows":
        return tl.exp2(log_shape_of_rows(PRIOR, keys, m, seen, prior_lse, C))
    else:
        return load_prior(PRIOR, keys, m)


@triton.jit
def add_exponentials(top, total, x, seen, C: tl.constexpr):
    """One step of an online log-sum-exp to base 2, whose maximum starts at `BOTTOM`."""
    x = where_seen(seen, x, LOWEST, C)
    higher = tl.maximum(top, tl.max(x, 1))
    return higher, total * tl.exp2(top - higher) + tl.sum(tl.exp2(x - higher[:, None]), 1)
